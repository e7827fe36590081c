"""What the reference queue promises, one promise at a time, on a real PostgreSQL."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo
from psycopg.pq import TransactionStatus

from fencepost.harness.postgres.embedded import EmbeddedServers
from fencepost.queue_impl.reference import (
    CHECKPOINTS,
    MAX_BATCH,
    REFERENCE_SCHEMA,
    STATEMENTS,
    Claim,
    Decision,
    IdempotencyConflict,
    JobToken,
    Judgement,
    ReapedJob,
    ReferenceQueue,
    RequeueRefused,
    Settings,
    TokenExhausted,
    replace_once,
)

BIGINT_MAX = 2**63 - 1
TTL_S = 60.0


@pytest.fixture(scope="module")
def servers() -> Iterator[EmbeddedServers]:
    with EmbeddedServers.start() as servers:
        yield servers


@pytest.fixture(scope="module")
def installed(servers: EmbeddedServers) -> str:
    servers.test.create_database("reference_queue")
    # A statement that waits where none should gets an error and not the rest of the day.
    dsn = make_conninfo(servers.test.dsn("reference_queue"), options="-c lock_timeout=20s")
    with psycopg.connect(dsn) as connection:
        connection.execute(REFERENCE_SCHEMA.encode())
    return dsn


@pytest.fixture
def db(installed: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(installed, autocommit=True) as connection:
        connection.execute("TRUNCATE lease_queue.jobs, lease_queue.ledger RESTART IDENTITY")
        yield connection


@pytest.fixture
def queue(db: psycopg.Connection[Any], installed: str) -> Iterator[ReferenceQueue]:
    with psycopg.connect(installed, autocommit=True) as connection:
        yield ReferenceQueue(connection, worker="A", settings=Settings(backoff_base_s=10, backoff_cap_s=35))
        assert connection.closed or connection.info.transaction_status == TransactionStatus.IDLE


def column(db: psycopg.Connection[Any], job_id: int, name: str) -> Any:
    row = db.execute(f"SELECT {name} FROM lease_queue.jobs WHERE id = %s".encode(), [job_id]).fetchone()
    assert row is not None
    return row[0]


def ledger(db: psycopg.Connection[Any]) -> list[tuple[Any, ...]]:
    return db.execute("SELECT job_id, fencing_token, worker FROM lease_queue.ledger ORDER BY id").fetchall()


def everything(db: psycopg.Connection[Any]) -> list[tuple[Any, ...]]:
    jobs = db.execute("SELECT * FROM lease_queue.jobs ORDER BY id").fetchall()
    return jobs + db.execute("SELECT * FROM lease_queue.ledger ORDER BY id").fetchall()


def expire(db: psycopg.Connection[Any], *job_ids: int) -> None:
    for job_id in job_ids:
        changed = db.execute(
            "UPDATE lease_queue.jobs SET lease_expires_at = clock_timestamp()"
            " WHERE id = %s AND state = 'leased'",
            [job_id],
        )
        assert changed.rowcount == 1


def make_due(db: psycopg.Connection[Any], job_id: int) -> None:
    db.execute("UPDATE lease_queue.jobs SET next_run_at = clock_timestamp() WHERE id = %s", [job_id])


def taken(queue: ReferenceQueue, ttl_s: float = TTL_S) -> Claim:
    claim = queue.claim(ttl_s)
    assert claim is not None
    return claim


def refused(reason: str, current_token: int | None) -> Decision:
    return Decision(False, reason, current_token)


# Claiming


def test_a_claim_raises_the_token_and_the_attempts_by_one(
    queue: ReferenceQueue, db: psycopg.Connection[Any]
) -> None:
    job = queue.enqueue({"n": 1}, max_attempts=4, priority=7)
    for expected in (1, 2, 3):
        before = db.execute("SELECT clock_timestamp()").fetchone()
        claim = taken(queue)
        assert before is not None
        assert timedelta(0) <= claim.expires_at - before[0] - timedelta(seconds=TTL_S) < timedelta(seconds=20)
        assert (claim.job_id, claim.token, claim.attempts, claim.max_attempts) == (job, expected, expected, 4)
        assert (claim.payload, claim.priority) == ({"n": 1}, 7)
        assert column(db, job, "lease_holder") == "A"
        assert column(db, job, "lease_expires_at") == claim.expires_at
        expire(db, job)


def test_a_live_lease_is_not_claimed_and_an_expired_one_is(
    queue: ReferenceQueue, db: psycopg.Connection[Any]
) -> None:
    job = queue.enqueue({})
    taken(queue)
    assert queue.claim(TTL_S) is None
    expire(db, job)
    assert taken(queue).token == 2


def test_an_expired_lease_without_attempts_left_is_the_reapers(
    queue: ReferenceQueue, db: psycopg.Connection[Any]
) -> None:
    job = queue.enqueue({}, max_attempts=1)
    taken(queue)
    expire(db, job)
    queue.enqueue({}, delay_s=3600)  # so that the claim looks at this priority at all
    assert queue.claim(TTL_S) is None
    assert queue.reap() == [ReapedJob(job, 1, "failed")]


def test_a_delayed_job_is_claimed_only_at_its_time(
    queue: ReferenceQueue, db: psycopg.Connection[Any]
) -> None:
    job = queue.enqueue({}, delay_s=3600)
    assert queue.claim(TTL_S) is None
    make_due(db, job)
    assert taken(queue).job_id == job


def test_order_is_priority_then_time_claimable_then_id(
    queue: ReferenceQueue, db: psycopg.Connection[Any]
) -> None:
    low, high_late, high_early, high_expired, highest_delayed = (
        queue.enqueue({}, priority=priority) for priority in (-1, 5, 5, 5, 9)
    )
    set_times = (
        "UPDATE lease_queue.jobs SET next_run_at = clock_timestamp() - %s * interval '1 s' WHERE id = %s"
    )
    for job, due_since_s in ((low, 100), (high_late, 10), (high_early, 30), (high_expired, 90)):
        db.execute(set_times, [due_since_s, job])
    db.execute(set_times, [-3600, highest_delayed])
    db.execute(
        "UPDATE lease_queue.jobs SET state = 'leased', attempts = 1, lease_holder = 'gone',"
        " lease_expires_at = clock_timestamp() - interval '20 s' WHERE id = %s",
        [high_expired],
    )
    singly = [taken(queue).job_id for _ in range(4)]
    assert singly == [high_early, high_expired, high_late, low]
    assert queue.claim(TTL_S) is None


def test_a_batch_takes_the_first_ones_in_the_same_order(queue: ReferenceQueue) -> None:
    jobs = {priority: queue.enqueue({}, priority=priority) for priority in (1, 3, 2, 5, 4)}
    assert [claim.job_id for claim in queue.claim_batch(TTL_S, 3)] == [jobs[5], jobs[4], jobs[3]]
    assert [claim.job_id for claim in queue.claim_batch(TTL_S, 3)] == [jobs[2], jobs[1]]
    assert queue.claim_batch(TTL_S, 3) == []


def test_a_claim_locks_no_more_rows_than_it_takes(
    queue: ReferenceQueue, db: psycopg.Connection[Any], installed: str
) -> None:
    for priority in (1, 1, 2, 2):
        queue.enqueue({}, priority=priority)
    with psycopg.connect(installed, autocommit=True) as connection:
        others: list[int] = []
        holding = ReferenceQueue(
            connection,
            worker="B",
            checkpoint=lambda name: (
                others.extend(claim.job_id for claim in queue.claim_batch(TTL_S, 10))
                if name == "after_claim"
                else None
            ),
        )
        assert [claim.job_id for claim in holding.claim_batch(TTL_S, 3)] == [3, 4, 1]
    assert others == [2]


def test_at_the_largest_token_a_claim_is_refused_and_nothing_changes(
    queue: ReferenceQueue, db: psycopg.Connection[Any]
) -> None:
    job = queue.enqueue({})
    queue.enqueue({})
    db.execute("UPDATE lease_queue.jobs SET fencing_token = %s WHERE id = %s", [BIGINT_MAX - 1, job])
    assert taken(queue).token == BIGINT_MAX
    expire(db, job)
    before = everything(db)
    with pytest.raises(TokenExhausted, match="9223372036854775807"):
        queue.claim_batch(TTL_S, 2)
    assert everything(db) == before
    assert queue.cancel(job).accepted
    assert taken(queue).token == 1


# Completing


def test_complete_writes_ledger_and_state_together(
    queue: ReferenceQueue, db: psycopg.Connection[Any]
) -> None:
    job = queue.enqueue({})
    assert queue.complete(taken(queue), {"answer": 42}) == Decision(True, None, 1)
    for name, value in {"state": "succeeded", "result": {"answer": 42}, "lease_holder": None}.items():
        assert column(db, job, name) == value
    assert ledger(db) == [(job, 1, "A")]


def test_a_stale_token_is_refused_and_told_the_current_one(
    queue: ReferenceQueue, db: psycopg.Connection[Any]
) -> None:
    job = queue.enqueue({})
    stale = taken(queue)
    expire(db, job)
    fresh = taken(queue)
    before = everything(db)
    for answer in (queue.complete(stale), queue.fail(stale, "late"), queue.heartbeat(stale, TTL_S)):
        assert answer == refused("token_mismatch", 2)
    assert everything(db) == before
    assert queue.complete(fresh).accepted
    assert queue.complete(stale) == refused("token_mismatch", 2)
    assert ledger(db) == [(job, 2, "A")]


def test_the_same_worker_name_does_not_make_an_old_token_good(
    queue: ReferenceQueue, db: psycopg.Connection[Any]
) -> None:
    job = queue.enqueue({})
    old = taken(queue)
    expire(db, job)
    assert taken(queue).token == 2
    assert column(db, job, "lease_holder") == queue.worker
    assert queue.complete(old).reason == "token_mismatch"


def test_an_expired_lease_nobody_took_is_refused(queue: ReferenceQueue, db: psycopg.Connection[Any]) -> None:
    job = queue.enqueue({})
    claim = taken(queue)
    expire(db, job)
    before = everything(db)
    for answer in (queue.complete(claim), queue.fail(claim, "late"), queue.heartbeat(claim, TTL_S)):
        assert answer == refused("lease_expired", 1)
    assert everything(db) == before


def test_an_unknown_job_is_refused(queue: ReferenceQueue) -> None:
    nobody = JobToken(404, 1)
    answers = (
        queue.complete(nobody),
        queue.fail(nobody, ""),
        queue.heartbeat(nobody, TTL_S),
        queue.cancel(404),
    )
    for answer in answers:
        assert answer == refused("unknown_job", None)


def test_a_requeued_job_nobody_claimed_yet_refuses_its_last_holder(
    queue: ReferenceQueue, db: psycopg.Connection[Any]
) -> None:
    job = queue.enqueue({})
    claim = taken(queue)
    expire(db, job)
    assert queue.reap() == [ReapedJob(job, 1, "ready")]
    before = everything(db)
    for answer in (queue.complete(claim), queue.fail(claim, "late"), queue.heartbeat(claim, TTL_S)):
        assert answer == refused("not_leased", 1)
    assert everything(db) == before


def test_repeating_a_settlement_answers_the_same_and_changes_nothing(
    queue: ReferenceQueue, db: psycopg.Connection[Any]
) -> None:
    queue.enqueue({})
    completed = taken(queue)
    assert queue.complete(completed).accepted
    queue.enqueue({}, max_attempts=2)
    failed = taken(queue)
    assert queue.fail(failed, "boom").accepted
    before = everything(db)
    assert queue.complete(completed) == Decision(True, None, 1, repeated=True)
    assert queue.fail(failed, "boom") == Decision(True, None, 1, repeated=True)
    assert queue.fail(completed, "boom") == refused("terminal", 1)
    assert queue.complete(failed) == refused("not_leased", 1)
    assert everything(db) == before
    make_due(db, failed.job_id)
    last = taken(queue)
    assert queue.fail(last, "boom").accepted
    assert column(db, failed.job_id, "state") == "failed"
    assert queue.fail(last, "boom") == Decision(True, None, 2, repeated=True)
    assert queue.complete(last) == refused("terminal", 2)
    assert queue.fail(failed, "boom") == refused("token_mismatch", 2)


def test_a_repeat_is_known_by_its_token_also_after_a_cancel(queue: ReferenceQueue) -> None:
    job = queue.enqueue({})
    failed = taken(queue)
    assert queue.fail(failed, "boom").accepted
    assert queue.cancel(job).accepted
    assert queue.fail(failed, "boom") == Decision(True, None, 1, repeated=True)


def test_an_earlier_attempts_settlement_does_not_make_a_late_one_a_repeat(
    queue: ReferenceQueue, db: psycopg.Connection[Any]
) -> None:
    job = queue.enqueue({})
    assert queue.fail(taken(queue), "boom").accepted
    make_due(db, job)
    lost = taken(queue)
    expire(db, job)
    assert queue.reap() == [ReapedJob(job, 2, "ready")]
    assert queue.fail(lost, "late") == refused("not_leased", 2)


# Ledger and foreign key


class WithoutGuard(ReferenceQueue):
    def _judge(self, operation: str, write: dict[str, object]) -> Judgement:
        return Judgement("accepted", 0, 1)


def test_the_foreign_key_refuses_a_stale_ledger_row_when_the_guard_is_bypassed(
    queue: ReferenceQueue, db: psycopg.Connection[Any], installed: str
) -> None:
    job = queue.enqueue({})
    stale = taken(queue)
    expire(db, job)
    fresh = taken(queue)
    with psycopg.connect(installed, autocommit=True) as connection:
        with pytest.raises(psycopg.errors.ForeignKeyViolation):
            WithoutGuard(connection, worker="A").complete(stale)
        assert connection.info.transaction_status == TransactionStatus.IDLE
        assert queue.complete(fresh).accepted
        with pytest.raises(psycopg.errors.ForeignKeyViolation):
            WithoutGuard(connection, worker="A").complete(stale)
    assert ledger(db) == [(job, 2, "A")]


def test_unique_alone_accepts_the_stale_row_that_the_foreign_key_refuses(servers: EmbeddedServers) -> None:
    constraint = replace_once(
        REFERENCE_SCHEMA,
        """
    CONSTRAINT ledger_current_token FOREIGN KEY (job_id, fencing_token)
        REFERENCES lease_queue.jobs (id, fencing_token)
