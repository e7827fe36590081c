"""Twins in which a finished job does not stay finished, or is run a second time."""

from __future__ import annotations

import json

from fencepost.queue_impl.reference.client import ReferenceQueue, WriteParameters
from fencepost.queue_impl.reference.model import Decision, JobToken, Json, Judgement
from fencepost.queue_impl.reference.sql import REFERENCE_SCHEMA, STATEMENTS, replace_once

from .adapter import reference_twin


class GuardWithoutState(ReferenceQueue):
    statements = STATEMENTS.edited(
        "judge_job", "WHEN state IN ('succeeded', 'failed', 'cancelled') THEN 'terminal'", ""
    ).edited("judge_job", "WHEN state <> 'leased' THEN 'not_leased'", "")


class CancelOverwritesSucceeded(ReferenceQueue):
    statements = STATEMENTS.edited("judge_cancel", "'succeeded', ", "")


class FailedClaimableAgain(ReferenceQueue):
    statements = STATEMENTS.replaced(
        "claim", STATEMENTS["claim"].replace("state = 'ready'", "state IN ('ready', 'failed')")
    )


class FailedClaimableAfterAWhile(ReferenceQueue):
    statements = STATEMENTS.replaced(
        "claim",
        STATEMENTS["claim"].replace(
            "state = 'ready'",
            "state = 'ready' OR (state = 'failed' AND finished_at < clock_timestamp() - interval '30 seconds')",
        ),
    )


class CancelWithoutRowLock(ReferenceQueue):
    def _lock(self, write: WriteParameters) -> bool:
        return "token" not in write or super()._lock(write)


class GuardBeforeTheLock(ReferenceQueue):
    def _guard(self, operation: str, write: WriteParameters) -> Judgement | None:
        self._checkpoint("before_lock")
        judgement = self._judge(operation, write)
        self._lock(write)
        for checkpoint in ("after_lock", "after_guard"):
            self._checkpoint(checkpoint)
        return judgement


class RequeueRevivesTheDeadLetter(ReferenceQueue):
    statements = STATEMENTS.replaced(
        "insert_requeued",
        "UPDATE lease_queue.jobs SET state = 'ready', attempts = 0, finished_at = NULL "
        "WHERE id = %(job_id)s AND state = 'failed' RETURNING id",
    )


class RequeueOfAnyFinishedJob(ReferenceQueue):
    statements = STATEMENTS.edited("insert_requeued", "state = 'failed'", "finished_at IS NOT NULL")


class RequeueTwiceMakesTwoJobs(ReferenceQueue):
    statements = STATEMENTS.edited(
        "insert_requeued", "ON CONFLICT (requeued_from) WHERE requeued_from IS NOT NULL DO NOTHING", ""
    )


_ENDED_BY_THE_REAPER = "state = 'failed' AND last_error = 'the lease of the last attempt expired'"
_TERMINAL = "WHEN state IN ('succeeded', 'failed', 'cancelled') THEN 'terminal'"


class LateWriteRevivesAReapedDeadLetter(ReferenceQueue):
    statements = STATEMENTS.edited(
        "judge_job", _TERMINAL, f"WHEN {_ENDED_BY_THE_REAPER} THEN 'accepted'\n        {_TERMINAL}"
    )


class CancelOverwritesAReapedDeadLetter(ReferenceQueue):
    statements = STATEMENTS.edited(
        "judge_cancel", _TERMINAL, f"WHEN {_ENDED_BY_THE_REAPER} THEN 'accepted'\n        {_TERMINAL}"
    )


class RequeueForgetsWhatWasAskedFor(ReferenceQueue):
    statements = STATEMENTS.edited(
        "insert_requeued", "SELECT payload, priority, max_attempts, id", "SELECT payload, 0, 5, id"
    )


class ResultKeptBeforeTheJudgement(ReferenceQueue):
    def complete(self, claim: JobToken, result: Json = None) -> Decision:
        self._session.connection.execute(
            "UPDATE lease_queue.jobs SET result = %s WHERE id = %s AND state <> 'ready'",
            [json.dumps(result), claim.job_id],
        )
        return super().complete(claim, result)


TWINS = (
    reference_twin(
        "guard_without_state",
        "A write is judged by token and expiry alone, so the last holder can change a finished job.",
        breaks="terminal_absorbing",
        client=GuardWithoutState,
    ),
    reference_twin(
        "cancel_overwrites_succeeded",
        "A cancel does not spare a job that has succeeded.",
        breaks="terminal_absorbing",
        client=CancelOverwritesSucceeded,
    ),
    reference_twin(
        "failed_claimable_again",
        "A claim takes failed jobs as well as waiting ones.",
        breaks="terminal_absorbing",
        client=FailedClaimableAgain,
    ),
    reference_twin(
        "failed_claimable_after_a_while",
        "A claim takes a failed job once it has lain for half a minute.",
        breaks="terminal_absorbing",
        client=FailedClaimableAfterAWhile,
    ),
    reference_twin(
        "cancel_without_row_lock",
        "A cancel judges the job without locking its row, so what it saw can change before it writes.",
        breaks="terminal_absorbing",
        client=CancelWithoutRowLock,
    ),
    reference_twin(
        "guard_before_the_lock",
        "A write is judged first and locks the row afterwards, so it acts on what was true before its wait.",
        breaks="terminal_absorbing",
        client=GuardBeforeTheLock,
    ),
    reference_twin(
        "requeue_revives_the_dead_letter",
        "Requeueing a dead letter makes its own row ready again instead of a new job.",
        breaks="terminal_absorbing",
        client=RequeueRevivesTheDeadLetter,
    ),
    reference_twin(
        "requeue_of_any_finished_job",
        "Whatever has finished can be requeued, so work that succeeded is done a second time.",
        breaks="expectation",
        client=RequeueOfAnyFinishedJob,
    ),
    reference_twin(
        "requeue_twice_makes_two_jobs",
        "A dead letter requeued by two at once runs twice.",
        breaks="expectation",
        client=RequeueTwiceMakesTwoJobs,
        schema=replace_once(REFERENCE_SCHEMA, "UNIQUE INDEX jobs_requeued_from", "INDEX jobs_requeued_from"),
    ),
    reference_twin(
        "late_write_revives_a_reaped_dead_letter",
        "The reaper ends a job without settling its last claim, so that claim's late write still counts.",
        breaks="terminal_absorbing",
        client=LateWriteRevivesAReapedDeadLetter,
    ),
    reference_twin(
        "cancel_overwrites_a_reaped_dead_letter",
        "A cancel does not spare a job that the reaper has ended.",
        breaks="terminal_absorbing",
        client=CancelOverwritesAReapedDeadLetter,
    ),
    reference_twin(
        "requeue_forgets_what_was_asked_for",
        "The job a requeue makes has the default priority and attempts, whatever its dead letter had.",
        breaks="expectation",
        client=RequeueForgetsWhatWasAskedFor,
    ),
    reference_twin(
        "result_kept_before_the_judgement",
        "A complete leaves its result before it is judged, so a late one overwrites that of the job's holder.",
        breaks="terminal_absorbing",
        client=ResultKeptBeforeTheJudgement,
    ),
)
