"""Makes a failing order small: fewer faults, fewer operations, fewer jobs, fewer switches between threads.

1-minimal: taking away any one fault, operation, actor, job or switch makes the failure go away; the result is what an
exact replay showed. What was found by then stays found where shrinking comes to no end: its budget is spent, a smaller
order does not fail again, somebody presses Ctrl-C.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from fencepost.harness.errors import FencepostError, UsageError
from fencepost.harness.explore.executor import Choice, Execution, Executor, Outcome, Schedule, StepResult
from fencepost.harness.explore.program import Program
from fencepost.harness.explore.replay import Difference, Nondeterminism, Run, nearly, replay, run, switches

DEFAULT_BUDGET: Final = 2_000
BUDGET_SPENT: Final = "the budget for shrinking was spent"
INTERRUPTED: Final = "shrinking was interrupted"

StillFails = Callable[[Outcome], bool]


@dataclass(frozen=True, slots=True)
class Shrunk:
    """The smallest found. `minimal` is false when something ended it first, `ended_by`; `runs` is what it cost."""

    program: Program
    run: Run
    minimal: bool
    runs: int
    ended_by: str = ""
    interrupted: bool = False

    @property
    def schedule(self) -> Schedule:
        return self.run.schedule


@dataclass(frozen=True, slots=True)
class _Candidate:
    program: Program
    schedule: Schedule


class _BudgetSpent(Exception):
    """Only between the search and its caller below."""


class _Shrinker:
    def __init__(self, executor: Executor, fails: StillFails, budget: int) -> None:
        self._executor = executor
        self._fails = fails
        self._budget = budget
        self._open: tuple[Program, Execution] | None = None
        self._tried: dict[_Candidate, Run] = {}
        self.runs = 0

    def execution(self, program: Program) -> Execution:
        if self._open is None or self._open[0] != program:
            self.close()
            self._open = (program, self._executor.open(program))
        return self._open[1]

    def close(self) -> None:
        if self._open is not None:
            self._open[1].close()
            self._open = None

    def try_(self, candidate: _Candidate) -> Run:
        if candidate not in self._tried:
            if self.runs >= self._budget:
                raise _BudgetSpent
            self.runs += 1
            self._tried[candidate] = run(self.execution(candidate.program), nearly(candidate.schedule))
        return self._tried[candidate]

    def smaller(self, program: Program, failing: Run) -> tuple[Program, Run] | None:
        """The first piece that can be taken away; None: no piece can."""
        size = _size(program, failing)
        for candidate in _pieces(program, failing.steps):
            done = self.try_(candidate)
            outcome = done.outcome
            if outcome is not None and self._fails(outcome) and _size(candidate.program, done) < size:
                return candidate.program, done
        return None


def shrink(
    executor: Executor,
    program: Program,
    schedule: Schedule,
    *,
    fails: StillFails | None = None,
    budget: int = DEFAULT_BUDGET,
) -> Shrunk:
    """`fails` says what counts as the same failure; without it, breaking one of the invariants that broke."""
    shrinker = _Shrinker(executor, fails or (lambda outcome: False), budget)
    try:
        first = replay(shrinker.execution(program), schedule)
        assert first.outcome is not None
        broken = set(first.outcome.broken)
        if fails is None:
            fails = lambda outcome: not broken.isdisjoint(outcome.broken)  # noqa: E731
            shrinker._fails = fails
        if not fails(first.outcome):
            raise UsageError("there is nothing to shrink: this order does not fail")
        smaller, ended_by = [(program, first)], ""
        try:
            while (found := shrinker.smaller(*smaller[-1])) is not None:
                smaller.append(found)
        except _BudgetSpent:
            ended_by = BUDGET_SPENT
        except KeyboardInterrupt:
            # What is known is told, and not run again: whoever interrupts wants an end.
            return Shrunk(*smaller[-1], False, shrinker.runs + 1, INTERRUPTED, interrupted=True)
        except FencepostError as error:
            ended_by = f"shrinking ended early: {error}"
        while len(smaller) > 1:
            try:
                again = _verified(shrinker.execution(smaller[-1][0]), smaller[-1][1])
            except FencepostError as error:
                smaller.pop()
                ended_by = f"a smaller order did not fail again: {error}"
            else:
                return Shrunk(smaller[-1][0], again, not ended_by, shrinker.runs + 2, ended_by)
        return Shrunk(program, first, not ended_by, shrinker.runs + 2, ended_by)
    finally:
        shrinker.close()


def _verified(execution: Execution, found: Run) -> Run:
    again = replay(execution, found.schedule, found.sights)
    if again.outcome != found.outcome:
        difference = Difference(found.schedule, f"ends with {found.outcome}", f"ends with {again.outcome}")
        raise Nondeterminism(difference)
    return again


def _size(program: Program, failing: Run) -> tuple[int, ...]:
    """What shrinks, the most telling first."""
    return (
        faults_in(failing.steps) + sum(fault.times for fault in program.faults),
        program.operations,
        program.jobs,
        switches(failing.schedule),
        len(failing.steps),
    )


def faults_in(steps: Sequence[StepResult]) -> int:
    return sum(bool(step.choice.variant) or step.place < 0 for step in steps)


def _pieces(program: Program, steps: Sequence[StepResult]) -> Iterator[_Candidate]:
    """Everything that can be taken away as one piece."""
    schedule = tuple(step.choice for step in steps)
    for fault in program.faults:
        fewer = program.with_fault_less(fault.name)
        yield _Candidate(fewer, schedule)  # it struck less often than it was allowed to
        for at, step in enumerate(steps):
            if step.choice.thread == fault.name:
                yield _Candidate(fewer, (*schedule[:at], *schedule[at + 1 :]))
            elif step.choice.variant == fault.name:
                yield _Candidate(fewer, (*schedule[:at], Choice(step.choice.thread), *schedule[at + 1 :]))
    for actor in program.actors:
        if len(program.actors) > 1:
            others = tuple(choice for choice in schedule if choice.thread != actor.name)
            yield _Candidate(program.without_actor(actor.name), others)
        if len(actor.operations) > 1:
            for place in reversed(range(len(actor.operations))):
                kept = tuple(s.choice for s in steps if (s.choice.thread, s.place) != (actor.name, place))
                yield _Candidate(program.without_operation(actor.name, place), kept)
    if program.jobs:
        yield _Candidate(program.with_a_job_less(), schedule)
    for merged in fewer_switches(schedule):
        yield _Candidate(program, merged)


def fewer_switches(schedule: Schedule) -> Iterator[Schedule]:
    """Every way to let one thread's stretch join its neighbour stretch of the same thread, before or after."""
    stretches: list[list[Choice]] = []
    for choice in schedule:
        if stretches and stretches[-1][0].thread == choice.thread:
            stretches[-1].append(choice)
        else:
            stretches.append([choice])
    for at, stretch in enumerate(stretches):
        others = [*stretches[:at], *stretches[at + 1 :]]
        thread = stretch[0].thread
        earlier = [place for place in range(at) if stretches[place][0].thread == thread]
        later = [place for place in range(at + 1, len(stretches)) if stretches[place][0].thread == thread]
        if earlier:
            joined = [*others[: earlier[-1] + 1], stretch, *others[earlier[-1] + 1 :]]
            yield tuple(choice for piece in joined for choice in piece)
        if later:
            joined = [*others[: later[0] - 1], stretch, *others[later[0] - 1 :]]
            yield tuple(choice for piece in joined for choice in piece)