""",
        "\n    CHECK (true)\n",
    )
    servers.test.create_database("no_foreign_key")
    with psycopg.connect(servers.test.dsn("no_foreign_key"), autocommit=True) as connection:
        connection.execute(constraint.encode())
        unguarded = WithoutGuard(connection, worker="A")
        job = unguarded.enqueue({})
        stale = taken(unguarded)
        expire(connection, job)
        assert unguarded.complete(taken(unguarded)).accepted
        assert unguarded.complete(stale).accepted
        assert ledger(connection) == [(job, 2, "A"), (job, 1, "A")]
        with pytest.raises(psycopg.errors.UniqueViolation):
            unguarded.complete(stale)


def test_a_job_in_the_ledger_cannot_be_given_a_new_token(
    queue: ReferenceQueue, db: psycopg.Connection[Any]
) -> None:
    job = queue.enqueue({})
    queue.complete(taken(queue))
    with pytest.raises(psycopg.errors.ForeignKeyViolation):
        db.execute("UPDATE lease_queue.jobs SET fencing_token = fencing_token + 1 WHERE id = %s", [job])


@pytest.mark.parametrize(
    "change",
    [
        "state = 'leased'",
        "lease_holder = 'B'",
        "lease_expires_at = clock_timestamp()",
        "state = 'done'",
        "settled_as = 'complete'",
    ],
)
def test_the_table_refuses_a_state_that_contradicts_its_lease(
    queue: ReferenceQueue, db: psycopg.Connection[Any], change: str
) -> None:
    job = queue.enqueue({})
    with pytest.raises(psycopg.errors.CheckViolation):
        db.execute(f"UPDATE lease_queue.jobs SET {change} WHERE id = %s".encode(), [job])


# Batch complete


def test_a_stale_a_duplicate_and_an_unknown_item_leave_the_others_unharmed(
    queue: ReferenceQueue, db: psycopg.Connection[Any]
) -> None:
    for _ in range(4):
        queue.enqueue({})
    first, stale, second, third = queue.claim_batch(TTL_S, 4)
    expire(db, stale.job_id)
    fresh = taken(queue)
    items = [third, stale, JobToken(404, 1), first, third, second]
    decisions = queue.complete_batch(items, [{"n": n} for n in range(6)])
    assert decisions == [
        Decision(True, None, 1),
        refused("token_mismatch", 2),
        refused("unknown_job", None),
        Decision(True, None, 1),
        Decision(True, None, 1, repeated=True),
        Decision(True, None, 1),
    ]
    assert sorted(ledger(db)) == [(first.job_id, 1, "A"), (second.job_id, 1, "A"), (third.job_id, 1, "A")]
    assert column(db, third.job_id, "result") == {"n": 0}
    assert column(db, stale.job_id, "state") == "leased"
    assert queue.complete(fresh).accepted


def test_a_batch_in_which_nothing_is_accepted_changes_nothing(
    queue: ReferenceQueue, db: psycopg.Connection[Any]
) -> None:
    assert queue.complete_batch([]) == []
    assert queue.complete_batch([JobToken(404, 1)]) == [refused("unknown_job", None)]
    with pytest.raises(ValueError, match="1 results were given for 2 claims"):
        queue.complete_batch([JobToken(1, 1), JobToken(2, 1)], [None])


# Failing


def test_backoff_doubles_from_the_time_of_failure_up_to_the_cap(
    queue: ReferenceQueue, db: psycopg.Connection[Any]
) -> None:
    job = queue.enqueue({}, max_attempts=5)
    for expected_s in (10, 20, 35, 35):
        claim = taken(queue)
        db.execute(
            "UPDATE lease_queue.jobs SET next_run_at = clock_timestamp() - interval '1 day' WHERE id = %s",
            [job],
        )
        before = db.execute("SELECT clock_timestamp()").fetchone()
        assert queue.fail(claim, "boom").accepted
        after = db.execute("SELECT clock_timestamp()").fetchone()
        assert before is not None
        assert after is not None
        next_run_at: datetime = column(db, job, "next_run_at")
        assert before[0] <= next_run_at - timedelta(seconds=expected_s) <= after[0]
        assert queue.claim(TTL_S) is None
        make_due(db, job)
    assert queue.fail(taken(queue), "the end").accepted
    assert column(db, job, "state") == "failed"
    assert column(db, job, "last_error") == "the end"
    make_due(db, job)
    assert queue.claim(TTL_S) is None


def test_an_error_text_is_made_storable(queue: ReferenceQueue, db: psycopg.Connection[Any]) -> None:
    job = queue.enqueue({})
    assert queue.fail(taken(queue), "bad\x00byte" + "x" * 20_000).accepted
    assert column(db, job, "last_error").startswith("bad\N{REPLACEMENT CHARACTER}byte")
    assert len(column(db, job, "last_error")) == 10_000


def test_dead_letters_are_listed_in_pages(queue: ReferenceQueue) -> None:
    jobs = [queue.enqueue({"n": n}, max_attempts=1) for n in range(3)]
    for claim in queue.claim_batch(TTL_S, 3):
        queue.fail(claim, "boom")
    first = queue.dead_letters(limit=2)
    assert [(letter.job_id, letter.payload, letter.last_error) for letter in first] == [
        (jobs[0], {"n": 0}, "boom"),
        (jobs[1], {"n": 1}, "boom"),
    ]
    assert [letter.job_id for letter in queue.dead_letters(limit=2, after_id=jobs[1])] == [jobs[2]]


def test_requeueing_a_dead_letter_makes_one_new_job_and_leaves_the_old(
    queue: ReferenceQueue, db: psycopg.Connection[Any]
) -> None:
    job = queue.enqueue({"n": 1}, max_attempts=1, priority=3, key="k")
    queue.fail(taken(queue), "boom")
    dead = db.execute("SELECT * FROM lease_queue.jobs WHERE id = %s", [job]).fetchone()
    successor = queue.requeue(job)
    assert successor != job
    assert queue.requeue(job) == successor
    assert column(db, successor, "requeued_from") == job
    assert db.execute("SELECT * FROM lease_queue.jobs WHERE id = %s", [job]).fetchone() == dead
    claim = taken(queue)
    assert (claim.job_id, claim.token, claim.payload, claim.priority) == (successor, 1, {"n": 1}, 3)


def test_only_a_dead_letter_can_be_requeued(queue: ReferenceQueue) -> None:
    job = queue.enqueue({})
    with pytest.raises(RequeueRefused, match="is ready; only a failed job") as refusal:
        queue.requeue(job)
    assert refusal.value.reason == "not_failed"
    with pytest.raises(RequeueRefused, match="does not exist") as refusal:
        queue.requeue(404)
    assert refusal.value.reason == "unknown_job"


# Heartbeat


def test_a_heartbeat_extends_and_keeps_the_token(queue: ReferenceQueue, db: psycopg.Connection[Any]) -> None:
    job = queue.enqueue({})
    claim = taken(queue)
    assert queue.heartbeat(claim, 2 * TTL_S) == Decision(True, None, 1)
    assert column(db, job, "lease_expires_at") >= claim.expires_at + timedelta(seconds=TTL_S)
    assert (column(db, job, "fencing_token"), column(db, job, "attempts")) == (1, 1)
    before = everything(db)
    assert queue.heartbeat(claim, TTL_S) == refused("would_shorten", 1)
    assert everything(db) == before


# Reaping


def test_a_sweep_is_bounded_and_takes_the_oldest_first(
    queue: ReferenceQueue, db: psycopg.Connection[Any]
) -> None:
    jobs = [queue.enqueue({}, max_attempts=1 + n % 2) for n in range(5)]
    queue.claim_batch(TTL_S, 5)
    expire(db, *reversed(jobs))
    assert {reaped.job_id for reaped in queue.reap(limit=2)} == {jobs[4], jobs[3]}
    assert {(reaped.job_id, reaped.state) for reaped in queue.reap(limit=2)} == {
        (jobs[2], "failed"),
        (jobs[1], "ready"),
    }
    assert queue.reap(limit=2) == [ReapedJob(jobs[0], 1, "failed")]
    assert queue.reap(limit=2) == []
    assert taken(queue).token == 2


def test_a_live_lease_is_not_reaped(queue: ReferenceQueue) -> None:
    queue.enqueue({})
    taken(queue)
    assert queue.reap() == []


def test_a_lost_lease_is_a_spent_attempt_so_a_crash_loop_ends(
    queue: ReferenceQueue, db: psycopg.Connection[Any]
) -> None:
    job = queue.enqueue({}, max_attempts=3)
    for _ in range(3):
        taken(queue)
        expire(db, job)
        queue.reap()
    assert column(db, job, "(state, attempts)::text") == "(failed,3)"
    assert queue.claim(TTL_S) is None
    assert [letter.job_id for letter in queue.dead_letters()] == [job]


# Idempotency key


def test_same_key_and_payload_is_the_same_job_also_when_it_is_done(
    queue: ReferenceQueue, db: psycopg.Connection[Any]
) -> None:
    job = queue.enqueue({"a": 1, "b": 2}, key="k")
    assert queue.enqueue({"b": 2, "a": 1}, key="k") == job
    assert queue.enqueue({"a": 1, "b": 2}, key="other") != job
    queue.complete(taken(queue))
    assert queue.enqueue({"a": 1, "b": 2}, key="k") == job
    assert db.execute("SELECT count(*) FROM lease_queue.jobs").fetchone() == (2,)


def test_same_key_and_another_payload_is_a_conflict(queue: ReferenceQueue) -> None:
    job = queue.enqueue({"a": 1}, key="k")
    with pytest.raises(IdempotencyConflict, match="'k' belongs to job 1") as conflict:
        queue.enqueue({"a": 2}, key="k")
    assert (conflict.value.key, conflict.value.job_id) == ("k", job)


def test_jobs_without_a_key_are_all_new(queue: ReferenceQueue) -> None:
    assert queue.enqueue(None) != queue.enqueue(None)


# Cancelling


def test_cancel_ends_a_live_job_and_leaves_a_terminal_one(
    queue: ReferenceQueue, db: psycopg.Connection[Any]
) -> None:
    ready, leased = queue.enqueue({}), queue.enqueue({}, priority=1)
    claim = taken(queue)
    assert queue.cancel(ready) == Decision(True, None, 0)
    assert queue.cancel(leased) == Decision(True, None, 1)
    before = everything(db)
    assert queue.cancel(leased) == refused("terminal", 1)
    for answer in (queue.complete(claim), queue.fail(claim, "late"), queue.heartbeat(claim, TTL_S)):
        assert answer == refused("terminal", 1)
    assert queue.reap() == []
    assert everything(db) == before


# Checkpoints and statements


@pytest.fixture
def passed(queue: ReferenceQueue) -> list[str]:
    passed: list[str] = []
    queue._checkpoint = passed.append
    return passed


def ready_for(operation: str, queue: ReferenceQueue) -> Callable[[], object]:
    """The operation's call, with everything done that it needs to have an effect."""
    job = queue.enqueue({}, max_attempts=1)
    claim = JobToken(job, 1) if operation == "claim" else taken(queue)
    if operation == "requeue":
        queue.fail(claim, "boom")
    calls: dict[str, Callable[[], object]] = {
        "enqueue": lambda: queue.enqueue({}, key="k"),
        "claim": lambda: queue.claim(TTL_S),
        "complete": lambda: queue.complete(claim),
        "fail": lambda: queue.fail(claim, "boom"),
        "heartbeat": lambda: queue.heartbeat(claim, TTL_S),
        "cancel": lambda: queue.cancel(job),
        "complete_batch": lambda: queue.complete_batch([claim]),
        "reap": lambda: queue.reap(),
        "requeue": lambda: queue.requeue(job),
    }
    return calls[operation]


