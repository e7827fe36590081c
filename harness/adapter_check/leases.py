"""Leases: their length, who may take them, how they come back, and how they are extended or ended."""

from __future__ import annotations

from fencepost.harness.adapter import Capability, Claim, JobId, JobState, JobView
from fencepost.harness.adapter_check.findings import Check, NotMade, Wrong, why
from fencepost.harness.adapter_check.hands import Hands
from fencepost.harness.race import DEFAULT_TTL_S

LEASE_TOLERANCE_US = 1_000_000


def lease_has_its_length(hands: Hands) -> None:
    job = hands.enqueue()
    claim = hands.claim("A", job)
    observation = hands.observe()
    until_us = observation.by_job[job].lease_until_us or claim.lease_until_us or 0
    length_us = until_us - observation.at_us
    if abs(length_us - int(DEFAULT_TTL_S * 1e6)) > LEASE_TOLERANCE_US:
        raise Wrong(
            f"a lease asked for {DEFAULT_TTL_S:.0f} s ends in {length_us / 1e6:.1f} s by the database's clock.",
            "Give lease_until_us in microseconds of database time, and leases the length asked for.",
        )


def live_lease_is_kept(hands: Hands) -> None:
    job = hands.enqueue()
    hands.claim("A", job)
    if Capability.REAPER in hands.capabilities:
        recovered = hands.reap()
        if recovered:
            raise Wrong(
                f"reap recovered {recovered} leases although the only one was live.",
                "Recover only what has expired; look at how long the reaper takes a lease to last.",
            )
    if hands.try_claim("B") is not None:
        raise Wrong(
            "a second worker got the job while the first one's lease was live.",
            "Let claim leave a live lease alone; look at how long it takes a lease to last.",
        )


def deferred_reclaim_is_there(hands: Hands) -> None:
    hands.lose("A", hands.enqueue())
    if hands.try_claim("B") is not None:
        raise Wrong(
            "a claim took the expired lease although the queue declares DEFERRED_RECLAIM.",
            "Take DEFERRED_RECLAIM out of the capabilities.",
        )


def expired_lease_is_recovered(hands: Hands) -> None:
    hands.lose("A", hands.enqueue())
    deferred = Capability.DEFERRED_RECLAIM in hands.capabilities
    hands.recover()
    if hands.try_claim("B") is not None:
        return
    how = hands.bench.lease_time.how
    if how == "clock":
        raise Wrong(
            f"the database's clock has passed the lease, and {'reap and ' if deferred else ''}claim bring nothing.",
            "If a worker's own clock decides, take CLOCK out; if only reap recovers, declare DEFERRED_RECLAIM.",
        )
    raise Wrong(
        f"the lease was made to expire ({how}), and {'reap and ' if deferred else ''}claim bring nothing.",
        "Look at expire() and lease_until_us; if only reap recovers, declare REAPER and DEFERRED_RECLAIM.",
    )


def heartbeat_extends(hands: Hands) -> None:
    job = hands.enqueue()
    claim = hands.claim("A", job)
    before = hands.view(job, "while it was leased")
    if not hands.can_move_the_clock:
        reply = hands.do("A", "heartbeat", claim, ttl_s=DEFAULT_TTL_S)
        if not reply.accepted:
            raise Wrong(
                f"heartbeat under a live lease was refused ({why(reply)}).", "Accept the holder's heartbeat."
            )
        _ends_later(before, hands.view(job, "while it was leased"))
        return
    for _ in range(2):
        hands.bench.lease_time.advance(DEFAULT_TTL_S * 2 / 3)
        reply = hands.do("A", "heartbeat", claim, ttl_s=DEFAULT_TTL_S)
        if not reply.accepted:
            raise Wrong(
                f"heartbeat under a live lease was refused ({why(reply)}).", "Accept the holder's heartbeat."
            )
    hands.recover()
    if hands.try_claim("B") is not None:
        raise Wrong(
            "a lease that was renewed in time was taken all the same.",
            "Let heartbeat extend the lease in the queue, by the database's clock, and commit.",
        )


def _ends_later(before: JobView, after: JobView) -> None:
    if before.lease_until_us is None or after.lease_until_us is None:
        return
    if after.state is not JobState.LEASED or after.lease_until_us <= before.lease_until_us:
        raise Wrong(
            "heartbeats were accepted, and the lease ends when it did before.",
            "Let heartbeats extend the lease in the queue, by the database's clock, and commit.",
        )


