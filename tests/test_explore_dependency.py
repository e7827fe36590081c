"""Footprints read off SQL: what is proven apart is apart on a real server too; all else depends on everything."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import psycopg
import pytest

from fencepost.harness.explore.catalog import Catalog, Reference, Table, UniqueIndex, catalog, read_catalog
from fencepost.harness.explore.dependency import CLOCK, IDLE, Transaction, ended, statement
from fencepost.harness.explore.footprint import UNKNOWN, Access, Footprint, Mode, Relation
from fencepost.harness.postgres.embedded import EmbeddedServers
from fencepost.queue_impl.reference import REFERENCE_SCHEMA

JOBS = Table(
    "public.jobs",
    key=("id",),
    key_types=("bigint",),
    columns=("id", "state", "token", "name"),
    unique=(
        UniqueIndex(frozenset({"id", "token"}), frozenset({"id", "token"})),
        UniqueIndex(frozenset({"name"}), frozenset({"name", "state"})),
    ),
    from_sequence=frozenset({"id"}),
)
LEDGER = Table(
    "public.ledger",
    key=("id",),
    key_types=("bigint",),
    columns=("id", "job", "token"),
    references=(Reference(("job", "token"), "public.jobs", ("id", "token")),),
    from_sequence=frozenset({"id"}),
)
NAMES = Table("public.names", key=("name",), key_types=("text",), columns=("name", "value"))
TABLES = catalog(JOBS, LEDGER, NAMES)

RELATION = Relation()


def touched(sql: str, *parameters: object, within: Catalog = TABLES) -> Footprint:
    return statement(sql, parameters, Transaction(open=True), within)[0]


def keys_of(seen: Footprint, table: str = "public.jobs") -> set[tuple[object, ...] | None]:
    modes = (Mode.READ, Mode.LOCK, Mode.WRITE)
    return {access.key for access in seen.accesses if access.thing == table and access.mode in modes}


@pytest.mark.parametrize(
    ("sql", "parameters", "keys"),
    [
        ("SELECT * FROM jobs WHERE id = 5", (), {(5,)}),
        ("SELECT * FROM jobs WHERE 5 = id", (), {(5,)}),
        ("SELECT * FROM jobs AS j WHERE j.id = $1 AND state = 'x' FOR UPDATE", ("7",), {(7,)}),
        ("SELECT * FROM jobs WHERE id = ANY($1)", ([1, 2],), {(1,), (2,)}),
        ("SELECT * FROM jobs WHERE id = ANY($1::bigint[])", ([1, 2],), {(1,), (2,)}),
        ("SELECT * FROM jobs WHERE id IN (1, $1)", (3,), {(1,), (3,)}),
        ("UPDATE jobs SET token = token + 1 WHERE id = $1::bigint", (5,), {(5,)}),
        # All rows: nothing proves which.
        ("SELECT * FROM jobs", (), {None}),
        ("SELECT * FROM jobs WHERE id = $1 OR true", (5,), {None}),
        ("SELECT * FROM jobs WHERE NOT id = $1", (5,), {None}),
        ("SELECT * FROM jobs WHERE id > $1", (5,), {None}),
        ("SELECT * FROM jobs WHERE other.id = $1", (5,), {None}),
        ("SELECT * FROM jobs WHERE id = $1", (object(),), {None}),
        ("SELECT * FROM jobs WHERE id = $1", (None,), {None}),
        ("SELECT * FROM jobs WHERE id = $1", (), {None}),
        ("SELECT * FROM jobs WHERE id = ANY($1)", ("{1,2}",), {None}),
        ("SELECT * FROM jobs WHERE id = $1::numeric", ("5",), {None}),
        ("SELECT * FROM jobs WHERE id = state", (), {None}),
        ("SELECT 1 FROM jobs WHERE id = 1 UNION SELECT 2", (), {None}),
        ("SELECT * FROM jobs a JOIN jobs b ON a.id = b.id WHERE a.id = 1", (), {None}),
        ("SELECT * FROM (SELECT * FROM jobs) j WHERE j.id = 1", (), {None}),
        ("WITH j AS (SELECT * FROM jobs WHERE id = 1) SELECT * FROM j", (), {None}),
        ("UPDATE jobs SET id = 6 WHERE id = 5", (), {None}),
        ("UPDATE jobs SET name = 'n' WHERE id = 5", (), {None}),  # may meet another row's name
        ("UPDATE jobs SET state = 'x' WHERE id = 5", (), {None}),  # may bring it under the partial index
        ("DELETE FROM jobs WHERE id = 5", (), {None}),  # may let another row have its name
        ("UPDATE jobs SET token = DEFAULT WHERE id = 5", (), {None}),
        ("INSERT INTO jobs (state) VALUES ('x')", (), {None}),
    ],
)
def test_rows_by_key_only_where_it_is_proven(
    sql: str, parameters: tuple[object, ...], keys: set[object]
) -> None:
    assert keys_of(touched(sql, *parameters)) == keys


@pytest.mark.parametrize(
    "sql",
    [
        "this is no SQL",
        "SELECT 1; SELECT 2",
        "SELECT * FROM nobody_knows WHERE id = 1",
        "SELECT * FROM pg_locks",
        "SELECT pg_advisory_lock(1)",
        "SELECT mine.now() FROM jobs",
        "SELECT 1 OPERATOR(mine.+) 2",
        "SELECT nextval('s')",
        "SELECT * FROM my_function(1)",
        "TRUNCATE jobs",
        "LOCK TABLE jobs",
        "MERGE INTO jobs USING ledger ON true WHEN MATCHED THEN DELETE",
        "CALL p()",
        "DO $$ BEGIN END $$",
        "NOTIFY somebody",
        "LISTEN somebody",
        "SET search_path = mine",
        "SET TRANSACTION ISOLATION LEVEL SERIALIZABLE",
        "SAVEPOINT a",
        "ROLLBACK TO a",
        "COMMIT AND CHAIN",
        "PREPARE TRANSACTION 'x'",
        "COPY jobs FROM STDIN",
        "CREATE TABLE t ()",
        "EXECUTE something",
    ],
)
def test_what_is_not_known_depends_on_everything(sql: str) -> None:
    seen = touched(sql)
    assert seen.unknown
    assert RELATION.dependent(seen, touched("SELECT 1"))


def test_different_rows_are_apart_and_one_row_is_not() -> None:
    one = touched("UPDATE jobs SET token = 2 WHERE id = $1", 1)
    assert not RELATION.dependent(one, touched("SELECT * FROM jobs WHERE id = 2 FOR UPDATE"))
    assert RELATION.dependent(one, touched("SELECT * FROM jobs WHERE id = 1 FOR UPDATE"))
    assert RELATION.dependent(one, touched("SELECT id FROM jobs LIMIT 1 FOR UPDATE SKIP LOCKED"))


def test_a_plain_read_waits_for_the_commit_alone() -> None:
    change, transaction = statement(
        "UPDATE jobs SET token = 2 WHERE id = 1", (), Transaction(open=True), TABLES
    )
    read = touched("SELECT * FROM jobs WHERE id = 1")
    assert not RELATION.dependent(change, read)
    assert RELATION.dependent(ended(transaction, committed=True), read)
    assert not RELATION.dependent(ended(transaction, committed=False), read)


def test_a_lock_waits_for_the_end_however_it_comes() -> None:
    _, transaction = statement(
        "SELECT * FROM jobs WHERE id = 1 FOR UPDATE", (), Transaction(open=True), TABLES
    )
    lock = touched("SELECT * FROM jobs WHERE id = 1 FOR UPDATE")
    for committed in (True, False):
        assert RELATION.dependent(ended(transaction, committed=committed), lock)
        assert not RELATION.dependent(ended(transaction, committed=committed), touched("SELECT 1"))


def test_alone_a_statement_is_its_own_transaction() -> None:
    alone, after = statement("UPDATE jobs SET token = 2 WHERE id = 1", (), IDLE, TABLES)
    assert after == IDLE
    assert RELATION.dependent(alone, touched("SELECT * FROM jobs WHERE id = 1"))


def test_a_foreign_key_looks_at_the_row_it_names() -> None:
    entry = touched("INSERT INTO ledger (job, token) VALUES ($1, $2)", 5, 1)
    assert keys_of(entry) == {(5,)}
    # A change of what the key refers to looks for entries.
    bump = touched("UPDATE jobs SET token = 2 WHERE id = 6")
    assert keys_of(bump, "public.ledger") == {None}
    assert RELATION.dependent(entry, bump)


def test_inserts_draw_from_one_sequence() -> None:
    one, other = (touched("INSERT INTO ledger (job, token) VALUES ($1, 1)", job) for job in (1, 2))
    assert RELATION.dependent(one, other)
    named = [touched("INSERT INTO names VALUES ($1, 1)", name) for name in ("a", "b")]
    assert not RELATION.dependent(*named)


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT clock_timestamp()",
        "SELECT CURRENT_TIMESTAMP",
        "SELECT 'now'::timestamptz",
        "UPDATE jobs SET token = 1 WHERE id = 1 AND now() > '-infinity'",
        "BEGIN",
    ],
)
def test_the_clock_is_read(sql: str) -> None:
    seen = statement(sql, (), IDLE, TABLES)[0]
    assert RELATION.dependent(seen, Footprint(frozenset({Access(CLOCK, Mode.SET)})))


def test_other_isolation_levels_are_unknown_to_their_end() -> None:
    _, transaction = statement("BEGIN ISOLATION LEVEL REPEATABLE READ", (), IDLE, TABLES)
    read, transaction = statement("SELECT * FROM jobs WHERE id = 1", (), transaction, TABLES)
    assert read.unknown
    assert ended(transaction, committed=True).unknown
    by_default, _ = statement("BEGIN", (), IDLE, catalog(JOBS, read_committed=False))
    assert by_default.unknown


def test_two_writes_depend_where_a_scan_shows_their_order() -> None:
    one, other = (touched("UPDATE jobs SET token = 2 WHERE id = $1", job) for job in (1, 2))
    scan = touched("SELECT id FROM jobs ORDER BY id LIMIT 1")
    assert RELATION.learns_from(scan)
    assert not RELATION.dependent(one, other) or keys_of(one, "public.ledger")
    plain = [touched("UPDATE names SET value = 2 WHERE name = $1", name) for name in ("a", "b")]
    assert not RELATION.dependent(*plain)
    assert RELATION.with_revealed(frozenset({"public.names"})).dependent(*plain)


# -- on a real server --------------------------------------------------------------------------------------------

SCHEMA = """
CREATE TABLE jobs (
    id bigint GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY, state text NOT NULL DEFAULT 'ready',
    token bigint NOT NULL DEFAULT 0, name text, twice bigint GENERATED ALWAYS AS (token * 2) STORED, UNIQUE (id, token)
);
CREATE UNIQUE INDEX one_name ON jobs (name) WHERE state = 'ready';
CREATE TABLE ledger (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, job bigint, token bigint, at timestamptz DEFAULT now(),
    FOREIGN KEY (job, token) REFERENCES jobs (id, token)
);
CREATE TABLE notes (name text PRIMARY KEY, value int);
CREATE TABLE watched (id int PRIMARY KEY);
CREATE FUNCTION nothing() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END';
CREATE TRIGGER watching BEFORE INSERT ON watched FOR EACH ROW EXECUTE FUNCTION nothing();
CREATE TABLE cascaded (job bigint REFERENCES jobs (id) ON DELETE CASCADE);
CREATE VIEW seen AS SELECT * FROM notes;
"""


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with EmbeddedServers.start() as servers:
        yield servers.test.dsn()


@pytest.fixture(scope="module")
def database(server: str) -> Iterator[psycopg.Connection[tuple[object, ...]]]:
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(SCHEMA.encode())
        yield connection


def test_the_catalog_is_read_off_the_server(database: psycopg.Connection[tuple[object, ...]]) -> None:
    found = read_catalog(database)
    # What cascades into or is watched by something else is not plain.
    assert set(found.tables) == {"public.ledger", "public.notes"}
    database.execute("DROP TABLE cascaded")
    found = read_catalog(database)
    assert set(found.tables) == {"public.jobs", "public.ledger", "public.notes"}
    jobs, ledger = found.tables["public.jobs"], found.tables["public.ledger"]
    assert (jobs.key, jobs.key_types) == (("id",), ("bigint",))
    assert jobs.from_sequence == {"id"}
    assert jobs.generated == {"twice"}
    assert UniqueIndex(frozenset({"name"}), frozenset({"name", "state"})) in jobs.unique
    assert ledger.references == (Reference(("job", "token"), "public.jobs", ("id", "token")),)
    assert ledger.reads_clock
    assert not jobs.reads_clock
    assert found.search_path == ("public",)
    assert found.read_committed


def test_the_reference_queue_settles_different_jobs_apart(server: str) -> None:
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(REFERENCE_SCHEMA.encode())
        tables = read_catalog(connection)
    lock = "SELECT id FROM lease_queue.jobs WHERE id = $1 FOR UPDATE"
    mark = "UPDATE lease_queue.jobs SET state = 'succeeded', finished_at = clock_timestamp() WHERE id = $1"
    for sql in (lock, mark):
        one, other = (touched(sql, job, within=tables) for job in (1, 2))
        assert not RELATION.dependent(one, other)
        assert RELATION.dependent(one, one)


STATEMENTS: Sequence[tuple[str, tuple[object, ...]]] = [
    *((f"SELECT token FROM jobs WHERE id = {job} FOR UPDATE", ()) for job in (1, 2)),
    *((f"SELECT state, token FROM jobs WHERE id = {job}", ()) for job in (1, 2)),
    *((f"UPDATE jobs SET token = token + 1 WHERE id = {job}", ()) for job in (1, 2)),
    *((f"UPDATE jobs SET state = 'done' WHERE id = {job}", ()) for job in (1, 2)),
    *((f"UPDATE jobs SET name = 'n' WHERE id = {job}", ()) for job in (1, 2)),
    *((f"INSERT INTO ledger (job, token) VALUES ({job}, 0) RETURNING id", ()) for job in (1, 2)),
    *((f"INSERT INTO notes VALUES ('{name}', 1)", ()) for name in "ab"),
    *((f"INSERT INTO notes VALUES ('{name}', 1) ON CONFLICT DO NOTHING", ()) for name in "ab"),
    *((f"UPDATE notes SET value = value + 1 WHERE name = '{name}'", ()) for name in "cd"),
    *((f"DELETE FROM notes WHERE name = '{name}'", ()) for name in "cd"),
    ("SELECT id FROM jobs ORDER BY id LIMIT 1 FOR UPDATE SKIP LOCKED", ()),
    ("SELECT name, value FROM notes ORDER BY name", ()),
    ("SELECT count(*) FROM ledger", ()),
]


@dataclass(frozen=True)
class Seen:
    """Of a pair of statements in one order: what each said, and the rows when both had committed."""

    said: tuple[str, str]
    rows: tuple[object, ...]


def test_what_is_said_to_be_apart_commutes_on_the_server(
    database: psycopg.Connection[tuple[object, ...]],
) -> None:
    """Every pair, each in an open transaction or already about to commit: independent pairs end alike both ways."""
    database.execute("DROP TABLE IF EXISTS cascaded")
    tables = read_catalog(database)
    chance = random.Random("pairs")
    pairs = [(one, other) for one in range(len(STATEMENTS)) for other in range(one, len(STATEMENTS))]
    apart = differing = 0
    dsn = database.info.dsn
    password = database.info.password
    with (
        psycopg.connect(dsn, password=password, autocommit=True) as a,
        psycopg.connect(dsn, password=password, autocommit=True) as b,
    ):
        for session in (a, b):
            session.execute("SET lock_timeout = '30ms'")
        for one, other in pairs:
            # First the transaction's work, then perhaps its commit, is what changes places with B's statement.
            committing = chance.random() < 0.5
            mine, transaction = statement(*STATEMENTS[one], Transaction(open=True), tables)
            if committing:
                mine = ended(transaction, committed=True)
            theirs, _ = statement(*STATEMENTS[other], Transaction(open=True), tables)
            independent = not RELATION.dependent(mine, theirs)
            if not independent and chance.random() < 0.8:
                continue  # a few show that the pairs can differ at all
            first = _pair(database, a, b, one, other, committing=committing, a_first=True)
            second = _pair(database, a, b, one, other, committing=committing, a_first=False)
            if independent:
                assert first == second, (STATEMENTS[one], STATEMENTS[other], committing)
                apart += 1
            differing += first != second
    assert apart > 50
    assert differing > 10


def _pair(
    database: psycopg.Connection[tuple[object, ...]],
    a: psycopg.Connection[tuple[object, ...]],
    b: psycopg.Connection[tuple[object, ...]],
    one: int,
    other: int,
    *,
    committing: bool,
    a_first: bool,
) -> Seen:
    database.execute("TRUNCATE ledger, jobs, notes RESTART IDENTITY")
    database.execute("INSERT INTO jobs DEFAULT VALUES; INSERT INTO jobs DEFAULT VALUES")
    database.execute("INSERT INTO notes VALUES ('c', 1), ('d', 1)")
    a.execute("BEGIN")
    b.execute("BEGIN")
    if committing:
        _said(a, one)
    said = {}
    for name in ("a", "b") if a_first else ("b", "a"):
        if name == "b":
            said[name] = _said(b, other)
        elif committing:
            a.execute("COMMIT")
            said[name] = "committed"
        else:
            said[name] = _said(a, one)
    for session in (a, b):
        session.execute("COMMIT")
    rows = database.execute(
        "SELECT (SELECT json_agg(j ORDER BY id) FROM jobs j)::text,"
        " (SELECT json_agg(n ORDER BY name) FROM notes n)::text,"
        " (SELECT json_agg(json_build_array(id, job, token) ORDER BY id) FROM ledger)::text"
    ).fetchone()
    assert rows is not None
    return Seen((said["a"], said["b"]), rows)


def _said(session: psycopg.Connection[tuple[object, ...]], which: int) -> str:
    try:
        cursor = session.execute(STATEMENTS[which][0].encode())
    except psycopg.Error as error:
        return str(error.sqlstate)
    return str(cursor.fetchall()) if cursor.description else cursor.statusmessage or ""


def test_unknown_is_the_default() -> None:
    assert RELATION.dependent(UNKNOWN, Footprint())
