"""The ways examples of the state machine have gone: one that goes as another did is not played again.

Hypothesis varies examples it has made, and half of what it varies was drawn and put aside. What was not put aside
decides how an example goes, so an example is only followed here until it leaves the ways that are known.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

Action = tuple[str, Mapping[str, Any]]
"""A method of the machine, and what it is given."""


class Turn(NamedTuple):
    """What was drawn for it: which of the two is done is seen when its time has come."""

    unless_held: Action
    while_held: Action

    def chosen(self, held: bool) -> Action:
        return self.while_held if held else self.unless_held


@dataclass(slots=True)
class Crossing:
    """Where an example was after some actions. `ended`: one was brought to its end there, and nothing was found."""

    held: bool = False
    over: bool = False
    ended: bool = False
    onward: dict[int, Crossing] = field(default_factory=dict)


class Way:
    """Of one example, from the place where all begin."""

    def __init__(self, start: Crossing) -> None:
        self._place = start
        self.passed: list[tuple[Turn, Crossing]] = []
        """What it did while it was on known ways, and where to: to be played once it leaves them."""

    def follow(self, turn: Turn) -> bool:
        """Go on with the one that is done there, if that is known."""
        if self._place.over:
            return True
        onward = self._place.onward.get(_name(turn.chosen(self._place.held)))
        if onward is None:
            return False
        if onward is not self._place:
            self.passed.append((turn, onward))
        self._place = onward
        return True

    @property
    def ended(self) -> bool:
        return self._place.ended

    def go(self, done: Action, *, held: bool, over: bool, moved: bool) -> None:
        """It was played, and this is what it came to. What moved nothing leads back to where it was done."""
        if not self._place.over:
            onward = Crossing(held, over) if moved else self._place
            self._place = self._place.onward.setdefault(_name(done), onward)

    def leave(self) -> None:
        """What was known did not come true again: nothing is to be learnt from where this goes on."""
        self._place = Crossing()

    def end(self) -> None:
        self._place.ended = True


def _name(action: Action) -> int:
    """A hash: a search of hours goes through millions of crossings."""
    name, given = action
    return hash(f"{name} {sorted(given.items(), key=lambda item: item[0])!r}")
