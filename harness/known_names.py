"""What an entry of a --known file can name: the scenarios there are, the state machine, and tests marked @explore.

Those of the project's own test files are known by name only where the run has collected them. For others it must do
that some file of the project that speaks of this package defines a function of that name.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from fencepost.harness.errors import UsageError
from fencepost.harness.known import (
    BAD_CLASSES,
    BROKEN_INVARIANTS,
    EXPECTATION,
    FINDINGS,
    KnownFailure,
)
from fencepost.harness.scenario import Scenario, installed_scenarios
from fencepost.harness.similar import what_there_is

OF_ANY_RUN = BROKEN_INVARIANTS | {EXPECTATION}
NOT_OF_THE_PROJECT = frozenset({"node_modules", "site-packages", "build", "dist", "__pycache__"})


def of_machine() -> str:
    from fencepost.harness.machine_example import NAME

    return NAME


@dataclass
class Nameable:
    """By name of a scenario, its variants and what it can fail by."""

    variants: dict[str, set[str]] = field(default_factory=dict)
    findings: dict[str, frozenset[str]] = field(default_factory=dict)

    def add(self, name: str, variants: Iterable[str], findings: frozenset[str]) -> None:
        self.variants.setdefault(name, set()).update(variants)
        self.findings[name] = self.findings.get(name, frozenset()) | findings

    def add_scenario(self, scenario: Scenario) -> None:
        classes = BAD_CLASSES if scenario.classified else frozenset()
        self.add(scenario.name, scenario.variant_names, OF_ANY_RUN | classes)

    def add_exploration(self, name: str) -> None:
        self.add(name, [name], BROKEN_INVARIANTS | BAD_CLASSES)

    def add_machine(self, variants: Iterable[str] = ()) -> None:
        self.add(of_machine(), variants, OF_ANY_RUN)

    def add_installed(self) -> None:
        for scenario in installed_scenarios():
            self.add_scenario(scenario)
        self.add_machine()

    def check(self, known: Iterable[KnownFailure], *projects: Path) -> None:
        """Raises UsageError for the first entry that can never be met. `projects` are where own scenarios may be."""
        for entry in known:
            self._check(entry, projects)

    def _check(self, entry: KnownFailure, projects: Iterable[Path]) -> None:
        name = entry.scenario.partition("[")[0]
        if name not in self.variants:
            if any(is_defined_in(project, name) for project in projects):
                return
            nearest = what_there_is(name, self.variants, "`fencepost list` shows every scenario")
            raise UsageError(f"{entry.where}: there is no scenario {name!r}; {nearest}.")
        variants = self.variants[name]
        if variants and entry.scenario not in (name, *variants):
            nearest = what_there_is(entry.scenario, sorted(variants), f"write {name!r} for all it has")
            raise UsageError(f"{entry.where}: there is no variant {entry.scenario!r}; {nearest}.")
        if entry.invariant not in self.findings[name]:
            possible = [finding for finding in FINDINGS if finding in self.findings[name]]
            raise UsageError(
                f"{entry.where}: {name!r} cannot fail by {entry.invariant!r}, only by {', '.join(possible)}."
            )


def is_defined_in(project: Path, name: str) -> bool:
    """Whether a Python file below, of those that speak of this package, defines a function of this name."""
    definition = re.compile(rf"^\s*def {re.escape(name)}\(", re.MULTILINE)
    return any(
        "fencepost" in text and definition.search(text) for text in map(_text_of, _python_files(project))
    )


def _python_files(project: Path) -> Iterator[Path]:
    for folder, inside, files in os.walk(project):
        below = Path(folder)
        inside[:] = [
            each
            for each in inside
            if not each.startswith(".")
            and each not in NOT_OF_THE_PROJECT
            and not (below / each / "pyvenv.cfg").exists()
        ]
        yield from (below / file for file in files if file.endswith(".py"))


def _text_of(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:  # a link that leads nowhere, or a file that is not ours to read
        return ""
