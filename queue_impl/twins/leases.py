"""Twins whose leases are given or kept wrongly."""

from __future__ import annotations

import time

from fencepost.queue_impl.reference.client import ReferenceQueue, WriteParameters
from fencepost.queue_impl.reference.sql import REFERENCE_SCHEMA, STATEMENTS

from .adapter import reference_twin


class ExpiryByWorkerClock(ReferenceQueue):
    statements = STATEMENTS.edited(
        "claim",
        "lease_expires_at = clock_timestamp() +",
        "lease_expires_at = to_timestamp(%(worker_now)s) +",
    )

    def _claim_parameters(self, ttl_s: float, limit: int) -> WriteParameters:
        return super()._claim_parameters(ttl_s, limit) | {"worker_now": time.time()}


class StealsLiveLease(ReferenceQueue):
    statements = STATEMENTS.edited("claim", "AND claimable_at <=", "AND next_run_at <=")


class ClaimWithoutLock(ReferenceQueue):
    statements = STATEMENTS.edited("claim", "        FOR UPDATE SKIP LOCKED\n", "")


class TimestampsWithoutTimeZone(ReferenceQueue):
    """What is stored is the time of day on the wall of whoever wrote it."""

    statements = STATEMENTS.edited(
        "claim", "jobs.lease_expires_at AS expires_at", "jobs.lease_expires_at::timestamptz AS expires_at"
    )


TWINS = (
    reference_twin(
        "expiry_by_worker_clock",
        "A lease's end is computed from the worker's clock.",
        breaks="single_holder",
        client=ExpiryByWorkerClock,
    ),
    reference_twin(
        "steal_of_live_lease",
        "A claim looks at when the job was due and not at whether its lease is live.",
        breaks="single_holder",
        client=StealsLiveLease,
    ),
    reference_twin(
        "claim_without_lock",
        "A claim selects a job and then updates it, without a lock between the two.",
        breaks="single_holder",
        client=ClaimWithoutLock,
        stands_for="OCA/queue#131",
    ),
    reference_twin(
        "timestamps_without_time_zone",
        "Times are stored without their zone, so a lease's end depends on who looks at it.",
        breaks="single_holder",
        client=TimestampsWithoutTimeZone,
        stands_for="lukas-krecan/ShedLock#91",
        schema=REFERENCE_SCHEMA.replace("timestamptz", "timestamp"),
    ),
)
