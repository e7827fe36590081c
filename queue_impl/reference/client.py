"""The queue's operations. PostgreSQL decides every one; this sends the statements and passes on the answer.

Each operation is a few small methods and each statement has a name, so a copy that breaks one promise
overrides one of them (`queue_impl/twins`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import psycopg
from psycopg.types.numeric import Int4, Int8

from .checkpoints import Checkpoint, no_checkpoint
from .errors import IdempotencyConflict, QueueError, RequeueRefused, TokenExhausted
from .model import (
    MAX_BATCH,
    Claim,
    DeadLetter,
    Decision,
    JobToken,
    Json,
    Judgement,
    ReapedJob,
    Settings,
    checked_count,
    checked_duration_s,
)
from .session import Session
from .sql import STATEMENTS

MAX_ERROR_CHARS = 10_000
"""What is kept of a failure's text."""

UNKNOWN_JOB = Decision(False, "unknown_job")

WriteParameters = dict[str, object]


class ReferenceQueue:
    """One worker's view of the queue, over one autocommit connection. Never used by two threads at once."""

    statements: ClassVar[Mapping[str, str]] = STATEMENTS

    def __init__(
        self,
        connection: psycopg.Connection[Any],
        *,
        worker: str,
        checkpoint: Checkpoint = no_checkpoint,
        settings: Settings | None = None,
    ) -> None:
        if not worker:
            raise ValueError("worker is empty; it must be the name the worker goes by in leases and ledger")
        self.worker = worker
        self.settings = settings or Settings()
        self._checkpoint = checkpoint
        self._session = Session(connection, self.statements)

    def close(self) -> None:
        """Close the connection the queue was given."""
        self._session.connection.close()

    # Submitting

    def enqueue(
        self,
        payload: Json,
        *,
        key: str | None = None,
        delay_s: float = 0.0,
        max_attempts: int | None = None,
        priority: int = 0,
    ) -> int:
        """A new job's id; with a key that is taken by a job with the same payload, that job's.

        Repeatable after a lost answer only with a key.
        """
        attempts_allowed = self.settings.max_attempts if max_attempts is None else max_attempts
        job: WriteParameters = {
            "payload": json.dumps(payload, allow_nan=False),
            "key": key,
            "delay_s": checked_duration_s("delay_s", delay_s, zero_allowed=True),
            "max_attempts": Int4(checked_count("max_attempts", attempts_allowed)),
            "priority": Int4(priority),
        }
        with self._session.transaction():
            job_id = self._insert(job) if key is None else self._find_or_insert(key, job)
            self._commit()
        return job_id

    def _find_or_insert(self, key: str, job: WriteParameters) -> int:
        known = self._find_by_key(key, job)
        if known is not None:
            return known
        self._checkpoint("between_lookup_and_insert")
        row = self._session.row("insert_job", job)
        if row is not None:
            return int(row["id"])
        # Another producer was faster. The insert waited for its commit, so this look-up sees it.
        known = self._find_by_key(key, job)
        if known is None:
            raise QueueError(f"the job with the idempotency key {key!r} was deleted while it was looked up")
        return known

    def _insert(self, job: WriteParameters) -> int:
        row = self._session.row("insert_job", job)
        assert row is not None, "a job without a key conflicts with nothing"
        return int(row["id"])

    def _find_by_key(self, key: str, job: WriteParameters) -> int | None:
        row = self._session.row("find_by_key", job)
        if row is None:
            return None
        if not row["same_payload"]:
            raise IdempotencyConflict(key, row["id"])
        return int(row["id"])

    def cancel(self, job_id: int) -> Decision:
        """End a live job, whoever holds it. A terminal one stays what it is."""
        job: WriteParameters = {"job_id": Int8(job_id)}
        with self._session.transaction():
            judgement = self._guard("cancel", job)
            if judgement is None:
                return UNKNOWN_JOB
            decision = judgement.decision()
            if decision.accepted:
                self._session.run("mark_cancelled", job)
                self._commit()
        return decision

    # Claiming

    def claim(self, ttl_s: float) -> Claim | None:
        """The next due job, leased for `ttl_s`; None where there is none. Never waits."""
        claims = self.claim_batch(ttl_s, 1)
        return claims[0] if claims else None

    def claim_batch(self, ttl_s: float, limit: int) -> list[Claim]:
        """Up to `limit` due jobs in one statement: highest priority first, then the longest claimable."""
        wanted = self._claim_parameters(ttl_s, limit)
        with self._session.transaction():
            self._checkpoint("before_claim")
            rows = self._take_due(wanted)
            self._checkpoint("after_claim")
            self._commit()
        rows.sort(key=lambda row: (-row["priority"], row["was_claimable_at"], row["job_id"]))
        for row in rows:
            del row["was_claimable_at"]
        return [Claim(**row) for row in rows]

    def _take_due(self, wanted: WriteParameters) -> list[dict[str, Any]]:
        try:
            return self._session.rows("claim", wanted)
        except psycopg.errors.NumericValueOutOfRange as error:
            raise TokenExhausted from error

    def _claim_parameters(self, ttl_s: float, limit: int) -> WriteParameters:
        return {
            "worker": self.worker,
            "ttl_s": checked_duration_s("ttl_s", ttl_s),
            "limit": Int8(checked_count("limit", limit, at_most=MAX_BATCH)),
        }

    # Writing under a lease

    def heartbeat(self, claim: JobToken, ttl_s: float) -> Decision:
        """Extend the lease to `ttl_s` from now. Never revives an expired or lost one, never shortens."""
        write = self._write_parameters(claim) | {"ttl_s": checked_duration_s("ttl_s", ttl_s)}
        with self._session.transaction():
            judgement = self._guard("heartbeat", write)
            if judgement is None:
                return UNKNOWN_JOB
            decision = judgement.decision()
            if self._is_new(decision):
                self._session.run("extend_lease", write)
                self._commit()
        return decision

    def complete(self, claim: JobToken, result: Json = None) -> Decision:
        """Enter the result in the ledger and end the job as `succeeded`, both or neither."""
        write = self._write_parameters(claim) | {"result": _optional_json(result)}
        with self._session.transaction():
            judgement = self._guard("complete", write)
            if judgement is None:
                return UNKNOWN_JOB
            decision = judgement.decision()
            if self._is_new(decision):
                self._record_success(write)
                self._commit()
        return decision

    def complete_batch(
        self, claims: Sequence[JobToken], results: Sequence[Json] | None = None
    ) -> list[Decision]:
        """Complete several jobs in one transaction, each judged on its own, answers in the order given."""
        if results is not None and len(results) != len(claims):
            raise ValueError(f"{len(results)} results were given for {len(claims)} claims")
        outcomes = results if results is not None else [None] * len(claims)
        with self._session.transaction():
            self._checkpoint("before_lock")
            locked = self._lock_all([claim.job_id for claim in claims])
            self._checkpoint("after_lock")
            decisions = [
                self._complete_locked(claim, result) if claim.job_id in locked else UNKNOWN_JOB
                for claim, result in zip(claims, outcomes, strict=True)
            ]
            if any(self._is_new(decision) for decision in decisions):
                self._commit()
        return decisions

    def fail(self, claim: JobToken, error: str) -> Decision:
        """Give the job back: for another try after the backoff, or as a dead letter when out of attempts."""
        write = self._write_parameters(claim) | {"error": _storable(error)}
        with self._session.transaction():
            judgement = self._guard("fail", write)
            if judgement is None:
                return UNKNOWN_JOB
            decision = judgement.decision()
            if self._is_new(decision):
                self._session.run(
                    "record_failure", write | {"backoff_s": self._backoff_s(judgement.attempts)}
                )
                self._commit()
        return decision

    def _write_parameters(self, claim: JobToken) -> WriteParameters:
        # Int8, because psycopg types an integer by its size and prepares a statement once per combination.
        return {
            "job_id": Int8(claim.job_id),
            "token": Int8(claim.token),
            "worker": self.worker,
            "ttl_s": 0.0,
        }

    def _guard(self, operation: str, write: WriteParameters) -> Judgement | None:
        """Lock the job's row, then judge the write. None where there is no such job."""
        self._checkpoint("before_lock")
        if not self._lock(write):
            return None
        self._checkpoint("after_lock")
        judgement = self._judge(operation, write)
        self._checkpoint("after_guard")
        return judgement

    def _lock(self, write: WriteParameters) -> bool:
        return self._session.row("lock_job", write) is not None

    def _lock_all(self, job_ids: Sequence[int]) -> set[int]:
        rows = self._session.rows("lock_jobs", {"job_ids": _int8s(job_ids)})
        return {row["id"] for row in rows}

    def _judge(self, operation: str, write: WriteParameters) -> Judgement:
        """Token, state and expiry, as of now.

        A statement of its own, after the lock: one that both locked and judged would judge before it waited.
        """
        row = self._session.row(self._judging_statement(operation), write | {"operation": operation})
        assert row is not None, "the row is locked"
        return Judgement(**row)

    def _judging_statement(self, operation: str) -> str:
        return "judge_cancel" if operation == "cancel" else "judge_job"

    def _is_new(self, decision: Decision) -> bool:
        return decision.accepted and not decision.repeated

    def _complete_locked(self, claim: JobToken, result: Json) -> Decision:
        write = self._write_parameters(claim) | {"result": _optional_json(result)}
        decision = self._judge("complete", write).decision()
        self._checkpoint("after_guard")
        if self._is_new(decision):
            self._record_success(write)
        return decision

    def _record_success(self, write: WriteParameters) -> None:
        self._checkpoint("before_ledger")
        self._session.run("insert_ledger", write)
        self._checkpoint("after_ledger")
        self._session.run("mark_succeeded", write)

    def _backoff_s(self, attempts: int) -> float:
        """Doubles with every attempt up to the cap. The exponent is bounded, or a float would overflow."""
        doublings = min(attempts - 1, 60)
        return float(min(self.settings.backoff_cap_s, self.settings.backoff_base_s * 2**doublings))

    # Recovering

    def reap(self, limit: int | None = None) -> list[ReapedJob]:
        """End expired leases, the oldest first, at most `limit`.

        Each job is requeued, or failed when it is out of attempts. Claims take expired leases with attempts
        left by themselves; only the reaper ends the others.
        """
        bound = checked_count("limit", self.settings.reap_limit if limit is None else limit)
        with self._session.transaction():
            confirmed = self._lock_what_is_lost(bound)
            self._checkpoint("after_recheck")
            reaped = self._end_expired(confirmed)
            self._checkpoint("before_requeue")
            reaped += self._requeue_expired(confirmed)
            self._commit()
        return reaped

    def _lock_what_is_lost(self, bound: int) -> list[int]:
        """What somebody else holds does not use up the bound: a stuck transaction would starve what comes after it."""
        confirmed: list[int] = []
        looked_at: list[int] = []
        while True:
            wanted = bound - len(confirmed)
            expired = self._snapshot_expired(wanted, looked_at)
            self._checkpoint("after_snapshot")
            confirmed += self._recheck_expired(self._lock_expired(expired))
            looked_at += expired
            if len(expired) < wanted or len(confirmed) >= bound:
                return confirmed

    def _snapshot_expired(self, limit: int, besides: Sequence[int]) -> list[int]:
        parameters = {"limit": Int8(limit), "besides": _int8s(besides)}
        return [row["id"] for row in self._session.rows("snapshot_expired", parameters)]

    def _lock_expired(self, job_ids: Sequence[int]) -> list[int]:
        return [row["id"] for row in self._session.rows("lock_expired", {"job_ids": _int8s(job_ids)})]

    def _recheck_expired(self, job_ids: Sequence[int]) -> list[int]:
        """Those still expired now that they are locked: a heartbeat or a settlement may have come between."""
        return [row["id"] for row in self._session.rows("recheck_expired", {"job_ids": _int8s(job_ids)})]

    def _end_expired(self, job_ids: Sequence[int]) -> list[ReapedJob]:
        return [ReapedJob(**row) for row in self._session.rows("end_expired", {"job_ids": _int8s(job_ids)})]

    def _requeue_expired(self, job_ids: Sequence[int]) -> list[ReapedJob]:
        return [
            ReapedJob(**row) for row in self._session.rows("requeue_expired", {"job_ids": _int8s(job_ids)})
        ]

    def dead_letters(self, limit: int = 100, after_id: int = 0) -> list[DeadLetter]:
        """Failed jobs in id order. For the next page pass the last one's id as `after_id`."""
        page = {"limit": Int8(checked_count("limit", limit)), "after_id": Int8(after_id)}
        return [DeadLetter(**row) for row in self._session.rows("dead_letters", page)]

    def requeue(self, job_id: int) -> int:
        """A new job in place of a dead letter, which stays. Asked twice, it answers with the same job."""
        job: WriteParameters = {"job_id": Int8(job_id)}
        with self._session.transaction():
            row = self._session.row("insert_requeued", job)
            successor = int(row["id"]) if row is not None else self._find_successor(job_id, job)
            self._commit()
        return successor

    def _find_successor(self, job_id: int, job: WriteParameters) -> int:
        row = self._session.row("find_requeued", job)
        if row is None or row["successor_id"] is None:
            raise RequeueRefused(job_id, None if row is None else row["state"])
        return int(row["successor_id"])

    def _commit(self) -> None:
        self._checkpoint("before_commit")
        self._session.commit()
        self._checkpoint("after_commit")


def _optional_json(value: Json) -> str | None:
    """As text: psycopg's Jsonb and None have different types, and a statement is prepared once per type."""
    return None if value is None else json.dumps(value, allow_nan=False)


def _int8s(numbers: Sequence[int]) -> list[Int8]:
    return [Int8(number) for number in numbers]


def _storable(text: str) -> str:
    """PostgreSQL's text has no NUL."""
    return text.replace("\x00", "\N{REPLACEMENT CHARACTER}")[:MAX_ERROR_CHARS]
