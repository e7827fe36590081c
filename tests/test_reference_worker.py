"""The worker loop: what it reports, how it settles, and that it stops at once but never in the middle of a job."""

from __future__ import annotations

import json
import queue as queue_module
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any

import psycopg
import pytest

from fencepost.harness.postgres.embedded import EmbeddedServers
from fencepost.queue_impl.reference import REFERENCE_SCHEMA, Lease, ReferenceQueue, Settings, Worker
from fencepost.queue_impl.reference.worker import Handler, Heartbeats

DEADLINE_S = 30.0
LONG_S = 3600.0


@pytest.fixture(scope="module")
def installed() -> Iterator[str]:
    with EmbeddedServers.start() as servers:
        servers.test.create_database("reference_worker")
        dsn = servers.test.dsn("reference_worker")
        with psycopg.connect(dsn) as connection:
            connection.execute(REFERENCE_SCHEMA.encode())
        yield dsn


@pytest.fixture
def db(installed: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(installed, autocommit=True) as connection:
        connection.execute("TRUNCATE lease_queue.jobs, lease_queue.ledger RESTART IDENTITY")
        yield connection


@pytest.fixture
def producer(db: psycopg.Connection[Any], installed: str) -> Iterator[ReferenceQueue]:
    with psycopg.connect(installed, autocommit=True) as connection:
        yield ReferenceQueue(connection, worker="P")


class Events:
    """Collects a worker's events; `until` waits for one with a deadline."""

    def __init__(self) -> None:
        self._arriving: queue_module.Queue[dict[str, Any]] = queue_module.Queue()
        self.seen: list[dict[str, Any]] = []

    def __call__(self, event: dict[str, Any]) -> None:
        json.dumps(event)
        self._arriving.put(event)

    def until(self, name: str) -> dict[str, Any]:
        while True:
            event = self._arriving.get(timeout=DEADLINE_S)
            self.seen.append(event)
            if event["event"] == name:
                return event

    def names(self) -> list[str]:
        while not self._arriving.empty():
            self.seen.append(self._arriving.get())
        return [event["event"] for event in self.seen]


def start(worker: Worker, handler: Handler) -> Future[int]:
    """Runs it in a daemon thread: one that does not stop fails its test and does not hold up the others."""
    running: Future[int] = Future()

    def run() -> None:
        try:
            running.set_result(worker.run(handler))
        except BaseException as error:
            running.set_exception(error)
            raise

    threading.Thread(target=run, daemon=True).start()
    return running


def state_of(db: psycopg.Connection[Any], job_id: int) -> Any:
    row = db.execute("SELECT state FROM lease_queue.jobs WHERE id = %s", [job_id]).fetchone()
    assert row is not None
    return row[0]


def take_over(db: psycopg.Connection[Any], other: ReferenceQueue) -> None:
    assert db.execute("UPDATE lease_queue.jobs SET lease_expires_at = clock_timestamp()").rowcount == 1
    assert other.claim(LONG_S) is not None


def test_it_claims_executes_completes_and_says_so(
    installed: str, db: psycopg.Connection[Any], producer: ReferenceQueue
) -> None:
    jobs = [producer.enqueue({"n": n}) for n in range(3)]
    events = Events()
    worker = Worker(installed, "W", on_event=events)
    assert worker.run(lambda lease: {"double": 2 * lease.payload["n"]}, max_jobs=3) == 3
    assert [state_of(db, job) for job in jobs] == ["succeeded"] * 3
    results = db.execute("SELECT result FROM lease_queue.ledger ORDER BY job_id").fetchall()
    assert results == [({"double": 0},), ({"double": 2},), ({"double": 4},)]
    assert events.names() == ["lease_acquired", "execution_started"] * 3 + ["worker_exit"]
    assert events.seen[0] == {"event": "lease_acquired", "worker": "W", "job_id": "1", "token": 1}
    assert events.seen[-1] == {"event": "worker_exit", "worker": "W", "reason": "max_jobs"}


def test_a_handler_that_raises_fails_the_attempt(
    installed: str, db: psycopg.Connection[Any], producer: ReferenceQueue
) -> None:
    job = producer.enqueue({}, max_attempts=2)

    def raise_error(_lease: Lease) -> None:
        raise LookupError("nothing there")

    Worker(installed, "W", settings=Settings(backoff_base_s=LONG_S, backoff_cap_s=LONG_S)).run(
        raise_error, max_jobs=1
    )
    row = db.execute(
        "SELECT state, last_error, next_run_at > clock_timestamp() FROM lease_queue.jobs WHERE id = %s", [job]
    ).fetchone()
    assert row == ("ready", "LookupError: nothing there", True)


def test_stop_ends_an_idle_worker_at_once(installed: str, db: psycopg.Connection[Any]) -> None:
    events = Events()
    idle = threading.Event()
    worker = Worker(
        installed,
        "W",
        poll_s=LONG_S,
        on_event=events,
        checkpoint=lambda name: idle.set() if name == "after_commit" else None,
    )
    running = start(worker, lambda _lease: None)
    assert idle.wait(DEADLINE_S)
    worker.stop()
    assert running.result(DEADLINE_S) == 0
    assert events.until("worker_exit")["reason"] == "stopped"


def test_stop_lets_the_job_in_hand_finish_and_takes_no_other(
    installed: str, db: psycopg.Connection[Any], producer: ReferenceQueue
) -> None:
    first, second = producer.enqueue({}), producer.enqueue({})
    worker = Worker(installed, "W")

    def stop_meanwhile(_lease: Lease) -> None:
        worker.stop()

    assert start(worker, stop_meanwhile).result(DEADLINE_S) == 1
    assert (state_of(db, first), state_of(db, second)) == ("succeeded", "ready")


def test_heartbeats_keep_the_lease_while_the_handler_works(
    installed: str, db: psycopg.Connection[Any], producer: ReferenceQueue
) -> None:
    job = producer.enqueue({})
    events = Events()

    def work_through_two_heartbeats(lease: Lease) -> None:
        for _ in range(2):
            assert events.until("heartbeat")["token"] == 1
        row = db.execute("SELECT lease_expires_at FROM lease_queue.jobs WHERE id = %s", [job]).fetchone()
        assert row is not None
        assert row[0] > lease.claim.expires_at
        assert not lease.lost

    Worker(installed, "W", ttl_s=3.0, on_event=events).run(work_through_two_heartbeats, max_jobs=1)
    assert state_of(db, job) == "succeeded"


def test_a_lost_lease_is_told_to_the_handler_and_its_late_write_is_blocked(
    installed: str, db: psycopg.Connection[Any], producer: ReferenceQueue
) -> None:
    job = producer.enqueue({})
    events = Events()
    told: list[bool] = []

    def on_event(event: dict[str, Any]) -> None:
        events(event)
        if event["event"] == "lease_acquired":  # before the first heartbeat, however slow the machine is
            take_over(db, producer)

    def wait_for_the_loss(lease: Lease) -> None:
        told.append(lease.wait_lost(DEADLINE_S))
        told.append(lease.lost)

    Worker(installed, "W", ttl_s=0.3, on_event=on_event).run(wait_for_the_loss, max_jobs=1)
    assert told == [True, True]
    assert events.names() == [
        "lease_acquired",
        "execution_started",
        "lease_lost",
        "stale_write_blocked",
        "worker_exit",
    ]
    assert events.seen[2]["reason"] == "token_mismatch"
    assert events.seen[3] == {
        "event": "stale_write_blocked",
        "worker": "W",
        "job_id": str(job),
        "stale_token": 1,
        "current_token": 2,
        "reason": "token_mismatch",
    }
    assert state_of(db, job) == "leased"
    assert db.execute("SELECT count(*) FROM lease_queue.ledger").fetchone() == (0,)


def test_a_late_failure_is_blocked_too(
    installed: str, db: psycopg.Connection[Any], producer: ReferenceQueue
) -> None:
    job = producer.enqueue({})
    events = Events()

    def lose_the_lease_and_raise(_lease: Lease) -> None:
        take_over(db, producer)
        raise RuntimeError("too late")

    Worker(installed, "W", ttl_s=LONG_S, on_event=events).run(lose_the_lease_and_raise, max_jobs=1)
    assert events.until("stale_write_blocked")["current_token"] == 2
    assert state_of(db, job) == "leased"


def test_a_heartbeat_whose_connection_was_cut_gets_through_on_a_new_one(
    installed: str, db: psycopg.Connection[Any], producer: ReferenceQueue
) -> None:
    producer.enqueue({})
    claim = producer.claim(LONG_S)
    assert claim is not None
    opened: list[psycopg.Connection[Any]] = []

    def connect() -> ReferenceQueue:
        opened.append(psycopg.connect(installed, autocommit=True))
        return ReferenceQueue(opened[-1], worker="P")

    with Heartbeats(connect, LONG_S, lambda *_event, **_details: None) as heartbeats:
        for _ in range(2):
            decision = heartbeats._beat(claim)
            assert decision is not None
            assert decision.accepted
            db.execute("SELECT pg_terminate_backend(%s, 10000)", [opened[-1].info.backend_pid])
    assert len(opened) == 2
    assert all(connection.closed for connection in opened)


def test_without_any_answer_the_lease_counts_as_lost(
    installed: str, db: psycopg.Connection[Any], producer: ReferenceQueue
) -> None:
    producer.enqueue({})
    events = Events()

    class HeartbeatsFail(ReferenceQueue):
        def heartbeat(self, *_arguments: object) -> Any:
            raise psycopg.OperationalError("the network is down")

    def wait_for_the_loss(lease: Lease) -> None:
        assert lease.wait_lost(DEADLINE_S)

    Worker(installed, "W", ttl_s=0.3, on_event=events, client=HeartbeatsFail).run(
        wait_for_the_loss, max_jobs=1
    )
    assert events.until("lease_lost")["reason"] == "no_answer"


def test_a_lost_connection_ends_the_loop_with_its_error(
    installed: str, db: psycopg.Connection[Any], producer: ReferenceQueue
) -> None:
    producer.enqueue({})
    events = Events()

    def cut(_lease: Lease) -> None:
        db.execute(
            "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE application_name = 'to be cut'"
        )

    with pytest.raises(psycopg.OperationalError):
        Worker(f"{installed} application_name='to be cut'", "W", on_event=events).run(cut)
    assert events.until("worker_exit")["reason"] == "error"
    assert state_of(db, 1) == "leased"
