"""All interleavings, each once, those with the fewest deviations first, by running the beginning again.

The order that nobody is made to wait in comes first (`stay`); then all orders that deviate from it once, where another
moves than the one whose turn it was; then those that deviate twice, and so on. Most races need few deviations.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from math import factorial, prod
from typing import Final

from fencepost.harness.explore.executor import Choice, Execution, Schedule, StepResult
from fencepost.harness.explore.replay import Nondeterminism, Pick, Run, retraced, run, stay
from fencepost.harness.explore.strategy import Answer, Task
from fencepost.harness.explore.tally import Shape, Tally

BATCH_RUNS: Final = 512
"""So many before a failure is looked at; a round may have any number."""
TASK_RUNS: Final = 16
"""Long enough that handing it out costs little, short enough that a lost worker loses little."""


@dataclass(frozen=True, slots=True)
class Beginning:
    """Where to branch off: the order that starts with `schedule`. `sights` is what its known part looked like."""

    schedule: Schedule = ()
    sights: tuple[str, ...] = ()  # without the last step, which nobody has taken there yet


@dataclass(frozen=True, slots=True)
class Seen:
    """An order that was run, as far as it is needed to branch off it; `known` is how long its beginning was."""

    schedule: Schedule
    sights: tuple[str, ...]
    enabled: tuple[tuple[Choice, ...], ...]
    known: int

    def branches(self) -> Iterator[Beginning]:
        """What this run did not try and nobody before it: each one deviation more."""
        for at in reversed(range(self.known, len(self.schedule))):
            for other in self.enabled[at]:
                if other != self.schedule[at]:
                    yield Beginning((*self.schedule[:at], other), self.sights[:at])


@dataclass(frozen=True, slots=True)
class Beginnings:
    """One run from each beginning; what was seen comes back, in order."""

    beginnings: tuple[Beginning, ...]

    def perform(self, execution: Execution) -> Answer:
        tally = Tally()
        seen: list[Seen] = []
        try:
            for beginning in self.beginnings:
                done = run(execution, following(beginning.schedule), beginning.sights)
                tally.add(done)
                seen.append(_seen(done, len(beginning.schedule)))
        except Nondeterminism as error:
            tally.differences.append(error.difference)
        return Answer(tally, tuple(seen))


def following(schedule: Schedule) -> Pick:
    def pick(steps: Sequence[StepResult], enabled: tuple[Choice, ...]) -> Choice:
        if len(steps) < len(schedule):
            return retraced(schedule, len(steps), enabled)
        return stay(steps, enabled)

    return pick


def _seen(done: Run, known: int) -> Seen:
    return Seen(done.schedule, done.sights, done.enabled, known)


class Exhaustive:
    """The rounds and the budget; the runs themselves happen in the tasks."""

    name = "exhaustive"

    def __init__(self, budget: int) -> None:
        self._budget = budget
        self._tally = Tally()
        self._round: Iterator[Beginning] = iter([Beginning()])
        self._ran: list[Seen] = []  # in this round, in order
        self._waiting: list[Beginning] = []  # taken from the round, not handed out

    def batch(self) -> Sequence[Task]:
        left = min(self._budget - self._tally.runs, BATCH_RUNS)
        if left <= 0 or self._tally.differences:
            return []
        batch = self._take(left)
        if not batch:
            ran, self._ran = self._ran, []
            self._round = (beginning for seen in ran for beginning in seen.branches())
            batch = self._take(left)
        return [Beginnings(tuple(batch[at : at + TASK_RUNS])) for at in range(0, len(batch), TASK_RUNS)]

    def _take(self, number: int) -> list[Beginning]:
        taken = self._waiting[:number]
        del self._waiting[:number]
        return [*taken, *islice(self._round, number - len(taken))]

    def absorb(self, task: Task, answer: Answer) -> None:
        assert isinstance(answer.more, tuple)
        self._tally.merge(answer.tally)
        self._ran.extend(answer.more)

    @property
    def tally(self) -> Tally:
        return self._tally

    @property
    def complete(self) -> bool:
        if self._tally.differences or not self._tally.runs:
            return False
        if not self._waiting:
            self._waiting = list(islice(self._round, 1))
        return not self._waiting and not any(True for seen in self._ran for _ in seen.branches())

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