OF_THE_CLIENT = {o: names for o, names in CHECKPOINTS.items() if o != "keep_alive"}
"""`keep_alive` is the worker's, with a thread of its own: tests/test_process_signals.py."""


@pytest.mark.parametrize("operation", OF_THE_CLIENT)
def test_every_operation_passes_its_checkpoints_in_order(
    operation: str, queue: ReferenceQueue, passed: list[str]
) -> None:
    call = ready_for(operation, queue)
    passed.clear()
    call()
    assert tuple(passed) == CHECKPOINTS[operation]


def test_a_refused_or_repeated_write_ends_at_the_guard(queue: ReferenceQueue, passed: list[str]) -> None:
    queue.enqueue({})
    claim = taken(queue)
    queue.complete(claim)
    writes: list[Callable[[], Decision]] = [
        lambda: queue.complete(claim),
        lambda: queue.fail(claim, "late"),
        lambda: queue.heartbeat(claim, TTL_S),
        lambda: queue.cancel(claim.job_id),
    ]
    for write in writes:
        passed.clear()
        write()
        assert passed == ["before_lock", "after_lock", "after_guard"]


def test_a_known_key_is_not_inserted_again(queue: ReferenceQueue, passed: list[str]) -> None:
    queue.enqueue({}, key="k")
    passed.clear()
    queue.enqueue({}, key="k")
    assert passed == ["before_commit", "after_commit"]


