"""A project's known failures: a file of scenario, invariant and reason, so that its CI fails on new ones only.

    [[known]]
    scenario = "fail_while_b_runs[five_attempts]"  # without the brackets: in every variant
    invariant = "corrupted"                        # an invariant, a class of late writes, or "expectation"
    reason = "retry_job names the job by its id alone; upstream issue 1234"
    queue = "procrastinate"                        # optional: only on this queue, by any of its names

Only a failure can be known: a run that proved nothing says nothing about any of them. A known failure that is no
longer there is announced, and does not fail the run: the fix should not break the build it arrives in. Which scenarios
an entry can name is in known_names.py.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fencepost.harness.classify import GOOD, Class
from fencepost.harness.errors import UsageError
from fencepost.harness.invariants import INVARIANTS
from fencepost.harness.similar import what_there_is
from fencepost.harness.verdict import Judgement, RunFacts, Verdict

EXPECTATION = "expectation"
"""What a scenario's own expectation counts as, where no invariant speaks."""

BROKEN_INVARIANTS = frozenset(invariant.name for invariant in INVARIANTS)
BAD_CLASSES = frozenset(kind.value for kind in Class if kind not in GOOD)
NO_FAILURES = {Verdict.INCONCLUSIVE.value, *(kind.value for kind in GOOD)}

FINDINGS = (*(invariant.name for invariant in INVARIANTS), *sorted(BAD_CLASSES), EXPECTATION)
"""Every name a failure can be known by."""

OUTDATED = "Take them out of the --known file, so that they are news if they come back."
"""To be said after the failures that are gone."""

FIELDS = ("scenario", "invariant", "reason", "queue")
REQUIRED = ("scenario", "invariant", "reason")


@dataclass(frozen=True, slots=True)
class KnownFailure:
    scenario: str
    invariant: str
    reason: str
    queue: str | None = None
    where: str = field(default="", compare=False)
    """The file and the number in it, as a message begins."""

    def covers(self, variant: str) -> bool:
        return self.scenario in (variant, variant.partition("[")[0])

    def speaks_of(self, variant: str, queue: frozenset[str]) -> bool:
        """`queue` is every name the queue goes by."""
        return self.covers(variant) and (self.queue is None or self.queue in queue)

    def as_json(self) -> dict[str, str | None]:
        return {name: getattr(self, name) for name in FIELDS}

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


def what_held(facts: RunFacts, judgement: Judgement) -> frozenset[str]:
    """The names a run that passed could have failed by; empty for any other verdict.

    A run that failed ended there, so what it would have met later is not known to hold.
    """
    if judgement.verdict is not Verdict.PASS:
        return frozenset()
    evaluated = {name for name, count in facts.invariants.items() if count.evaluated}
    classes = BAD_CLASSES if facts.classification is not None else frozenset()
    return frozenset({*evaluated, *classes, EXPECTATION})


@dataclass(frozen=True, slots=True)
class Ran:
    """What one run showed, or why it could not be; true once it is over. It crosses from an xdist worker as JSON."""

    variant: str
    variants: frozenset[str]
    """All of its scenario, whether they were asked for or not."""
    queue: frozenset[str]
    """Every name the queue goes by."""
    held: frozenset[str] = frozenset()
    """What it could have failed by and did not."""
    impossible: bool = False
    """The queue, or its server, lacks something for it."""

    def as_json(self) -> str:
        return json.dumps(
            {
                "variant": self.variant,
                "variants": sorted(self.variants),
                "queue": sorted(self.queue),
                "held": sorted(self.held),
                "impossible": self.impossible,
            }
        )

    @classmethod
    def from_json(cls, text: str) -> Ran:
        told = json.loads(text)
        return cls(
            told["variant"],
            frozenset(told["variants"]),
            frozenset(told["queue"]),
            frozenset(told["held"]),
            told["impossible"],
        )


@dataclass
class Baseline:
    """The known failures of one file, and what the runs so far have shown of them."""

    known: tuple[KnownFailure, ...] = ()
    _ran: list[Ran] = field(default_factory=list)

    def explain(self, variant: str, queue: frozenset[str], failed: Sequence[str]) -> tuple[KnownFailure, ...]:
        """Why a failed run is no news: one entry per finding. Empty if any of them is new."""
        entries = [self._entry(variant, queue, name) for name in failed]
        if not entries or any(entry is None for entry in entries):
            return ()
        return tuple(entry for entry in entries if entry is not None)

    def _entry(self, variant: str, queue: frozenset[str], name: str) -> KnownFailure | None:
        return next((k for k in self.speaking_of(variant, queue) if k.invariant == name), None)

    def speaking_of(self, variant: str, queue: frozenset[str]) -> list[KnownFailure]:
        return [entry for entry in self.known if entry.speaks_of(variant, queue)]

    def note(self, ran: Ran) -> None:
        if self.speaking_of(ran.variant, ran.queue):
            self._ran.append(ran)

    @property
    def gone(self) -> tuple[KnownFailure, ...]:
        """Entries whose every variant was run, as far as it can be, and ended without a failure."""
        return tuple(entry for entry in self.known if self._is_gone(entry))

    def _is_gone(self, entry: KnownFailure) -> bool:
        ran = [ran for ran in self._ran if entry.speaks_of(ran.variant, ran.queue)]
        covered = {variant for one in ran for variant in one.variants if entry.covers(variant)}
        impossible = {one.variant for one in ran if one.impossible}
        possible = [one for one in ran if not one.impossible]
        held = bool(possible) and all(entry.invariant in one.held for one in possible)
        return held and covered <= impossible | {one.variant for one in possible}


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
    _check_finding(entry["invariant"], where)
    return KnownFailure(**entry, where=where)


def _check_finding(name: str, where: str) -> None:
    if name in NO_FAILURES:
        raise UsageError(f"{where}: {name!r} is no failure, and only failures can be known.")
    if name not in FINDINGS:
        raise UsageError(f"{where}: no failure goes by the name {name!r}; {what_there_is(name, FINDINGS)}.")
