"""`--pg dsn:…`: a server that is only named to us; nothing but our own databases is touched there."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from fencepost.harness.errors import UsageError
from fencepost.harness.lab import Lab, LabOptions
from fencepost.harness.loading import load_queue
from fencepost.harness.postgres import named_server
from fencepost.harness.postgres.connection_string import read_connection_string, without_password
from fencepost.harness.postgres.embedded import EmbeddedServers
from fencepost.harness.postgres.named_server import NamedServer, NamedServers, try_out
from fencepost.harness.postgres.provider import CannotInject, FaultDidNotHappen, ServerFault
from fencepost.harness.scenario import choose, installed_scenarios
from fencepost.harness.verdict import Verdict
from fencepost.tests.fix_commands import run_fencepost

PASSWORD = "s3cret-word"


class Elsewhere:
    """Somebody's server: roles and databases made as its administrator would."""

    def __init__(self, servers: EmbeddedServers) -> None:
        self._server = servers.test
        self._made = 0

    def execute(self, statement: str, database: str = "postgres") -> None:
        with psycopg.connect(self._server.dsn(database), autocommit=True) as connection:
            connection.execute(statement.encode())

    def ask(self, query: str, database: str = "postgres") -> list[Any]:
        with psycopg.connect(self._server.dsn(database), autocommit=True) as connection:
            return [row[0] for row in connection.execute(query.encode()).fetchall()]

    def role(self, rights: str) -> str:
        self._made += 1
        name = f"role_{self._made}"
        self.execute(f"CREATE ROLE {name} LOGIN {rights} PASSWORD '{PASSWORD}'")
        return name

    def database_for(self, role: str) -> str:
        name = f"given_to_{role}"
        self.execute(f"CREATE DATABASE {name} OWNER {role}")
        return name

    def dsn(self, role: str, database: str = "postgres", password: str = PASSWORD) -> str:
        host, port = self._server.tcp_address
        return f"postgresql://{role}:{password}@{host}:{port}/{database}"

    def databases(self) -> set[str]:
        return set(self.ask("SELECT datname FROM pg_database WHERE NOT datistemplate"))


@pytest.fixture(scope="module")
def elsewhere() -> Iterator[Elsewhere]:
    with EmbeddedServers.start() as servers:
        yield Elsewhere(servers)


@pytest.fixture
def creator(elsewhere: Elsewhere) -> str:
    return elsewhere.dsn(elsewhere.role("CREATEDB"))


@pytest.fixture
def given(elsewhere: Elsewhere) -> str:
    """An empty database, and a role that may not make another."""
    role = elsewhere.role("NOCREATEDB")
    return elsewhere.dsn(role, elsewhere.database_for(role))


def _lease_race(dsn: str, actors: str = "thread") -> Verdict:
    (variant,) = next(
        s for s in choose(installed_scenarios(), ["lease_race"]) if s.name == "lease_race"
    ).variants()
    with Lab(LabOptions(pg=f"dsn:{dsn}", actors=actors)) as lab:
        run = lab.run(load_queue("reference"), variant)
    assert run.trace.header["server"]["provider"] == "dsn"
    assert run.trace.header["clock"] == "expire"
    return run.judgement.verdict


# -- where it works -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("actors", ["thread", "process"])
def test_a_race_in_databases_of_its_own(elsewhere: Elsewhere, creator: str, actors: str) -> None:
    before = elsewhere.databases()
    assert _lease_race(creator, actors) is Verdict.PASS
    assert elsewhere.databases() == before


def test_a_race_in_the_one_database_it_was_given(elsewhere: Elsewhere, given: str) -> None:
    before = elsewhere.databases()
    assert _lease_race(given) is Verdict.PASS
    assert elsewhere.databases() == before
    try_out(given)
    assert _tables(elsewhere, given) == []
    assert _lease_race(given) is Verdict.PASS


def _tables(elsewhere: Elsewhere, dsn: str) -> list[Any]:
    query = (
        "SELECT relname FROM pg_class"
        " WHERE relnamespace::regnamespace::text !~ '^pg_' AND relnamespace::regnamespace::text <> 'information_schema'"
    )
    return elsewhere.ask(query, read_connection_string(dsn)["dbname"])


