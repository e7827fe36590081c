"""The conversation core: on conversations recorded from a real server, torn anew, and on some built by hand."""

from __future__ import annotations

import itertools
import struct
from collections.abc import Iterator

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fencepost.harness.gate import Gate, StatementRecord, framing
from fencepost.harness.gate.framing import ProtocolError, error_response, ready_for_query, typed
from fencepost.harness.gate.statements import Conversation, Statement, parameters_of
from fencepost.harness.postgres.embedded import EmbeddedServers
from fencepost.tests.fix_gate import GateBench, Log, recorded

STARTUP = struct.pack(">II", 23, 3 << 16) + b"user\0postgres\0\0"
SYNC = typed(framing.SYNC, b"")
EXECUTE = framing.EXECUTE_UNNAMED
BIND = framing.BIND_UNNAMED
ROWS = typed(ord("1"), b"") + typed(ord("2"), b"") + typed(ord("D"), b"\0\0")


def complete(tag: bytes) -> bytes:
    return typed(framing.COMPLETE, tag + b"\0")


class Replay:
    """A conversation in which everything is sent on at once."""

    def __init__(self, *, started: bool = True) -> None:
        self.conversation = Conversation()
        self.statements: list[Statement] = []
        self.done: list[Statement] = []
        if started:
            self.client(STARTUP)
            self.server(typed(framing.KEY_DATA, struct.pack(">II", 4711, 1)) + ready_for_query("I"))

    def client(self, data: bytes) -> None:
        self.conversation.feed(data)
        while (unit := self.conversation.next_unit()) is not None:
            if unit.statement is not None:
                self.statements.append(unit.statement)
            self.done += self.conversation.sent(unit)

    def server(self, data: bytes) -> None:
        for kind, body, _ in self.conversation.feed_answer(data)[1]:
            self.done += self.conversation.answer(kind, body)

    @property
    def answers(self) -> list[tuple[str, str, str]]:
        return [(each.sql, each.answer, each.transaction) for each in self.done]


# -- recorded -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def recording() -> Iterator[tuple[Log, tuple[StatementRecord, ...]]]:
    """One long session, and what the gate made of it while it happened."""
    with EmbeddedServers.start() as servers, Gate() as gate:
        bench = GateBench(servers.test, gate, "tcp")
        with recorded() as log, bench.connect() as connection:
            connection.execute("CREATE TABLE seen (a int UNIQUE DEFERRABLE INITIALLY DEFERRED, b text)")
            for number in range(8):
                connection.execute("INSERT INTO seen VALUES (%s, %s)", (number, "b" * 100 * number))
                connection.execute("SELECT * FROM seen WHERE a < %s", (number,)).fetchall()
            connection.commit()
            for wrong in ("SELECT 1/0", "no sql", "INSERT INTO seen VALUES ('x')"):
                with pytest.raises(psycopg.Error):
                    connection.execute(wrong)
                connection.rollback()
            connection.execute("INSERT INTO seen VALUES (1)")
            with pytest.raises(psycopg.errors.UniqueViolation):
                connection.commit()
            with connection.cursor().copy("COPY seen FROM STDIN") as copy:
                for number in range(100, 130):
                    copy.write_row((number, "copied"))
            with connection.cursor().copy("COPY seen TO STDOUT") as copy:
                assert len(list(copy.rows())) == 38
            with connection.pipeline():
                for number in range(200, 205):
                    connection.execute("INSERT INTO seen VALUES (%s)", (number,))
            with pytest.raises(psycopg.errors.DivisionByZero), connection.pipeline():
                connection.execute("SELECT 1")
                connection.execute("SELECT 1/0")
                connection.execute("SELECT 2")
            connection.rollback()
            connection.pgconn.exec_(b"SELECT 1; SELECT 2; ")
            connection.pgconn.exec_(b"")
            with connection.cursor("named") as cursor:
                cursor.execute("SELECT generate_series(1, 50)")
                cursor.fetchmany(10)
        bench.close()
        yield log, bench.path.statements


def replayed(log: Log, cuts: list[int]) -> Replay:
    replay = Replay(started=False)
    for side, data in log:
        edges = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
        for start, end in itertools.pairwise(edges):
            (replay.client if side == "client" else replay.server)(data[start:end])
    return replay


