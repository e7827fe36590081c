"""Partial-order reduction: one order of each class of orders that differ only in independent steps.

It goes through the orders as exhaustive does, those with the fewest deviations first, and leaves out each that it can
tell to end as one already run does: because all its events are known (`unfolding.py`), or because an earlier beginning
led to the same events with the same one to move (Musuvathi, Qadeer: Partial-order reduction for context-bounded state
exploration, 2007). So its runs are a selection of exhaustive's in the same sequence, with the first of each class
among them: it never needs more runs to a failure than exhaustive.

What is next is found here; the runs happen in tasks. Of the orders that follow the first that must be run, some are
handed out with it, though they may turn out to be alike; how many does not depend on the number of workers.

Preserved are final rows, answers, and every invariant that speaks of one job at a time. An invariant over two jobs
that no step touches together may see their steps in either order: only exhaustive shows it both.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from fencepost.harness.explore.executor import Choice, Execution, Schedule
from fencepost.harness.explore.exhaustive import following, interleavings
from fencepost.harness.explore.footprint import Relation
from fencepost.harness.explore.happens_before import HappensBefore
from fencepost.harness.explore.program import Fault
from fencepost.harness.explore.replay import Difference, Nondeterminism, Run, can_move, run, stay_with
from fencepost.harness.explore.strategy import Answer, Task
from fencepost.harness.explore.tally import Tally
from fencepost.harness.explore.unfolding import Configuration, ConfigurationKey, Event, Unfolding, Unforeseen

LOOK_AHEAD: Final = 16
"""Orders handed out at once, at most."""
RUNS_PER_RISK: Final = 64
"""For so many runs made, one order is handed out that may turn out to be alike to another of its batch: in a small
search none is run in vain, in a large one all workers have something to do and one run in twenty is in vain."""
MOST_STATES: Final = 100_000
"""Of counting how many orders one run stands for; beyond it the count is left out, never the run."""


@dataclass(frozen=True, slots=True)
class Beginning:
    """An order to follow: these events, then `choice`, then nobody moves that need not."""

    path: tuple[Event, ...] = ()
    choice: Choice | None = None


@dataclass(frozen=True, slots=True)
class Order:
    """One order to run: this beginning, then nobody moves that need not. `sights` is what is foreseen of it."""

    schedule: Schedule = ()
    sights: tuple[str, ...] = ()

    def perform(self, execution: Execution) -> Answer:
        answer = Answer()
        try:
            done = run(execution, following(self.schedule), self.sights)
        except Nondeterminism as error:
            answer.tally.differences.append(error.difference)
        else:
            answer.tally.add(done, 0)  # how many orders it stands for is known once its class is
            answer.more = done
        return answer


@dataclass(slots=True)
class _Trail:
    """Where beginnings have led to so far: configurations, with who moves next if nobody need wait.

    `under` is an earlier trail that this one only adds to.
    """

    under: _Trail | None = None
    first: dict[ConfigurationKey, int] = field(default_factory=dict)  # in which round
    taken: set[tuple[ConfigurationKey, Choice]] = field(default_factory=set)

    def round_of(self, key: ConfigurationKey) -> int | None:
        found = self.first.get(key)
        return self.under.round_of(key) if found is None and self.under is not None else found

    def has(self, key: ConfigurationKey, stays: Choice) -> bool:
        return (key, stays) in self.taken or (self.under is not None and self.under.has(key, stays))

    def add(self, later: _Trail) -> None:
        self.first |= later.first
        self.taken |= later.taken


@dataclass(slots=True)
class _Followed:
    """A beginning followed as far as is foreseen. `unknown` is the choice nobody has seen there, if `must_run`."""

    at: Configuration
    trail: _Trail
    branches: list[tuple[int, Choice]] = field(default_factory=list)
    must_run: bool = False
    unknown: Choice | None = None

    @property
    def alike(self) -> tuple[str, int, Choice] | None:
        """Equal for two whose unknown choice may turn out to be the same event."""
        if self.unknown is None:
            return None
        return self.unknown.thread, self.at.last_of(self.unknown.thread), self.unknown


class _Search:
    """Goes through the orders in exhaustive's sequence, as far as the known events tell how they go."""

    def __init__(self, known: Unfolding) -> None:
        self._known = known
        self._round = 0
        self._beginnings: Iterator[Beginning] = iter([Beginning()])
        self._waiting: deque[Beginning] = deque()  # taken from the round and not yet followed to the end
        self._branches: list[tuple[tuple[Event, ...], list[tuple[int, Choice]]]] = []
        self._trail = _Trail()

    def must_run(self, least: int, most: int) -> list[Order]:
        """The next orders whose class may be new, in sequence; none: there is no such order."""
        while True:
            for beginning in self._upcoming():
                followed = self._follow(beginning, self._trail)
                if followed.must_run:
                    return self._look_ahead(least, most)
                self._trail.add(followed.trail)
                if followed.branches:
                    self._branches.append((tuple(followed.at.path), followed.branches))
                self._waiting.popleft()
            if not self._branches:
                return []
            branches, self._branches = self._branches, []
            self._beginnings = (
                Beginning(path[:at], choice) for path, places in branches for at, choice in reversed(places)
            )
            self._round += 1

    def _upcoming(self) -> Iterator[Beginning]:
        """Always the first of those waiting: whoever takes it away gets the next."""
        while self._waiting or (more := next(self._beginnings, None)) is not None:
            if not self._waiting:
                assert more is not None
                self._waiting.append(more)
            yield self._waiting[0]

    def _look_ahead(self, least: int, most: int) -> list[Order]:
        """The order that must be run, and those after it; after `least` of them only while no two can be alike."""
        trail = _Trail(self._trail)
        orders: list[Order] = []
        alike: set[tuple[str, int, Choice]] = set()
        at = 0
        while len(orders) < most:
            if at == len(self._waiting):
                more = next(self._beginnings, None)
                if more is None:
                    break
                self._waiting.append(more)
            followed = self._follow(self._waiting[at], trail)
            trail.add(followed.trail)
            at += 1
            if not followed.must_run:
                continue
            if followed.alike is not None:
                if followed.alike in alike and len(orders) >= least:
                    break
                alike.add(followed.alike)
            path = followed.at.path
            rest = () if followed.unknown is None else (followed.unknown,)
            orders.append(Order((*followed.at.schedule, *rest), self._known.sights(path)))
        return orders

    def _follow(self, beginning: Beginning, trail: _Trail) -> _Followed:
        known = self._known
        at = Configuration()
        for event in beginning.path:
            at.add(event)
        here = _Trail(trail)
        followed = _Followed(at, here)
        choice = beginning.choice
        while True:
            if choice is None:
                enabled = known.enabled(at)
                if not enabled:
                    followed.must_run = enabled is None or not known.has_ended_in(at)
                    return followed
                choice = stay_with(at.last, enabled)
                key = at.key
                first = here.round_of(key)
                if here.has(key, choice) or (first is not None and first + 1 < self._round):
                    return followed  # whatever comes from here came before, with as few deviations
                here.taken.add((key, choice))
                if first is None:
                    here.first[key] = self._round
                    place = len(at.path)
                    followed.branches += [(place, other) for other in reversed(enabled) if other != choice]
            foreseen = known.foreseen(at, choice)
            if foreseen is None:
                followed.must_run, followed.unknown = True, choice
                return followed
            at.add(foreseen)
            choice = None