def test_its_databases_are_marked_named_after_it_and_empty(elsewhere: Elsewhere, creator: str) -> None:
    elsewhere.execute("CREATE TABLE kept_by_somebody ()", "template1")
    try:
        server = NamedServer(creator)
        before = elsewhere.databases()
        server.create_database("bench_1")
        (made,) = elsewhere.databases() - before
        assert made.startswith("fencepost_") and made.endswith("_bench_1")
        assert read_connection_string(server.dsn("bench_1"))["dbname"] == made
        (mark,) = elsewhere.ask(
            f"SELECT shobj_description(oid, 'pg_database') FROM pg_database WHERE datname = '{made}'"
        )
        assert mark.startswith("made by fencepost")
        with psycopg.connect(server.dsn("bench_1", application_name="A"), autocommit=True) as connection:
            assert connection.execute("SHOW application_name").fetchone() == ("A",)
            assert connection.execute("SELECT to_regclass('kept_by_somebody')").fetchone() == (None,)
        server.close()
        assert elsewhere.databases() == before
    finally:
        elsewhere.execute("DROP TABLE kept_by_somebody", "template1")


def test_objects_of_every_kind_are_gone_from_a_given_database(elsewhere: Elsewhere, given: str) -> None:
    server = NamedServer(given)
    server.create_database("bench_1")
    with psycopg.connect(server.dsn("bench_1"), autocommit=True) as connection:
        for statement in (
            "CREATE SCHEMA queue",
            "CREATE TYPE mood AS ENUM ('good', 'bad')",
            'CREATE TABLE "odd "" name" (m mood, id serial PRIMARY KEY)',
            'CREATE TABLE queue.jobs (LIKE "odd "" name")',
            "CREATE VIEW seen AS SELECT 1 AS one",
            "CREATE FUNCTION f(int) RETURNS int LANGUAGE sql AS 'SELECT $1'",
            "CREATE AGGREGATE total(int) (sfunc = int4pl, stype = int)",
            "CREATE PROCEDURE p() LANGUAGE sql AS 'SELECT 1'",
            "CREATE DOMAIN positive AS int CHECK (VALUE > 0)",
            "CREATE SEQUENCE numbers",
            "SELECT lo_create(4711)",
        ):
            connection.execute(statement.encode())
        left_open = psycopg.connect(server.dsn("bench_1"))
        left_open.execute("SELECT * FROM queue.jobs")
        server.drop_database("bench_1")
    left_open.close()
    server.close()
    with psycopg.connect(given, autocommit=True) as connection:
        assert connection.execute(named_server.given_database._OBJECTS).fetchall() == []


def test_a_second_queue_needs_the_first_to_be_put_away(given: str, monkeypatch: pytest.MonkeyPatch) -> None:
    server = NamedServer(given)
    server.create_database("bench_1")
    # As on a busy machine, where the session of a closed connection is still there when the next one comes.
    lingering = server._guards["bench_1"]
    monkeypatch.setattr(lingering, "close", lambda: None)
    with pytest.raises(UsageError, match="a second queue needs a second database"):
        server.create_database("bench_2")
    server.drop_database("bench_1")
    server.create_database("bench_2")
    monkeypatch.undo()
    lingering.close()
    server.close()


def test_a_given_database_serves_one_run_at_a_time(given: str) -> None:
    first, second = NamedServer(given), NamedServer(given)
    first.create_database("bench_1")
    with pytest.raises(UsageError, match="another run works in the database"):
        second.create_database("bench_1")
    first.close()
    second.create_database("bench_1")
    second.close()


# -- what a dead run left -----------------------------------------------------------------------------------

DIE = """
import os, signal, sys
from fencepost.harness.postgres.named_server import NamedServer
import psycopg
server = NamedServer(sys.argv[1])
server.create_database("bench_1")
psycopg.connect(server.dsn("bench_1"), autocommit=True).execute("CREATE TABLE jobs ()")
os.kill(os.getpid(), signal.SIGKILL)
"""


def _die(dsn: str) -> None:
    died = subprocess.run([sys.executable, "-c", DIE, dsn], timeout=60, check=False)
    assert died.returncode == -signal.SIGKILL


def test_the_next_start_drops_what_a_dead_run_left(elsewhere: Elsewhere, creator: str) -> None:
    before = elsewhere.databases()
    _die(creator)
    (left,) = elsewhere.databases() - before
    _await_no_session(elsewhere, left)
    NamedServer(creator).close()
    assert elsewhere.databases() == before


def test_the_next_run_clears_a_given_database(elsewhere: Elsewhere, given: str) -> None:
    _die(given)
    assert "jobs" in _tables(elsewhere, given)
    _await_no_session(elsewhere, read_connection_string(given)["dbname"])
    try_out(given)
    assert _lease_race(given) is Verdict.PASS
    assert _tables(elsewhere, given) == []


def _await_no_session(elsewhere: Elsewhere, database: str) -> None:
    from fencepost.tests.fix_commands import eventually

    query = f"SELECT pid FROM pg_stat_activity WHERE datname = '{database}'"
    eventually(lambda: not elsewhere.ask(query), f"no session in {database}")