def test_the_recorded_session_is_understood(
    recording: tuple[Log, tuple[StatementRecord, ...]],
) -> None:
    _, records = recording
    by_sql = {record.sql: record.answer for record in records}
    assert by_sql["SELECT 1/0"] == "error 22012"
    assert by_sql["no sql"] == "error 42601"
    assert by_sql["INSERT INTO seen VALUES ('x')"] == "error 22P02"
    assert by_sql["COPY seen FROM STDIN"] == "COPY 30"
    assert by_sql["COPY seen TO STDOUT"] == "COPY 38"
    assert by_sql["SELECT 1; SELECT 2; "] == "SELECT 1"
    assert by_sql[""] == "empty"
    assert by_sql["SELECT 2"] == "skipped"
    assert [record.answer for record in records if record.sql == "COMMIT"][:2] == ["COMMIT", "error 23505"]
    inserts = [record for record in records if record.sql == "INSERT INTO seen VALUES ($1, $2)"]
    assert [record.answer for record in inserts] == ["INSERT 0 1"] * 8
    assert [record.parameters[1] for record in inserts] == ["b" * 100 * number for number in range(8)]
    assert not [record for record in records if record.answer in ("pending", "lost")]
    assert {record.pid for record in records} == {records[0].pid} != {0}


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=50)
@given(cuts=st.lists(st.integers(0, 70_000), max_size=12))
def test_torn_anew_it_is_understood_alike(
    recording: tuple[Log, tuple[StatementRecord, ...]], cuts: list[int]
) -> None:
    log, records = recording
    replay = replayed(log, cuts)
    assert [(each.sql, each.parameters, each.answer) for each in replay.statements] == [
        (each.sql, each.parameters, each.answer) for each in records
    ]
    assert len(replay.done) == len(replay.statements)
    assert not replay.conversation.unanswered


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=100)
@given(data=st.data())
def test_damaged_it_ends_in_an_error_or_goes_on(
    recording: tuple[Log, tuple[StatementRecord, ...]], data: st.DataObject
) -> None:
    log = list(recording[0])
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(log) - 1))
        side, piece = log[place]
        at = data.draw(st.integers(0, len(piece) - 1))
        damage = data.draw(st.binary(max_size=8))
        log[place] = side, piece[:at] + damage + piece[at + data.draw(st.integers(0, 8)) :]
    log = [(side, piece) for side, piece in log if piece]
    try:
        replayed(log, [])
    except ProtocolError as problem:
        assert str(problem).startswith(("the client", "the server"))


# -- built by hand --------------------------------------------------------------------------------------------


def test_the_pid_and_the_transaction_are_the_servers() -> None:
    replay = Replay()
    assert (replay.conversation.pid, replay.conversation.transaction) == (4711, "I")
    replay.client(framing.query("BEGIN"))
    replay.server(complete(b"BEGIN"))
    assert replay.answers == []
    replay.server(ready_for_query("T"))
    assert replay.answers == [("BEGIN", "BEGIN", "T")]
    assert replay.statements[0].pid == 4711


def test_an_execute_before_a_sync_is_complete_where_its_transaction_is() -> None:
    replay = Replay()
    replay.client(framing.parse("UPDATE x") + BIND + EXECUTE)
    replay.server(ROWS + complete(b"UPDATE 1"))
    assert replay.answers == []  # a Sync or Flush must follow, and only the server's own buffer was full
    replay.client(SYNC)
    assert replay.answers == []
    replay.server(ready_for_query("I"))
    assert replay.answers == [("UPDATE x", "UPDATE 1", "I")]


def test_what_fails_at_the_sync_failed() -> None:
    replay = Replay()
    replay.client(framing.parse("UPDATE x") + BIND + EXECUTE + SYNC)
    replay.server(ROWS + complete(b"UPDATE 1") + error_response("ERROR", "23505", "deferred"))
    replay.server(ready_for_query("I"))
    assert replay.answers == [("UPDATE x", "error 23505", "I")]


def test_a_flush_completes_an_execute() -> None:
    replay = Replay()
    replay.client(framing.parse("SELECT 1") + BIND + EXECUTE + framing.FLUSH_MESSAGE)
    replay.server(ROWS)
    assert replay.answers == []
    replay.server(complete(b"SELECT 1"))
    assert replay.answers == [("SELECT 1", "SELECT 1", "?")]
    replay.client(SYNC)
    replay.server(ready_for_query("I"))
    assert len(replay.answers) == 1


def test_a_pipeline_is_several_statements() -> None:
    replay = Replay()
    for sql in ("a", "b", "c"):
        replay.client(framing.parse(sql) + BIND + EXECUTE)
    assert replay.conversation.unflushed
    replay.client(SYNC)
    assert not replay.conversation.unflushed
    replay.server(ROWS + complete(b"A"))
    replay.server(error_response("ERROR", "40001", "b"))
    assert [answer[:2] for answer in replay.answers] == [("a", "A"), ("b", "error 40001"), ("c", "skipped")]
    replay.server(ready_for_query("I"))
    assert replay.conversation.unanswered == []