class Reduced:
    """What is known and where the search is; both are made anew from the runs when the relation grows."""

    name = "reduced"

    def __init__(self, budget: int, faults: Iterable[Fault] = (), relation: Relation | None = None) -> None:
        self._budget = budget
        self._limits = {fault.name: fault.times for fault in faults}
        self._tally = Tally()
        self._runs: list[Run] = []
        self._finished = False
        self._begin_anew(relation or Relation())

    def _begin_anew(self, relation: Relation) -> None:
        self._known = Unfolding(relation, self._limits)
        self._search = _Search(self._known)
        self._stands_for: int | None = 0
        for done in self._runs:
            self._insert(done)

    def batch(self) -> Sequence[Task]:
        ran = self._tally.runs
        if self._tally.differences:
            return []
        if not self._runs:
            return [Order()]
        orders = self._search.must_run(ran // RUNS_PER_RISK, min(max(self._budget - ran, 1), LOOK_AHEAD))
        self._finished = not orders
        return orders if ran < self._budget else []

    def absorb(self, task: Task, answer: Answer) -> None:
        told = [difference.told(self._has_seen(difference)) for difference in answer.tally.differences]
        answer.tally.differences[:] = told
        self._tally.merge(answer.tally)
        if not isinstance(answer.more, Run):
            return
        self._runs.append(answer.more)
        revealed = frozenset[str]().union(*(step.footprint.revealed for step in answer.more.steps))
        if revealed <= self._known.relation.revealed:
            self._insert(answer.more)
        else:
            # What was left out under the smaller relation may not be alike: the search begins anew.
            self._begin_anew(self._known.relation.with_revealed(revealed))

    def _has_seen(self, difference: Difference) -> bool:
        """Whether what was expected is what this very order did before."""
        order, expected = difference.schedule, difference.expected
        return any(
            done.schedule[: len(order)] == order
            and (expected == done.sights[len(order) - 1] or expected == can_move(order[-1]))
            for done in self._runs
        )

    def _insert(self, done: Run) -> None:
        try:
            is_new = self._known.insert(done)
        except Unforeseen as error:
            self._tally.differences.append(error.difference)
            return
        if is_new:
            counted = HappensBefore(done.steps, self._known.relation).orders(MOST_STATES)
            known = self._stands_for
            self._stands_for = None if known is None or counted is None else known + counted

    @property
    def tally(self) -> Tally:
        self._tally.stands_for = self._stands_for
        return self._tally

    @property
    def complete(self) -> bool:
        return self._finished and not self._tally.differences

    def basis(self) -> str:
        runs = self._tally.runs
        if not self.complete:
            return f"reduced: {runs:,} runs of a budget of {self._budget:,}, not finished"
        total = interleavings(self._tally) or self._stands_for
        if total is None:
            return f"reduced: {runs:,} stand for all, too many to count"
        return f"reduced: {runs:,} stand for {total:,}"
