"""A heartbeat extends the lease of the one who holds it, until the time it promised, and does nothing else."""

from __future__ import annotations

from fencepost.harness.adapter import Capability
from fencepost.harness.classify import late_write
from fencepost.harness.race import Race
from fencepost.harness.scenario import scenario
from fencepost.harness.witness import (
    answered,
    asked_shortly_before,
    found_nothing,
    kept_past_its_claim,
    lease_expired,
    reaped,
    reclaimed,
    time_passed,
    was_accepted,
    was_held,
    was_refused,
)

HEARTBEAT = Capability.HEARTBEAT
FENCING = Capability.FENCING
REAPER = Capability.REAPER
CHECKPOINTS = Capability.CHECKPOINTS
CLOCK = Capability.CLOCK
LEASE_LENGTH = Capability.LEASE_LENGTH

BEATS = 10
COMES_BACK_TO = ("complete", "fail", "heartbeat")


@scenario(requires={HEARTBEAT, CLOCK}, witnesses=[kept_past_its_claim, found_nothing("B")])
def heartbeat_extends(race: Race) -> None:
    """A renews its lease: past its first end the job is still A's, under the token it was claimed with."""
    job = race.enqueue()
    a, b = race.workers("A", "B")

    lease = a.claim(job, ttl_s=60.0)
    race.clock.advance(40.0)
    a.heartbeat(lease, ttl_s=60.0).accepted()
    race.clock.advance(40.0)
    b.finds_nothing()
    race.expect(job, state="leased", token=lease.token, holder="A")
    a.complete(lease).accepted()

    race.expect(job, state="succeeded", ledger=1, token=lease.token)


@scenario(
    requires={HEARTBEAT, CLOCK, LEASE_LENGTH},
    witnesses=[
        kept_past_its_claim,
        answered("R", "reap", times=2).where(asked_by="reaper"),
        asked_shortly_before("R", "reap", 25.0).where(asked_by="reaper"),
        answered("B", "claim", times=2).where(asked_by="claim"),
        asked_shortly_before("B", "claim", 25.0).where(asked_by="claim"),
        lease_expired,
        reclaimed,
    ],
    each={"asked_by": ("reaper", "claim")},
)
def heartbeat_is_honoured_until_its_time(race: Race, asked_by: str) -> None:
    """A's heartbeat was accepted: until the time it promised nobody gets the job, and then somebody does."""
    job = race.enqueue()
    a, b = race.workers("A", "B")
    reaper = race.worker("R") if asked_by == "reaper" else None

    lease = a.claim(job, ttl_s=60.0)
    a.heartbeat(lease, ttl_s=600.0).accepted()
    race.clock.advance(580.0)
    early = reaper.reap() if reaper is not None else len(b.try_claim().claims())
    race.clock.advance_past(lease)
    if reaper is not None:
        reaper.reap()
    fresh = b.claim(job)
    b.complete(fresh).accepted()

    race.check(early == 0, f"the {asked_by} got the job 20 s before the time A was promised")
    race.expect(job, state="succeeded", ledger=1, token=fresh.token)


@scenario(
    requires={HEARTBEAT, FENCING},
    witnesses=[lease_expired, reclaimed, was_refused("A", "heartbeat")],
)
def heartbeat_after_reclaim(race: Race) -> None:
    """A lost the job to B and sends a heartbeat: it is refused and leaves B's lease as it is."""
    job = race.enqueue()
    a, b = race.workers("A", "B")

    stale = a.claim(job)
    race.clock.advance_past(stale)
    race.recover()
    fresh = b.claim(job)
    a.heartbeat(stale).refused("token_mismatch")
    race.expect(job, state="leased", token=fresh.token, holder="B")
    b.complete(fresh).accepted()

    race.expect(job, state="succeeded", ledger=1, token=fresh.token)


