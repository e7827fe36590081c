"""The pair of servers of one run: reachable, closed to others, configured as intended, restartable."""

from __future__ import annotations

import os
import signal
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from fencepost.harness.errors import UsageError
from fencepost.harness.postgres import embedded_server, keeper
from fencepost.harness.postgres.binaries import find_binaries
from fencepost.harness.postgres.embedded import EmbeddedServer, EmbeddedServers
from fencepost.harness.postgres.keeper import processes_in


@pytest.fixture(scope="module")
def servers() -> Iterator[EmbeddedServers]:
    with EmbeddedServers.start() as started:
        yield started


@pytest.fixture(params=["test", "control"])
def server(servers: EmbeddedServers, request: pytest.FixtureRequest) -> EmbeddedServer:
    return {"test": servers.test, "control": servers.control}[request.param]


def _ask(dsn: str, query: str) -> object:
    with psycopg.connect(dsn, autocommit=True) as connection:
        row = connection.execute(query).fetchone()
        assert row is not None
        return row[0]


def _shown(server: EmbeddedServer, setting: str) -> object:
    return _ask(server.dsn(), f"SHOW {setting}")


def test_both_ways_lead_to_the_same_server(server: EmbeddedServer) -> None:
    assert server.alive()
    assert server.version == find_binaries().version
    for dsn in (server.dsn(), server.tcp_dsn()):
        assert _ask(dsn, "SHOW server_version") == server.version
        assert _ask(dsn, "SHOW data_directory") == str(server.data_dir)
        assert _ask(dsn, "SELECT current_user") == "postgres"
    assert _ask(server.dsn(), "SELECT inet_server_addr() IS NULL") is True
    assert _ask(server.tcp_dsn(), "SELECT host(inet_server_addr())") == "127.0.0.1"
    assert "password" not in server.dsn()


def test_the_application_name_is_the_callers(server: EmbeddedServer) -> None:
    for dsn in (server.dsn(application_name="A"), server.tcp_dsn(application_name="A")):
        assert _ask(dsn, "SHOW application_name") == "A"


def test_the_two_are_different_servers(servers: EmbeddedServers) -> None:
    assert servers.test.port != servers.control.port
    assert servers.test.pid != servers.control.pid
    assert servers.test.data_dir != servers.control.data_dir


@pytest.mark.parametrize("password", ["", "postgres", "0" * 32])
def test_tcp_trusts_nobody(server: EmbeddedServer, password: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGPASSFILE", "/nowhere")
    with pytest.raises(psycopg.OperationalError, match="password"):
        psycopg.connect(
            host="127.0.0.1", port=server.port, user="postgres", password=password, dbname="postgres"
        )


def test_tcp_does_not_take_the_other_servers_password(servers: EmbeddedServers) -> None:
    with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
        psycopg.connect(servers.control.tcp_dsn(), port=servers.test.port)


def test_no_rule_trusts_and_nothing_listens_elsewhere(server: EmbeddedServer) -> None:
    rules = "SELECT string_agg(type || ' ' || auth_method, ', ' ORDER BY rule_number) FROM pg_hba_file_rules"
    if server.major < 16:
        rules = rules.replace("rule_number", "line_number")
    assert _ask(server.dsn(), rules) == "local peer, host scram-sha-256"
    assert _shown(server, "listen_addresses") == "127.0.0.1"


def test_the_template_carries_no_password(server: EmbeddedServer) -> None:
    stored = _ask(server.dsn(), "SELECT rolpassword FROM pg_authid WHERE rolname = 'postgres'")
    assert str(stored).startswith("SCRAM-SHA-256$")
    with EmbeddedServers.start() as others:
        query = "SELECT rolpassword FROM pg_authid WHERE rolname = 'postgres'"
        assert _ask(others.test.dsn(), query) != stored


def test_the_socket_is_for_us_alone(server: EmbeddedServer) -> None:
    assert stat.S_IMODE(server.socket_dir.stat().st_mode) == 0o700
    assert stat.S_IMODE(server.data_dir.stat().st_mode) == 0o700
    assert server.data_dir.stat().st_uid == os.stat(f"/proc/{server.pid}").st_uid  # noqa: PTH116
    assert server.data_dir.stat().st_uid != 0


INTENDED = {
    "fsync": "off",
    "full_page_writes": "off",
    "dynamic_shared_memory_type": "mmap",
    "autovacuum": "off",
    "jit": "off",
    "TimeZone": "UTC",
    "server_encoding": "UTF8",
    "wal_segment_size": "1MB",
    "checkpoint_timeout": "1d",
    "authentication_timeout": "7s",
}


def test_settings_are_in_force(servers: EmbeddedServers) -> None:
    for server in (servers.test, servers.control):
        assert {name: _shown(server, name) for name in INTENDED} == INTENDED
    assert _shown(servers.test, "synchronous_commit") == "on"
    assert _shown(servers.test, "max_connections") == "100"
    assert _shown(servers.control, "max_connections") == "200"
    assert _shown(servers.control, "wal_level") == "minimal"


def test_no_setting_was_refused(server: EmbeddedServer) -> None:
    """A name PostgreSQL does not know stops it, but a value it cannot apply is only noted."""
    assert _ask(server.dsn(), "SELECT count(*) FROM pg_file_settings WHERE error IS NOT NULL") == 0


def test_databases_come_and_go(server: EmbeddedServer) -> None:
    server.create_database('odd "name"')
    assert _ask(server.dsn('odd "name"'), "SELECT current_database()") == 'odd "name"'
    with psycopg.connect(server.dsn('odd "name"')):
        server.drop_database('odd "name"')
    with pytest.raises(psycopg.OperationalError, match="does not exist"):
        psycopg.connect(server.dsn('odd "name"'))
    server.drop_database('odd "name"')


def test_committed_rows_survive_a_crash() -> None:
    with EmbeddedServers.start() as servers:
        server = servers.test
        with psycopg.connect(server.dsn(), autocommit=True) as connection:
            connection.execute("CREATE TABLE kept (n int)")
            for n in range(80):
                connection.execute("INSERT INTO kept VALUES (%s)", [n])
            pid, port, tcp_dsn = server.pid, server.port, server.tcp_dsn()
            server.kill_processes()
            assert not server.alive()
            assert processes_in(server.data_dir) == []
            with pytest.raises(psycopg.OperationalError):
                connection.execute("SELECT 1")
        assert servers.control.alive()
        server.restart()
        assert server.alive()
        assert server.pid != pid
        assert (server.port, server.tcp_dsn()) == (port, tcp_dsn)
        assert _ask(tcp_dsn, "SELECT count(*) FROM kept") == 80
        assert "not properly shut down" in server.log_tail(50)


def test_a_killed_postmaster_is_replaced_once_its_children_have_left() -> None:
    with EmbeddedServers.start() as servers:
        server = servers.test
        with psycopg.connect(server.dsn(), autocommit=True):
            server.signal(signal.SIGKILL)
            server.restart()
        assert _ask(server.dsn(), "SELECT 1") == 1


def test_a_stopped_postmaster_leaves_by_itself_and_need_not_be_killed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    killed: list[object] = []
    monkeypatch.setattr(keeper, "GRACE_S", 60.0)  # a busy machine must not look like a postmaster that stays
    monkeypatch.setattr(keeper, "kill_servers", lambda data_dirs, reap: killed.append(data_dirs))
    with EmbeddedServers.start() as servers:
        servers.test.signal(signal.SIGSTOP)
        keeper.end_servers([servers.test.data_dir])
        assert not servers.test.alive()
    assert not killed
    assert not servers.test.data_dir.exists()


def test_stop_and_close_can_be_repeated() -> None:
    servers = EmbeddedServers.start()
    pids = [servers.test.pid, servers.control.pid]
    servers.test.stop()
    servers.test.stop()
    assert not servers.test.alive()
    assert servers.control.alive()
    servers.close()
    servers.close()
    servers.control.stop()
    assert not servers.control.alive()
    assert not servers.test.data_dir.parent.parent.exists()
    assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()]


