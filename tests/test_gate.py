"""The gate before a real server: what it holds, loses, cuts and answers, and that nothing of it is left."""

from __future__ import annotations

import gc
import os
import socket
import struct
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from psycopg.pq import TransactionStatus

from fencepost.harness.errors import FencepostError, StepDeadline, UsageError
from fencepost.harness.gate import Gate, Upstream, parse_rule
from fencepost.harness.postgres.embedded import EmbeddedServers
from fencepost.tests.fix_gate import Connection, GateBench, ended

LOSSES = 200
LOSSES_BY_TCP = 20  # each one logs in, which takes longer there


@pytest.fixture(scope="module")
def servers() -> Iterator[EmbeddedServers]:
    with EmbeddedServers.start() as started:
        with psycopg.connect(started.test.dsn(), autocommit=True) as connection:
            connection.execute("CREATE TABLE kept (what text NOT NULL)")
        yield started


@pytest.fixture
def gate() -> Iterator[Gate]:
    with Gate() as opened:
        yield opened


@pytest.fixture(params=["unix", "tcp"])
def bench(servers: EmbeddedServers, gate: Gate, request: pytest.FixtureRequest) -> Iterator[GateBench]:
    opened = GateBench(servers.test, gate, request.param)
    opened.directly("TRUNCATE kept")
    yield opened
    opened.close()


def insert(connection: Connection, what: str = "row") -> None:
    connection.execute("INSERT INTO kept VALUES (%s)", (what,))


def kept(bench: GateBench) -> list[str]:
    return [what for (what,) in bench.directly("SELECT what FROM kept ORDER BY what")]


def backend_state(bench: GateBench, pid: int) -> tuple[str, bool]:
    """Of the backend: its state, and whether it is in a transaction."""
    ((state, in_transaction),) = bench.directly(
        "SELECT state, xact_start IS NOT NULL FROM pg_stat_activity WHERE pid = %s", pid
    )
    return state, in_transaction


def until_backends_are_gone(bench: GateBench) -> None:
    """A server needs a moment to notice that a client has gone."""
    gone = "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend' AND application_name = 'gated'"
    deadline = time.monotonic() + 20
    while bench.directly(gone) != [(0,)]:
        assert time.monotonic() < deadline, "backends of cut connections did not end"


# -- held -----------------------------------------------------------------------------------------------------


def test_a_statement_parked_before_has_not_reached_the_server(bench: GateBench) -> None:
    with bench.connect(autocommit=True) as connection:
        bench.begin("/INSERT/: park before")
        answer = bench.in_background(lambda: insert(connection))
        parked = bench.parked()
        assert (parked.ordinal, parked.when, parked.answer) == (1, "before", "pending")
        assert parked.sql == "INSERT INTO kept VALUES ($1)"
        assert parked.parameters == ("row",)
        assert parked.pid == connection.info.backend_pid
        # Not even its Parse: that would have begun a transaction.
        assert backend_state(bench, parked.pid) == ("idle", False)
        assert not answer.done()
        assert kept(bench) == []
        bench.path.release()
        bench.result(answer)
        assert kept(bench) == ["row"]
        assert bench.path.parked is None
        (record,) = bench.path.end_operation()
        assert (record.answer, record.fate, record.transaction) == ("INSERT 0 1", "delivered", "I")


def test_an_answer_parked_after_is_the_servers_and_not_yet_the_clients(bench: GateBench) -> None:
    with bench.connect(autocommit=True) as connection:
        bench.begin("/INSERT/: park after")
        answer = bench.in_background(lambda: insert(connection))
        parked = bench.parked()
        assert (parked.when, parked.answer) == ("after", "INSERT 0 1")
        assert kept(bench) == ["row"]
        assert not answer.done()
        assert [view.state for view in bench.path.connections] == ["parked after"]
        bench.path.release()
        bench.result(answer)


def test_every_statement_is_a_step(bench: GateBench) -> None:
    with bench.connect() as connection:

        def work() -> None:
            insert(connection, "one")
            insert(connection, "two")
            connection.commit()

        bench.begin(step=True)
        answer = bench.in_background(work)
        seen = []
        for _ in range(4):
            seen.append((bench.parked().ordinal, bench.parked().sql.split()[0]))
            assert kept(bench) == []
            bench.path.release()
        bench.result(answer)
        assert seen == [(1, "BEGIN"), (2, "INSERT"), (3, "INSERT"), (4, "COMMIT")]
        assert kept(bench) == ["one", "two"]


