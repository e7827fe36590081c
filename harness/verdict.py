"""The verdict of a run: fail-closed, and made in one place.

`judge` is the only function that can say pass. A run that broke nothing but in which something expected did
not happen is inconclusive: a race that was survived and a race that never happened look the same otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from fencepost.harness.classify import GOOD, Classification
from fencepost.harness.history import Violation


class Verdict(StrEnum):
    PASS = "pass"
    FAIL = "fail"
    INCONCLUSIVE = "inconclusive"


@dataclass(frozen=True, slots=True)
class Hold:
    """A barrier the schedule put in an actor's way."""

    actor: str
    operation: str
    checkpoint: str
    reached: bool


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault the schedule armed."""

    name: str
    fired: bool
    note: str = ""  # what helps to see why it did not fire


@dataclass(frozen=True, slots=True)
class WitnessSeen:
    """What the scenario declared as proof that its race happened, and whether it was seen."""

    sentence: str
    seen: bool


@dataclass(frozen=True, slots=True)
class Unmet:
    """An expectation of the scenario that did not hold."""

    step: int
    message: str


@dataclass(frozen=True, slots=True)
class InvariantCount:
    evaluated: int  # on a non-empty observation
    exercised: int  # of those, how often what it speaks about was there at all


@dataclass(frozen=True, slots=True)
class RunFacts:
    """All that a verdict rests on; true once the run is over."""

    steps: int
    declared_actors: tuple[str, ...]
    actors_that_ran: frozenset[str]
    holds: tuple[Hold, ...]
    faults: tuple[Fault, ...]
    witnesses: tuple[WitnessSeen, ...]
    invariants: Mapping[str, InvariantCount]
    violations: tuple[Violation, ...]
    unmet: tuple[Unmet, ...]
    obstacles: tuple[
        str, ...
    ]  # what kept the run from going on: a deadline, a broken adapter, a missing lease
    drained: bool  # the run was brought to its end, with every call answered
    classification: Classification | None = None  # of a scenario judged by its late writes
    control: Judgement | None = None  # of the control run such a scenario was preceded by


@dataclass(frozen=True, slots=True)
class Judgement:
    verdict: Verdict
    reasons: tuple[str, ...]


def judge(facts: RunFacts) -> Judgement:
    """A broken invariant is a fact whatever else is missing; an unmet expectation only where the race happened."""
    if facts.violations:
        broken = tuple(_tell_violation(violation) for violation in facts.violations)
        return Judgement(Verdict.FAIL, (*broken, *_tell_class(facts.classification)))
    unmet = tuple(f"step {unmet.step}: {unmet.message}" for unmet in facts.unmet)
    missing = missing_evidence(facts, cut_short=bool(unmet or facts.obstacles))
    late = _tell_class(facts.classification)
    if missing:
        return Judgement(Verdict.INCONCLUSIVE, (*missing, *unmet, *late))
    if unmet or late:
        return Judgement(Verdict.FAIL, (*unmet, *late))
    return Judgement(Verdict.PASS, ())


def missing_evidence(facts: RunFacts, *, cut_short: bool) -> tuple[str, ...]:
    """Everything that had to happen for this run to mean something, and did not.

    `cut_short`: an unmet expectation or an obstacle ended the schedule early, so an actor may not have had its
    turn yet; the witnesses alone then say whether the race had happened.
    """
    missing = [*facts.obstacles]
    if facts.steps == 0:
        missing.append("no step was run")
    if not cut_short:
        missing.extend(
            f"{actor} was in the schedule and never ran"
            for actor in facts.declared_actors
            if actor not in facts.actors_that_ran
        )
    missing.extend(
        f"{hold.actor} was to be held in {hold.operation} at {hold.checkpoint} and never came there"
        for hold in facts.holds
        if not hold.reached
    )
    missing.extend(
        f"the fault {fault.name} was armed and never fired" + (f" ({fault.note})" if fault.note else "")
        for fault in facts.faults
        if not fault.fired
    )
    if not facts.witnesses:
        missing.append("the scenario declares nothing that would prove its race happened")
    missing.extend(f"not witnessed: {witness.sentence}" for witness in facts.witnesses if not witness.seen)
    if not facts.invariants:
        missing.append("no invariant applied")
    missing.extend(
        f"invariant {name} was never evaluated on a non-empty observation"
        for name, count in facts.invariants.items()
        if count.evaluated == 0
    )
    if not facts.drained:
        missing.append("the run was not brought to its end")
    if facts.control is not None and facts.classification is None:
        missing.append("nothing was tried that the queue would have had to refuse")
    if facts.control is not None and facts.control.verdict is not Verdict.PASS:
        told = "; ".join(facts.control.reasons)
        missing.append(f"the control run, without the fault, did not pass ({facts.control.verdict}): {told}")
    return tuple(missing)


def _tell_class(classification: Classification | None) -> tuple[str, ...]:
    if classification is None or classification.kind in GOOD:
        return ()
    return tuple(
        f"{finding.kind} at step {finding.step}: {finding.message} (job {finding.job})"
        for finding in classification.findings
    )


def _tell_violation(violation: Violation) -> str:
    job = f" (job {violation.job})" if violation.job is not None else ""
    return f"{violation.invariant} broken at step {violation.step}: {violation.message}{job}"
