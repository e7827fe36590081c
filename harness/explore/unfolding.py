"""What the runs so far say about orders nobody has run: events with their causes.

An *event* is a step together with all steps it depends on, directly or through others. The same choice after the same
causes is the same event in whatever order independent steps came; so an event seen in one run tells what that choice
does in every order that has its causes and nothing else it depends on. A set of events that is closed under causes is
a *configuration*: all orders of one class end in the same. (Rodríguez, Sousa, Sharma, Kroening: Unfolding-based
partial order reduction, 2015, is the same idea put to another use.)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from fencepost.harness.explore.executor import Choice, Schedule, StepResult
from fencepost.harness.explore.footprint import Relation
from fencepost.harness.explore.happens_before import steps_dependent
from fencepost.harness.explore.replay import Difference, Run, sight

Causes = tuple[tuple[str, int, int], ...]
"""Per thread: how many of its events are among the causes, and the last of them."""

ConfigurationKey = tuple[tuple[str, int], ...]
"""Per thread its last event, which has all the earlier ones among its causes."""


@dataclass(frozen=True, slots=True)
class Event:
    number: int
    step: StepResult
    causes: Causes


@dataclass(slots=True)
class Configuration:
    """The events of a beginning, grown one by one; per thread in order. One that sets others free is in theirs too."""

    chains: dict[str, list[Event]] = field(default_factory=dict)
    path: list[Event] = field(default_factory=list)
    strikes: dict[str, int] = field(default_factory=dict)

    def add(self, event: Event) -> None:
        self.path.append(event)
        for thread in event.step.threads:
            self.chains.setdefault(thread, []).append(event)
        variant = event.step.choice.variant
        if variant:
            self.strikes[variant] = self.strikes.get(variant, 0) + 1

    @property
    def key(self) -> ConfigurationKey:
        return tuple((thread, chain[-1].number) for thread, chain in sorted(self.chains.items()))

    @property
    def last(self) -> str | None:
        return self.path[-1].step.choice.thread if self.path else None

    def last_of(self, thread: str) -> int:
        chain = self.chains.get(thread)
        return chain[-1].number if chain else -1

    @property
    def schedule(self) -> Schedule:
        return tuple(event.step.choice for event in self.path)


class Unfolding:
    """All events of the runs so far under one relation.

    `limits` says how often a variant (a fault that strikes an actor's step) may strike in one run; it is what decides
    whether one that an actor could meet is still there to be met.
    """

    def __init__(self, relation: Relation, limits: Mapping[str, int]) -> None:
        self.relation = relation
        self._limits = limits
        self._events: dict[tuple[Choice, Causes], Event] = {}
        self._after: dict[tuple[str, int, Choice], list[Event]] = {}
        self._offers: dict[tuple[str, int], dict[frozenset[str], tuple[Choice, ...]]] = {}
        self._threads: list[str] = []
        self._dependent: dict[tuple[int, int], bool] = {}
        self._ended: set[ConfigurationKey] = set()

    # -- what was seen ------------------------------------------------------------------------------------------

    def insert(self, done: Run) -> bool:
        """Whether the run's class is new."""
        at = Configuration()
        self._note_offers(at, {choice.thread for choice in done.enabled[0]}, done.enabled[0])
        for step, after in zip(done.steps, done.enabled[1:], strict=True):
            at.add(self._event(at, step))
            self._note_offers(at, step.threads, after)
        if at.key in self._ended:
            return False
        self._ended.add(at.key)
        return True

    def _note_offers(self, at: Configuration, threads: Iterable[str], enabled: Sequence[Choice]) -> None:
        spent = self._spent(at)
        for thread in threads:
            if thread not in self._threads:
                self._threads = sorted([*self._threads, thread])
            offered = tuple(choice for choice in enabled if choice.thread == thread)
            self._offers.setdefault((thread, at.last_of(thread)), {})[spent] = offered

    def _spent(self, at: Configuration) -> frozenset[str]:
        """Variants that have struck as often as they may, so that nobody meets them any more."""
        return frozenset(
            variant for variant, times in at.strikes.items() if times >= self._limits.get(variant, 1)
        )

    def _event(self, at: Configuration, step: StepResult) -> Event:
        causes = self._causes(at, step)
        event = self._events.get((step.choice, causes))
        if event is None:
            event = Event(len(self._events), step, causes)
            self._events[step.choice, causes] = event
            self._after.setdefault(
                (step.choice.thread, at.last_of(step.choice.thread), step.choice), []
            ).append(event)
        elif str(event.step) != str(step):
            raise Unforeseen(
                Difference((*at.schedule, step.choice), str(event.step), str(step), foreseen=True)
            )
        return event

    def _causes(self, at: Configuration, step: StepResult) -> Causes:
        """The latest of each thread is enough to compare with: what came before it in the thread is its cause."""
        last: dict[str, tuple[int, int]] = {}
        for thread, chain in at.chains.items():
            for place in reversed(range(len(chain))):
                if last.get(thread, (0, 0))[0] > place:
                    break
                if steps_dependent(self.relation, chain[place].step, step):
                    _take(last, thread, place + 1, chain[place].number)
                    for other, count, number in chain[place].causes:
                        _take(last, other, count, number)
                    break
        return tuple((thread, count, number) for thread, (count, number) in sorted(last.items()))

    # -- what follows -------------------------------------------------------------------------------------------

    def enabled(self, at: Configuration) -> tuple[Choice, ...] | None:
        """What can move; None where a thread was only seen after a fault that could still strike here."""
        spent = self._spent(at)
        moves: list[Choice] = []
        for thread in self._threads:
            offers = self._offers.get((thread, at.last_of(thread)), {frozenset(): ()})
            offered = next((offered for before, offered in offers.items() if before <= spent), None)
            if offered is None:
                return None
            moves += [choice for choice in offered if choice.variant not in spent]
        return tuple(sorted(moves))

    def foreseen(self, at: Configuration, choice: Choice) -> Event | None:
        """What the choice does here, if the runs so far tell."""
        for event in self._after.get((choice.thread, at.last_of(choice.thread), choice), ()):
            if self._is_next(at, event):
                return event
        return None

    def _is_next(self, at: Configuration, event: Event) -> bool:
        caused = dict.fromkeys(at.chains, 0)
        for thread, count, number in event.causes:
            chain = at.chains.get(thread, ())
            if len(chain) < count or chain[count - 1].number != number:
                return False
            caused[thread] = count
        return not any(
            self._are_dependent(other, event)
            for thread, chain in at.chains.items()
            for other in chain[caused[thread] :]
        )

    def _are_dependent(self, one: Event, other: Event) -> bool:
        pair = (one.number, other.number)
        known = self._dependent.get(pair)
        if known is None:
            known = self._dependent[pair] = steps_dependent(self.relation, one.step, other.step)
        return known

    def has_ended_in(self, at: Configuration) -> bool:
        return at.key in self._ended

    def sights(self, path: Sequence[Event]) -> tuple[str, ...]:
        """What a run must see that takes these events in this order."""
        at = Configuration()
        told = []
        for event in path:
            at.add(event)
            enabled = self.enabled(at)
            if enabled is None:
                break
            told.append(sight(event.step, enabled))
        return tuple(told)


def _take(last: dict[str, tuple[int, int]], thread: str, count: int, number: int) -> None:
    if last.get(thread, (0, 0))[0] < count:
        last[thread] = (count, number)


class Unforeseen(Exception):
    """The same choice after the same causes did something else: the relation left something out, or chance decides."""

    def __init__(self, difference: Difference) -> None:
        super().__init__(str(difference))
        self.difference = difference
