"""What happened in at least one order of a search: a race that was survived and one that never happened look alike
otherwise."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from fencepost.harness.explore.executor import Kind, Operation, Seen, StepResult
from fencepost.harness.explore.program import UNDER_A_CLAIM, Program


@dataclass(slots=True)
class Evidence:
    """Of many runs: each entry happened in one of them at least."""

    begun: set[Operation] = field(default_factory=set)
    struck: set[str] = field(default_factory=set)
    in_between: bool = False  # one actor moved while another was in the middle of an operation
    answers: set[tuple[Operation, Kind, str]] = field(default_factory=set)
    changed_rows: bool = False
    met: bool = False
    of_a_queue: bool = False  # the executor tells what it saw of answers and rows

    def add(self, steps: Sequence[StepResult], seen: Seen | None) -> None:
        for step in steps:
            if step.place >= 0:
                self.begun.add((step.choice.thread, step.place))
            if (fault := fault_of(step)) and not step.in_vain:
                self.struck.add(fault)
        self.in_between = self.in_between or _in_between(steps)
        if seen is not None:
            self.of_a_queue = True
            self.answers |= seen.answers
            self.changed_rows |= seen.changed_rows
            self.met |= seen.met

    def merge(self, other: Evidence) -> None:
        self.begun |= other.begun
        self.struck |= other.struck
        self.in_between |= other.in_between
        self.answers |= other.answers
        self.changed_rows |= other.changed_rows
        self.met |= other.met
        self.of_a_queue |= other.of_a_queue

    def kinds(self, operation: Operation) -> set[Kind]:
        return {kind for answered, kind, _ in self.answers if answered == operation}

    def reasons(self, operation: Operation) -> str:
        return ", ".join(sorted({reason for answered, _, reason in self.answers if answered == operation}))


def fault_of(step: StepResult) -> str:
    return step.choice.variant or (step.choice.thread if step.place < 0 else "")


def _in_between(steps: Sequence[StepResult]) -> bool:
    under_way: set[Operation] = set()
    last: Operation | None = None
    for step in steps:
        if step.place < 0:
            continue
        which = (step.choice.thread, step.place)
        if which != last and which in under_way:
            return True
        under_way.add(which)
        last = which
    return False


def what_never_happened(program: Program, evidence: Evidence) -> tuple[str, ...]:
    """Why a search in which nothing failed proves nothing. Each is a sentence."""
    return (*_faults(program, evidence), *_operations(program, evidence), *_as_a_whole(program, evidence))


def _faults(program: Program, evidence: Evidence) -> Iterator[str]:
    for fault in program.faults:
        if fault.name in evidence.struck:
            continue
        if fault.name == "expire":
            yield "expire was asked for, and in no order was a lease held when it struck"
        else:
            yield f"{fault.name} was asked for and struck in no order"


def _operations(program: Program, evidence: Evidence) -> Iterator[str]:
    for which, operation in operations_of(program):
        told = f"{which[0]}'s {operation}"
        kinds = evidence.kinds(which)
        if which not in evidence.begun:
            why = f": {which[0]} never had a claim" if operation in UNDER_A_CLAIM else ""
            yield f"{told} was begun in no order{why}"
        elif evidence.of_a_queue and not kinds:
            yield f"{told} was answered in no order"
        elif kinds == {Kind.ERROR}:
            yield f"{told} ended with an error in every order ({evidence.reasons(which)})"


def _as_a_whole(program: Program, evidence: Evidence) -> Iterator[str]:
    if not evidence.of_a_queue:
        return
    claims = [which for which, operation in operations_of(program) if operation == "claim"]
    if claims and not any(Kind.DONE in evidence.kinds(which) for which in claims):
        refusals = sorted({reason for which, _, reason in evidence.answers if which in claims and reason})
        yield "no claim got a job in any order" + (f" ({', '.join(refusals)})" if refusals else "")
    if not evidence.changed_rows:
        yield "no operation changed a row in any order"


def what_to_know(program: Program, evidence: Evidence) -> tuple[str, ...]:
    """What a reader of a search in which nothing failed should not have to find out alone."""
    return (*_alike_in_every_order(program, evidence), *_no_race(program, evidence))


def _alike_in_every_order(program: Program, evidence: Evidence) -> Iterator[str]:
    for which, operation in operations_of(program):
        kinds = evidence.kinds(which)
        told = f"{which[0]}'s {operation}"
        if kinds == {Kind.REFUSED}:
            yield f"{told} was refused in every order ({evidence.reasons(which)})"
        elif kinds == {Kind.NOTHING}:
            yield f"{told} {'got no job' if operation == 'claim' else 'recovered no lease'} in any order"


def _no_race(program: Program, evidence: Evidence) -> Iterator[str]:
    if len(program.actors) < 2:
        return
    if evidence.of_a_queue and not evidence.met:
        yield "no race: in no order did two actors act on one job"
    elif not evidence.in_between:
        yield "no operation was under way while another actor moved: each was one step"


def operations_of(program: Program) -> Iterator[tuple[Operation, str]]:
    for actor in program.actors:
        for place, operation in enumerate(actor.operations):
            yield (actor.name, place), operation
