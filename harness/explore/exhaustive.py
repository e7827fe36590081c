"""All interleavings, each once: depth first, by running the beginning again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import factorial, prod
from typing import Final

from fencepost.harness.explore.executor import Choice, Execution, Schedule, StepResult
from fencepost.harness.explore.replay import Nondeterminism, Pick, Run, retraced, run, stay
from fencepost.harness.explore.strategy import Answer, Task
from fencepost.harness.explore.tally import Shape, Tally

SPREAD: Final = 64
"""So many open beginnings before tasks get larger: enough for the workers of a cluster to find one each."""
TASK_RUNS: Final = 200
"""Long enough that handing it out costs little, short enough that a lost worker loses little."""


@dataclass(frozen=True, slots=True)
class Beginning:
    """Where to branch off: all runs that start with `schedule`. `sights` is what its known part looked like."""

    schedule: Schedule = ()
    sights: tuple[str, ...] = ()  # without the last step, which nobody has taken there yet


@dataclass(frozen=True, slots=True)
class Subtree:
    """Up to `quota` runs below one beginning; what is left of it comes back, in order."""

    beginning: Beginning
    quota: int

    def perform(self, execution: Execution) -> Answer:
        tally = Tally()
        stack = [self.beginning]
        try:
            while stack and tally.runs < self.quota:
                beginning = stack.pop()
                done = run(execution, _following(beginning.schedule), beginning.sights)
                tally.add(done)
                stack.extend(_branches(done, len(beginning.schedule)))
        except Nondeterminism as error:
            tally.differences.append(error.difference)
        return Answer(tally, tuple(reversed(stack)))


def _following(schedule: Schedule) -> Pick:
    def pick(steps: Sequence[StepResult], enabled: tuple[Choice, ...]) -> Choice:
        if len(steps) < len(schedule):
            return retraced(schedule, len(steps), enabled)
        return stay(steps, enabled)

    return pick


def _branches(done: Run, known: int) -> list[Beginning]:
    """What this run did not try, the deepest last: that is where the search goes on."""
    schedule, sights = done.schedule, done.sights
    return [
        Beginning((*schedule[:at], other), sights[:at])
        for at in range(known, len(schedule))
        for other in reversed(done.enabled[at])
        if other != schedule[at]
    ]


class Exhaustive:
    """Frontier and budget; the runs themselves happen in the tasks."""

    name = "exhaustive"

    def __init__(self, budget: int) -> None:
        self._budget = budget
        self._frontier: list[Beginning] = [Beginning()]
        self._next: list[Beginning] = []
        self._tally = Tally()

    def batch(self) -> Sequence[Task]:
        self._frontier, self._next = self._next or self._frontier, []
        left = self._budget - self._tally.runs
        if left <= 0 or not self._frontier or self._tally.differences:
            return []
        quota = 1
        if len(self._frontier) >= SPREAD:
            quota = max(1, min(TASK_RUNS, left // len(self._frontier)))
        tasks = [Subtree(beginning, quota) for beginning in self._frontier[: left // quota]]
        self._next = self._frontier[len(tasks) :]
        self._frontier = []
        self._before = len(self._next)
        return tasks

    def absorb(self, task: Task, answer: Answer) -> None:
        assert isinstance(answer.more, tuple)
        self._tally.merge(answer.tally)
        # In front of what was not handed out, in task order: the frontier stays in depth-first order.
        at = len(self._next) - self._before
        self._next[at:at] = answer.more

    @property
    def tally(self) -> Tally:
        return self._tally

    @property
    def complete(self) -> bool:
        return not self._next and not self._frontier and not self._tally.differences

    def basis(self) -> str:
        runs = self._tally.runs
        total = runs if self.complete else interleavings(self._tally)
        if total is None:
            return f"exhaustive: {runs:,} of an unknown number"
        return f"exhaustive: {runs:,} of {total:,}"


def interleavings(tally: Tally) -> int | None:
    """How many orders there are, from one run's steps per thread; None where blocking or branching decides it."""
    if tally.blocked or len(tally.shapes) != 1:
        return None
    return multinomial(next(iter(tally.shapes)))


def multinomial(shape: Shape) -> int:
    return factorial(sum(count for _, count in shape)) // prod(factorial(count) for _, count in shape)