@pytest.mark.parametrize(
    ("operation", "checkpoint"), [(o, c) for o, names in OF_THE_CLIENT.items() for c in names]
)
def test_an_actor_that_dies_at_a_checkpoint_leaves_no_transaction_open(
    operation: str, checkpoint: str, queue: ReferenceQueue, db: psycopg.Connection[Any]
) -> None:
    class Died(Exception):
        pass

    def die(name: str) -> None:
        if name == checkpoint:
            raise Died

    call = ready_for(operation, queue)
    if operation == "reap":
        expire(db, 1)
    before = everything(db)
    queue._checkpoint = die
    with pytest.raises(Died):
        call()
    assert queue._session.connection.info.transaction_status == TransactionStatus.IDLE
    assert (everything(db) != before) == (checkpoint == "after_commit")


def test_a_refusal_does_not_change_what_the_next_operation_sends(
    queue: ReferenceQueue, db: psycopg.Connection[Any]
) -> None:
    """psycopg forgets its prepared statements at a rollback of its own and would send DEALLOCATE ALL."""
    connection = queue._session.connection

    def prepared() -> list[tuple[Any, ...]]:
        return connection.execute(
            "SELECT name FROM pg_prepared_statements ORDER BY name", prepare=False
        ).fetchall()

    queue.enqueue({})
    claim = taken(queue)
    queue.complete(claim)
    before = prepared()
    assert len(before) >= 5
    assert queue.fail(claim, "late").reason == "terminal"
    assert queue.complete(claim).repeated
    assert prepared() == before


