"""A worker stalls past its lease, a second one takes its job, the first one comes back."""

from __future__ import annotations

from fencepost.harness.adapter import Capability
from fencepost.harness.classify import late_write
from fencepost.harness.race import Race
from fencepost.harness.scenario import scenario
from fencepost.harness.witness import (
    answered,
    found_nothing,
    lease_expired,
    reclaimed,
    time_passed,
    was_blocked,
    was_held,
    was_refused,
)

FENCING = Capability.FENCING
CHECKPOINTS = Capability.CHECKPOINTS
CLOCK = Capability.CLOCK


@scenario(requires={FENCING}, witnesses=[lease_expired, reclaimed, late_write("A", "complete")])
def lease_race(race: Race) -> None:
    """A stalls past its lease, B takes the job and finishes it, A comes back and is refused."""
    job = race.enqueue()
    a, b = race.workers("A", "B")

    stale = a.claim(job)
    race.clock.advance_past(stale)
    race.recover()
    fresh = b.claim(job)
    b.complete(fresh).accepted()
    b.exit()
    a.complete(stale).refused("token_mismatch")
    a.exit()

    race.expect(job, state="succeeded", ledger=1, token=fresh.token)


@scenario(requires={FENCING}, witnesses=[lease_expired, reclaimed, late_write("A", "complete")])
def late_complete_while_b_runs(race: Race) -> None:
    """A comes back while B is still at work: A is refused, and B finishes under its own lease."""
    job = race.enqueue()
    a, b, c = race.workers("A", "B", "C")

    stale = a.claim(job)
    race.clock.advance_past(stale)
    race.recover()
    fresh = b.claim(job)
    a.complete(stale).refused("token_mismatch")
    race.expect(job, state="leased", ledger=0, token=fresh.token)
    c.finds_nothing()
    b.complete(fresh).accepted()

    race.expect(job, state="succeeded", ledger=1, token=fresh.token)


@scenario(requires={FENCING}, witnesses=[lease_expired, late_write("A", "complete")])
def late_complete_nobody_reclaimed(race: Race) -> None:
    """A comes back after its lease expired and before anybody took the job: it is refused all the same."""
    job = race.enqueue()
    a, b = race.workers("A", "B")

    stale = a.claim(job)
    race.clock.advance_past(stale)
    a.complete(stale).refused("lease_expired")
    race.expect(job, ledger=0)
    race.recover()
    fresh = b.claim(job)
    b.complete(fresh).accepted()

    race.expect(job, state="succeeded", ledger=1, token=fresh.token)


@scenario(
    requires={FENCING, CHECKPOINTS, CLOCK},
    witnesses=[lease_expired, was_held("A", "complete"), answered("B", "claim"), answered("A", "complete")],
    each={"checkpoint": ("after_guard", "before_ledger", "after_ledger", "before_commit")},
)
def held_between_guard_and_commit(race: Race, checkpoint: str) -> None:
    """A passes its guard and is held while its lease expires: until A is done, B finds nothing to claim."""
    job = race.enqueue()
    a, b = race.workers("A", "B")

    lease = a.claim(job)
    late = a.start("complete", lease, hold_at=checkpoint).is_held()
    race.clock.advance_past(lease)
    taken = b.try_claim().claims()
    if taken:  # on a queue that does not hold the row both write: let it happen
        b.complete(taken[0])
    late.go_on().result().accepted()

    race.check(not taken, "B got the job while A held its row, judged and not yet committed")
    race.expect(job, state="succeeded", ledger=1, token=lease.token)


@scenario(
    requires={FENCING, CHECKPOINTS},
    witnesses=[lease_expired, reclaimed, was_blocked("A", "complete"), late_write("A", "complete")],
)
def late_complete_waits_for_uncommitted_reclaim(race: Race) -> None:
    """A's complete waits behind B's uncommitted reclaim and is refused when it gets the row."""
    job = race.enqueue()
    a, b = race.workers("A", "B")

    stale = a.claim(job)
    race.clock.advance_past(stale)
    reclaim = b.start("claim", ttl_s=60.0, hold_at="after_claim").is_held()
    late = a.start("complete", stale).is_blocked()
    reclaim.go_on()
    fresh = reclaim.claim(job)
    late.result().refused("token_mismatch")
    b.complete(fresh).accepted()

    race.expect(job, state="succeeded", ledger=1, token=fresh.token)


@scenario(
    requires={FENCING, CHECKPOINTS, CLOCK},
    witnesses=[lease_expired, reclaimed, was_blocked("B", "complete"), answered("B", "complete")],
)
def lease_expires_while_waiting_for_the_row(race: Race) -> None:
    """B's complete waits for the row while its lease expires: it is judged after the wait, and refused."""
    job = race.enqueue()
    a, b, c = race.workers("A", "B", "C")

    stale = a.claim(job)
    race.clock.advance_past(stale)
    lease = b.claim(job)
    in_the_way = a.start("complete", stale, hold_at="after_lock").is_held()
    waiting = b.start("complete", lease).is_blocked()
    race.clock.advance_past(lease)
    in_the_way.go_on().result().refused("token_mismatch")
    waiting.result().refused("lease_expired")
    last = c.claim(job)
    c.complete(last).accepted()

    race.expect(job, state="succeeded", ledger=1, token=last.token)