@scenario(
    requires={HEARTBEAT, FENCING},
    witnesses=[lease_expired, reclaimed, was_refused("A", "heartbeat")],
)
def heartbeat_by_a_namesake(race: Race) -> None:
    """A's successor has its name and its job: a heartbeat of the old A is refused all the same."""
    job = race.enqueue()
    before = race.worker("A")
    after = race.worker("A2", known_as="A")

    stale = before.claim(job)
    race.clock.advance_past(stale)
    race.recover()
    fresh = after.claim(job)
    before.heartbeat(stale).refused("token_mismatch")
    after.complete(fresh).accepted()

    race.expect(job, state="succeeded", ledger=1, token=fresh.token)


@scenario(requires={HEARTBEAT, FENCING}, witnesses=[lease_expired, was_refused("A", "heartbeat")])
def heartbeat_after_expiry(race: Race) -> None:
    """A's lease expired and nobody has taken the job: a heartbeat is refused and revives nothing."""
    job = race.enqueue()
    a, b = race.workers("A", "B")

    stale = a.claim(job)
    race.clock.advance_past(stale)
    a.heartbeat(stale).refused("lease_expired")
    race.recover()
    fresh = b.claim(job)
    b.complete(fresh).accepted()

    race.expect(job, state="succeeded", ledger=1, token=fresh.token)


@scenario(
    requires={HEARTBEAT, FENCING, REAPER},
    witnesses=[lease_expired, reaped("R"), was_refused("A", "heartbeat")],
)
def heartbeat_after_requeue(race: Race) -> None:
    """A's job is back in the queue and nobody has claimed it: a heartbeat does not take it back."""
    job = race.enqueue()
    a, b, r = race.workers("A", "B", "R")

    stale = a.claim(job)
    race.clock.advance_past(stale)
    r.reap()
    a.heartbeat(stale).refused("not_leased")
    race.expect(job, state="ready")
    fresh = b.claim(job)
    b.complete(fresh).accepted()

    race.expect(job, state="succeeded", ledger=1, token=fresh.token)


@scenario(
    requires={HEARTBEAT, FENCING, CHECKPOINTS, CLOCK},
    witnesses=[lease_expired, was_refused("A", "heartbeat")],
    each={"checkpoint": ("before_lock", "after_lock")},
)
def lease_expires_before_the_heartbeat_is_judged(race: Race, checkpoint: str) -> None:
    """A's heartbeat was sent in time and is judged too late: it is refused."""
    job = race.enqueue()
    a, b = race.workers("A", "B")

    lease = a.claim(job)
    late = a.start("heartbeat", lease, ttl_s=60.0, hold_at=checkpoint).is_held()
    race.clock.advance_past(lease)
    late.go_on().result().refused("lease_expired")
    fresh = b.claim(job)
    b.complete(fresh).accepted()

    race.expect(job, state="succeeded", ledger=1, token=fresh.token)


@scenario(
    requires={HEARTBEAT, FENCING, REAPER, Capability.REAP_SNAPSHOT, CHECKPOINTS, CLOCK, LEASE_LENGTH},
    witnesses=[lease_expired, was_held("A", "heartbeat"), was_held("R", "reap"), answered("C", "claim")],
    each={
        "heartbeat_at": ("before_lock", "after_lock", "after_guard", "before_commit"),
        "reaper_at": ("after_snapshot", "after_recheck", "before_requeue", "before_commit"),
        "first": ("heartbeat", "reaper"),
    },
)
def heartbeat_against_reaper(race: Race, heartbeat_at: str, reaper_at: str, first: str) -> None:
    """A's heartbeat and a reaper's sweep are both under way as the lease expires: never do both get the job."""
    job = race.enqueue()
    a, r, c = race.workers("A", "R", "C")

    lease = a.claim(job)
    beat = a.start("heartbeat", lease, ttl_s=600.0, hold_at=heartbeat_at).is_held()
    race.clock.advance_past(lease)
    sweep = r.start("reap", hold_at=reaper_at)
    for held in (beat, sweep) if first == "heartbeat" else (sweep, beat):
        held.finish()
    kept, requeued = beat.result().reply.accepted, sweep.reply().count
    taken = c.try_claim().claims()

    race.check(not (kept and requeued), "A was told it kept the job, the reaper that it requeued it")
    race.check(bool(taken) is not kept, f"C got {taken}, and A's heartbeat was {beat.reply().outcome}")
    race.expect(job, state="leased", holder="A" if kept else "C")


