"""The gate under the drivers people use: each can do through it what it can do without it, step by step."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import asyncpg
import psycopg
import pytest

from fencepost.harness.gate import Gate
from fencepost.harness.postgres.base_directory import cache_directory, locked
from fencepost.harness.postgres.embedded import EmbeddedServers
from fencepost.tests.fix_gate import GateBench

NODE_POSTGRES = "pg@8.23.1"
NPM_DEADLINE_S = 120


@pytest.fixture(scope="module")
def servers() -> Iterator[EmbeddedServers]:
    with EmbeddedServers.start() as started:
        with psycopg.connect(started.test.dsn(), autocommit=True) as connection:
            connection.execute("CREATE TABLE kept (what text NOT NULL)")
        yield started


@pytest.fixture
def bench(servers: EmbeddedServers) -> Iterator[GateBench]:
    with Gate() as gate:
        opened = GateBench(servers.test, gate, "tcp")
        opened.directly("TRUNCATE kept")
        yield opened
        opened.close()


def kept(bench: GateBench) -> int:
    return len(bench.directly("SELECT * FROM kept"))


def step_through(bench: GateBench, work: Callable[[], Any]) -> list[str]:
    """Park every statement, look that the server has not gone ahead, and let it go. Returns them in order."""
    bench.begin(step=True)
    result = bench.in_background(work)
    seen: list[str] = []
    while True:
        bench.until(lambda: bench.path.parked is not None or result.done(), "a statement or the end")
        parked = bench.path.parked
        if parked is None:
            break
        seen.append(parked.sql)
        if len(seen) > 1:
            # Everything before it has been answered: also in a pipeline, by the gate's own Flush.
            bench.until(lambda: bench.path.statements[-2].answer != "pending", "the answer before it")
        bench.path.release()
    result.result(0)
    records = bench.path.end_operation()
    assert [record.sql for record in records] == seen
    assert not [record for record in records if record.fate != "delivered"], records
    return seen


def running(work: Callable[[], Awaitable[None]]) -> Callable[[], None]:
    async def limited() -> None:
        async with asyncio.timeout(60):
            await work()

    return lambda: asyncio.run(limited())


def test_psycopg_async(bench: GateBench) -> None:
    async def work() -> None:
        async with await psycopg.AsyncConnection.connect(bench.gated_dsn) as connection:
            for number in range(8):
                await connection.execute("INSERT INTO kept VALUES (%s)", (str(number),))

    assert step_through(bench, running(work)) == ["BEGIN", *["INSERT INTO kept VALUES ($1)"] * 8, "COMMIT"]
    assert kept(bench) == 8


@pytest.mark.parametrize("autocommit", [True, False])
def test_psycopg_pipeline(bench: GateBench, autocommit: bool) -> None:
    def work() -> None:
        with bench.connect(autocommit=autocommit) as connection, connection.pipeline() as pipeline:
            cursors = [
                connection.execute("INSERT INTO kept VALUES (%s)", (str(number),)) for number in range(3)
            ]
            pipeline.sync()
            cursors += [connection.execute("SELECT %s::int", (number,)) for number in range(8)]
            pipeline.sync()
            assert [cursor.fetchone() for cursor in cursors[3:]] == [(number,) for number in range(8)]

    seen = step_through(bench, work)
    inside = ["INSERT INTO kept VALUES ($1)"] * 3 + ["SELECT $1::int"] * 8
    assert seen == (inside if autocommit else ["BEGIN", *inside, "COMMIT"])
    assert kept(bench) == 3


def test_psycopg_pipeline_parked_in_the_middle(bench: GateBench) -> None:
    """What comes after a statement whose answer is held has not reached the server."""
    with bench.connect(autocommit=True) as connection:

        def work() -> None:
            with connection.pipeline():
                connection.execute("INSERT INTO kept VALUES ('one')")
                connection.execute("SELECT pg_advisory_lock(1)")
                connection.execute("SELECT pg_advisory_lock(2)")

        bench.begin("statement 2: park after")
        done = bench.in_background(work)
        parked = bench.parked()
        assert (parked.sql, parked.answer) == ("SELECT pg_advisory_lock(1)", "SELECT 1")
        locks = "SELECT objid FROM pg_locks WHERE locktype = 'advisory' AND pid = %s"
        assert bench.directly(locks, parked.pid) == [(1,)]
        bench.path.release()
        bench.result(done)
        assert len(bench.directly(locks, parked.pid)) == 2


def test_copy_both_ways(bench: GateBench) -> None:
    def work() -> None:
        with bench.connect() as connection:
            with connection.cursor().copy("COPY kept FROM STDIN") as copy:
                for number in range(20_000):
                    copy.write_row((f"row {number}",))
            with connection.cursor().copy("COPY kept TO STDOUT") as copy:
                assert sum(1 for _ in copy.rows()) == 20_000
            with pytest.raises(psycopg.errors.UndefinedTable):
                connection.cursor().copy("COPY nowhere FROM STDIN").__enter__()
            connection.rollback()
            with pytest.raises(ZeroDivisionError), connection.cursor().copy("COPY kept FROM STDIN") as copy:
                copy.write_row(("never",))
                raise ZeroDivisionError
            connection.rollback()
            with (
                pytest.raises(psycopg.errors.BadCopyFileFormat),
                connection.cursor().copy("COPY kept FROM STDIN") as copy,
            ):
                copy.write(b"one\ttwo\tthree\n")
            connection.rollback()
            assert connection.execute("SELECT 1").fetchone() == (1,)

    seen = step_through(bench, work)
    copies = ["COPY kept FROM STDIN"] * 3
    assert [sql for sql in seen if sql == "COPY kept FROM STDIN"] == copies
    assert kept(bench) == 0


def test_a_copy_whose_answer_is_parked(bench: GateBench) -> None:
    with bench.connect(autocommit=True) as connection:

        def work() -> None:
            with connection.cursor().copy("COPY kept FROM STDIN") as copy:
                copy.write_row(("copied",))

        bench.begin("/COPY/: park after")
        done = bench.in_background(work)
        assert bench.parked().answer == "COPY 1"
        assert kept(bench) == 1
        assert not done.done()
        bench.path.release()
        bench.result(done)


def test_notifications(bench: GateBench) -> None:
    with bench.connect(autocommit=True) as connection:
        connection.execute("LISTEN channel")
        bench.directly("NOTIFY channel, 'unasked'")
        assert [each.payload for each in connection.notifies(timeout=20, stop_after=1)] == ["unasked"]
        bench.begin("/SELECT 1/: error 40001")
        connection.execute("NOTIFY channel, 'own'")
        assert [each.payload for each in connection.notifies(timeout=20, stop_after=1)] == ["own"]


def test_cancel_requests(bench: GateBench) -> None:
    """Not psycopg's older `cancel()`: it waits with the interpreter lock held, so no gate in its process can move."""
    active = "SELECT count(*) FROM pg_stat_activity WHERE query = 'SELECT pg_sleep(600)' AND state = 'active'"
    with bench.connect(autocommit=True) as connection:
        sleeping = bench.in_background(lambda: connection.execute("SELECT pg_sleep(600)"))
        bench.until(lambda: bench.directly(active) == [(1,)], "the sleeping statement")
        connection.cancel_safe(timeout=20)
        with pytest.raises(psycopg.errors.QueryCanceled):
            bench.result(sleeping)
        assert connection.execute("SELECT 1").fetchone() == (1,)
        assert [record.answer for record in bench.path.statements] == ["error 57014", "SELECT 1"]


