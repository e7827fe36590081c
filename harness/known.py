"""A project's known failures: a file of scenario, invariant and reason, so that its CI fails on new ones only.

    [[known]]
    scenario = "fail_while_b_runs[five_attempts]"  # without the brackets: in every variant
    invariant = "corrupted"                        # an invariant, a class of late writes, or "expectation"
    reason = "retry_job names the job by its id alone; upstream issue 1234"
    queue = "procrastinate"                        # optional: only on this queue

Only a failure can be known: a run that proved nothing says nothing about any of them. A known failure that is no
longer there is announced, and does not fail the run: the fix should not break the build it arrives in.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fencepost.harness.classify import GOOD
from fencepost.harness.errors import UsageError
from fencepost.harness.verdict import Judgement, RunFacts, Verdict

EXPECTATION = "expectation"
"""What a scenario's own expectation counts as, where no invariant speaks."""

FIELDS = ("scenario", "invariant", "reason", "queue")
REQUIRED = ("scenario", "invariant", "reason")


@dataclass(frozen=True, slots=True)
class KnownFailure:
    scenario: str
    invariant: str
    reason: str
    queue: str | None = None

    def speaks_of(self, variant: str, queue: str) -> bool:
        named = self.scenario in (variant, variant.partition("[")[0])
        return named and self.queue in (None, queue)

    def __str__(self) -> str:
        on = f" on queue '{self.queue}'" if self.queue is not None else ""
        return f"{self.scenario}: {self.invariant}{on} ({self.reason})"


def what_failed(facts: RunFacts, judgement: Judgement) -> tuple[str, ...]:
    """The names a failed run's findings can be known by; empty for any other verdict."""
    if judgement.verdict is not Verdict.FAIL:
        return ()
    names = [violation.invariant for violation in facts.violations]
    if facts.classification is not None and facts.classification.kind not in GOOD:
        names.append(facts.classification.kind.value)
    if facts.unmet:
        names.append(EXPECTATION)
    return tuple(dict.fromkeys(names))


@dataclass
class Baseline:
    """The known failures of one file, and which of them the runs so far have shown."""

    known: tuple[KnownFailure, ...] = ()
    _ran: set[KnownFailure] = field(default_factory=set)
    _seen: set[KnownFailure] = field(default_factory=set)

    def explain(self, variant: str, queue: str, failed: Sequence[str]) -> tuple[KnownFailure, ...]:
        """Why a failed run is no news: one entry per finding. Empty if any of them is new."""
        entries = [self._entry(variant, queue, name) for name in failed]
        if not entries or any(entry is None for entry in entries):
            return ()
        return tuple(entry for entry in entries if entry is not None)

    def _entry(self, variant: str, queue: str, name: str) -> KnownFailure | None:
        return next((k for k in self.known if k.speaks_of(variant, queue) and k.invariant == name), None)

    def note(self, variant: str, queue: str, failed: Iterable[str]) -> None:
        """A run that proved something, with what failed in it."""
        names = frozenset(failed)
        for entry in self.known:
            if entry.speaks_of(variant, queue):
                self._ran.add(entry)
                if entry.invariant in names:
                    self._seen.add(entry)

    @property
    def gone(self) -> tuple[KnownFailure, ...]:
        """Entries whose scenario was run and never showed them. One that was not run is not gone."""
        return tuple(entry for entry in self.known if entry in self._ran and entry not in self._seen)


def read_known(path: Path) -> Baseline:
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(f"--known {path}: cannot be read ({error.strerror}).") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"--known {path}: not UTF-8 text.") from error
    return parse_known(text, str(path))


def parse_known(text: str, name: str) -> Baseline:
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"--known {name}: not TOML ({error}).") from error
    other = sorted(set(data) - {"known"})
    if other:
        raise UsageError(f"--known {name}: only [[known]] tables belong there, found {other[0]!r}.")
    entries = data.get("known", [])
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise UsageError(f"--known {name}: write each known failure as a [[known]] table.")
    known = tuple(_parse_entry(entry, name, number) for number, entry in enumerate(entries, 1))
    for number, entry in enumerate(known, 1):
        if _key(entry) in {_key(earlier) for earlier in known[: number - 1]}:
            raise UsageError(f"--known {name}, entry {number}: {entry.scenario} is there twice for this.")
    return Baseline(known)


def _key(entry: KnownFailure) -> tuple[str, str, str | None]:
    return entry.scenario, entry.invariant, entry.queue


def _parse_entry(entry: Mapping[str, Any], name: str, number: int) -> KnownFailure:
    where = f"--known {name}, entry {number}"
    unknown = sorted(set(entry) - set(FIELDS))
    if unknown:
        raise UsageError(f"{where}: there is no field {unknown[0]!r}; there are {', '.join(FIELDS)}.")
    for field_name in REQUIRED:
        if field_name not in entry:
            raise UsageError(f"{where}: it lacks '{field_name}'.")
    for field_name, value in entry.items():
        if not isinstance(value, str) or not value.strip():
            raise UsageError(f"{where}: '{field_name}' must be a text, it is {value!r}.")
    return KnownFailure(**entry)
