"""A server, a gate before it, and clients that wait in threads of their own."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeVar

import psycopg

from fencepost.harness.errors import StepDeadline
from fencepost.harness.gate import Gate, GatePath, ParkedStatement, Upstream, parse_rule
from fencepost.harness.gate.statements import Conversation
from fencepost.harness.postgres.embedded import EmbeddedServer

DEADLINE_S = 20.0
T = TypeVar("T")
Connection = psycopg.Connection[Any]
Log = list[tuple[str, bytes]]


class GateBench:
    """One path of one gate to one server, and what a test does with it."""

    def __init__(self, server: EmbeddedServer, gate: Gate, listen: str, actor: str = "A") -> None:
        self.server = server
        self.gate = gate
        self.dsn = server.tcp_dsn() if listen == "tcp" else server.dsn()
        self.path: GatePath = gate.open_path(
            actor, Upstream.of(self.dsn), "tcp" if listen == "tcp" else "unix"
        )
        self._threads = ThreadPoolExecutor(4)
        self._done_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        gate.watch_fd(self._done_fd)

    @property
    def gated_dsn(self) -> str:
        return self.path.conninfo(self.dsn)

    def connect(self, **options: Any) -> Connection:
        return psycopg.connect(self.gated_dsn, connect_timeout=20, **options)

    def directly(self, sql: str, *parameters: object) -> list[Any]:
        """Ask the server past the gate."""
        with psycopg.connect(self.server.dsn(), autocommit=True) as connection:
            cursor = connection.execute(sql, parameters or None)
            return cursor.fetchall() if cursor.description else []

    def begin(self, *texts: str, step: bool = False) -> None:
        self.path.begin_operation("operation", [parse_rule(text) for text in texts], step)

    def in_background(self, work: Callable[[], T]) -> Future[T]:
        started = self._threads.submit(work)
        started.add_done_callback(lambda _: os.eventfd_write(self._done_fd, 1))
        return started

    def result(self, work: Future[T]) -> T:
        """What it returned or raised. One that hangs is ended by cutting it off, so that a red test ends too."""
        try:
            return work.result(DEADLINE_S)
        except TimeoutError:
            self.path.cut()
            raise

    def until(self, condition: Callable[[], bool], waited_for: str) -> None:
        def looked() -> bool:
            with contextlib.suppress(BlockingIOError):
                os.eventfd_read(self._done_fd)
            return condition()

        try:
            self.gate.wait_until(looked, DEADLINE_S, waited_for)
        except StepDeadline:
            self.path.cut()
            raise

    def parked(self) -> ParkedStatement:
        self.until(lambda: self.path.parked is not None, "a parked statement")
        found = self.path.parked
        assert found is not None
        return found

    def sqls(self) -> list[str]:
        return [record.sql for record in self.path.statements]

    def raw(self) -> socket.socket:
        """A client that speaks whatever the test makes it."""
        if self.path.directory is None:
            return socket.create_connection((self.path.host, self.path.port), timeout=DEADLINE_S)
        client = socket.socket(socket.AF_UNIX)
        client.settimeout(DEADLINE_S)
        client.connect(f"{self.path.host}/.s.PGSQL.{self.path.port}")
        return client

    def close(self) -> None:
        self.path.close()
        self._threads.shutdown()
        self.gate.unwatch_fd(self._done_fd)
        os.close(self._done_fd)


def ended(client: socket.socket) -> bytes:
    """All that comes until the end of the stream."""
    parts = []
    while data := client.recv(65_536):
        parts.append(data)
    return b"".join(parts)


@contextmanager
def recorded() -> Iterator[Log]:
    """What both sides of the connections made in here send, in order and in the pieces it came in."""
    log: Log = []
    feed, feed_answer = Conversation.feed, Conversation.feed_answer

    def recording_feed(self: Conversation, data: bytes) -> None:
        log.append(("client", data))
        feed(self, data)

    def recording_feed_answer(self: Conversation, data: bytes) -> Any:
        log.append(("server", data))
        return feed_answer(self, data)

    Conversation.feed = recording_feed  # type: ignore[method-assign]
    Conversation.feed_answer = recording_feed_answer  # type: ignore[method-assign]
    try:
        yield log
    finally:
        Conversation.feed = feed  # type: ignore[method-assign]
        Conversation.feed_answer = feed_answer  # type: ignore[method-assign]