def test_asyncpg(bench: GateBench) -> None:
    async def work() -> None:
        parts = psycopg.conninfo.conninfo_to_dict(bench.gated_dsn)
        connection = await asyncpg.connect(
            host=bench.path.host,
            port=bench.path.port,
            user=str(parts["user"]),
            password=str(parts["password"]),
            database="postgres",
            timeout=20,
        )
        try:
            async with connection.transaction():
                for number in range(3):
                    await connection.execute("INSERT INTO kept VALUES ($1)", str(number))
                assert await connection.fetchval("SELECT count(*) FROM kept") == 3
                rows = [row[0] async for row in connection.cursor("SELECT generate_series(1, 7)", prefetch=3)]
                assert rows == list(range(1, 8))
            await connection.copy_records_to_table("kept", records=[("a",), ("b",)])
            with pytest.raises(asyncpg.UndefinedTableError):
                await connection.execute("SELECT * FROM nowhere")
            with pytest.raises(TimeoutError):
                await connection.execute("SELECT pg_sleep(600)", timeout=0.3)  # cancels it
            assert await connection.fetchval("SELECT 1") == 1
        finally:
            await connection.close()

    bench.begin()
    running(work)()
    answers = {record.sql: record.answer for record in bench.path.end_operation()}
    assert answers["SELECT * FROM nowhere"] == "error 42P01"
    assert answers["SELECT pg_sleep(600)"] == "error 57014"
    assert answers["INSERT INTO kept VALUES ($1)"] == "INSERT 0 1"
    assert "pending" not in answers.values()
    assert kept(bench) == 5