def test_statements_are_prepared_once_whatever_the_size_of_the_numbers(
    queue: ReferenceQueue, db: psycopg.Connection[Any]
) -> None:
    for job in (JobToken(1, 1), JobToken(70_000, 1), JobToken(2**40, 2**50)):
        assert queue.complete(job).reason == "unknown_job"
    times_prepared = queue._session.connection.execute(
        "SELECT count(*) FROM pg_prepared_statements WHERE statement LIKE '%FOR UPDATE%'", prepare=False
    ).fetchone()
    assert times_prepared == (1,)


# Plans


@pytest.fixture
def crowded(db: psycopg.Connection[Any]) -> psycopg.Connection[Any]:
    """50,000 due jobs behind as many delayed ones, live leases and finished ones of a higher priority."""
    db.execute(
        """
        INSERT INTO lease_queue.jobs (payload, max_attempts, priority, next_run_at)
        SELECT '{}', 5, p, clock_timestamp() + d * interval '1 hour'
        FROM (VALUES (0, -1), (10, 1)) AS kind (p, d), generate_series(1, 50000)
        """
    )
    db.execute(
        """
        INSERT INTO lease_queue.jobs
            (payload, max_attempts, priority, state, attempts, fencing_token, lease_holder, lease_expires_at)
        SELECT '{}', 5, 10, 'leased', 1, 1, 'B', clock_timestamp() + interval '1 hour'
        FROM generate_series(1, 50000)
        """
    )
    db.execute(
        """
        INSERT INTO lease_queue.jobs (payload, max_attempts, priority, state)
        SELECT '{}', 5, 20, 'succeeded' FROM generate_series(1, 50000)
        """
    )
    return db