def test_living_runs_unmarked_databases_and_other_roles_are_left_alone(
    elsewhere: Elsewhere, creator: str
) -> None:
    living = NamedServer(creator)
    living.create_database("bench_1")
    role = read_connection_string(creator)["user"]
    other = elsewhere.role("CREATEDB")
    elsewhere.execute(f"CREATE DATABASE fencepost_unmarked OWNER {role}")
    elsewhere.execute(f"CREATE DATABASE fencepost_of_another OWNER {other}")
    elsewhere.execute(f"COMMENT ON DATABASE fencepost_of_another IS '{named_server._MARK}'")
    before = elsewhere.databases()
    NamedServer(creator).close()
    assert elsewhere.databases() == before
    with psycopg.connect(living.dsn("bench_1")) as connection:
        assert connection.execute("SELECT 1").fetchone() == (1,)
    living.close()
    for name in ("fencepost_unmarked", "fencepost_of_another"):
        elsewhere.execute(f"DROP DATABASE {name}")


# -- what it cannot do --------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", sorted(set(ServerFault) - {ServerFault.TERMINATE_BACKEND}))
def test_a_fault_it_cannot_inject_is_named(creator: str, fault: ServerFault) -> None:
    server = NamedServer(creator)
    arguments = [1] if fault is ServerFault.KILL_BACKEND else []
    with pytest.raises(
        CannotInject, match=f"--pg dsn cannot inject {fault}: .* use --pg embedded"
    ) as refused:
        getattr(server, fault)(*arguments)
    assert (refused.value.fault, refused.value.provider) == (fault, "dsn")
    assert str(server.refusal(fault)) == str(refused.value)
    assert fault not in server.can
    server.close()


def test_one_session_can_be_ended(creator: str) -> None:
    server = NamedServer(creator)
    server.create_database("bench_1")
    assert server.refusal(ServerFault.TERMINATE_BACKEND) is None
    with psycopg.connect(server.dsn("bench_1"), autocommit=True) as victim:
        server.terminate_backend(victim.info.backend_pid)
        with pytest.raises(psycopg.errors.AdminShutdown):
            victim.execute("SELECT 1")
        with pytest.raises(FaultDidNotHappen, match="has no backend"):
            server.terminate_backend(victim.info.backend_pid)
    server.close()


def test_no_clock(creator: str) -> None:
    with pytest.raises(
        UsageError, match="the clock of a server by --pg dsn cannot be moved; use --clock auto"
    ):
        LabOptions(pg=f"dsn:{creator}", clock="clock")


def test_the_control_server_is_an_embedded_one(creator: str) -> None:
    servers = NamedServers.start(creator)
    assert servers.control.alive()
    assert servers.test.tcp_address[1] != servers.control.port
    servers.close()
    servers.close()
    assert not servers.control.data_dir.exists()


def test_a_proxy_needs_a_host(elsewhere: Elsewhere) -> None:
    server = NamedServer(elsewhere._server.dsn())
    with pytest.raises(UsageError, match=r"over the unix socket in .*: name its host and port"):
        _ = server.tcp_address
    server.close()


# -- bad input ----------------------------------------------------------------------------------------------


def _refused(dsn: str) -> str:
    with pytest.raises(UsageError) as refused:
        try_out(dsn)
    told = str(refused.value)
    assert PASSWORD not in told
    assert "\n" not in told
    return told


def test_nobody_there() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        told = _refused(f"postgresql://me:{PASSWORD}@127.0.0.1:{port}/x")
    assert "cannot be reached" in told and "Connection refused" in told


def test_a_wrong_password(elsewhere: Elsewhere) -> None:
    role = elsewhere.role("CREATEDB")
    told = _refused(elsewhere.dsn(role, password=PASSWORD[::-1]))
    assert "password authentication failed" in told
    assert PASSWORD[::-1] not in told


def test_no_such_database(elsewhere: Elsewhere) -> None:
    assert 'database "nowhere" does not exist' in _refused(
        elsewhere.dsn(elsewhere.role("CREATEDB"), "nowhere")
    )


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE TABLE orders ()",
        "CREATE SCHEMA orders",
        "CREATE TYPE orders AS ENUM ()",
        "CREATE VIEW orders AS SELECT 1",
    ],
)
def test_a_database_that_holds_something_is_refused(elsewhere: Elsewhere, given: str, statement: str) -> None:
    elsewhere.execute(statement, read_connection_string(given)["dbname"])
    told = _refused(given)
    assert "is not empty (it holds" in told and "orders" in told
    with pytest.raises(UsageError, match="is not empty"):
        NamedServer(given)


