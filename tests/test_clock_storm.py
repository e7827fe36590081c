"""Every kind of server timer fires again and again while the clock runs forward in leaps, and nothing hangs.

A server judges its timers in moved time, the kernel sounds their alarms in real time, and the alarm of a timer
that was cancelled still sounds. Three things follow, each with its test below. A leap over a timer's end does
not fire it by itself. It does fire early if the alarm of an earlier timer sounds after the leap. And a timer
set just when the clock has leapt to near the end of an earlier one waits for that one's alarm: it is late by
what is left of it. The longest timer in these sessions is the one that guards the login
(`authentication_timeout`), so a round may take that long, and one that takes much longer hangs.
"""

from __future__ import annotations

import contextlib
import os
import random
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import psycopg
import pytest
from psycopg import errors

from fencepost.harness.clock.preload import require_preload
from fencepost.harness.clock.server_clock import ServerClock, read_server_us
from fencepost.harness.postgres.embedded import EmbeddedServer, EmbeddedServers

STORM_SECONDS = float(os.environ.get("STORM_SECONDS", "12"))
LOGIN_TIMER_S = 7.0
HANGS_AFTER_S = LOGIN_TIMER_S + 10.0
LEAPS_S = (0.001, 0.02, 0.049, 0.5, 0.99, 6.97, 30.0, 59.0, 3600.0)

Round = Callable[[], None]


@dataclass
class Loop:
    """One thread that repeats a round in which a timer has to fire."""

    name: str
    round: Round
    rounds: int = 0
    longest_s: float = 0.0
    began: float = field(default_factory=time.monotonic)
    failure: BaseException | None = None

    def run(self, over: threading.Event) -> None:
        try:
            while not over.is_set():
                self.began = time.monotonic()
                self.round()
                self.longest_s = max(self.longest_s, time.monotonic() - self.began)
                self.rounds += 1
        except BaseException as problem:  # noqa: BLE001 - the test's own thread reports it
            self.failure = problem


class Storm:
    def __init__(self, server: EmbeddedServer) -> None:
        self.server = server
        self.connections: list[psycopg.Connection] = []

    def session(self, **settings: str) -> psycopg.Connection:
        connection = psycopg.connect(self.server.dsn(), autocommit=True)
        for name, value in settings.items():
            connection.execute(f"SET {name} = '{value}'")
        self.connections.append(connection)
        return connection

    def statement_timeout(self) -> Round:
        session = self.session(statement_timeout="50ms")
        self.session().execute("SELECT pg_advisory_lock(1)")

        def fire() -> None:
            with pytest.raises(errors.QueryCanceled, match="statement timeout"):
                session.execute("SELECT pg_advisory_lock(1)")

        return fire

    def lock_timeout(self) -> Round:
        session = self.session(lock_timeout="50ms")
        self.session().execute("SELECT pg_advisory_lock(2)")

        def fire() -> None:
            with pytest.raises(errors.LockNotAvailable):
                session.execute("SELECT pg_advisory_lock(2)")

        return fire

    def deadlock(self) -> Round:
        sessions = [self.session(deadlock_timeout="50ms") for _ in range(2)]
        keys = (3, 4)

        def fire() -> None:
            for session, key in zip(sessions, keys, strict=True):
                session.execute("SELECT pg_advisory_lock(%s)", [key])
            ended: list[type[BaseException] | None] = []

            def cross(session: psycopg.Connection, key: int) -> None:
                try:
                    session.execute("SELECT pg_advisory_lock(%s)", [key])
                except psycopg.Error as problem:
                    ended.append(type(problem))
                else:
                    ended.append(None)
                session.execute("SELECT pg_advisory_unlock_all()")

            crossing = [
                threading.Thread(target=cross, args=(session, key), daemon=True)
                for session, key in zip(sessions, reversed(keys), strict=True)
            ]
            for thread in crossing:
                thread.start()
            for thread in crossing:
                thread.join()
            # Usually one is the victim; both are when both timers fire before either has looked.
            assert errors.DeadlockDetected in ended, ended
            assert set(ended) <= {errors.DeadlockDetected, None}, ended

        return fire

    def idle_in_transaction(self) -> Round:
        def fire() -> None:
            with psycopg.connect(self.server.dsn()) as session:
                session.execute("SET idle_in_transaction_session_timeout = '50ms'")
                with pytest.raises(psycopg.OperationalError):
                    _idle(session)

        return fire

    def sleep(self) -> Round:
        session = self.session()

        def fire() -> None:
            session.execute("SELECT pg_sleep(0.05)")

        return fire

    def short_work(self) -> Round:
        """Timers that are set and cancelled without firing leave alarms behind; one may end a later statement."""
        session = self.session(statement_timeout="5s", lock_timeout="3s")

        def work() -> None:
            with contextlib.suppress(errors.QueryCanceled):
                session.execute("SELECT count(*) FROM pg_class")

        return work


def _idle(session: psycopg.Connection) -> None:
    """Waits without a statement; raises what the server says as it ends the session."""
    for _ in session.notifies(timeout=HANGS_AFTER_S):
        pass
    raise AssertionError("the session was not ended for idling")


