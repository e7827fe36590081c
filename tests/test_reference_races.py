"""Two connections, one order: what the reference queue does when its operations are torn apart.

An operation is held in its own thread at a checkpoint, the other side acts, and it is let go. Every wait has a
deadline; "waits for the row" is read from pg_blocking_pids and never assumed.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeVar

import psycopg
import pytest

from fencepost.harness.clock.preload import find_preload
from fencepost.harness.postgres.embedded import EmbeddedServers
from fencepost.queue_impl.reference import (
    REFERENCE_SCHEMA,
    Claim,
    Decision,
    IdempotencyConflict,
    ReapedJob,
    ReferenceQueue,
)

DEADLINE_S = 30.0
TTL_S = 60.0

Answer = TypeVar("Answer")


@pytest.fixture(scope="module")
def servers() -> Iterator[EmbeddedServers]:
    with EmbeddedServers.start(preload=find_preload()) as servers:
        servers.test.create_database("reference_races")
        with psycopg.connect(servers.test.dsn("reference_races")) as connection:
            connection.execute(REFERENCE_SCHEMA.encode())
        yield servers


@pytest.fixture
def db(servers: EmbeddedServers) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(servers.test.dsn("reference_races"), autocommit=True) as connection:
        connection.execute("SET lock_timeout = '20s'")  # where an actor left a transaction open
        connection.execute("TRUNCATE lease_queue.jobs, lease_queue.ledger RESTART IDENTITY")
        yield connection


@pytest.fixture
def pass_the_leases(servers: EmbeddedServers) -> Callable[[], None]:
    """Moves the server's clock: the only way to expire a lease whose row is locked."""
    offset = servers.test.clock_offset
    if offset is None:
        pytest.skip("the server's clock cannot be moved here: no C compiler was found")
    return lambda: offset.add_us(int(TTL_S * 2e6))


class Actor:
    """A queue of its own, whose operations can be held at one checkpoint."""

    def __init__(self, name: str, dsn: str) -> None:
        self.connection = psycopg.connect(dsn, autocommit=True)
        self.pid = self.connection.info.backend_pid
        self.queue = ReferenceQueue(self.connection, worker=name, checkpoint=self._checkpoint)
        self._held_at: str | None = None
        self._arrived = threading.Event()
        self._let_go = threading.Event()
        self._thread = ThreadPoolExecutor(1)

    def start(self, call: Callable[[], Answer]) -> Future[Answer]:
        return self._thread.submit(call)

    def hold_at(self, checkpoint: str, call: Callable[[], Answer]) -> Future[Answer]:
        self._arrived.clear()
        self._let_go.clear()
        self._held_at = checkpoint
        answer = self.start(call)
        assert self._arrived.wait(DEADLINE_S), f"{checkpoint} was not reached"
        return answer

    def release(self, answer: Future[Answer]) -> Answer:
        self._held_at = None
        self._let_go.set()
        return answer.result(DEADLINE_S)

    def close(self) -> None:
        self._let_go.set()
        self._thread.shutdown()
        self.connection.close()

    def _checkpoint(self, name: str) -> None:
        if name == self._held_at:
            self._arrived.set()
            assert self._let_go.wait(DEADLINE_S), f"held at {name} and never let go"


@pytest.fixture
def actors(servers: EmbeddedServers, db: psycopg.Connection[Any]) -> Iterator[tuple[Actor, Actor]]:
    dsn = servers.test.dsn("reference_races")
    pair = (Actor("A", dsn), Actor("B", dsn))
    watchdog = threading.Timer(DEADLINE_S, end_backends, (dsn, [actor.pid for actor in pair]))
    watchdog.start()
    try:
        yield pair
    finally:
        watchdog.cancel()
        end_backends(dsn, [actor.pid for actor in pair])
        for actor in pair:
            actor.close()