def test_no_shared_memory_is_left_by_a_crash() -> None:
    with EmbeddedServers.start() as servers:
        _, segment = (servers.test.data_dir / "postmaster.pid").read_text().splitlines()[6].split()
        assert segment in _shared_memory_segments()
        servers.test.kill_processes()
    assert segment not in _shared_memory_segments()


def _shared_memory_segments() -> set[str]:
    return {line.split()[1] for line in Path("/proc/sysvipc/shm").read_text().splitlines()[1:]}


@pytest.fixture
def free_to_wander() -> Iterator[set[int]]:
    """Lets this thread run on every core, which an earlier test may have kept to one."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, range(os.cpu_count() or 1))
    yield os.sched_getaffinity(0)
    os.sched_setaffinity(0, before)


def test_both_run_on_the_core_the_caller_chose(free_to_wander: set[int]) -> None:
    core = max(free_to_wander)
    with EmbeddedServers.start(core=core) as servers, psycopg.connect(servers.test.dsn()) as connection:
        backend = connection.info.backend_pid
        for pid in (servers.test.pid, servers.control.pid, backend):
            assert os.sched_getaffinity(pid) == {core}
    assert os.sched_getaffinity(0) == free_to_wander


def test_a_core_that_is_not_ours_is_refused() -> None:
    with pytest.raises(UsageError, match="core 4096 is not among"):
        EmbeddedServers.start(core=4096)


def _listening() -> socket.socket:
    taken = socket.socket()
    taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    taken.bind(("127.0.0.1", 0))
    taken.listen()
    return taken


def test_a_port_taken_meanwhile_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    real = embedded_server.free_port
    with _listening() as taken:
        ports = [taken.getsockname()[1]]
        monkeypatch.setattr(embedded_server, "free_port", lambda: ports.pop() if ports else real())
        with EmbeddedServers.start() as servers:
            assert not ports
            assert servers.test.port != taken.getsockname()[1]
            assert _ask(servers.test.tcp_dsn(), "SELECT 1") == 1


def test_ports_taken_again_and_again_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    with _listening() as taken:
        monkeypatch.setattr(embedded_server, "free_port", lambda: taken.getsockname()[1])
        with pytest.raises(UsageError, match="5 ports in a row were taken"):
            EmbeddedServers.start()


def test_a_server_that_does_not_start_shows_its_log(monkeypatch: pytest.MonkeyPatch) -> None:
    real = embedded_server.configuration
    monkeypatch.setattr(
        embedded_server, "configuration", lambda *role, **rest: real(*role, **rest) + "no_such = 1\n"
    )
    with pytest.raises(UsageError) as refused:
        EmbeddedServers.start()
    assert 'unrecognized configuration parameter "no_such"' in str(refused.value)


def test_a_deadline_that_passes_is_an_error_with_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    with EmbeddedServers.start() as servers:
        monkeypatch.setattr(EmbeddedServer, "_says_ready", lambda self: False)
        with pytest.raises(UsageError, match="not ready at its deadline") as refused:
            servers.test.restart(deadline_s=0.5)
    assert "starting PostgreSQL" in str(refused.value)
