"""Database time as the page draws it: from the first observation on, and never backwards.

Where the clock was set back, what follows is moved on by as much, so that an axis of time stays one; the step keeps
the time the server really showed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


class Timeline:
    def __init__(self, first: Mapping[str, Any], steps: Sequence[Mapping[str, Any]]) -> None:
        self.start_us = int(first["at_us"])
        self._moved_us = [0]
        self._at_us = [0]
        moved_us, last_us = 0, self.start_us
        for step in steps:
            at_us = int(step["after"]["at_us"])
            if at_us < last_us:
                moved_us += last_us - at_us
            last_us = at_us
            self._moved_us.append(moved_us)
            self._at_us.append(at_us - self.start_us + moved_us)

    def after(self, number: int) -> int:
        """The moment of the observation after step `number`; 0 is the one before the first."""
        return self._at_us[number]

    def seen_at(self, number: int, time_us: int) -> int:
        """Where a time read from the rows after step `number` lies."""
        return time_us - self.start_us + self._moved_us[number]

    @property
    def end(self) -> int:
        return self._at_us[-1]