def test_the_count_stays_the_same_when_the_driver_begins_to_prepare(bench: GateBench) -> None:
    with bench.connect() as connection:
        counts = []
        for _ in range(9):
            bench.begin()
            insert(connection)
            connection.commit()
            counts.append([record.sql for record in bench.path.end_operation()])
        prepared = connection.execute("SELECT count(*) FROM pg_prepared_statements").fetchone()
        assert prepared is not None and prepared[0] >= 1, "psycopg did not begin to prepare"
        assert counts == [["BEGIN", "INSERT INTO kept VALUES ($1)", "COMMIT"]] * 9


def test_ordinals_and_occurrences_count_within_an_operation(bench: GateBench) -> None:
    with bench.connect(autocommit=True) as connection:
        for rule in ("statement 3: park before", "/INSERT/#2: park before"):
            bench.begin(rule)

            def work() -> None:
                insert(connection, "first")
                connection.execute("SELECT 1")
                insert(connection, "second")

            answer = bench.in_background(work)
            assert bench.parked().parameters == ("second",)
            assert bench.path.rules_fired == (parse_rule(rule),)
            bench.path.release()
            bench.result(answer)


def test_a_rule_whose_statement_never_came_is_named(bench: GateBench) -> None:
    with bench.connect(autocommit=True) as connection:
        bench.begin("/DELETE/: lose reply", "statement 7: park before", "/INSERT/: delay 0 s")
        insert(connection)
        assert [str(rule) for rule in bench.path.unfired] == [
            "/DELETE/: lose reply",
            "statement 7: park before",
        ]
        assert [str(rule) for rule in bench.path.rules_fired] == ["/INSERT/: delay 0 s"]
        assert bench.sqls() == ["INSERT INTO kept VALUES ($1)"]


def test_two_connections_of_one_actor_count_together(bench: GateBench) -> None:
    with bench.connect(autocommit=True) as one, bench.connect(autocommit=True) as two:
        bench.begin(step=True)
        first = bench.in_background(lambda: insert(one, "one"))
        assert bench.parked().pid == one.info.backend_pid
        second = bench.in_background(lambda: insert(two, "two"))
        bench.until(lambda: len(bench.path.all_parked) == 2, "both")
        assert [(each.ordinal, each.pid) for each in bench.path.all_parked] == [
            (1, one.info.backend_pid),
            (2, two.info.backend_pid),
        ]
        bench.path.release()
        bench.result(first)
        assert not second.done()
        bench.path.release()
        bench.result(second)


def test_several_rules_of_one_statement_happen_in_order(bench: GateBench) -> None:
    with bench.connect(autocommit=True) as connection:
        bench.begin("/INSERT/: park before", "/INSERT/: delay 0.01 s", "/INSERT/: park after")
        answer = bench.in_background(lambda: insert(connection))
        assert bench.parked().when == "before"
        bench.path.release()
        bench.until(lambda: bench.path.parked is not None and bench.path.parked.when == "after", "its answer")
        assert kept(bench) == ["row"]
        bench.path.release()
        bench.result(answer)
        assert bench.path.unfired == ()


# -- lost -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("rule", "committed"), [("lose reply", True), ("lose request", False)])
def test_a_lost_commit_happened_or_did_not(bench: GateBench, rule: str, committed: bool) -> None:
    losses = LOSSES if bench.path.directory is not None else LOSSES_BY_TCP
    for _ in range(losses):
        connection = bench.connect()
        insert(connection)
        bench.begin(f"/^COMMIT/: {rule}")
        with pytest.raises(psycopg.OperationalError):
            connection.commit()
        assert connection.closed
        assert bench.path.unfired == ()
        (record,) = bench.path.end_operation()
        assert record.answer == ("COMMIT" if committed else "lost")
        assert record.fate == ("reply lost" if committed else "request lost")
    assert len(kept(bench)) == (losses if committed else 0)


@pytest.mark.parametrize("how", ["fin", "rst"])
@pytest.mark.parametrize(("when", "rows"), [("before", 0), ("after", 1)])
def test_a_cut_before_or_after(bench: GateBench, how: str, when: str, rows: int) -> None:
    connection = bench.connect(autocommit=True)
    bench.begin(f"/INSERT/: cut {how} {when}")
    with pytest.raises(psycopg.OperationalError):
        insert(connection)
    assert bench.path.unfired == ()
    assert len(kept(bench)) == rows
    assert bench.path.connections == ()