@pytest.fixture
def server() -> Iterator[EmbeddedServer]:
    with EmbeddedServers.start(preload=require_preload()) as servers:
        yield servers.test


def test_timers_fire_and_nothing_hangs_while_the_clock_is_moved(
    server: EmbeddedServer, record_property: Callable[[str, object], None]
) -> None:
    storm = Storm(server)
    loops = [
        Loop("statement_timeout", storm.statement_timeout()),
        Loop("lock_timeout", storm.lock_timeout()),
        Loop("deadlock_timeout", storm.deadlock()),
        Loop("idle_in_transaction_session_timeout", storm.idle_in_transaction()),
        Loop("pg_sleep", storm.sleep()),
        Loop("short work", storm.short_work()),
    ]
    assert server.clock_offset is not None
    reader = storm.session()
    clock = ServerClock(server.clock_offset, lambda: read_server_us(reader))
    leaps = random.Random(20)
    over = threading.Event()

    def leap() -> None:
        clock.advance(leaps.choice(LEAPS_S))
        over.wait(0.003)

    mover = Loop("the clock", leap)
    everyone = [*loops, mover]
    threads = [threading.Thread(target=loop.run, args=(over,), daemon=True) for loop in everyone]
    began = time.monotonic()
    for thread in threads:
        thread.start()
    while time.monotonic() < began + STORM_SECONDS:
        _no_hang(everyone, server)
        time.sleep(0.05)
    over.set()
    while any(thread.is_alive() for thread in threads):
        _no_hang([loop for loop, thread in zip(everyone, threads, strict=True) if thread.is_alive()], server)
        time.sleep(0.05)

    told = ", ".join(
        f"{loop.name}: {loop.rounds} rounds, longest {loop.longest_s:.2f} s" for loop in everyone
    )
    record_property("storm", told)
    assert not [loop.failure for loop in everyone if loop.failure], told
    assert all(loop.rounds > STORM_SECONDS / HANGS_AFTER_S for loop in everyone), told
    assert server.clock_offset.read_us() / 1_000_000 > 100 * STORM_SECONDS, told


def _no_hang(loops: list[Loop], server: EmbeddedServer) -> None:
    for loop in loops:
        if loop.failure is not None:
            raise AssertionError(f"{loop.name}: {loop.failure!r}") from loop.failure
        took_s = time.monotonic() - loop.began
        assert took_s < HANGS_AFTER_S, (
            f"{loop.name} hangs for {took_s:.1f} s; the server's log:\n{server.log_tail()}"
        )


@pytest.mark.parametrize(
    ("leap_s", "least_s", "most_s"), [(2.97, 1.0, 3.5), (1.5, 0.0, 1.0), (60.0, 0.0, 1.0)]
)
def test_a_timer_is_late_only_by_the_rest_of_an_earlier_alarm(
    server: EmbeddedServer, leap_s: float, least_s: float, most_s: float
) -> None:
    """The known limit and its bound: a leap to just before the end of a timeout of 3 s set earlier."""
    storm = Storm(server)
    storm.session().execute("SELECT pg_advisory_lock(1)")
    assert server.clock_offset is not None
    reader = storm.session()
    clock = ServerClock(server.clock_offset, lambda: read_server_us(reader))
    session = storm.session(lock_timeout="50ms", statement_timeout="3s")
    session.execute("SET statement_timeout = 0")
    clock.advance(leap_s)
    began = time.monotonic()
    with pytest.raises(errors.LockNotAvailable):
        session.execute("SELECT pg_advisory_lock(1)")
    assert least_s <= time.monotonic() - began < most_s


@pytest.mark.parametrize(("earlier_alarm", "leap"), [(True, True), (True, False), (False, True)])
def test_a_leap_ends_a_statement_early_only_through_an_earlier_alarm(
    server: EmbeddedServer, earlier_alarm: bool, leap: bool
) -> None:
    """A statement of 2 s under a timeout of 30 s; the earlier alarm is due after 1 s."""
    storm = Storm(server)
    assert server.clock_offset is not None
    reader = storm.session()
    clock = ServerClock(server.clock_offset, lambda: read_server_us(reader))
    session = storm.session(statement_timeout="1s") if earlier_alarm else storm.session()
    session.execute("SET statement_timeout = '30s'")
    ended: list[str | None] = []

    def sleep() -> None:
        try:
            session.execute("SELECT pg_sleep(2)")
            ended.append(None)
        except psycopg.Error as problem:
            ended.append(problem.sqlstate)

    sleeping = threading.Thread(target=sleep, daemon=True)
    sleeping.start()
    asleep = "SELECT wait_event = 'PgSleep' FROM pg_stat_activity WHERE pid = %s"
    deadline = time.monotonic() + HANGS_AFTER_S
    while reader.execute(asleep, [session.info.backend_pid]).fetchone() != (True,):
        assert time.monotonic() < deadline, "the statement never started to sleep"
        time.sleep(0.01)
    if leap:
        clock.advance(60)
    sleeping.join(HANGS_AFTER_S)
    assert ended == [errors.QueryCanceled.sqlstate if earlier_alarm and leap else None]
