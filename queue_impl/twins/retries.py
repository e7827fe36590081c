"""Twins that try a job again at the wrong time, too often, never, or out of turn."""

from __future__ import annotations

from fencepost.queue_impl.reference.client import ReferenceQueue
from fencepost.queue_impl.reference.sql import STATEMENTS

from .adapter import reference_twin


class ClaimIgnoresNextRunAt(ReferenceQueue):
    statements = STATEMENTS.edited(
        "claim", "AND claimable_at <=", "AND COALESCE(lease_expires_at, '-infinity') <="
    )


class ClaimIgnoresTheTimeOfARetry(ReferenceQueue):
    statements = STATEMENTS.edited(
        "claim",
        "AND claimable_at <=",
        "AND COALESCE(lease_expires_at, CASE WHEN attempts > 0 THEN created_at END, next_run_at) <=",
    )


class DelayIgnored(ReferenceQueue):
    statements = STATEMENTS.edited("insert_job", "+ %(delay_s)s * interval '1 second'", "")


class RetryNeverClaimed(ReferenceQueue):
    statements = STATEMENTS.edited(
        "claim", "AND claimable_at <=", "AND settled_as IS NULL AND claimable_at <="
    )


class BackoffNotCapped(ReferenceQueue):
    def _backoff_s(self, attempts: int) -> float:
        return float(self.settings.backoff_base_s * 2 ** (attempts - 1))


class BackoffDoesNotGrow(ReferenceQueue):
    def _backoff_s(self, attempts: int) -> float:
        return self.settings.backoff_base_s


class BackoffFromTheOldNextRunAt(ReferenceQueue):
    statements = STATEMENTS.edited(
        "record_failure", "clock_timestamp() + %(backoff_s)s", "next_run_at + %(backoff_s)s"
    )


class LastAttemptRequeuedAgain(ReferenceQueue):
    statements = STATEMENTS.replaced(
        "record_failure",
        STATEMENTS["record_failure"].replace("attempts < max_attempts", "attempts <= max_attempts"),
    )


class PriorityLostOnRetry(ReferenceQueue):
    statements = STATEMENTS.edited("record_failure", "last_error =", "priority = DEFAULT, last_error =")


class FailedJobsGoFirst(ReferenceQueue):
    statements = STATEMENTS.edited("claim", "ORDER BY claimable_at, id", "ORDER BY id")


TWINS = (
    reference_twin(
        "claim_ignores_next_run_at",
        "A claim takes every waiting job, whether its time has come or not.",
        breaks="not_before",
        client=ClaimIgnoresNextRunAt,
    ),
    reference_twin(
        "claim_ignores_the_time_of_a_retry",
        "A claim waits for the time of a new job, and takes one that failed at once.",
        breaks="not_before",
        client=ClaimIgnoresTheTimeOfARetry,
    ),
    reference_twin(
        "delay_ignored",
        "A job enqueued for later is ready at once.",
        breaks="not_before",
        client=DelayIgnored,
    ),
    reference_twin(
        "retry_never_claimed",
        "A claim takes new jobs only: one that failed once waits for ever.",
        breaks="converges",
        client=RetryNeverClaimed,
    ),
    reference_twin(
        "backoff_not_capped",
        "The wait before a retry doubles without end.",
        breaks="expectation",
        client=BackoffNotCapped,
        stands_for="Automattic/kue#1025",
    ),
    reference_twin(
        "backoff_does_not_grow",
        "The wait before a retry is the same after every failure.",
        breaks="expectation",
        client=BackoffDoesNotGrow,
    ),
    reference_twin(
        "backoff_from_the_old_next_run_at",
        "The wait before a retry counts from when the job was last due, so after long work there is none.",
        breaks="expectation",
        client=BackoffFromTheOldNextRunAt,
    ),
    reference_twin(
        "last_attempt_requeued_again",
        "A job that failed its last attempt is requeued once more.",
        breaks="attempts_bounded",
        client=LastAttemptRequeuedAgain,
    ),
    reference_twin(
        "priority_lost_on_retry",
        "A job that failed comes back with the default priority.",
        breaks="expectation",
        client=PriorityLostOnRetry,
        stands_for="celery/celery#5654",
    ),
    reference_twin(
        "failed_jobs_go_first",
        "Jobs are claimed in the order they were enqueued, so those that failed go before those that wait.",
        breaks="expectation",
        client=FailedJobsGoFirst,
        stands_for="cofin/litestar-queues#105",
    ),
)