@pytest.mark.parametrize("how", ["fin", "rst"])
def test_how_a_connection_ends_is_seen_on_the_wire(servers: EmbeddedServers, gate: Gate, how: str) -> None:
    bench = GateBench(servers.test, gate, "tcp")
    client = bench.raw()
    client.sendall(struct.pack(">II", 8, 80877103))
    assert client.recv(1) == b"N"
    bench.path.cut("rst" if how == "rst" else "fin")
    if how == "rst":
        with pytest.raises(ConnectionResetError):
            client.recv(1)
    else:
        assert client.recv(1) == b""
    client.close()


def test_what_is_parked_can_be_lost_either_way(bench: GateBench) -> None:
    for when, rows in (("before", 0), ("after", 1)):
        connection = bench.connect(autocommit=True)
        bench.begin(f"/INSERT/: park {when}")
        answer = bench.in_background(lambda each=connection: insert(each))  # type: ignore[misc]
        assert bench.parked().when == when
        wrong = bench.path.lose_parked_reply if when == "before" else bench.path.lose_parked_request
        with pytest.raises(FencepostError, match="A is not parked"):
            wrong()
        if when == "before":
            bench.path.lose_parked_request()
        else:
            bench.path.lose_parked_reply()
        with pytest.raises(psycopg.OperationalError):
            bench.result(answer)
        assert len(kept(bench)) == rows


def test_a_cut_in_the_middle_of_a_reply(bench: GateBench) -> None:
    connection = bench.connect(autocommit=True)
    bench.begin("/INSERT/: cut mid reply")
    with pytest.raises(psycopg.OperationalError):
        insert(connection)
    assert kept(bench) == ["row"]
    assert bench.path.statements[0].answer == "INSERT 0 1"


def test_a_cut_in_the_middle_of_the_next_message(servers: EmbeddedServers, gate: Gate) -> None:
    bench = GateBench(servers.test, gate, "tcp")
    connection = bench.connect(autocommit=True)
    raw = socket.socket(fileno=os.dup(connection.fileno()))
    bench.path.cut_mid_message()
    connection.pgconn.send_query(b"SELECT 1")
    raw.settimeout(20)
    raw.setblocking(True)
    came = ended(raw)
    # A RowDescription of one column, and only half of it.
    assert came[:1] == b"T"
    assert 1 <= len(came) < struct.unpack(">I", came[1:5])[0] + 1
    raw.close()
    bench.close()


# -- injected errors ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sqlstate", ["40001", "40P01"])
def test_an_injected_error_fails_the_transaction_on_both_sides(bench: GateBench, sqlstate: str) -> None:
    with bench.connect() as connection:
        insert(connection, "before")
        bench.begin(f"/INSERT/: error {sqlstate}")
        with pytest.raises(psycopg.errors.lookup(sqlstate)):
            insert(connection, "never")
        assert connection.info.transaction_status is TransactionStatus.INERROR
        assert backend_state(bench, connection.info.backend_pid)[0] == "idle in transaction (aborted)"
        connection.rollback()
        insert(connection, "after")
        connection.commit()
        assert kept(bench) == ["after"]
        assert [record.answer for record in bench.path.statements][:1] == [f"error {sqlstate}"]


def test_an_injected_error_outside_a_transaction_leaves_none(bench: GateBench) -> None:
    with bench.connect(autocommit=True) as connection:
        bench.begin("/INSERT/: error 40001")
        with pytest.raises(psycopg.errors.SerializationFailure):
            insert(connection, "never")
        assert connection.info.transaction_status is TransactionStatus.IDLE
        insert(connection, "after")
        assert kept(bench) == ["after"]


def test_a_commit_that_fails_ends_its_transaction(bench: GateBench) -> None:
    with bench.connect() as connection:
        insert(connection, "never")
        bench.begin("/COMMIT/: error 40001")
        with pytest.raises(psycopg.errors.SerializationFailure):
            connection.commit()
        assert connection.info.transaction_status is TransactionStatus.IDLE
        assert backend_state(bench, connection.info.backend_pid) == ("idle", False)
        assert kept(bench) == []
        insert(connection, "after")
        connection.commit()
        assert kept(bench) == ["after"]


