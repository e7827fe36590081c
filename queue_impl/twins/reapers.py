"""Twins whose reaper recovers what is not lost, recovers it twice, or not at all."""

from __future__ import annotations

from collections.abc import Sequence

from fencepost.queue_impl.reference.client import ReferenceQueue
from fencepost.queue_impl.reference.model import ReapedJob
from fencepost.queue_impl.reference.sql import REFERENCE_SCHEMA, STATEMENTS, replace_once

from .adapter import reference_twin


class ReaperWithoutRecheck(ReferenceQueue):
    def _recheck_expired(self, job_ids: Sequence[int]) -> list[int]:
        return list(job_ids)


class ReaperDoubleRequeue(ReferenceQueue):
    """Updates what its snapshot listed. A second reaper waits for the first one's commit, and then does it again."""

    def _lock_expired(self, job_ids: Sequence[int]) -> list[int]:
        return list(job_ids)


class ReaperOverwritesSucceeded(ReferenceQueue):
    """Rechecks the lease's end and not the state. A job that is done has no lease, so no end that lies ahead."""

    statements = STATEMENTS.edited(
        "recheck_expired",
        "AND state = 'leased'\n    AND lease_expires_at <= clock_timestamp()",
        "AND (lease_expires_at IS NULL OR lease_expires_at <= clock_timestamp())",
    )


class ReaperForgetsTheBackoff(ReferenceQueue):
    statements = STATEMENTS.edited(
        "recheck_expired", "AND state = 'leased'", "AND (state = 'leased' OR settled_as = 'fail')"
    ).edited(
        "recheck_expired",
        "lease_expires_at <= clock_timestamp()",
        "COALESCE(lease_expires_at, '-infinity') <= clock_timestamp()",
    )


class ReaperSparesOnlyTheRenewed(ReferenceQueue):
    """Rechecks when the last heartbeat was. A job claimed anew has had none."""

    statements = (
        STATEMENTS.edited("claim", "SET state = 'leased',", "SET state = 'leased', renewed_at = NULL,")
        .edited("extend_lease", "SET ", "SET renewed_at = clock_timestamp(), ")
        .edited(
            "recheck_expired",
            "lease_expires_at <= clock_timestamp()",
            "(renewed_at IS NULL OR lease_expires_at <= clock_timestamp())",
        )
    )


WITH_RENEWALS = replace_once(
    REFERENCE_SCHEMA,
    "    created_at       timestamptz",
    "    renewed_at       timestamptz,\n    created_at       timestamptz",
)


class ReaperComesEarly(ReferenceQueue):
    statements = STATEMENTS.edited(
        "snapshot_expired", "(SELECT clock_timestamp())", "(SELECT clock_timestamp() + interval '10 seconds')"
    ).edited("recheck_expired", "clock_timestamp()", "clock_timestamp() + interval '10 seconds'")


class ExpirySpendsNoAttempt(ReferenceQueue):
    statements = STATEMENTS.edited(
        "requeue_expired", "SET state = 'ready',", "SET state = 'ready', attempts = attempts - 1,"
    )


class ExpiredLeasesNeverEnd(ReferenceQueue):
    statements = STATEMENTS.edited("end_expired", "AND attempts >= max_attempts", "AND false")


class ReapedJobIsInvisible(ReferenceQueue):
    statements = STATEMENTS.edited(
        "requeue_expired", "SET state = 'ready',", "SET state = 'ready', last_error = 'lease expired',"
    ).edited(
        "claim", "AND claimable_at <=", "AND last_error IS DISTINCT FROM 'lease expired' AND claimable_at <="
    )


class UnorderedSweep(ReferenceQueue):
    """Without an order the plan decides; here it is the worst one, so that every run shows it."""

    statements = STATEMENTS.edited(
        "snapshot_expired", "ORDER BY lease_expires_at, id", "ORDER BY lease_expires_at DESC"
    )


class SweepSpentOnHeldRows(ReferenceQueue):
    """Looks once: what somebody else has locked counts against the bound."""

    def _lock_what_is_lost(self, bound: int) -> list[int]:
        expired = self._snapshot_expired(bound, [])
        self._checkpoint("after_snapshot")
        return self._recheck_expired(self._lock_expired(expired))


class SweepIgnoresItsBound(ReferenceQueue):
    def reap(self, limit: int | None = None) -> list[ReapedJob]:
        return super().reap(None)


class PriorityLostWithTheLease(ReferenceQueue):
    statements = STATEMENTS.edited(
        "requeue_expired", "SET state = 'ready',", "SET state = 'ready', priority = DEFAULT,"
    )


TWINS = (
    reference_twin(
        "reaper_without_recheck",
        "The reaper requeues what its snapshot listed, without looking again once the row is locked.",
        breaks="requeued_once",
        client=ReaperWithoutRecheck,
        stands_for="riverqueue/river#1373",
    ),
    reference_twin(
        "reaper_double_requeue",
        "The reaper does not lock what it rechecks, so two of them requeue one job.",
        breaks="requeued_once",
        client=ReaperDoubleRequeue,
    ),
    reference_twin(
        "reaper_overwrites_succeeded",
        "The reaper rechecks the lease's end and not the state, so a job just finished comes back.",
        breaks="terminal_absorbing",
        client=ReaperOverwritesSucceeded,
        stands_for="riverqueue/river#1302",
    ),
    reference_twin(
        "reaper_forgets_backoff",
        "The reaper requeues a job that has just failed a second time, so it does not wait for its retry.",
        breaks="requeued_once",
        client=ReaperForgetsTheBackoff,
    ),
    reference_twin(
        "reaper_spares_only_the_renewed",
        "The reaper rechecks when the last heartbeat was, so a job that was claimed anew meanwhile is requeued.",
        breaks="requeued_once",
        client=ReaperSparesOnlyTheRenewed,
        schema=WITH_RENEWALS,
    ),
    reference_twin(
        "reaper_comes_early",
        "The reaper takes leases for lost ten seconds before they end.",
        breaks="requeued_once",
        client=ReaperComesEarly,
    ),
    reference_twin(
        "expiry_spends_no_attempt",
        "A job whose lease expired gets its attempt back, so a crash loop never ends.",
        breaks="attempts_bounded",
        client=ExpirySpendsNoAttempt,
        stands_for="vectorize-io/hindsight#2675",
    ),
    reference_twin(
        "lost_last_attempt_never_ends",
        "The reaper only requeues, so a job whose last attempt was lost stays leased for ever.",
        breaks="converges",
        client=ExpiredLeasesNeverEnd,
    ),
    reference_twin(
        "reaped_job_is_invisible",
        "The reaper gives a job back in a form that no claim looks for.",
        breaks="converges",
        client=ReapedJobIsInvisible,
    ),
    reference_twin(
        "unordered_bounded_sweep",
        "A bounded sweep does not take the oldest lost leases first, so they can starve.",
        breaks="expectation",
        client=UnorderedSweep,
    ),
    reference_twin(
        "sweep_spent_on_held_rows",
        "A bounded sweep counts rows that others have locked, so one stuck transaction starves all that come after it.",
        breaks="expectation",
        client=SweepSpentOnHeldRows,
    ),
    reference_twin(
        "sweep_ignores_its_bound",
        "A bounded sweep recovers all there is, however much, in one transaction.",
        breaks="expectation",
        client=SweepIgnoresItsBound,
    ),
    reference_twin(
        "priority_lost_with_the_lease",
        "A job whose lease was lost comes back with the default priority.",
        breaks="expectation",
        client=PriorityLostWithTheLease,
    ),
)