def expire_touches_the_lease_alone(hands: Hands) -> None:
    job = hands.enqueue()
    claim = hands.claim("A", job)
    before = hands.view(job, "while it was leased")
    hands.ask("expire", hands.bench.dsn, claim)
    observation = hands.observe()
    after = observation.by_job.get(job)
    if after is None or (before.state, before.token, before.attempts) != (
        after.state,
        after.token,
        after.attempts,
    ):
        raise Wrong(
            "expire() changed more than the lease's end.",
            "Let expire() touch liveness data only: never state, token or attempts.",
        )
    if after.lease_until_us is not None and after.lease_until_us > observation.at_us:
        raise Wrong(
            "after expire() the lease is still live by its rows.",
            "Put the lease's end, or the heartbeat it is counted from, into the past.",
        )
    recovered_lease_can_be_claimed(hands, job, "expire()")


def recovered_lease_can_be_claimed(hands: Hands, job: JobId, after: str) -> None:
    hands.recover()
    claim = hands.try_claim("B")
    if claim is None or claim.job != job:
        raise Wrong(
            f"after {after} nobody can claim the job.", "Let the job wait again once its lease is lost."
        )


def reap_recovers(hands: Hands) -> None:
    """Also on a queue whose claims take an expired lease by themselves: nothing else would show an idle reaper."""
    job = hands.enqueue()
    claim = hands.lose("A", job)
    before = hands.observe().by_job.get(job)
    count = hands.reap()
    after = hands.observe().by_job.get(job)
    if count != 1:
        raise Wrong(
            f"one lease had expired, and reap says that it recovered {count}.",
            "Recover every expired lease, and count those that were.",
        )
    if after is not None and after.state is JobState.LEASED and _lease(after) == _lease(before):
        raise Wrong(
            "reap says that it recovered the lease, and the job is still shown as leased under it.",
            "Let reap give the job back, and commit before answering.",
        )
    if hands.reap():
        raise Wrong(
            "reap recovered one expired lease twice.", "Let reap give the job back, and look again before it."
        )
    recovered = hands.try_claim("B")
    if recovered is None or recovered.job != claim.job:
        raise Wrong(
            "reap says that it recovered the lease, and nobody can claim the job.",
            "Let reap make the job ready again.",
        )


def _lease(view: JobView | None) -> object:
    return None if view is None else (view.token, view.holder, view.lease_until_us)


def clock_decides(hands: Hands) -> None:
    """Time is moved to shortly before the lease's end, and past it."""
    if not hands.can_move_the_clock:
        raise NotMade(f"leases are made to expire in another way here ({hands.bench.lease_time.how})")
    job = hands.enqueue()
    claim = hands.claim("A", job)
    hands.bench.lease_time.advance(DEFAULT_TTL_S * 0.9)
    hands.recover()
    if hands.try_claim("B") is not None:
        raise Wrong(
            f"a lease of {DEFAULT_TTL_S:.0f} s was lost after nine tenths of it by the database's clock.",
            "Let leases last as long as was asked for, by the database's clock.",
        )
    hands.pass_lease(claim)
    recovered_lease_can_be_claimed(hands, job, "the database's clock has passed the lease's end,")


def leases_have_any_length(hands: Hands) -> None:
    for ttl_s in (20.0, 100.0):
        hands.reset()
        job = hands.enqueue()
        claim = hands.claim("A", job, ttl_s)
        _has_length(hands, claim, ttl_s, "asked for")
        if Capability.HEARTBEAT in hands.capabilities:
            hands.accepted("A", "heartbeat", claim, ttl_s=ttl_s + 30.0)
            if hands.observe().by_job[job].lease_until_us is not None:
                _has_length(hands, claim, ttl_s + 30.0, "renewed")


def _has_length(hands: Hands, claim: Claim, ttl_s: float, how: str) -> None:
    observation = hands.observe()
    until_us = observation.by_job[claim.job].lease_until_us or claim.lease_until_us or 0
    length_us = until_us - observation.at_us
    if abs(length_us - int(ttl_s * 1e6)) > LEASE_TOLERANCE_US:
        raise Wrong(
            f"a lease {how} for {ttl_s:.0f} s ends in {length_us / 1e6:.1f} s by the database's clock.",
            "Give lease_until_us in microseconds of database time, and leases the length asked for.",
        )