def test_injected_errors_in_simple_queries(bench: GateBench) -> None:
    with bench.connect(autocommit=True) as connection:
        simple = connection.pgconn.exec_
        bench.begin("/SELECT 1/: error 40001", "/COMMIT/: error 40P01", "/SELECT 2/: error 40001")
        assert simple(b"SELECT 1").error_field(67) == b"40001"
        assert connection.info.transaction_status is TransactionStatus.IDLE
        simple(b"BEGIN")
        assert simple(b"COMMIT").error_field(67) == b"40P01"
        assert connection.info.transaction_status is TransactionStatus.IDLE
        simple(b"BEGIN")
        assert simple(b"SELECT 2").error_field(67) == b"40001"
        assert connection.info.transaction_status is TransactionStatus.INERROR
        simple(b"ROLLBACK")
        assert simple(b"SELECT 3").get_value(0, 0) == b"3"


def test_an_injected_error_in_a_pipeline_skips_the_rest(bench: GateBench) -> None:
    with bench.connect(autocommit=True) as connection:
        bench.begin("/two/: error 40001")
        with pytest.raises(psycopg.errors.SerializationFailure), connection.pipeline():
            connection.execute("INSERT INTO kept VALUES ('one')")
            connection.execute("INSERT INTO kept VALUES ('two')")
            connection.execute("INSERT INTO kept VALUES ('three')")
        assert kept(bench) == []
        assert [(record.sql[26:-2], record.answer) for record in bench.path.end_operation()] == [
            ("one", "INSERT 0 1"),
            ("two", "error 40001"),
            ("three", "skipped"),
        ]
        insert(connection, "after")
        assert kept(bench) == ["after"]


def test_a_failed_commit_in_a_pipeline_skips_the_rest(bench: GateBench) -> None:
    with bench.connect(autocommit=True) as connection:
        bench.begin("/COMMIT/: error 40001")
        with pytest.raises(psycopg.errors.SerializationFailure), connection.pipeline():
            connection.execute("BEGIN")
            connection.execute("INSERT INTO kept VALUES ('one')")
            connection.execute("COMMIT")
            connection.execute("INSERT INTO kept VALUES ('two')")
        assert kept(bench) == []
        assert connection.info.transaction_status is TransactionStatus.IDLE
        insert(connection, "after")
        assert kept(bench) == ["after"]


def test_an_administrators_shutdown_closes_the_connection(bench: GateBench) -> None:
    connection = bench.connect()
    insert(connection)
    bench.begin("/COMMIT/: error 57P01")
    with pytest.raises(psycopg.errors.AdminShutdown):
        connection.commit()
    assert connection.closed
    assert kept(bench) == []


def test_connections_are_refused_as_by_a_full_server(bench: GateBench) -> None:
    bench.path.refuse_connections("53300", 2)
    for _ in range(2):
        with pytest.raises(psycopg.OperationalError, match="too many clients"):
            bench.connect()
    bench.connect().close()


# -- the whole path -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("direction", ["both", "to_server", "to_client"])
def test_a_pause_loses_nothing(bench: GateBench, direction: str) -> None:
    with bench.connect(autocommit=True) as connection:
        bench.path.pause(direction)  # type: ignore[arg-type]
        answer = bench.in_background(lambda: insert(connection))
        bench.until(lambda: bench.path.holding, "held bytes")
        assert kept(bench) == (["row"] if direction == "to_client" else [])
        assert not answer.done()
        bench.path.resume()
        bench.result(answer)
        assert not bench.path.holding
        assert kept(bench) == ["row"]


def test_a_pause_holds_more_than_the_gate_keeps(bench: GateBench) -> None:
    with bench.connect(autocommit=True) as connection:
        bench.path.pause("to_client")
        answer = bench.in_background(
            lambda: connection.execute("SELECT repeat('x', 100000) FROM generate_series(1, 100)").fetchall()
        )
        bench.until(lambda: bench.path.holding, "held bytes")
        bench.path.resume()
        assert [len(row[0]) for row in bench.result(answer)] == [100_000] * 100


def test_long_statements_pass(bench: GateBench) -> None:
    with bench.connect(autocommit=True) as connection:
        row = connection.execute("SELECT length(%s::text)", ("x" * 5_000_000,)).fetchone()
        assert row == (5_000_000,)


def test_a_delay_is_added_each_way(bench: GateBench) -> None:
    with bench.connect(autocommit=True) as connection:
        bench.path.delay(0.05)
        started = time.monotonic()
        connection.execute("SELECT 1")
        assert time.monotonic() - started >= 0.1
        bench.path.delay(0)
        connection.execute("SELECT 1")


