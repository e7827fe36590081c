"""What many runs came to: counted where they ran, merged where they were asked for."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from fencepost.harness.explore.evidence import Evidence
from fencepost.harness.explore.executor import Outcome, Schedule, schedule_text
from fencepost.harness.explore.replay import Difference, Run, switches

KEPT_FAILURES: Final = 100
"""Shortest first. More would only make the merged result large."""

Shape = tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class Failure:
    """A failing order. `number` counts runs in the strategy's own order, whatever worker ran them."""

    schedule: Schedule
    outcome: Outcome
    number: int

    @property
    def rank(self) -> tuple[int, int, Schedule]:
        return (len(self.schedule), switches(self.schedule), self.schedule)


@dataclass(slots=True)
class Tally:
    """Counts of the runs so far; `add` and `merge` in the strategy's order keep `number`s the same for all workers."""

    runs: int = 0
    cut: int = 0  # of those, runs given up because what followed had been seen in another order
    blocked: int = 0
    longest: int = 0
    stands_for: int | None = 0  # orders these runs stand for; None: not counted
    fingerprint: int = 0  # of the set of orders; independent of their sequence
    outcomes: dict[Outcome, int] = field(default_factory=dict)
    examples: dict[Outcome, Schedule] = field(default_factory=dict)
    shapes: set[Shape] = field(default_factory=set)  # how many steps each thread took
    distinct: set[int] = field(default_factory=set)
    failures: list[Failure] = field(default_factory=list)
    failed: int = 0
    first_failure: int | None = None
    differences: list[Difference] = field(default_factory=list)
    evidence: Evidence = field(default_factory=Evidence)

    def add(self, run: Run, stands_for: int | None = 1) -> None:
        schedule = run.schedule
        self.runs += 1
        self.longest = max(self.longest, len(schedule))
        if run.outcome is None:
            self.cut += 1
            return
        digest = _digest(schedule)
        self.fingerprint = (self.fingerprint + digest) % 2**64
        self.distinct.add(digest)
        self.blocked += run.blocked
        self.evidence.add(run.steps, run.outcome.seen)
        self.shapes.add(_shape(schedule))
        self.stands_for = _sum(self.stands_for, stands_for)
        self.outcomes[run.outcome] = self.outcomes.get(run.outcome, 0) + 1
        self.examples.setdefault(run.outcome, schedule)
        if run.outcome.failed:
            self.failed += 1
            self.first_failure = self.first_failure or self.runs
            self._keep([Failure(schedule, run.outcome, self.runs)])

    def merge(self, later: Tally) -> None:
        before = self.runs
        self.runs += later.runs
        self.cut += later.cut
        self.blocked += later.blocked
        self.longest = max(self.longest, later.longest)
        self.stands_for = _sum(self.stands_for, later.stands_for)
        self.fingerprint = (self.fingerprint + later.fingerprint) % 2**64
        self.distinct |= later.distinct
        self.shapes |= later.shapes
        for outcome, count in later.outcomes.items():
            self.outcomes[outcome] = self.outcomes.get(outcome, 0) + count
            self.examples.setdefault(outcome, later.examples[outcome])
        self.failed += later.failed
        if self.first_failure is None and later.first_failure is not None:
            self.first_failure = before + later.first_failure
        self._keep([Failure(f.schedule, f.outcome, before + f.number) for f in later.failures])
        self.differences.extend(later.differences)
        self.evidence.merge(later.evidence)

    def _keep(self, more: Iterable[Failure]) -> None:
        known = {failure.schedule: failure for failure in self.failures}
        for failure in more:
            known.setdefault(failure.schedule, failure)
        self.failures = sorted(known.values(), key=lambda failure: failure.rank)[:KEPT_FAILURES]


def _sum(one: int | None, other: int | None) -> int | None:
    return None if one is None or other is None else one + other


def _digest(schedule: Schedule) -> int:
    # Not hash(): it differs from process to process.
    return int.from_bytes(hashlib.blake2b(schedule_text(schedule).encode(), digest_size=8).digest())


def _shape(schedule: Schedule) -> Shape:
    counts: dict[str, int] = {}
    for choice in schedule:
        counts[choice.thread] = counts.get(choice.thread, 0) + 1
    return tuple(sorted(counts.items()))
