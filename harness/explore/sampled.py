"""What the seeded strategies share: run number i is a function of the program, the seed and i alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Final, Protocol

from fencepost.harness.explore.executor import Execution
from fencepost.harness.explore.replay import Difference, Nondeterminism, Pick, Run, run, sight
from fencepost.harness.explore.strategy import Answer, Task
from fencepost.harness.explore.tally import Tally

TASK_RUNS: Final = 20
"""Few enough that the last ones leave no worker idle for long, and enough to see an order that does not repeat."""


class Sampler(Protocol):
    """Makes the pick of one run from its own source of chance."""

    def pick(self, chance: Random) -> Pick: ...


def chance(strategy: str, seed: int, number: int) -> Random:
    # A string seeds by its hash's bits, the same in every process and version.
    return Random(f"fencepost/{strategy}/{seed}/{number}")


@dataclass(frozen=True, slots=True)
class Sample:
    """Runs `first` to `last` (exclusive)."""

    strategy: str
    seed: int
    first: int
    last: int
    sampler: Sampler

    def perform(self, execution: Execution) -> Answer:
        answer = Answer()
        seen: dict[tuple[str, ...], str] = {}
        try:
            for number in range(self.first, self.last):
                done = run(execution, self.sampler.pick(chance(self.strategy, self.seed, number)))
                compare(done, seen)
                answer.tally.add(done)
        except Nondeterminism as error:
            answer.tally.differences.append(error.difference)
        return answer


def compare(done: Run, seen: dict[tuple[str, ...], str]) -> None:
    """Where this run begins as an earlier one did, it must look as that one did."""
    beginning: tuple[str, ...] = ()
    for at, step in enumerate(done.steps):
        beginning = (*beginning, str(step.choice))
        now = sight(step, done.enabled[at + 1])
        before = seen.setdefault(beginning, now)
        if before != now:
            raise Nondeterminism(Difference(done.schedule[: at + 1], before, now))
    if done.outcome is not None:
        now = f"ends with {done.outcome}"
        before = seen.setdefault((*beginning, "end"), now)
        if before != now:
            raise Nondeterminism(Difference(done.schedule, before, now))


class Sampled:
    """Base of the two: numbers its runs from 0 and hands them out in equal pieces."""

    name: str

    def __init__(self, budget: int, seed: int) -> None:
        self.budget = budget
        self.seed = seed
        self._given_out = 0
        self._tally = Tally()

    def sampler(self) -> Sampler:
        raise NotImplementedError

    def batch(self) -> Sequence[Task]:
        # In rounds, so that a search that may stop at its first failure does not have to run them all.
        last = min(self.budget, max(2 * self._given_out, 20 * TASK_RUNS))
        if self._tally.differences:
            return []
        starts = range(self._given_out, last, TASK_RUNS)
        self._given_out = max(last, self._given_out)
        sampler = self.sampler() if starts else None
        return [
            Sample(self.name, self.seed, start, min(start + TASK_RUNS, last), sampler)
            for start in starts
            if sampler is not None
        ]

    def absorb(self, task: Task, answer: Answer) -> None:
        self._tally.merge(answer.tally)

    @property
    def tally(self) -> Tally:
        return self._tally

    @property
    def complete(self) -> bool:
        return self._tally.runs >= self.budget and not self._tally.differences