def test_swallowed_replies_leave_the_client_waiting(bench: GateBench) -> None:
    connection = bench.connect(autocommit=True)
    bench.path.swallow_replies(True)
    answer = bench.in_background(lambda: insert(connection))
    bench.until(lambda: any(each.answer == "INSERT 0 1" for each in bench.path.statements), "the answer")
    assert kept(bench) == ["row"]
    assert not answer.done()
    bench.path.cut()
    with pytest.raises(psycopg.OperationalError):
        bench.result(answer)


def test_a_half_open_connection_says_nothing(bench: GateBench) -> None:
    connection = bench.connect(application_name="gated")
    insert(connection, "uncommitted")
    bench.path.half_open()
    until_backends_are_gone(bench)
    assert [view.state for view in bench.path.connections] == ["half open"]
    answer = bench.in_background(connection.commit)
    other = bench.connect(autocommit=True)
    insert(other, "by another connection")
    assert not answer.done()
    bench.path.close_half_open()
    with pytest.raises(psycopg.OperationalError):
        bench.result(answer)
    assert kept(bench) == ["by another connection"]
    other.close()


def test_reset_makes_a_path_as_new(bench: GateBench) -> None:
    connection = bench.connect(autocommit=True)
    bench.begin(step=True)
    answer = bench.in_background(lambda: insert(connection))
    bench.parked()
    bench.path.pause()
    bench.path.delay(30)
    bench.path.refuse_connections("53300", 5)
    bench.path.reset()
    bench.result(answer)
    insert(connection)
    bench.connect().close()
    connection.close()


def test_a_client_that_goes_while_parked_has_still_sent_it(bench: GateBench) -> None:
    connection = bench.connect(autocommit=True)
    bench.begin("/INSERT/: park before")
    connection.pgconn.send_query(b"INSERT INTO kept VALUES ('sent')")
    bench.parked()
    connection.close()
    assert bench.parked().sql.startswith("INSERT")
    bench.path.release()
    bench.until(lambda: bench.path.connections == (), "the connection to end")
    assert kept(bench) == ["sent"]
    assert bench.path.statements[0].answer == "INSERT 0 1"


def test_a_crash_of_the_server_lets_nobody_go(servers: EmbeddedServers, gate: Gate) -> None:
    bench = GateBench(servers.test, gate, "unix")
    bench.directly("TRUNCATE kept")
    for when, sql in (("before", "lost by the crash"), ("after", "kept by the crash")):
        connection = bench.connect(autocommit=True)
        bench.begin(f"/INSERT/: park {when}")
        answer = bench.in_background(lambda each=connection, what=sql: insert(each, what))  # type: ignore[misc]
        assert bench.parked().when == when
        servers.test.crash()
        servers.test.restart()
        assert bench.parked().when == when
        assert not answer.done()
        bench.path.release()
        if when == "before":
            with pytest.raises(psycopg.OperationalError):
                bench.result(answer)
            assert [(each.answer, each.fate) for each in bench.path.statements] == [
                ("lost", "connection ended")
            ]
        else:
            bench.result(answer)
    assert kept(bench) == ["kept by the crash"]
    bench.close()


def test_a_backend_that_is_ended_lets_nobody_go(bench: GateBench) -> None:
    connection = bench.connect(autocommit=True)
    bench.begin("/INSERT/: park before")
    connection.pgconn.send_query(b"INSERT INTO kept VALUES ('never')")
    pid = bench.parked().pid
    assert bench.directly("SELECT pg_terminate_backend(%s, 20000)", pid) == [(True,)]
    with bench.gate.borrowed():
        while bench.gate.turn(0.2):  # all that the server had to say has come
            pass
    with socket.socket(fileno=os.dup(connection.fileno())) as raw, pytest.raises(BlockingIOError):
        raw.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    bench.path.release()
    result = connection.pgconn.get_result()
    assert result is not None and result.error_field(67) == b"57P01"
    connection.close()
    assert kept(bench) == []


def test_a_server_that_is_not_there(gate: Gate, tmp_path: Path) -> None:
    path = gate.open_path("A", Upstream("unix", str(tmp_path), 5432), "unix")
    with pytest.raises(psycopg.OperationalError):
        psycopg.connect(host=path.host, port=path.port, user="postgres")
    assert path.problems == ("A's connection could not reach the server: ENOENT",)


# -- the protocol's edges -------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [80877103, 80877104])
def test_encryption_is_declined(bench: GateBench, code: int) -> None:
    with bench.raw() as client:
        client.sendall(struct.pack(">II", 8, code))
        assert client.recv(10) == b"N"


