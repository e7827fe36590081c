"""One end of a connection to write to: what cannot go yet waits here, in order."""

from __future__ import annotations

import socket
import time
from collections import deque

CLEAN_END = None


class Outlet:
    """Writes to a socket that never blocks. Bytes wait while it is paused, delayed, not connected or full."""

    def __init__(self) -> None:
        self.socket: socket.socket | None = None
        """None until it is connected; what is written before that waits."""
        self.paused = False
        self.delay_s = 0.0
        self.swallows = False
        self.broken = False
        """The other side is gone: what is written is dropped."""
        self.is_full = False
        """The kernel takes no more for now."""
        self.ended = False
        """The end has been reached: everything before it has been written."""
        self.waiting = 0
        self._queue: deque[tuple[float, bytes | None]] = deque()

    @property
    def is_idle(self) -> bool:
        """Everything that was written has gone, and more may come."""
        return not self._queue and not self.ended and not self.is_full

    @property
    def holds(self) -> bool:
        """Whether a pause keeps something from going on."""
        return self.paused and bool(self._queue)

    @property
    def due(self) -> float | None:
        """When what is first in line may go, if only a delay keeps it."""
        if not self._queue or self.paused or self.is_full or self.socket is None:
            return None
        return self._queue[0][0]

    def write(self, data: bytes) -> None:
        if self.broken or self.swallows or not data:
            return
        if not self._queue and not self.paused and not self.delay_s and self.socket is not None:
            sent = self._send(data)
            if sent == len(data):
                return
            self.is_full = True
            data = data[sent:]
        self._queue.append((time.monotonic() + self.delay_s if self.delay_s else 0.0, data))
        self.waiting += len(data)

    def end(self) -> None:
        """No more will come: `ended` once everything before this has gone."""
        self._queue.append((time.monotonic() + self.delay_s if self.delay_s else 0.0, CLEAN_END))
        self.flush()

    def flush(self) -> None:
        """Write what may go now."""
        self.is_full = False
        now = 0.0
        while self._queue and not self.paused and not self.is_full:
            due, data = self._queue[0]
            if due and due > (now := now or time.monotonic()):
                return
            if data is None:
                self._queue.popleft()
                self.ended = True
                return
            if self.broken:
                self._drop_first(data)
                continue
            if self.socket is None:
                return
            sent = self._send(data)
            if sent == len(data) or self.broken:
                self._drop_first(data)
            else:
                self._queue[0] = due, data[sent:]
                self.waiting -= sent

    def hurry(self) -> None:
        """Nothing in line waits for its delay any longer."""
        self._queue = deque((0.0, data) for _, data in self._queue)

    def break_off(self) -> None:
        """Drop everything, now and from now on."""
        self.broken = True
        self._queue.clear()
        self.waiting = 0

    def _drop_first(self, data: bytes) -> None:
        self._queue.popleft()
        self.waiting -= len(data)

    def _send(self, data: bytes) -> int:
        assert self.socket is not None
        try:
            return self.socket.send(data)
        except BlockingIOError:
            self.is_full = True
            return 0
        except OSError:  # reset or gone; its reading side hears of it too
            self.broken = True
            return len(data)