def test_asyncpg_step_by_step(bench: GateBench) -> None:
    async def work() -> None:
        parts = psycopg.conninfo.conninfo_to_dict(bench.gated_dsn)
        connection = await asyncpg.connect(
            host=bench.path.host,
            port=bench.path.port,
            user=str(parts["user"]),
            password=str(parts["password"]),
            database="postgres",
        )
        async with connection.transaction():
            for number in range(3):
                await connection.execute("INSERT INTO kept VALUES ($1)", str(number))
        await connection.close()

    seen = step_through(bench, running(work))
    assert [sql.rstrip(";") for sql in seen] == ["BEGIN", *["INSERT INTO kept VALUES ($1)"] * 3, "COMMIT"]
    assert kept(bench) == 3


NODE_PROGRAM = """
const { Client } = require('pg');
async function main() {
  const client = new Client(JSON.parse(process.argv[2]));
  await client.connect();
  await client.query('BEGIN');
  for (const what of ['a', 'b', 'c']) {
    await client.query({ name: 'insert', text: 'INSERT INTO kept VALUES ($1)', values: [what] });
  }
  await client.query('INSERT INTO kept VALUES ($1)', ['unnamed']);
  await client.query('COMMIT');
  let code = 'none';
  try { await client.query('SELECT 1 AS doomed'); } catch (error) { code = error.code; }
  const { rows } = await client.query('SELECT count(*)::int AS count FROM kept');
  await client.end();
  console.log(JSON.stringify({ code, count: rows[0].count }));
}
main().catch((error) => { console.error(error); process.exit(1); });
"""


@pytest.fixture(scope="module")
def node_modules() -> Path:
    """node-postgres, installed once per machine; skipped, with the reason, where it cannot be had."""
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        pytest.skip("node and npm are not installed, so node-postgres cannot be tried")
    directory = cache_directory() / f"node-{NODE_POSTGRES.replace('@', '-')}"
    with locked(cache_directory() / "node.lock"):
        if not (directory / "node_modules" / "pg" / "package.json").exists():
            directory.mkdir(exist_ok=True)
            command = [
                npm,
                "install",
                "--no-audit",
                "--no-fund",
                "--no-package-lock",
                "--ignore-scripts",
                NODE_POSTGRES,
            ]
            try:
                installed = subprocess.run(
                    command, cwd=directory, capture_output=True, text=True, timeout=NPM_DEADLINE_S
                )
            except subprocess.TimeoutExpired:
                pytest.skip(f"npm did not install {NODE_POSTGRES} within {NPM_DEADLINE_S} s")
            if installed.returncode != 0:
                pytest.skip(f"npm could not install {NODE_POSTGRES}: {installed.stderr.strip()[-300:]}")
    return directory / "node_modules"


def test_node_postgres(bench: GateBench, node_modules: Path) -> None:
    parts = psycopg.conninfo.conninfo_to_dict(bench.gated_dsn)
    where = {
        "host": bench.path.host,
        "port": bench.path.port,
        "user": parts["user"],
        "password": parts["password"],
        "database": "postgres",
    }
    (node_modules.parent / "program.js").write_text(NODE_PROGRAM)

    def work() -> dict[str, Any]:
        ran = subprocess.run(
            ["node", "program.js", json.dumps(where)],
            cwd=node_modules.parent,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert ran.returncode == 0, ran.stderr
        result: dict[str, Any] = json.loads(ran.stdout)
        return result

    bench.begin("/COMMIT/: park before", "/doomed/: error 40001")
    result = bench.in_background(work)
    assert bench.parked().ordinal == 6
    assert kept(bench) == 0
    bench.path.release()
    assert result.result(60) == {"code": "40001", "count": 4}
    assert [record.sql for record in bench.path.end_operation()] == [
        "BEGIN",
        *["INSERT INTO kept VALUES ($1)"] * 4,
        "COMMIT",
        "SELECT 1 AS doomed",
        "SELECT count(*)::int AS count FROM kept",
    ]
