"""Twins whose guard is missing, looks at the wrong thing, or looks at the wrong moment."""

from __future__ import annotations

from dataclasses import replace

from fencepost.queue_impl.reference.client import ReferenceQueue, WriteParameters
from fencepost.queue_impl.reference.model import Judgement
from fencepost.queue_impl.reference.sql import REFERENCE_SCHEMA, STATEMENTS, replace_once

from .adapter import reference_twin

WITHOUT_FOREIGN_KEY = replace_once(
    REFERENCE_SCHEMA,
    """,

    -- The second protection beside the guard: the token must be the job's current one. UNIQUE alone accepts
    -- token 1 after token 2. And a job with a ledger row can never be claimed again: its token is held.
    CONSTRAINT ledger_current_token FOREIGN KEY (job_id, fencing_token)
        REFERENCES lease_queue.jobs (id, fencing_token)""",
    "",
)
"""The foreign key refuses a stale ledger row by itself, so a twin without a guard is unsafe only without it too."""


class NoGuard(ReferenceQueue):
    def _judge(self, operation: str, write: WriteParameters) -> Judgement:
        return replace(super()._judge(operation, write), verdict="accepted")


class GuardWithoutRowLock(ReferenceQueue):
    statements = STATEMENTS.edited("lock_job", "FOR UPDATE", "")


class GuardInWhere(ReferenceQueue):
    """Locks and judges the expiry in one statement. The condition is evaluated before the wait for the row."""

    statements = STATEMENTS.edited(
        "lock_job", "WHERE id = %(job_id)s", "WHERE id = %(job_id)s AND lease_expires_at > clock_timestamp()"
    )

    def _lock(self, write: WriteParameters) -> bool:
        self._was_live = super()._lock(write)
        return True

    def _judge(self, operation: str, write: WriteParameters) -> Judgement:
        judgement = super()._judge(operation, write)
        if judgement.verdict == "lease_expired" and self._was_live:
            return replace(judgement, verdict="accepted")
        return judgement


class GuardAtFrozenNow(ReferenceQueue):
    statements = STATEMENTS.edited(
        "judge_job", "lease_expires_at <= clock_timestamp()", "lease_expires_at <= now()"
    )


class FenceByWorkerName(ReferenceQueue):
    statements = STATEMENTS.edited(
        "judge_job", "fencing_token <> %(token)s", "lease_holder IS DISTINCT FROM %(worker)s"
    )


class LateFailRequeues(ReferenceQueue):
    def _judge(self, operation: str, write: WriteParameters) -> Judgement:
        judgement = super()._judge(operation, write)
        return replace(judgement, verdict="accepted") if operation == "fail" else judgement


class LateFailEndsJob(ReferenceQueue):
    statements = STATEMENTS.edited(
        "judge_job",
        "WHEN fencing_token <> %(token)s",
        "WHEN fencing_token <> %(token)s AND NOT (%(operation)s = 'fail' AND attempts >= max_attempts)",
    )


TWINS = (
    reference_twin(
        "no_guard",
        "A write is not judged at all, and the ledger's foreign key is gone as well.",
        breaks="fence",
        client=NoGuard,
        schema=WITHOUT_FOREIGN_KEY,
    ),
    reference_twin(
        "guard_without_row_lock",
        "The guard judges without locking the row, so what it saw can change before the write.",
        breaks="fence",
        client=GuardWithoutRowLock,
        schema=WITHOUT_FOREIGN_KEY,
    ),
    reference_twin(
        "guard_in_where",
        "The expiry is judged in the WHERE of the locking statement, so before the wait for the row.",
        breaks="fence",
        client=GuardInWhere,
    ),
    reference_twin(
        "guard_at_frozen_now",
        "The guard compares the expiry with now(), which is frozen at the start of the transaction.",
        breaks="fence",
        client=GuardAtFrozenNow,
    ),
    reference_twin(
        "fence_by_worker_name",
        "The guard compares the holder's name instead of the token.",
        breaks="fence",
        client=FenceByWorkerName,
        schema=WITHOUT_FOREIGN_KEY,
    ),
    reference_twin(
        "late_fail_requeues",
        "A failure is accepted from whoever reports it, so a late one requeues or ends the job.",
        breaks="fence",
        client=LateFailRequeues,
    ),
    reference_twin(
        "late_fail_ends_job",
        "On a job's last attempt a failure is accepted under any token, so a late one ends the job.",
        breaks="fence",
        client=LateFailEndsJob,
    ),
)