def test_a_role_that_may_create_nothing(elsewhere: Elsewhere) -> None:
    role = elsewhere.role("NOCREATEDB")
    elsewhere.execute(f"CREATE DATABASE closed_to_{role}")
    elsewhere.execute("REVOKE CREATE ON SCHEMA public FROM PUBLIC", f"closed_to_{role}")
    server = NamedServer(elsewhere.dsn(role, f"closed_to_{role}"))
    with pytest.raises(UsageError, match=r"may create neither databases nor tables .*: grant it CREATEDB"):
        server.create_database("bench_1")
    server.close()


def test_a_role_without_a_database_of_its_own(elsewhere: Elsewhere) -> None:
    dsn = elsewhere.dsn(elsewhere.role("NOCREATEDB")).removesuffix("/postgres")
    assert "may not create databases: grant it CREATEDB, or name an empty database" in _refused(dsn)


def test_an_old_server(creator: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(named_server, "OLDEST_MAJOR", 99)
    assert "which is too old: name one from 99 on" in _refused(creator)


@pytest.mark.parametrize(
    "dsn",
    [
        f"postgresql://me:{PASSWORD}@x@127.0.0.1/db",
        f"postgresql://me:{PASSWORD}/x@127.0.0.1/db",
        f"host=127.0.0.1 {PASSWORD}",
        f"postgresql://me:{PASSWORD}%zz@127.0.0.1/db",
        f"nonsense={PASSWORD}",
    ],
)
def test_a_broken_connection_string_is_not_quoted(dsn: str) -> None:
    assert "write it as postgresql://USER:PASSWORD@HOST:PORT/DATABASE" in _refused(dsn)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("dsn:postgresql://me:pw@h:1/d", "dsn:postgresql://me@h:1/d"),
        ("dsn:postgresql://me:p@w:x@h/d", "dsn:postgresql://me@h/d"),
        ("dsn:postgresql://h/d?user=me&password=pw", "dsn:postgresql://h/d?user=me&password=…"),
        ("dsn:host=h password='p w' user=me", "dsn:host=h password=… user=me"),
        ("embedded:16", "embedded:16"),
    ],
)
def test_passwords_are_left_out_of_what_is_told(given: str, told: str) -> None:
    assert without_password(given) == told


def test_the_command_says_it_in_one_sentence(tmp_path: Path, elsewhere: Elsewhere) -> None:
    role = elsewhere.role("NOCREATEDB")
    database = elsewhere.database_for(role)
    elsewhere.execute("CREATE TABLE orders ()", database)
    done = run_fencepost("race", "--pg", f"dsn:{elsewhere.dsn(role, database)}", cwd=tmp_path)
    assert (done.code, done.out) == (2, "")
    (line,) = done.err.splitlines()
    assert "is not empty (it holds table public.orders)" in line
    assert PASSWORD not in line


def test_the_doctor_tries_it(tmp_path: Path, creator: str, given: str) -> None:
    for dsn, told in ((creator, "may create databases"), (given, "works in the one empty database")):
        done = run_fencepost("doctor", "--pg", f"dsn:{dsn}", cwd=tmp_path)
        assert done.code == 0
        assert told in _what(done.out)
    done = run_fencepost("doctor", "--pg", f"dsn:{creator.replace(PASSWORD, 'wrong')}", cwd=tmp_path)
    assert (done.code, done.err) == (2, "")
    assert "cannot be reached" in _what(done.out)
    assert PASSWORD not in done.out


def _what(table: str) -> str:
    """The third column of the doctor's table, its folded cells joined."""
    return " ".join(cells[3].strip() for line in table.splitlines() if len(cells := line.split("│")) > 3)


def test_a_failure_does_not_print_the_password(tmp_path: Path, creator: str) -> None:
    done = subprocess.run(
        [
            *(
                sys.executable,
                "-m",
                "pytest",
                "-q",
                "-p",
                "no:cacheprovider",
                "-k",
                "late_complete_while_b_runs",
            ),
            *("--queue", "fencepost.queue_impl.twins:no_guard", f"--pg=dsn:{creator}"),
            *(
                "--trace-dir",
                str(tmp_path),
                str(Path(__file__).parent.parent / "scenarios" / "test_lease_race.py"),
            ),
        ],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=tmp_path,
        env=os.environ,
        check=False,
    )
    assert done.returncode == 1, done.stdout
    assert "--pg=dsn:postgresql://role_" in done.stdout
    said = done.stdout + done.stderr + "".join(path.read_text() for path in tmp_path.glob("*.jsonl"))
    assert PASSWORD not in said