def plan(db: psycopg.Connection[Any], name: str, parameters: dict[str, object]) -> str:
    # ANALYZE runs the statement, so the buffers it touched are counted and not estimated.
    explain = b"EXPLAIN (ANALYZE, BUFFERS, TIMING OFF, COSTS OFF) " + STATEMENTS[name].encode()
    with db.transaction(force_rollback=True):
        return "\n".join(row[0] for row in db.execute(explain, parameters).fetchall())


def buffers_touched(plan_text: str) -> int:
    """Of the topmost node, which includes those below it."""
    line = next(line for line in plan_text.splitlines() if "Buffers:" in line)
    return sum(int(word.partition("=")[2]) for word in line.split() if word.startswith(("hit=", "read=")))


@pytest.mark.parametrize("analyzed", [False, True])
def test_claim_and_reap_read_their_index_whatever_else_is_in_the_table(
    crowded: psycopg.Connection[Any], analyzed: bool
) -> None:
    if analyzed:
        crowded.execute("ANALYZE lease_queue.jobs")
    claim = plan(crowded, "claim", {"worker": "A", "ttl_s": 60.0, "limit": 1})
    assert "Index Scan using jobs_claimable" in claim
    assert "Seq Scan" not in claim
    assert "Sort" not in claim
    assert buffers_touched(claim) < 100
    reap = plan(crowded, "snapshot_expired", {"limit": 100, "besides": []})
    assert " jobs_leased" in reap
    assert "Seq Scan" not in reap
    assert buffers_touched(reap) < 20


