"""Twins whose heartbeats do too much, too little, or too late."""

from __future__ import annotations

from dataclasses import replace

from fencepost.queue_impl.reference.client import ReferenceQueue, WriteParameters
from fencepost.queue_impl.reference.model import Judgement
from fencepost.queue_impl.reference.sql import STATEMENTS

from .adapter import reference_twin
from .guards import WITHOUT_FOREIGN_KEY


class HeartbeatByJobOnly(ReferenceQueue):
    statements = STATEMENTS.edited(
        "judge_job",
        "fencing_token <> %(token)s",
        "fencing_token <> %(token)s AND %(operation)s <> 'heartbeat'",
    )


class HeartbeatByWorkerName(ReferenceQueue):
    statements = STATEMENTS.edited(
        "judge_job",
        "fencing_token <> %(token)s",
        "fencing_token <> %(token)s AND NOT (%(operation)s = 'heartbeat' AND lease_holder = %(worker)s)",
    )


class HeartbeatRevives(ReferenceQueue):
    statements = STATEMENTS.edited(
        "judge_job",
        "lease_expires_at <= clock_timestamp()",
        "lease_expires_at <= clock_timestamp() AND %(operation)s <> 'heartbeat'",
    )


class HeartbeatAtFrozenNow(ReferenceQueue):
    statements = STATEMENTS.edited(
        "judge_job",
        "lease_expires_at <= clock_timestamp()",
        "lease_expires_at <= CASE WHEN %(operation)s = 'heartbeat' THEN now() ELSE clock_timestamp() END",
    )


class HeartbeatTakesBack(ReferenceQueue):
    statements = STATEMENTS.edited(
        "judge_job",
        "WHEN state <> 'leased' THEN",
        "WHEN state <> 'leased' AND %(operation)s <> 'heartbeat' THEN",
    ).edited("extend_lease", "SET ", "SET state = 'leased', lease_holder = %(worker)s, ")


class HeartbeatShortens(ReferenceQueue):
    statements = STATEMENTS.edited("judge_job", "THEN 'would_shorten'", "THEN 'accepted'")


class HeartbeatWithoutEffect(ReferenceQueue):
    statements = STATEMENTS.edited(
        "extend_lease", "clock_timestamp() + %(ttl_s)s * interval '1 second'", "lease_expires_at"
    )


class HeartbeatCapped(ReferenceQueue):
    statements = STATEMENTS.edited("extend_lease", "%(ttl_s)s *", "LEAST(%(ttl_s)s, 300) *")


class HeartbeatGivesANewToken(ReferenceQueue):
    statements = STATEMENTS.edited("extend_lease", "SET ", "SET fencing_token = fencing_token + 1, ")


class TrustsItsLastHeartbeat(ReferenceQueue):
    """Remembers in the client that its lease was renewed, and asks nobody again."""

    _renewed: tuple[object, object] | None = None

    def _claim_parameters(self, ttl_s: float, limit: int) -> WriteParameters:
        self._renewed = None
        return super()._claim_parameters(ttl_s, limit)

    def _judge(self, operation: str, write: WriteParameters) -> Judgement:
        judgement = super()._judge(operation, write)
        lease = (write["job_id"], write.get("token"))  # a cancel is under no lease
        if operation == "heartbeat" and judgement.verdict == "accepted":
            self._renewed = lease
        return replace(judgement, verdict="accepted") if lease == self._renewed else judgement


TWINS = (
    reference_twin(
        "heartbeat_by_job_only",
        "A heartbeat names the job and no token, so a stale worker renews another's lease.",
        breaks="fence",
        client=HeartbeatByJobOnly,
    ),
    reference_twin(
        "heartbeat_by_worker_name",
        "A heartbeat is accepted from whoever has the holder's name.",
        breaks="fence",
        client=HeartbeatByWorkerName,
    ),
    reference_twin(
        "heartbeat_revives_expired_lease",
        "A heartbeat renews a lease that has expired.",
        breaks="fence",
        client=HeartbeatRevives,
    ),
    reference_twin(
        "heartbeat_at_frozen_now",
        "A heartbeat's lease is compared with now(), which is frozen at the start of the transaction.",
        breaks="fence",
        client=HeartbeatAtFrozenNow,
    ),
    reference_twin(
        "heartbeat_takes_back_requeued_job",
        "A heartbeat leases a requeued job again to the worker that lost it.",
        breaks="fence",
        client=HeartbeatTakesBack,
    ),
    reference_twin(
        "heartbeat_shortens",
        "A heartbeat sets the lease's end, also to an earlier one than was promised.",
        breaks="heartbeat_honoured",
        client=HeartbeatShortens,
    ),
    reference_twin(
        "heartbeat_without_effect",
        "A heartbeat is accepted and extends nothing.",
        breaks="heartbeat_honoured",
        client=HeartbeatWithoutEffect,
    ),
    reference_twin(
        "heartbeat_silently_capped",
        "A heartbeat for more than five minutes is accepted and gives five.",
        breaks="heartbeat_honoured",
        client=HeartbeatCapped,
    ),
    reference_twin(
        "heartbeat_gives_a_new_token",
        "A heartbeat counts as a claim and gives the job a new token, so its own holder is refused.",
        breaks="heartbeat_honoured",
        client=HeartbeatGivesANewToken,
    ),
    reference_twin(
        "trusts_its_last_heartbeat",
        "A worker whose heartbeat was accepted is not judged again, and the ledger's foreign key is gone as well.",
        breaks="fence",
        client=TrustsItsLastHeartbeat,
        schema=WITHOUT_FOREIGN_KEY,
    ),
)
