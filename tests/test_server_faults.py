"""Crashes of the embedded server: each really happens, committed stays, uncommitted goes, nothing is left."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from fencepost.harness.clock.preload import find_preload
from fencepost.harness.clock.server_clock import ServerClock
from fencepost.harness.errors import StepDeadline
from fencepost.harness.postgres import crashable
from fencepost.harness.postgres.crashable import CrashableServer
from fencepost.harness.postgres.embedded import EmbeddedServers
from fencepost.harness.postgres.keeper import processes_in
from fencepost.harness.postgres.patience import connect_patiently
from fencepost.harness.postgres.provider import STOPS, FaultDidNotHappen, ServerFault
from fencepost.tests.fix_server_faults import WHOLE_SERVER, committed_stays_uncommitted_goes, inject, session

DATABASE = "faults"
AHEAD_S = 3600


@pytest.fixture(scope="module", params=["real time", "an hour ahead"])
def servers(request: pytest.FixtureRequest) -> Iterator[EmbeddedServers]:
    moved = request.param != "real time"
    preload = find_preload() if moved else None
    if moved and preload is None:
        pytest.skip("the clock cannot be moved here (see `fencepost doctor`)")
    with EmbeddedServers.start(preload=preload) as started:
        started.test.create_database(DATABASE)
        if started.test.clock_offset is not None:
            with session(started.test, DATABASE) as connection:
                ServerClock(started.test.clock_offset, lambda: _now_us(connection)).advance(AHEAD_S)
        yield started


@pytest.fixture
def server(servers: EmbeddedServers) -> CrashableServer:
    return servers.test


def _now_us(connection: psycopg.Connection[tuple[object, ...]]) -> int:
    row = connection.execute("SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint").fetchone()
    assert row is not None
    return int(str(row[0]))


def _identity(server: CrashableServer) -> tuple[int, object]:
    with session(server, DATABASE) as connection:
        row = connection.execute("SELECT pg_postmaster_start_time()").fetchone()
    assert row is not None
    return server.pid, row[0]


@pytest.mark.parametrize("fault", WHOLE_SERVER)
def test_committed_stays_and_uncommitted_goes(servers: EmbeddedServers, fault: ServerFault) -> None:
    server, control = servers.test, servers.control
    before, address, log_from = _identity(server), server.tcp_address, server.log_size()
    with psycopg.connect(control.dsn(), autocommit=True) as watching:
        committed_stays_uncommitted_goes(server, DATABASE, lambda victim: inject(server, fault, victim))
        assert watching.execute("SELECT 1").fetchone() == (1,)  # the same session, all the time
    assert server.tcp_address == address
    if fault is ServerFault.KILL_BACKEND:
        assert _identity(server)[0] == before[0]  # the postmaster lives on
    else:
        assert _identity(server)[0] != before[0]
        assert _identity(server)[1] > before[1]  # type: ignore[operator]
    recovered = "automatic recovery in progress" in server.log_since(log_from)
    assert recovered == (fault is not ServerFault.FAST_RESTART)
    if server.clock_offset is not None:
        with session(server, DATABASE) as connection:
            assert _now_us(connection) - time.time_ns() // 1000 >= AHEAD_S * 1_000_000


def test_one_session_is_ended_and_no_other(server: CrashableServer) -> None:
    with session(server, DATABASE) as victim, session(server, DATABASE) as bystander:
        server.terminate_backend(victim.info.backend_pid)
        with pytest.raises(psycopg.errors.AdminShutdown):
            victim.execute("SELECT 1")
        assert bystander.execute("SELECT 1").fetchone() == (1,)


@pytest.mark.parametrize(
    "fault", [ServerFault.CRASH, ServerFault.KILL_BACKEND, ServerFault.REFUSE_CONNECTIONS]
)
def test_three_in_a_row(server: CrashableServer, fault: ServerFault) -> None:
    for _ in range(3):
        committed_stays_uncommitted_goes(server, DATABASE, lambda victim: inject(server, fault, victim))


@pytest.mark.parametrize("how", sorted(STOPS))
def test_while_it_is_down_nobody_answers(server: CrashableServer, how: ServerFault) -> None:
    with session(server, DATABASE) as connection:
        server.stop_now(how)
        assert processes_in(server.data_dir) == []
        with pytest.raises(psycopg.OperationalError):
            connection.execute("SELECT 1")
    for dsn in (server.dsn(DATABASE), server.tcp_dsn(DATABASE)):
        with pytest.raises(psycopg.OperationalError):
            psycopg.connect(dsn)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(server.tcp_address)
    server.start()
    with session(server, DATABASE) as connection:
        assert connection.execute("SELECT 1").fetchone() == (1,)


def test_a_held_start_answers_57P03_until_it_is_let_go(server: CrashableServer) -> None:
    server.refuse_connections()
    for dsn in (server.dsn(DATABASE), server.tcp_dsn(DATABASE)):
        for _ in range(3):
            with pytest.raises(psycopg.OperationalError, match="the database system is starting up"):
                psycopg.connect(dsn)
    with pytest.raises(StepDeadline, match=r"waited 0\.2 s for the server .* is starting up"):
        connect_patiently(server.dsn(DATABASE), deadline_s=0.2)
    server.accept_connections()
    with session(server, DATABASE) as connection:
        assert connection.execute("SELECT pg_is_in_recovery()").fetchone() == (False,)
    assert not (server.data_dir / "recovery.signal").exists()
    assert not (server.data_dir / "fencepost.hold").exists()


def test_a_held_start_can_itself_be_crashed(server: CrashableServer) -> None:
    server.refuse_connections()
    server.stop_now()
    server.start()
    with session(server, DATABASE) as connection:
        assert connection.execute("SELECT 1").fetchone() == (1,)


def test_a_patient_connection_waits_until_the_server_is_up(server: CrashableServer) -> None:
    server.stop_now()
    answers: list[object] = []
    waiting = threading.Thread(
        target=lambda: answers.append(
            connect_patiently(server.tcp_dsn(DATABASE)).execute("SELECT 1").fetchone()
        )
    )
    waiting.start()
    server.start()
    waiting.join(30)
    assert answers == [(1,)]


def test_patience_is_only_for_refusals_that_pass(server: CrashableServer) -> None:
    with pytest.raises(psycopg.OperationalError, match="does not exist"):
        connect_patiently(server.dsn("no such database"))


def test_starting_again_waits_for_the_children_of_a_killed_postmaster(server: CrashableServer) -> None:
    """One of them is stopped, so that it cannot leave: the new postmaster refuses the data until it has."""
    with session(server, DATABASE) as connection:
        child = connection.info.backend_pid
        os.kill(child, signal.SIGSTOP)
        server.signal(signal.SIGKILL)
        while server.alive():
            pass
        log_from = server.log_size()
        letting_go = threading.Thread(target=_continue_once_refused, args=(server, log_from, child))
        letting_go.start()
        server.start_again(time.monotonic() + 30)
        letting_go.join()
    assert "is still in use" in server.log_since(log_from)
    with session(server, DATABASE) as connection:
        assert connection.execute("SELECT 1").fetchone() == (1,)


def _continue_once_refused(server: CrashableServer, log_from: int, child: int) -> None:
    deadline = time.monotonic() + 20
    while "is still in use" not in server.log_since(log_from) and time.monotonic() < deadline:
        pass
    os.kill(child, signal.SIGCONT)


# -- a fault that did not happen is told --------------------------------------------------------------------


def test_what_is_down_cannot_be_crashed_and_what_is_up_cannot_be_started(server: CrashableServer) -> None:
    with pytest.raises(FaultDidNotHappen, match="runs already"):
        server.start()
    with pytest.raises(FaultDidNotHappen, match="is not held"):
        server.accept_connections()
    server.stop_now()
    with pytest.raises(FaultDidNotHappen, match="is not running"):
        server.stop_now()
    server.start()
    with pytest.raises(ValueError, match="does not stop a server"):
        server.stop_now(ServerFault.KILL_BACKEND)


@pytest.mark.parametrize("fault", [ServerFault.KILL_BACKEND, ServerFault.TERMINATE_BACKEND])
def test_only_a_living_clients_backend_can_be_ended(server: CrashableServer, fault: ServerFault) -> None:
    with session(server, DATABASE) as connection:
        gone = connection.info.backend_pid
        row = connection.execute(
            "SELECT pid FROM pg_stat_activity WHERE backend_type = 'checkpointer'"
        ).fetchone()
    assert row is not None
    with session(server, DATABASE) as bystander:
        for pid, told in ((gone, "has no backend"), (row[0], "is the server's checkpointer")):
            with pytest.raises(FaultDidNotHappen, match=told):
                inject(server, fault, pid)
        assert bystander.execute("SELECT 1").fetchone() == (1,)


def test_a_start_without_recovery_is_not_taken_for_a_crash(
    server: CrashableServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(crashable._SIGNALS, ServerFault.KILL_POSTMASTER, signal.SIGINT)
    with pytest.raises(FaultDidNotHappen, match="does not say 'automatic recovery in progress'"):
        server.kill_postmaster()


def test_a_stop_of_another_kind_is_noticed(server: CrashableServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(crashable._SIGNALS, ServerFault.CRASH, signal.SIGINT)
    with pytest.raises(FaultDidNotHappen, match="does not say 'received immediate shutdown request'"):
        server.crash()
    server.start_again(time.monotonic() + 30)


# -- what is left -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("held", [False, True], ids=["up", "held"])
def test_nothing_is_left_in_shared_memory_or_on_disk(held: bool) -> None:
    segments, shared = _segments(), _shared_files()
    with EmbeddedServers.start() as servers:
        server = servers.test
        server.create_database(DATABASE)
        with session(server, DATABASE) as victim:
            for fault in (ServerFault.KILL_ALL, ServerFault.KILL_POSTMASTER, ServerFault.CRASH):
                inject(server, fault, victim.info.backend_pid)
        run_dir = server.data_dir.parent.parent
        ours = {_segment(server), _segment(servers.control)}
        assert ours <= _segments() - segments
        if held:
            server.refuse_connections()
    assert not run_dir.exists()
    assert processes_in(server.data_dir) == []
    assert not ours & _segments()
    assert not [name for name in _shared_files() - shared if name.startswith("PostgreSQL")]


def _segment(server: object) -> str:
    return (server.data_dir / "postmaster.pid").read_text().splitlines()[6].split()[1]  # type: ignore[attr-defined]


def _segments() -> set[str]:
    return {line.split()[1] for line in Path("/proc/sysvipc/shm").read_text().splitlines()[1:]}


def _shared_files() -> set[str]:
    return {path.name for path in Path("/dev/shm").iterdir()}