@pytest.mark.parametrize(
    "sent", [b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x00\x05hello", struct.pack(">II", 5, 0)]
)
def test_a_client_that_does_not_speak_the_protocol_is_told_and_closed(bench: GateBench, sent: bytes) -> None:
    with bench.raw() as client:
        client.sendall(sent)
        said = ended(client)
    assert said.startswith(b"E") and b"C08P01" in said
    (problem,) = bench.path.problems
    assert problem.startswith("A's connection: the client began with")
    bench.connect().close()


def test_the_newest_protocol_passes(bench: GateBench) -> None:
    if psycopg.pq.version() < 180000:
        pytest.skip(f"libpq {psycopg.pq.version()} does not speak protocol 3.2")
    with bench.connect(
        autocommit=True, max_protocol_version="latest", min_protocol_version="3.2"
    ) as connection:
        assert connection.execute("SELECT 1").fetchone() == (1,)
        connection.cancel_safe()


# -- the loop -------------------------------------------------------------------------------------------------


def test_the_loop_is_turned_by_whoever_borrowed_it(bench: GateBench) -> None:
    with bench.connect(autocommit=True) as connection:
        with pytest.raises(FencepostError, match="not borrowed"):
            bench.gate.turn(0)
        with bench.gate.borrowed(), bench.gate.borrowed():
            answer = bench.in_background(lambda: insert(connection))
            with pytest.raises(StepDeadline, match=r"waited 0\.2 s for nothing; the gate: A: "):
                bench.gate.wait_until(lambda: False, 0.2, "nothing")
            bench.result(answer)
            unserved = bench.in_background(lambda: insert(connection))
            with pytest.raises(TimeoutError):
                unserved.result(0.2)  # nobody turns it
        bench.result(unserved)
        assert kept(bench) == ["row", "row"]


def test_a_foreign_file_descriptor_ends_a_turn(gate: Gate) -> None:
    fd = os.eventfd(0, os.EFD_NONBLOCK)
    gate.watch_fd(fd)
    with gate.borrowed():
        gate.turn(0)
        assert not gate.turn(0.01)
        assert gate.readable == frozenset()
        os.eventfd_write(fd, 1)
        assert gate.turn(20)
        assert gate.readable == {fd}
        assert gate.turn(20), "it can still be read"
        gate.unwatch_fd(fd)
        assert not gate.turn(0.01)
    os.close(fd)


def test_the_trust_of_a_unix_socket_is_not_opened_to_tcp(servers: EmbeddedServers, gate: Gate) -> None:
    with pytest.raises(UsageError, match="listen on unix"):
        gate.open_path("A", Upstream.of(servers.test.dsn()), "tcp")


def test_a_socket_directory_is_ours_alone(servers: EmbeddedServers, gate: Gate) -> None:
    path = gate.open_path("A", Upstream.of(servers.test.dsn()), "unix")
    assert path.directory is not None
    assert path.directory.stat().st_mode & 0o777 == 0o700


def test_the_gate_asks_nobody_for_a_password_and_lets_nobody_past_one(
    servers: EmbeddedServers, gate: Gate
) -> None:
    path = gate.open_path("A", Upstream.of(servers.test.tcp_dsn()), "tcp")
    with pytest.raises(psycopg.OperationalError, match="password"):
        psycopg.connect(path.conninfo(servers.test.tcp_dsn()), password="wrong")


def test_nothing_is_left_when_it_is_closed(servers: EmbeddedServers) -> None:
    gc.collect()
    open_before = len(list(Path("/proc/self/fd").iterdir()))
    gate = Gate()
    benches = [GateBench(servers.test, gate, listen) for listen in ("unix", "tcp")]
    connections = []
    answers = []
    for bench in benches:
        connection = bench.connect(autocommit=True, application_name="gated")
        connections.append(connection)
        bench.begin(step=True)
        answers.append(bench.in_background(lambda each=connection: insert(each)))  # type: ignore[misc]
        bench.parked()
    directories = [bench.path.directory for bench in benches if bench.path.directory is not None]
    gate.close()
    gate.close()
    for answer in answers:
        with pytest.raises(psycopg.OperationalError):
            answer.result(20)
    for connection in connections:
        connection.close()
    for bench in benches:
        bench.close()
    assert not any(directory.exists() or directory.parent.exists() for directory in directories)
    assert not [thread for thread in threading.enumerate() if thread.name == "fencepost:gate"]
    gc.collect()
    assert len(list(Path("/proc/self/fd").iterdir())) == open_before
    until_backends_are_gone(benches[0])
