"""Moves a database's clock by writing one number, and proves each time that it moved."""

from __future__ import annotations

import math
import mmap
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import psycopg

from fencepost.harness.errors import FencepostError, UsageError

_US_PER_S: Final = 1_000_000
_NS_PER_US: Final = 1_000
_SIZE: Final = 8

# The server adds the offset to the machine's time, which goes on, and may be set, between our two readings.
_TOLERANCE_US: Final = 1 * _US_PER_S
# Three hundred years in nanoseconds are more than the eight bytes hold.
_LARGEST_OFFSET_US: Final = (2**63 - 1) // _NS_PER_US

READ_SERVER_US: Final = "SELECT (extract(epoch from clock_timestamp()) * 1000000)::bigint"


class ClockDidNotMove(FencepostError):
    """The database's clock, read before and after a move, did not change by what was asked for."""


def read_server_us(connection: psycopg.Connection[Any]) -> int:
    """The database's time of day, in microseconds since the epoch, over a session of the caller's."""
    row = connection.execute(READ_SERVER_US).fetchone()
    if row is None:
        raise ClockDidNotMove("the server did not answer with its time")
    return int(row[0])


class OffsetFile:
    """The number a preloaded process adds to its clock: eight bytes, nanoseconds, shared by mapping.

    Written by one aligned store, so a server never reads half of it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._memory_fd: int | None = None
        self.highest_us = 0
        """The highest offset it ever had: at that one, no moment that was told before comes again."""
        with path.open("r+b") as file:
            self._mapped = mmap.mmap(file.fileno(), _SIZE)
        self._value = memoryview(self._mapped).cast("q")

    @classmethod
    def create(cls, path: Path) -> OffsetFile:
        """A new file, at offset zero, that the server's user may read and only we may write."""
        path.write_bytes(bytes(_SIZE))
        path.chmod(0o644)
        return cls(path)

    @classmethod
    def in_memory(cls) -> OffsetFile:
        """A new one without a file, for processes of our own user: when we are gone, nothing of it is left."""
        fd = os.memfd_create("fencepost-clock")
        os.write(fd, bytes(_SIZE))
        try:
            offset = cls(Path(f"/proc/{os.getpid()}/fd/{fd}"))
        except BaseException:
            os.close(fd)
            raise
        offset._memory_fd = fd
        return offset

    def read_us(self) -> int:
        return self._value[0] // _NS_PER_US

    def set_us(self, offset_us: int) -> None:
        if abs(offset_us) > _LARGEST_OFFSET_US:
            raise UsageError(f"a clock cannot be moved by {offset_us / _US_PER_S:g} s: stay below 290 years")
        self._value[0] = offset_us * _NS_PER_US
        self.highest_us = max(self.highest_us, offset_us)

    def add_us(self, change_us: int) -> None:
        self.set_us(self.read_us() + change_us)

    def close(self) -> None:
        """The server keeps its own mapping and goes on at the offset it last read."""
        self._value.release()
        self._mapped.close()
        if self._memory_fd is not None:
            os.close(self._memory_fd)
            self._memory_fd = None


class ServerClock:
    """The clock of one database server. All of its sessions see it move at the same moment."""

    how: Final = "clock"  # in a trace: the clock was moved, no row was edited and nobody waited

    def __init__(self, offset: OffsetFile, read_server_us: Callable[[], int]) -> None:
        self._offset = offset
        self._read_server_us = read_server_us

    def now_us(self) -> int:
        return self._read_server_us()

    def advance(self, seconds: float) -> None:
        """Forward by `seconds`. Costs two readings of the server's clock, some tenths of a millisecond."""
        self._move_us(_checked_us(seconds))

    def advance_to_us(self, moment_us: int) -> None:
        """Forward to just past `moment_us`; a moment that has passed already moves nothing."""
        missing_us = moment_us + 1 - self.now_us()
        if missing_us > 0:
            self._move_us(missing_us)

    def rewind(self, seconds: float) -> None:
        """Back by `seconds`. Never while a step is blocked: its timers would run that much longer."""
        self._move_us(-_checked_us(seconds))

    def catch_up(self) -> None:
        """Undo what is left of rewinds: no moment that any session was told before comes again.

        Between races: the next one must not begin before the last one ended.
        """
        missing_us = self._offset.highest_us - self._offset.read_us()
        if missing_us > 0:
            self._move_us(missing_us)

    def _move_us(self, change_us: int) -> None:
        started_ns = time.monotonic_ns()
        before_us = self._read_server_us()
        self._offset.add_us(change_us)
        moved_us = self._read_server_us() - before_us
        passed_us = (time.monotonic_ns() - started_ns) // _NS_PER_US
        if not change_us <= moved_us <= change_us + passed_us + _TOLERANCE_US:
            raise ClockDidNotMove(
                f"the database's clock was to move by {change_us / _US_PER_S:g} s and moved by "
                f"{moved_us / _US_PER_S:g} s: the server does not read {self._offset.path}"
            )


def _checked_us(seconds: float) -> int:
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)):
        raise UsageError(f"a clock moves by a number of seconds, not by {seconds!r}")
    if not math.isfinite(seconds) or seconds <= 0:
        raise UsageError(f"a clock moves by a positive, finite number of seconds, not by {seconds!r}")
    return max(1, math.ceil(seconds * _US_PER_S))