def test_after_an_error_the_rest_of_a_pipeline_is_skipped_even_if_it_comes_later() -> None:
    replay = Replay()
    replay.client(framing.parse("a") + BIND + EXECUTE + framing.FLUSH_MESSAGE)
    replay.server(error_response("ERROR", "40001", "a"))
    replay.client(framing.parse("b") + BIND + EXECUTE + SYNC)
    replay.server(ready_for_query("I"))
    replay.client(framing.parse("c") + BIND + EXECUTE + SYNC)
    replay.server(ROWS + complete(b"C") + ready_for_query("I"))
    assert [answer[:2] for answer in replay.answers] == [("a", "error 40001"), ("b", "skipped"), ("c", "C")]


def test_rounds_without_a_statement_are_not_counted() -> None:
    replay = Replay()
    named = typed(framing.PARSE, b"one\0SELECT $1\0\0\0")
    replay.client(named + typed(framing.DESCRIBE, b"Sone\0") + SYNC)
    replay.server(
        typed(ord("1"), b"") + typed(ord("t"), b"\0\0") + typed(ord("n"), b"") + ready_for_query("I")
    )
    assert replay.statements == []
    bound = typed(framing.BIND, b"\0one\0" + struct.pack(">HHHiHi", 1, 1, 2, -1, 0, 0)[:12])
    replay.client(bound + EXECUTE + SYNC)
    assert [each.sql for each in replay.statements] == ["SELECT $1"]
    replay.server(error_response("ERROR", "08P01", "bad bind") + ready_for_query("I"))
    replay.client(typed(framing.CLOSE, b"Sone\0") + SYNC)
    replay.server(typed(ord("3"), b"") + ready_for_query("I"))
    assert replay.answers == [("SELECT $1", "error 08P01", "I")]


def test_what_a_statement_needs_is_held_with_it() -> None:
    conversation = Conversation()
    conversation.feed(STARTUP + framing.parse("SELECT 1") + BIND)
    startup = conversation.next_unit()
    assert startup is not None and startup.data == STARTUP
    assert conversation.next_unit() is None
    conversation.feed(EXECUTE + SYNC)
    unit = conversation.next_unit()
    assert unit is not None and unit.statement is not None
    assert unit.data == framing.parse("SELECT 1") + BIND + EXECUTE


def test_each_execute_of_a_portal_is_a_statement() -> None:
    replay = Replay()
    replay.client(framing.parse("SELECT many") + BIND + EXECUTE + framing.FLUSH_MESSAGE)
    replay.server(ROWS + typed(framing.SUSPENDED, b""))
    replay.client(EXECUTE + SYNC)
    replay.server(complete(b"SELECT 3") + ready_for_query("I"))
    assert [answer[:2] for answer in replay.answers] == [
        ("SELECT many", "suspended"),
        ("SELECT many", "SELECT 3"),
    ]


def test_a_function_call_passes() -> None:
    replay = Replay()
    replay.client(typed(framing.FUNCTION_CALL, bytes(10)))
    replay.server(typed(ord("V"), b"\xff\xff\xff\xff") + ready_for_query("I"))
    replay.client(framing.query("SELECT 1"))
    replay.server(complete(b"SELECT 1") + ready_for_query("I"))
    assert replay.answers == [("SELECT 1", "SELECT 1", "I")]


def test_notifications_and_notices_belong_to_nobody() -> None:
    replay = Replay()
    replay.server(typed(ord("A"), struct.pack(">I", 1) + b"channel\0payload\0"))
    replay.client(framing.query("SELECT 1"))
    replay.server(typed(ord("A"), struct.pack(">I", 1) + b"channel\0payload\0") + typed(ord("N"), b"\0"))
    replay.server(complete(b"SELECT 1") + ready_for_query("I"))
    assert replay.answers == [("SELECT 1", "SELECT 1", "I")]


def test_parameters_of_both_formats_and_null() -> None:
    values = struct.pack(">i", 2) + b"hi" + struct.pack(">i", 2) + b"\x00\xff" + struct.pack(">i", -1)
    mixed = typed(framing.BIND, b"\0\0" + struct.pack(">HHHHH", 3, 0, 1, 0, 3) + values + b"\0\0")
    assert parameters_of(mixed) == ("hi", "\\x00ff", None)
    all_binary = typed(framing.BIND, b"\0\0" + struct.pack(">HHH", 1, 1, 3) + values + b"\0\0")
    assert parameters_of(all_binary) == ("\\x6869", "\\x00ff", None)
    assert parameters_of(typed(framing.BIND, b"\0\0\0")) == ()


def test_a_name_without_an_end_is_refused() -> None:
    replay = Replay()
    with pytest.raises(ProtocolError, match="end of a name"):
        replay.client(typed(framing.PARSE, b"name"))


def test_too_much_without_a_statement_is_refused() -> None:
    replay = Replay()
    megabytes = typed(framing.PARSE, b"\0" + b"x" * 30_000_000 + b"\0\0\0")
    replay.client(megabytes + megabytes)
    with pytest.raises(ProtocolError, match="without a statement"):
        replay.client(megabytes)
