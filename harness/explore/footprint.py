"""What a step touched, and which two steps must therefore not be taken for interchangeable.

Two steps are *independent* when neither can see, block, free or order the other; then both orders end alike and one
of them is enough. Only what is proven independent is: an unknown footprint depends on everything.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache
from typing import Final


class Mode(StrEnum):
    """How a thing was touched. Row modes are PostgreSQL's: a plain read neither waits nor sees what is uncommitted."""

    READ = "read"  # saw the committed state
    LOCK = "lock"  # asked for the row's lock, whatever came of it: got, waited, skipped
    WRITE = "write"  # wrote, not yet visible to others
    PUBLISH = "publish"  # made its writes visible and gave its locks back
    RELEASE = "release"  # gave its locks back, its writes gone or none
    SET = "set"  # changed something everybody sees at once: the clock, a sequence, a latch
    MARK = "mark"  # left a trace of *when* it wrote: a time stamp, a place in the heap
    REVEAL = "reveal"  # read many rows, so that the order of earlier marks can show


_CONFLICTS: Final = frozenset(
    frozenset(pair)
    for pair in (
        (Mode.READ, Mode.PUBLISH),
        (Mode.READ, Mode.SET),
        (Mode.LOCK, Mode.LOCK),
        (Mode.LOCK, Mode.WRITE),
        (Mode.LOCK, Mode.PUBLISH),
        (Mode.LOCK, Mode.RELEASE),
        (Mode.WRITE, Mode.WRITE),
        (Mode.WRITE, Mode.PUBLISH),
        (Mode.WRITE, Mode.RELEASE),
        (Mode.PUBLISH, Mode.PUBLISH),
        (Mode.PUBLISH, Mode.RELEASE),
        (Mode.RELEASE, Mode.RELEASE),
        (Mode.SET, Mode.SET),
    )
)

Key = tuple[Hashable, ...]


@dataclass(frozen=True, slots=True)
class Access:
    """One thing touched in one way. `key` names a row; without one it is all of `thing`."""

    thing: str
    mode: Mode
    key: Key | None = None

    def meets(self, other: Access) -> bool:
        return self.thing == other.thing and (self.key is None or other.key is None or self.key == other.key)


@dataclass(frozen=True, slots=True)
class Footprint:
    """All that a step touched, with what it set free; true once the step stands still."""

    accesses: frozenset[Access] = field(default_factory=frozenset)
    unknown: bool = False

    def __or__(self, other: Footprint) -> Footprint:
        if other is NOTHING or self is other:
            return self
        if self is NOTHING:
            return other
        return Footprint(self.accesses | other.accesses, self.unknown or other.unknown)

    @property
    def revealed(self) -> frozenset[str]:
        """Things of which this step could see in which order they were written."""
        return frozenset(access.thing for access in self.accesses if access.mode is Mode.REVEAL)


NOTHING: Final = Footprint()
UNKNOWN: Final = Footprint(unknown=True)


def footprint(accesses: Iterable[Access]) -> Footprint:
    return Footprint(frozenset(accesses))


@dataclass(frozen=True, slots=True)
class Relation:
    """Which footprints depend on each other.

    Two writes to different rows leave marks (heap place, time stamps) whose order only a scan could show, so they
    count as dependent only for things of which some step of the program read many rows. `revealed` holds those; who
    explores starts without any, and over again with a larger relation once a step reveals one more.
    """

    revealed: frozenset[str] = frozenset()

    def dependent(self, one: Footprint, other: Footprint) -> bool:
        if one.unknown or other.unknown:
            return True
        return _meet_in_conflict(self, one.accesses, other.accesses)

    def conflict(self, mine: Access, theirs: Access) -> bool:
        if mine.mode is Mode.MARK and theirs.mode is Mode.MARK:
            return mine.thing in self.revealed
        return frozenset((mine.mode, theirs.mode)) in _CONFLICTS

    def learns_from(self, seen: Footprint) -> bool:
        return not seen.revealed <= self.revealed

    def with_revealed(self, things: frozenset[str]) -> Relation:
        return Relation(self.revealed | things)


@lru_cache(maxsize=65_536)
def _meet_in_conflict(relation: Relation, ours: frozenset[Access], theirs: frozenset[Access]) -> bool:
    """Cached: the same few footprints meet in every run."""
    return any(mine.meets(other) and relation.conflict(mine, other) for mine in ours for other in theirs)