def keeps_alive_by_itself(hands: Hands) -> None:
    job = hands.enqueue()
    claim = hands.claim("A", job)
    before = hands.view(job, "while it was leased")
    hands.accepted("A", "keep_alive", claim, ttl_s=DEFAULT_TTL_S, beats=2, every_s=0.01)
    passed = hands.passed("A")
    after = hands.view(job, "while it was leased")
    if passed.count("before_heartbeat") < 2:
        raise Wrong(
            f"keep_alive for 2 heartbeats passed before_heartbeat {passed.count('before_heartbeat')} times.",
            "Call actor.checkpoint('before_heartbeat') before each heartbeat of the thread.",
        )
    _ends_later(before, after)


def reap_passes_its_snapshot(hands: Hands) -> None:
    hands.lose("A", hands.enqueue())
    hands.reap()
    passed = hands.passed("R")
    if "after_snapshot" not in passed:
        raise Wrong(
            f"reap of an expired lease passed {', '.join(passed) or 'no checkpoint'}, and not 'after_snapshot'.",
            "Call actor.checkpoint('after_snapshot') between listing what is lost and recovering it.",
        )


def reap_is_bounded(hands: Hands) -> None:
    jobs = [hands.enqueue(), hands.enqueue()]
    claims = [hands.try_claim("A"), hands.try_claim("A")]
    if {claim.job for claim in claims if claim is not None} != set(jobs):
        raise Wrong(
            "of two jobs that were enqueued, one worker could not claim both.", "Let claim take any job due."
        )
    for claim in claims:
        assert claim is not None
        hands.pass_lease(claim)
    for expected in (1, 1, 0):
        reply = hands.accepted("R", "reap", limit=1)
        if reply.count != expected:
            raise Wrong(
                f"reap(limit=1) recovered {reply.count} leases where {expected} was right.",
                "Recover no more than `limit` leases in one sweep, and the others in the next.",
            )


KEPT = ("a live lease is kept",)
RECOVERED = ("a live lease is kept", "an expired lease is recovered")


def _probe(capability: Capability) -> frozenset[Capability]:
    return frozenset({capability})


LEASES = (
    Check("a lease has its length", lease_has_its_length),
    Check("a live lease is kept", live_lease_is_kept, after=("a lease has its length",)),
    Check(
        "only reap recovers",
        deferred_reclaim_is_there,
        _probe(Capability.DEFERRED_RECLAIM),
        after=KEPT,
        probes=Capability.DEFERRED_RECLAIM,
    ),
    Check("an expired lease is recovered", expired_lease_is_recovered, after=KEPT),
    Check(
        "the database's clock decides",
        clock_decides,
        _probe(Capability.CLOCK),
        after=RECOVERED,
        probes=Capability.CLOCK,
    ),
    Check(
        "heartbeat extends",
        heartbeat_extends,
        _probe(Capability.HEARTBEAT),
        after=KEPT,
        probes=Capability.HEARTBEAT,
    ),
    Check(
        "leases have any length",
        leases_have_any_length,
        _probe(Capability.LEASE_LENGTH),
        after=("a lease has its length", "heartbeat extends"),
        probes=Capability.LEASE_LENGTH,
    ),
    Check(
        "heartbeats go on by themselves",
        keeps_alive_by_itself,
        _probe(Capability.BACKGROUND_HEARTBEAT),
        after=("heartbeat extends",),
        probes=Capability.BACKGROUND_HEARTBEAT,
    ),
    Check(
        "expire touches the lease alone",
        expire_touches_the_lease_alone,
        _probe(Capability.EXPIRE),
        after=KEPT,
        probes=Capability.EXPIRE,
    ),
    Check(
        "reap recovers", reap_recovers, _probe(Capability.REAPER), after=RECOVERED, probes=Capability.REAPER
    ),
    Check(
        "a sweep is bounded",
        reap_is_bounded,
        _probe(Capability.BOUNDED_REAP) | _probe(Capability.REAPER),
        after=("reap recovers",),
        probes=Capability.BOUNDED_REAP,
    ),
    Check(
        "reap passes its snapshot",
        reap_passes_its_snapshot,
        _probe(Capability.REAP_SNAPSHOT) | _probe(Capability.REAPER),
        after=("reap recovers",),
        probes=Capability.REAP_SNAPSHOT,
    ),
)