@scenario(
    requires={HEARTBEAT, FENCING, REAPER, Capability.REAP_SNAPSHOT, CHECKPOINTS, CLOCK},
    witnesses=[lease_expired, was_held("R", "reap"), was_refused("A", "heartbeat"), answered("C", "claim")],
    each={
        "reaper_at": ("after_snapshot", "after_recheck", "before_requeue", "before_commit"),
        "heartbeat_at": ("before_lock", "after_lock", "after_guard"),
        "first": ("heartbeat", "reaper"),
    },
)
def late_heartbeat_against_reaper(race: Race, reaper_at: str, heartbeat_at: str, first: str) -> None:
    """A sweep is under way as A's heartbeat comes, too late: it is refused, and the job is requeued once."""
    job = race.enqueue()
    a, r, c = race.workers("A", "R", "C")

    lease = a.claim(job)
    race.clock.advance_past(lease)
    sweep = r.start("reap", hold_at=reaper_at).is_held()
    beat = a.start("heartbeat", lease, ttl_s=600.0, hold_at=heartbeat_at)
    for held in (beat, sweep) if first == "heartbeat" else (sweep, beat):
        held.finish()
    beat.finish().result().refused()
    requeued = sweep.reply().count
    if not requeued:  # the sweep passed over the row that A had locked: the next one has it
        requeued = r.reap()
    fresh = c.claim(job)

    race.check(requeued == 1, f"one lease was lost, {requeued} were recovered")
    race.expect(job, state="leased", token=fresh.token, holder="C")


@scenario(
    requires={HEARTBEAT, FENCING, CLOCK},
    witnesses=[
        was_accepted("A", "heartbeat", times=10),
        kept_past_its_claim,
        lease_expired,
        reclaimed,
        *(late_write("A", operation).where(comes_back_to=operation) for operation in COMES_BACK_TO),
    ],
    each={"comes_back_to": COMES_BACK_TO},
)
def renewed_often_and_lost_once(race: Race, comes_back_to: str) -> None:
    """A renewed its lease ten times and lost it once: it is fenced as if it had never renewed."""
    job = race.enqueue()
    a, b = race.workers("A", "B")

    stale = a.claim(job, ttl_s=60.0)
    for _ in range(BEATS):
        race.clock.advance(30.0)
        a.heartbeat(stale, ttl_s=60.0).accepted()
    race.clock.advance_past(stale)
    race.recover()
    fresh = b.claim(job)
    match comes_back_to:
        case "complete":
            a.complete(stale).refused("token_mismatch")
        case "fail":
            a.fail(stale).refused("token_mismatch")
        case "heartbeat":
            a.heartbeat(stale).refused("token_mismatch")
    b.complete(fresh).accepted()

    race.expect(job, state="succeeded", ledger=1, token=fresh.token)


@scenario(
    requires={HEARTBEAT, CLOCK, LEASE_LENGTH},
    witnesses=[time_passed(300.0), was_refused("A", "heartbeat"), found_nothing("B")],
)
def heartbeat_never_shortens(race: Race) -> None:
    """A asks for a shorter lease than it has: that is refused, and the lease lasts as long as promised."""
    job = race.enqueue()
    a, b = race.workers("A", "B")

    lease = a.claim(job, ttl_s=600.0)
    a.heartbeat(lease, ttl_s=60.0).refused("would_shorten")
    race.clock.advance(300.0)
    b.finds_nothing()
    a.complete(lease).accepted()

    race.expect(job, state="succeeded", ledger=1, token=lease.token)