# Arguments


def test_wrong_arguments_are_refused_at_the_door(queue: ReferenceQueue, installed: str) -> None:
    claim = JobToken(1, 1)
    for ttl_s in (0, -1, float("nan"), float("inf"), 1e12):
        with pytest.raises(ValueError, match="ttl_s is"):
            queue.claim(ttl_s)
        with pytest.raises(ValueError, match="ttl_s is"):
            queue.heartbeat(claim, ttl_s)
    with pytest.raises(ValueError, match="delay_s is -1"):
        queue.enqueue({}, delay_s=-1)
    with pytest.raises(ValueError, match="max_attempts is 0; it must be 1 to"):
        queue.enqueue({}, max_attempts=0)
    for limit in (0, MAX_BATCH + 1):
        with pytest.raises(ValueError, match=f"limit is {limit}; it must be 1 to {MAX_BATCH}"):
            queue.claim_batch(TTL_S, limit)
    with pytest.raises(ValueError, match="limit is 0"):
        queue.reap(0)
    with pytest.raises(ValueError, match="Out of range float"):
        queue.enqueue(float("nan"))
    with pytest.raises(ValueError, match="backoff_base_s is 0"):
        Settings(backoff_base_s=0)
    with psycopg.connect(installed) as connection:
        with pytest.raises(ValueError, match="autocommit"):
            ReferenceQueue(connection, worker="A")
        with pytest.raises(ValueError, match="worker is empty"):
            ReferenceQueue(connection, worker="")


def test_the_largest_batch_is_the_claim_statements_constant() -> None:
    assert f"LIMIT {MAX_BATCH}\n" in STATEMENTS["claim"]


def test_a_lost_connection_is_psycopgs_own_error(queue: ReferenceQueue, db: psycopg.Connection[Any]) -> None:
    queue.enqueue({})
    victim = queue._session.connection.info.backend_pid

    def cut(name: str) -> None:
        if name == "before_commit":
            db.execute("SELECT pg_terminate_backend(%s, 10000)", [victim])

    queue._checkpoint = cut
    with pytest.raises(psycopg.OperationalError):
        queue.claim(TTL_S)
    assert db.execute("SELECT state, fencing_token FROM lease_queue.jobs").fetchall() == [("ready", 0)]
    queue._session.connection.close()
