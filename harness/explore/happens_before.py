"""Which steps of a run had to come in that order, which pairs raced, and how many orders a run stands for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from fencepost.harness.explore.executor import StepResult
from fencepost.harness.explore.footprint import Relation


def steps_dependent(relation: Relation, one: StepResult, other: StepResult) -> bool:
    return bool(
        one.choice.thread == other.choice.thread
        or ((one.freed or other.freed) and not one.threads.isdisjoint(other.threads))
        # Two steps that wait for different rows look independent, and the second of them closes the circle.
        or (one.changes_waits and other.changes_waits)
        or relation.dependent(one.footprint, other.footprint)
    )


@dataclass(frozen=True, slots=True)
class Race:
    """Two dependent steps of different threads with nothing between them that forces their order."""

    first: int
    second: int


class HappensBefore:
    """The partial order of one run. Sets of steps are the bits of an int: steps are few and runs many."""

    def __init__(self, steps: Sequence[StepResult], relation: Relation) -> None:
        self.steps = steps
        self.before: list[int] = []  # per step, the steps that happen before it
        self._direct: list[int] = []  # per step, the earlier ones it depends on itself
        for second, step in enumerate(steps):
            direct = before = 0
            for first in range(second):
                if steps_dependent(relation, steps[first], step):
                    direct |= 1 << first
                    before |= 1 << first | self.before[first]
            self.before.append(before)
            self._direct.append(direct)

    def races(self) -> Iterator[Race]:
        for second, step in enumerate(self.steps):
            # Latest first: whatever happens before a dependent step already seen is ordered through that one.
            ordered = 0
            for first in reversed(range(second)):
                if not self._direct[second] >> first & 1 or ordered >> first & 1:
                    continue
                ordered |= self.before[first]
                if step.choice.thread not in self.steps[first].threads:
                    yield Race(first, second)

    def unforced_by(self, race: Race) -> list[int]:
        """What can happen instead of the race's first step: all up to its second that does not need the first."""
        kept = [at for at in range(race.first + 1, race.second) if not self.before[at] >> race.first & 1]
        return [*kept, race.second]

    def orders(self, most_states: int) -> int | None:
        """How many orders have this very partial order (its linear extensions); None: too many to count."""
        threads: dict[str, list[int]] = {}
        for at, step in enumerate(self.steps):
            threads.setdefault(step.choice.thread, []).append(at)
        following = {at: later for own in threads.values() for at, later in pairwise([*own, None])}
        # A state is what was done and, per thread, what is next: at most one candidate a thread.
        done_in: dict[int, int] = {0: 1}
        next_of: dict[int, tuple[int, ...]] = {0: tuple(own[0] for own in threads.values())}
        states = 0
        for _ in self.steps:
            further: dict[int, int] = {}
            next_further: dict[int, tuple[int, ...]] = {}
            for done, ways in done_in.items():
                for at in next_of[done]:
                    if self.before[at] & ~done:
                        continue
                    then = done | 1 << at
                    further[then] = further.get(then, 0) + ways
                    if then not in next_further:
                        later = following[at]
                        others = tuple(candidate for candidate in next_of[done] if candidate != at)
                        next_further[then] = others if later is None else (*others, later)
            states += len(further)
            if states > most_states:
                return None
            done_in, next_of = further, next_further
        return sum(done_in.values())