def end_backends(dsn: str, pids: list[int]) -> None:
    """Whatever waits on them gets an error. A lock or statement timeout would not do: the moved clock fires it."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("SELECT pg_terminate_backend(pid) FROM unnest(%s) AS pid", [pids])


def await_blocked(db: psycopg.Connection[Any], actor: Actor) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while db.execute("SELECT pg_blocking_pids(%s) = '{}'", [actor.pid]).fetchone() == (True,):
        assert time.monotonic() < deadline, "it never waited for a lock"


def taken(queue: ReferenceQueue) -> Claim:
    claim = queue.claim(TTL_S)
    assert claim is not None
    return claim


def expire(db: psycopg.Connection[Any]) -> None:
    assert db.execute("UPDATE lease_queue.jobs SET lease_expires_at = clock_timestamp()").rowcount == 1


def states(db: psycopg.Connection[Any]) -> list[tuple[Any, ...]]:
    return db.execute("SELECT state, fencing_token FROM lease_queue.jobs ORDER BY id").fetchall()


def ledger(db: psycopg.Connection[Any]) -> list[tuple[Any, ...]]:
    return db.execute("SELECT fencing_token, worker FROM lease_queue.ledger ORDER BY id").fetchall()


@contextmanager
def row_locked_by_somebody_else(dsn: str) -> Iterator[None]:
    with psycopg.connect(dsn) as connection:
        connection.execute("SELECT FROM lease_queue.jobs FOR UPDATE")
        yield


# A late write


def test_a_lease_that_expires_after_the_guard_is_still_fenced_by_the_row_lock(
    actors: tuple[Actor, Actor], db: psycopg.Connection[Any], pass_the_leases: Callable[[], None]
) -> None:
    a, b = actors
    a.queue.enqueue({})
    claim = taken(a.queue)
    completing = a.hold_at("after_guard", lambda: a.queue.complete(claim))
    pass_the_leases()
    assert b.queue.claim(TTL_S) is None
    assert b.queue.reap() == []
    assert a.release(completing) == Decision(True, None, 1)
    assert states(db) == [("succeeded", 1)]
    assert b.queue.claim(TTL_S) is None


@pytest.mark.parametrize("operation", ["complete", "fail", "heartbeat"])
def test_a_write_that_waits_for_the_row_is_judged_after_the_wait(
    operation: str,
    servers: EmbeddedServers,
    actors: tuple[Actor, Actor],
    db: psycopg.Connection[Any],
    pass_the_leases: Callable[[], None],
) -> None:
    a, _ = actors
    a.queue.enqueue({})
    claim = taken(a.queue)
    calls: dict[str, Callable[[], Decision]] = {
        "complete": lambda: a.queue.complete(claim),
        "fail": lambda: a.queue.fail(claim, "late"),
        "heartbeat": lambda: a.queue.heartbeat(claim, TTL_S),
    }
    with row_locked_by_somebody_else(servers.test.dsn("reference_races")):
        writing = a.start(calls[operation])
        await_blocked(db, a)
        pass_the_leases()
    assert writing.result(DEADLINE_S) == Decision(False, "lease_expired", 1)
    assert states(db) == [("leased", 1)]
    assert ledger(db) == []


def test_a_write_behind_an_uncommitted_reclaim_is_refused_when_it_gets_the_row(
    actors: tuple[Actor, Actor], db: psycopg.Connection[Any]
) -> None:
    a, b = actors
    a.queue.enqueue({})
    stale = taken(a.queue)
    expire(db)
    claiming = b.hold_at("after_claim", lambda: b.queue.claim(TTL_S))
    completing = a.start(lambda: a.queue.complete(stale))
    await_blocked(db, a)
    fresh = b.release(claiming)
    assert fresh is not None
    assert completing.result(DEADLINE_S) == Decision(False, "token_mismatch", 2)
    assert b.queue.complete(fresh).accepted
    assert ledger(db) == [(2, "B")]


def test_ledger_and_state_become_visible_together(
    actors: tuple[Actor, Actor], db: psycopg.Connection[Any]
) -> None:
    a, _ = actors
    a.queue.enqueue({})
    claim = taken(a.queue)
    completing = a.hold_at("before_commit", lambda: a.queue.complete(claim))
    assert (states(db), ledger(db)) == ([("leased", 1)], [])
    a.release(completing)
    assert (states(db), ledger(db)) == ([("succeeded", 1)], [(1, "A")])


# Claim against claim


def test_a_job_being_claimed_is_skipped(actors: tuple[Actor, Actor], db: psycopg.Connection[Any]) -> None:
    a, b = actors
    first, second = a.queue.enqueue({}), a.queue.enqueue({})
    claiming = a.hold_at("after_claim", lambda: a.queue.claim(TTL_S))
    assert taken(b.queue).job_id == second
    assert b.queue.claim(TTL_S) is None
    claim = a.release(claiming)
    assert claim is not None
    assert claim.job_id == first


# Cancel against complete


@pytest.mark.parametrize("checkpoint", ["after_lock", "after_guard", "after_ledger", "before_commit"])
def test_a_cancel_waits_for_a_complete_and_finds_it_terminal(
    checkpoint: str, actors: tuple[Actor, Actor], db: psycopg.Connection[Any]
) -> None:
    a, b = actors
    job = a.queue.enqueue({})
    claim = taken(a.queue)
    completing = a.hold_at(checkpoint, lambda: a.queue.complete(claim))
    cancelling = b.start(lambda: b.queue.cancel(job))
    await_blocked(db, b)
    assert a.release(completing).accepted
    assert cancelling.result(DEADLINE_S) == Decision(False, "terminal", 1)
    assert (states(db), ledger(db)) == ([("succeeded", 1)], [(1, "A")])


def test_a_complete_waits_for_a_cancel_and_is_refused(
    actors: tuple[Actor, Actor], db: psycopg.Connection[Any]
) -> None:
    a, b = actors
    job = a.queue.enqueue({})
    claim = taken(a.queue)
    cancelling = b.hold_at("before_commit", lambda: b.queue.cancel(job))
    completing = a.start(lambda: a.queue.complete(claim))
    await_blocked(db, a)
    assert b.release(cancelling).accepted
    assert completing.result(DEADLINE_S) == Decision(False, "terminal", 1)
    assert (states(db), ledger(db)) == ([("cancelled", 1)], [])


# The reaper


@pytest.mark.parametrize("checkpoint", ["after_snapshot", "after_recheck", "before_requeue", "before_commit"])
def test_two_reapers_requeue_a_job_once(
    checkpoint: str, actors: tuple[Actor, Actor], db: psycopg.Connection[Any]
) -> None:
    a, b = actors
    job = a.queue.enqueue({})
    taken(a.queue)
    expire(db)
    reaping = a.hold_at(checkpoint, a.queue.reap)
    others = b.queue.reap()
    mine = a.release(reaping)
    assert mine + others == [ReapedJob(job, 1, "ready")]
    assert (len(others) == 1) == (checkpoint == "after_snapshot")


def test_a_row_somebody_holds_does_not_use_up_a_sweeps_bound(
    actors: tuple[Actor, Actor], db: psycopg.Connection[Any], pass_the_leases: Callable[[], None]
) -> None:
    a, b = actors
    held = a.queue.enqueue({})
    claim = taken(a.queue)
    others = [b.queue.enqueue({}) for _ in range(3)]
    for _ in others:
        taken(b.queue)
    completing = a.hold_at("after_guard", lambda: a.queue.complete(claim))
    pass_the_leases()
    assert [reaped.job_id for reaped in b.queue.reap(2)] == others[:2]
    assert [reaped.job_id for reaped in b.queue.reap(2)] == others[2:]
    assert b.queue.reap(2) == []
    assert a.release(completing).accepted
    assert held == claim.job_id


def test_a_lease_renewed_after_the_reapers_snapshot_is_left_alone(
    actors: tuple[Actor, Actor], db: psycopg.Connection[Any]
) -> None:
    """A heartbeat cannot do it, the lease has expired; a reclaim by another worker can."""
    a, b = actors
    a.queue.enqueue({})
    taken(a.queue)
    expire(db)
    reaping = a.hold_at("after_snapshot", a.queue.reap)
    fresh = taken(b.queue)
    assert a.release(reaping) == []
    assert states(db) == [("leased", 2)]
    assert b.queue.complete(fresh).accepted


def test_a_job_being_completed_is_skipped_by_the_reaper(
    actors: tuple[Actor, Actor], db: psycopg.Connection[Any], pass_the_leases: Callable[[], None]
) -> None:
    a, b = actors
    a.queue.enqueue({})
    claim = taken(a.queue)
    completing = a.hold_at("before_commit", lambda: a.queue.complete(claim))
    pass_the_leases()
    assert b.queue.reap() == []
    assert a.release(completing).accepted
    assert states(db) == [("succeeded", 1)]


def test_a_job_settled_after_the_reapers_snapshot_is_left_alone(
    actors: tuple[Actor, Actor], db: psycopg.Connection[Any], pass_the_leases: Callable[[], None]
) -> None:
    a, b = actors
    a.queue.enqueue({})
    claim = taken(a.queue)
    completing = a.hold_at("after_guard", lambda: a.queue.complete(claim))
    pass_the_leases()
    reaping = b.hold_at("after_snapshot", b.queue.reap)
    assert a.release(completing).accepted
    assert b.release(reaping) == []
    assert states(db) == [("succeeded", 1)]


def test_a_heartbeat_judged_before_expiry_is_honoured_by_the_reaper(
    actors: tuple[Actor, Actor], db: psycopg.Connection[Any], pass_the_leases: Callable[[], None]
) -> None:
    a, b = actors
    a.queue.enqueue({})
    claim = taken(a.queue)
    renewing = a.hold_at("after_guard", lambda: a.queue.heartbeat(claim, TTL_S))
    pass_the_leases()
    reaping = b.hold_at("after_snapshot", b.queue.reap)
    assert a.release(renewing).accepted
    assert b.release(reaping) == []
    assert a.queue.complete(claim).accepted


def test_a_write_behind_the_reaper_finds_the_job_requeued(
    actors: tuple[Actor, Actor], db: psycopg.Connection[Any]
) -> None:
    a, b = actors
    a.queue.enqueue({})
    claim = taken(a.queue)
    expire(db)
    reaping = b.hold_at("before_commit", b.queue.reap)
    completing = a.start(lambda: a.queue.complete(claim))
    await_blocked(db, a)
    b.release(reaping)
    assert completing.result(DEADLINE_S) == Decision(False, "not_leased", 1)
    assert states(db) == [("ready", 1)]


# Idempotency key


def test_two_producers_between_lookup_and_insert_make_one_job(
    actors: tuple[Actor, Actor], db: psycopg.Connection[Any]
) -> None:
    a, b = actors
    slow = a.hold_at("between_lookup_and_insert", lambda: a.queue.enqueue({"n": 1}, key="k"))
    job = b.queue.enqueue({"n": 1}, key="k")
    assert a.release(slow) == job
    assert len(states(db)) == 1


def test_a_producer_waits_for_the_other_ones_commit(
    actors: tuple[Actor, Actor], db: psycopg.Connection[Any]
) -> None:
    a, b = actors
    first = a.hold_at("before_commit", lambda: a.queue.enqueue({"n": 1}, key="k"))
    second = b.start(lambda: b.queue.enqueue({"n": 1}, key="k"))
    await_blocked(db, b)
    assert a.release(first) == second.result(DEADLINE_S)
    assert len(states(db)) == 1


def test_another_payload_is_a_conflict_also_between_lookup_and_insert(actors: tuple[Actor, Actor]) -> None:
    a, b = actors
    slow = a.hold_at("between_lookup_and_insert", lambda: a.queue.enqueue({"n": 1}, key="k"))
    b.queue.enqueue({"n": 2}, key="k")
    with pytest.raises(IdempotencyConflict):
        a.release(slow)


def test_two_requeues_of_one_dead_letter_make_one_job(
    actors: tuple[Actor, Actor], db: psycopg.Connection[Any]
) -> None:
    a, b = actors
    job = a.queue.enqueue({}, max_attempts=1)
    a.queue.fail(taken(a.queue), "boom")
    first = a.hold_at("before_commit", lambda: a.queue.requeue(job))
    second = b.start(lambda: b.queue.requeue(job))
    await_blocked(db, b)
    assert a.release(first) == second.result(DEADLINE_S)
    assert len(states(db)) == 2


# Batches


def test_two_batches_in_opposite_order_do_not_deadlock(
    actors: tuple[Actor, Actor], db: psycopg.Connection[Any]
) -> None:
    a, b = actors
    for _ in range(2):
        a.queue.enqueue({})
    first, second = a.queue.claim_batch(TTL_S, 2)
    completing = a.hold_at("after_lock", lambda: a.queue.complete_batch([second, first]))
    repeating = b.start(lambda: b.queue.complete_batch([first, second]))
    await_blocked(db, b)
    assert a.release(completing) == [Decision(True, None, 1)] * 2
    assert repeating.result(DEADLINE_S) == [Decision(True, None, 1, repeated=True)] * 2
    assert ledger(db) == [(1, "A"), (1, "A")]
