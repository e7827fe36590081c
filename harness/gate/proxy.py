"""The gate itself: listening sockets, one epoll, and the thread that runs it when nobody else does.

Not asyncio, because the runner drives the gate itself while it waits: `with gate.borrowed()` takes the loop over from
the background thread, and each `gate.turn()` does one round of work in the calling thread. Releasing a statement and
seeing the next one parked then needs no hand-off between threads, which under one interpreter lock costs more than
the work. Foreign file descriptors (`watch_fd`) end a turn as well, so all that a runner waits for is in one place.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import os
import select
import shutil
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Literal, TypeAlias

from psycopg.conninfo import conninfo_to_dict

from fencepost.harness.errors import FencepostError, StepDeadline, UsageError
from fencepost.harness.gate.connection import GateConnection
from fencepost.harness.gate.path import GatePath

LOOPBACK = "127.0.0.1"
_BACKLOG = 128
_CLOSE_DEADLINE_S = 10.0
_LONG_S = 3600.0
_FINE_S = 0.001
_LOOK_AGAIN_S = 0.05  # a condition may be about something the gate does not hear of
_SOCKET_PREFIX = ".s.PGSQL."

_Address: TypeAlias = tuple[str, int] | str


@dataclass(frozen=True, slots=True)
class Upstream:
    """Where the server is: on TCP by host and port, or at a unix socket by its directory and port."""

    kind: Literal["tcp", "unix"]
    host: str
    """A directory for a unix socket."""
    port: int

    @classmethod
    def of(cls, dsn: str) -> Upstream:
        """Where this connection string leads to; it must name one host."""
        given = conninfo_to_dict(dsn)
        host = str(given.get("hostaddr") or given.get("host") or "")
        port = str(given.get("port") or 5432)
        if not host or "," in host or not port.isdigit():
            raise UsageError(
                f"the gate needs a connection string with one host and one port, not '{host}' '{port}'."
            )
        return cls("unix" if host.startswith("/") else "tcp", host, int(port))

    @property
    def socket_address(self) -> tuple[socket.AddressFamily, _Address]:
        if self.kind == "tcp":
            return socket.AF_INET, (self.host, self.port)
        return socket.AF_UNIX, f"{self.host}/{_SOCKET_PREFIX}{self.port}"


class Gate:
    """All paths of one run. `close` leaves no socket, thread or file behind."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        """Guards everything but the waiting itself."""
        self._epoll = select.epoll()
        self._epoll_fd = self._epoll.fileno()
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._epoll.register(self._wake, select.EPOLLIN)
        self._connections: dict[int, GateConnection] = {}
        self._listeners: dict[int, GatePath] = {}
        self._foreign: set[int] = set()
        self._ready: set[int] = set()
        self._timers: list[tuple[float, int, GateConnection]] = []
        self._timer_numbers = itertools.count()
        self._turning = threading.Lock()
        """Held by whoever runs the loop, for as long as it does. At a process's end another thread may give it back."""
        self._turner = 0
        self._borrows = 0
        self._returned = threading.Event()
        self._returned.set()
        self._failure: BaseException | None = None
        self._is_closed = False
        self._directory: Path | None = None
        self._thread = threading.Thread(target=self._run, name="fencepost:gate", daemon=True)
        self._thread.start()

    # -- paths ----------------------------------------------------------------------------------------------

    def open_path(self, actor: str, upstream: Upstream, listen: Literal["tcp", "unix"] = "tcp") -> GatePath:
        """Open a way to the server for this actor. Who may use it is the server's to decide, as always."""
        if listen not in ("tcp", "unix"):
            raise UsageError(f"a path cannot listen on '{listen}': give tcp or unix.")
        if listen == "tcp" and upstream.kind == "unix":
            raise UsageError(
                f"{actor}'s path would open the server's unix socket, which trusts our own user, to every user of this "
                "machine: listen on unix, or reach the server by TCP."
            )
        with self.lock:
            self.check()
            if self._is_closed:
                raise FencepostError("the gate is closed: open paths before that")
            directory, listener = None, None
            if listen == "tcp":
                listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
                listener.bind((LOOPBACK, 0))
            else:
                directory = self._new_socket_directory()
                listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
                listener.bind(f"{directory}/{_SOCKET_PREFIX}{upstream.port}")
            listener.setblocking(False)
            listener.listen(_BACKLOG)
            path = GatePath(self, actor, upstream, listener, directory)
            self._listeners[listener.fileno()] = path
            self._epoll.register(listener.fileno(), select.EPOLLIN)
            return path

    def _new_socket_directory(self) -> Path:
        if self._directory is None:
            self._directory = Path(tempfile.mkdtemp(prefix="fencepost-gate-"))  # 0700
        return Path(tempfile.mkdtemp(dir=self._directory))

    def forget_path(self, path: GatePath) -> None:
        fd = path.listener.fileno()
        if fd in self._listeners:
            del self._listeners[fd]
            self._epoll.unregister(fd)

    # -- running it -----------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def borrowed(self) -> Iterator[Gate]:
        """The calling thread runs the loop from here on, by calling `turn`; the gate's own thread rests."""
        mine = self._turner == threading.get_ident()
        if not mine:
            with self.lock:
                self._borrows += 1
                self._returned.clear()
            os.eventfd_write(self._wake, 1)
            self._turning.acquire()
            self._turner = threading.get_ident()
            for fd in self._foreign:
                self._epoll.register(fd, select.EPOLLIN)
        try:
            yield self
        finally:
            if not mine:
                for fd in self._foreign:
                    self._epoll.unregister(fd)
                self._turner = 0
                self._turning.release()
                with self.lock:
                    self._borrows -= 1
                    if not self._borrows:
                        self._returned.set()

    def turn(self, timeout_s: float) -> bool:
        """Wait until something happens, handle it, and say whether anything did. Only within `borrowed`."""
        if self._turner != threading.get_ident():
            raise FencepostError("the gate's loop is not borrowed by this thread: turn it within borrowed()")
        self.check()
        return self._turn(timeout_s)

    def wait_until(self, condition: Callable[[], bool], deadline_s: float, waited_for: str) -> None:
        """Run the loop until the condition holds. Raises StepDeadline, with what the paths carry, if it does not."""
        deadline = time.monotonic() + deadline_s
        with self.borrowed():
            while not condition():
                left_s = deadline - time.monotonic()
                if left_s <= 0:
                    raise StepDeadline(f"waited {deadline_s:g} s for {waited_for}; the gate: {self.told()}")
                self.turn(min(left_s, _LOOK_AGAIN_S))

    def watch_fd(self, fd: int) -> None:
        """A turn ends when this can be read, too. `readable` names it then; reading it is the caller's."""
        with self.lock:
            if fd not in self._foreign:
                self._foreign.add(fd)
                if self._turner:
                    self._epoll.register(fd, select.EPOLLIN)

    def unwatch_fd(self, fd: int) -> None:
        with self.lock:
            if fd in self._foreign:
                self._foreign.remove(fd)
                if self._turner:
                    self._epoll.unregister(fd)

    @property
    def readable(self) -> frozenset[int]:
        """The watched file descriptors that could be read in the latest turn."""
        return frozenset(self._ready)

    def check(self) -> None:
        """Raises what ended the gate's own thread, if anything did."""
        if self._failure is not None:
            raise FencepostError(f"the gate broke down: {self._failure!r}") from self._failure

    def told(self) -> str:
        """What every path carries, in a line."""
        with self.lock:
            told = [
                f"{path.actor}: "
                + (
                    ", ".join(
                        f"{each.state} (pid {each.pid}{f', {each.statement}' if each.statement else ''})"
                        for each in path.connections
                    )
                    or "no connection"
                )
                for path in self._listeners.values()
            ]
        return "; ".join(told) or "no path"

    def close(self) -> None:
        """End every connection, path and thread. Closing twice does nothing the second time."""
        with self.lock:
            if self._is_closed:
                return
            self._is_closed = True
            for path in list(self._listeners.values()):
                path.close()
        os.eventfd_write(self._wake, 1)
        self._returned.set()
        self._thread.join(_CLOSE_DEADLINE_S)
        if self._thread.is_alive():
            raise FencepostError(f"the gate's thread did not end within {_CLOSE_DEADLINE_S:g} s")
        self._epoll.close()
        os.close(self._wake)
        if self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)

    def __enter__(self) -> Gate:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # -- inside ---------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while not self._is_closed:
                self._returned.wait()
                with self._turning:
                    if not self._borrows and not self._is_closed:
                        self._turn(_LONG_S)
        except BaseException as problem:
            self._failure = problem  # told to the next who calls
            raise

    def _turn(self, timeout_s: float) -> bool:
        if self._timers:
            timeout_s = min(timeout_s, self._timers[0][0] - time.monotonic())
        if 0.0 < timeout_s < _FINE_S:
            # epoll counts whole milliseconds, which is longer than most statements take.
            select.select([self._epoll_fd], [], [], timeout_s)
            timeout_s = 0.0
        events = self._epoll.poll(max(0.0, timeout_s))
        happened = False
        self._ready.clear()
        with self.lock:
            for fd, mask in events:
                connection = self._connections.get(fd)
                if connection is not None:
                    connection.handle(fd, mask)
                    happened = True
                elif fd == self._wake:
                    os.eventfd_read(fd)
                elif fd in self._listeners:
                    self._accept(self._listeners[fd])
                    happened = True
                elif fd in self._foreign:
                    self._ready.add(fd)
                    happened = True
            if self._timers and self._run_timers():
                happened = True
        return happened

    def _accept(self, path: GatePath) -> None:
        try:
            client, _ = path.listener.accept()
        except OSError:  # gone again before it was accepted
            return
        client.setblocking(False)
        if client.family == socket.AF_INET:
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        path.opened(GateConnection(self, path, client))

    def _run_timers(self) -> bool:
        now = time.monotonic()
        ran = False
        while self._timers and self._timers[0][0] <= now:
            heapq.heappop(self._timers)[2].tick()
            ran = True
        return ran

    # -- what connections ask; the lock is held -------------------------------------------------------------

    def listen_to(self, sock: socket.socket, connection: GateConnection, events: int) -> None:
        fd = sock.fileno()
        if not events:
            self.forget(sock)
        elif fd in self._connections:
            self._epoll.modify(fd, events)
        else:
            self._connections[fd] = connection
            self._epoll.register(fd, events)

    def forget(self, sock: socket.socket) -> None:
        if self._connections.pop(sock.fileno(), None) is not None:
            self._epoll.unregister(sock.fileno())

    def wake_at(self, moment_s: float, connection: GateConnection) -> None:
        heapq.heappush(self._timers, (moment_s, next(self._timer_numbers), connection))
        if self._turner != threading.get_ident():
            os.eventfd_write(self._wake, 1)
