"""The passing order nearest to a failing one: the fewest races turned round, the fewest faults left out.

A breadth-first search over classes of orders. Its neighbours are what one race the other way round, or one fault
less, makes of a run: swapping independent steps would only run the same again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from fencepost.harness.explore.executor import Choice, Execution, Schedule, StepResult
from fencepost.harness.explore.footprint import Relation
from fencepost.harness.explore.happens_before import HappensBefore
from fencepost.harness.explore.replay import Run, nearly, replay, run

DEFAULT_BUDGET: Final = 500


@dataclass(frozen=True, slots=True)
class Turn:
    """One thing that was changed: `then` came before `first` instead of after it, or a fault was left out."""

    first: StepResult
    then: StepResult | None

    def __str__(self) -> str:
        if self.then is None:
            return f"without the fault: {self.first}"
        return f"{self.then}\n  before\n{self.first}"


@dataclass(frozen=True, slots=True)
class Nearest:
    """Both as executed. `turns` lead from the failing order to the other one; `runs` is what the search cost."""

    failing: Run
    other: Run
    turns: tuple[Turn, ...]
    runs: int

    @property
    def swaps(self) -> int:
        """How many times two neighbouring steps must change places to make one order of the other."""
        return adjacent_swaps(self.failing.schedule, self.other.schedule)


def nearest(
    execution: Execution, failing: Schedule, relation: Relation | None = None, budget: int = DEFAULT_BUDGET
) -> Nearest | None:
    """None: there is none within the budget. A run that proves nothing does not count as one that held."""
    relation = relation or Relation()
    first = replay(execution, failing)
    relation = relation.with_revealed(
        frozenset(thing for step in first.steps for thing in step.footprint.revealed)
    )
    seen = {_class_of(first, relation)}
    queue: deque[tuple[Run, tuple[Turn, ...]]] = deque([(first, ())])
    runs = 1
    while queue:
        base, turns = queue.popleft()
        for turn, schedule in neighbours(base, relation):
            if runs >= budget:
                return None
            runs += 1
            done = run(execution, nearly(schedule))
            which = _class_of(done, relation)
            if which in seen:
                continue
            seen.add(which)
            assert done.outcome is not None
            if not done.outcome.failed and not done.outcome.missing:
                return Nearest(first, done, (*turns, turn), runs)
            queue.append((done, (*turns, turn)))
    return None


def neighbours(base: Run, relation: Relation) -> Iterator[tuple[Turn, Schedule]]:
    """Latest race first: what a bug hangs on is more often near its end."""
    order = HappensBefore(base.steps, relation)
    schedule = base.schedule
    for race in sorted(order.races(), key=lambda race: (race.first, race.second), reverse=True):
        ahead = order.unforced_by(race)
        held = [at for at in range(race.first, race.second) if at not in ahead]
        places = [*range(race.first), *ahead, *held, *range(race.second + 1, len(schedule))]
        yield (
            Turn(base.steps[race.first], base.steps[race.second]),
            tuple(schedule[at] for at in places),
        )
    for at, step in enumerate(base.steps):
        if step.choice.variant:
            plain = (*schedule[:at], Choice(step.choice.thread), *schedule[at + 1 :])
            yield Turn(step, None), plain


def _class_of(done: Run, relation: Relation) -> tuple[object, ...]:
    """Equal for two runs that differ only in the order of independent steps."""
    order = HappensBefore(done.steps, relation)
    number: dict[str, int] = {}
    names = []
    for step in done.steps:
        thread = step.choice.thread
        number[thread] = number.get(thread, 0) + 1
        names.append((str(step.choice), number[thread]))
    return tuple(
        sorted(
            (name, tuple(sorted(names[at] for at in range(here) if order.before[here] >> at & 1)))
            for here, name in enumerate(names)
        )
    )


def adjacent_swaps(one: Schedule, other: Schedule) -> int:
    """Inversions between two orders of the same moves; moves only one of them has are left out."""
    places: dict[tuple[str, int], int] = {}
    for name, place in _numbered(one):
        places[name] = place
    common = [places[name] for name, _ in _numbered(other) if name in places]
    return sum(common[i] > common[j] for i in range(len(common)) for j in range(i + 1, len(common)))


def _numbered(schedule: Schedule) -> Iterator[tuple[tuple[str, int], int]]:
    count: dict[str, int] = {}
    for place, choice in enumerate(schedule):
        count[choice.thread] = count.get(choice.thread, 0) + 1
        yield (choice.thread, count[choice.thread]), place