@scenario(
    requires={FENCING},
    witnesses=[lease_expired, reclaimed, late_write("A", "complete"), late_write("B", "complete")],
    each={"order": ("oldest_first", "newest_first")},
)
def two_stale_workers_return(race: Race, order: str) -> None:
    """A and B both lost the job, C has it: whichever of them returns first, both are refused."""
    job = race.enqueue()
    a, b, c = race.workers("A", "B", "C")

    first = a.claim(job)
    race.clock.advance_past(first)
    race.recover()
    second = b.claim(job)
    race.clock.advance_past(second)
    race.recover()
    third = c.claim(job)
    returning = [(a, first), (b, second)]
    for worker, stale in returning if order == "oldest_first" else reversed(returning):
        worker.complete(stale).refused("token_mismatch")
    c.complete(third).accepted()

    race.expect(job, state="succeeded", ledger=1, token=third.token)


@scenario(requires={FENCING}, witnesses=[lease_expired, reclaimed, late_write("A", "complete")])
def same_worker_name_reclaims_its_own_job(race: Race) -> None:
    """A worker restarts under its old name and takes its own job again: its old attempt is refused (ABA)."""
    job = race.enqueue()
    before = race.worker("A")
    after = race.worker("A2", known_as="A")

    stale = before.claim(job)
    race.clock.advance_past(stale)
    race.recover()
    fresh = after.claim(job)
    before.complete(stale).refused("token_mismatch")
    after.complete(fresh).accepted()

    race.expect(job, state="succeeded", ledger=1, token=fresh.token)


@scenario(
    requires={FENCING, Capability.RETRY},
    witnesses=[lease_expired, reclaimed, late_write("A", "fail")],
    each={"attempts": ("attempts_left", "last_attempt")},
)
def late_fail(race: Race, attempts: str) -> None:
    """A comes back and reports a failure: that neither requeues nor ends the job B is working on."""
    job = race.enqueue(max_attempts=2 if attempts == "last_attempt" else 5)
    a, b = race.workers("A", "B")

    stale = a.claim(job)
    race.clock.advance_past(stale)
    race.recover()
    fresh = b.claim(job)
    a.fail(stale).refused("token_mismatch")
    race.expect(job, state="leased", ledger=0, token=fresh.token, holder="B")
    b.complete(fresh).accepted()

    race.expect(job, state="succeeded", ledger=1, token=fresh.token)


@scenario(
    requires={FENCING, CHECKPOINTS, CLOCK},
    witnesses=[lease_expired, was_held("A", "complete", "before_lock"), answered("A", "complete")],
)
def long_transaction_with_frozen_now(race: Race) -> None:
    """A's transaction began before its lease expired and writes after: its frozen now() must not save it."""
    job = race.enqueue()
    a, b = race.workers("A", "B")

    lease = a.claim(job)
    late = a.start("complete", lease, hold_at="before_lock").is_held()
    race.clock.advance_past(lease)
    late.go_on().result().refused("lease_expired")
    fresh = b.claim(job)
    b.complete(fresh).accepted()

    race.expect(job, state="succeeded", ledger=1, token=fresh.token)


@scenario(
    requires={FENCING, Capability.BATCH, Capability.HEARTBEAT},
    witnesses=[lease_expired, reclaimed, was_refused("A", "complete", "token_mismatch")],
)
def batch_with_one_stale_job(race: Race) -> None:
    """A claims five jobs at once and keeps four alive: the fifth is refused, the others are unharmed."""
    jobs = [race.enqueue({"part": part}) for part in range(5)]
    a, b = race.workers("A", "B")

    leases = a.claim_batch(len(jobs))
    *kept, lost = leases
    for lease in kept:
        a.heartbeat(lease, ttl_s=600.0).accepted()
    race.clock.advance_past(lost)
    race.recover()
    fresh = b.claim(lost.job)
    for lease in kept:
        a.complete(lease).accepted()
    a.complete(lost).refused("token_mismatch")
    b.complete(fresh).accepted()

    for job in jobs:
        race.expect(job, state="succeeded", ledger=1)


@scenario(requires={FENCING, CLOCK}, witnesses=[time_passed(3600.0), found_nothing("B")])
def lease_is_counted_by_the_database_clock(race: Race) -> None:
    """The workers' clocks are an hour behind the database's: A's lease lives by the database's, and B waits."""
    job = race.enqueue()
    a, b = race.workers("A", "B")

    race.clock.advance(3600.0)
    lease = a.claim(job)
    b.finds_nothing()
    a.complete(lease).accepted()

    race.expect(job, state="succeeded", ledger=1, token=lease.token)


@scenario(requires={FENCING}, witnesses=[found_nothing("B")])
def workers_in_two_time_zones(race: Race) -> None:
    """B's sessions are nine time zones east of A's: A's lease is as live for B as it is for A."""
    race.worker("P", time_zone="UTC")
    job = race.enqueue()
    a = race.worker("A", time_zone="UTC")
    b = race.worker("B", time_zone="Asia/Tokyo")

    lease = a.claim(job)
    b.finds_nothing()
    a.complete(lease).accepted()

    race.expect(job, state="succeeded", ledger=1, token=lease.token)
