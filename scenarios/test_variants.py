"""What becomes of a late write, on any queue: refused, harmless, accepted or corrupted.

These ask little of a queue, so that they run on queues nobody here wrote: they judge by rows and executions, not
by answers. After each late write a third worker looks for work and then the rightful holder settles: that is
where corruption shows. Every race is preceded by its control run, the same schedule without the fault.
"""

from __future__ import annotations

from fencepost.harness.adapter import Capability, Claim, JobId
from fencepost.harness.classify import late_write
from fencepost.harness.race import Participant, Race
from fencepost.harness.scenario import scenario, where
from fencepost.harness.witness import answered, found_nothing, lease_expired, reclaimed, was_held

CLOCK = Capability.CLOCK
HEARTBEAT = Capability.HEARTBEAT
REAPER = Capability.REAPER
REAP_SNAPSHOT = Capability.REAP_SNAPSHOT

MOST_OF_A_LEASE_S = 40.0
"""Of the 60 s a lease lasts: twice that is past it."""

ATTEMPTS = {"attempts": ("default_attempts", "five_attempts")}
"""As the queue has it when nobody says otherwise, and with retries: on some queues the one ends the job and the
other brings it back."""
FOR_FIVE = [where(Capability.MAX_ATTEMPTS, attempts="five_attempts")]


def enqueue_with(race: Race, attempts: str) -> JobId:
    return race.enqueue(max_attempts=5) if attempts == "five_attempts" else race.enqueue()


def a_loses_the_job_to_b(race: Race, job: JobId, a: Participant, b: Participant) -> tuple[Claim, Claim]:
    stale = a.claim(job)
    race.clock.advance_past(stale)
    race.recover()
    return stale, b.claim(job)


def third_worker_then_holder(race: Race, c: Participant, b: Participant, fresh: Claim) -> None:
    taken = c.try_claim().claims()
    b.complete(fresh)
    for claim in taken:
        c.complete(claim)
    if race.control:
        race.expect(fresh.job, state="succeeded")


@scenario(classified=True, witnesses=[lease_expired, reclaimed, late_write("A", "complete")])
def complete_after_b_completed(race: Race) -> None:
    """A lost the job to B, B completed it, A completes it too."""
    job = race.enqueue()
    a, b, c = race.workers("A", "B", "C")

    stale, fresh = a_loses_the_job_to_b(race, job, a, b)
    b.complete(fresh).accepted()
    if not race.control:
        a.complete(stale)
    c.finds_nothing()

    race.expect(job, state="succeeded")


@scenario(
    classified=True,
    witnesses=[lease_expired, reclaimed, late_write("A", "fail")],
    each=ATTEMPTS,
    needs_where=FOR_FIVE,
)
def fail_after_b_completed(race: Race, attempts: str) -> None:
    """A lost the job to B, B completed it, A reports a failure."""
    job = enqueue_with(race, attempts)
    a, b, c = race.workers("A", "B", "C")

    stale, fresh = a_loses_the_job_to_b(race, job, a, b)
    b.complete(fresh).accepted()
    if not race.control:
        a.fail(stale)
    c.finds_nothing()

    race.expect(job, state="succeeded")


@scenario(
    requires={Capability.MAX_ATTEMPTS},
    classified=True,
    witnesses=[lease_expired, reclaimed, answered("B", "fail"), late_write("A", "fail")],
)
def fail_after_b_failed(race: Race) -> None:
    """A lost the job to B, B failed on the last of two attempts, A reports its failure of the first."""
    job = race.enqueue(max_attempts=2)
    a, b, c = race.workers("A", "B", "C")

    stale, fresh = a_loses_the_job_to_b(race, job, a, b)
    b.fail(fresh).accepted()
    if not race.control:
        a.fail(stale)
    for claim in c.try_claim().claims():
        c.complete(claim)


@scenario(classified=True, witnesses=[lease_expired, reclaimed, late_write("A", "complete")])
def complete_while_b_runs(race: Race) -> None:
    """A lost the job to B and completes it while B is at work."""
    job = race.enqueue()
    a, b, c = race.workers("A", "B", "C")

    stale, fresh = a_loses_the_job_to_b(race, job, a, b)
    if not race.control:
        a.complete(stale)
    third_worker_then_holder(race, c, b, fresh)


@scenario(
    classified=True,
    witnesses=[lease_expired, reclaimed, late_write("A", "fail")],
    each=ATTEMPTS,
    needs_where=FOR_FIVE,
)
def fail_while_b_runs(race: Race, attempts: str) -> None:
    """A lost the job to B and reports a failure while B is at work."""
    job = enqueue_with(race, attempts)
    a, b, c = race.workers("A", "B", "C")

    stale, fresh = a_loses_the_job_to_b(race, job, a, b)
    if not race.control:
        a.fail(stale)
    third_worker_then_holder(race, c, b, fresh)


@scenario(classified=True, witnesses=[lease_expired, late_write("A", "complete")])
def complete_after_expiry(race: Race) -> None:
    """A completes after its lease expired and before anybody took the job."""
    job = race.enqueue()
    a, b = race.workers("A", "B")

    stale = a.claim(job)
    race.clock.advance_past(stale)
    if not race.control:
        a.complete(stale)
    race.recover()
    for claim in b.try_claim().claims():
        b.complete(claim)

    race.expect(job, state="succeeded")


@scenario(
    classified=True,
    requires={HEARTBEAT, CLOCK},
    witnesses=[lease_expired, reclaimed, late_write("A", "heartbeat")],
)
def heartbeat_after_b_claimed(race: Race) -> None:
    """A lost the job to B and goes on beating, then B dies: its lease must end when it would have ended."""
    job = race.enqueue()
    a, b, c = race.workers("A", "B", "C")

    stale, _ = a_loses_the_job_to_b(race, job, a, b)
    race.clock.advance(MOST_OF_A_LEASE_S)
    if not race.control:
        a.heartbeat(stale)
    b.exit()
    race.clock.advance(MOST_OF_A_LEASE_S)
    race.recover()
    taken = c.try_claim().claims()
    for claim in taken:
        c.complete(claim)

    if race.control:
        race.check(bool(taken), "C should get the job of B, who died")


@scenario(
    classified=True,
    requires={REAPER, REAP_SNAPSHOT},
    witnesses=[
        lease_expired,
        reclaimed,
        was_held("R1", "reap", "after_snapshot").of_the_race(),
    ],
)
def two_recoverers(race: Race) -> None:
    """R1 sees that A lost the job and is held, R2 recovers it, B takes it, R1 goes on with what it saw."""
    job = race.enqueue()
    a, b, c, first, second = race.workers("A", "B", "C", "R1", "R2")

    stale = a.claim(job)
    race.clock.advance_past(stale)
    held = None if race.control else first.start("reap", hold_at="after_snapshot").is_held()
    second.reap()
    fresh = b.claim(job)
    if held is None:
        first.reap()
    else:
        held.finish().reply()
    third_worker_then_holder(race, c, b, fresh)


@scenario(
    classified=True,
    requires={REAPER, REAP_SNAPSHOT, HEARTBEAT},
    witnesses=[lease_expired, late_write("A", "heartbeat")],
)
def recovery_meets_a_late_heartbeat(race: Race) -> None:
    """R sees that A lost the job and is held, A beats too late, R goes on with what it saw."""
    job = race.enqueue()
    a, b, r = race.workers("A", "B", "R")

    stale = a.claim(job)
    race.clock.advance_past(stale)
    held = r.start("reap", hold_at="after_snapshot").is_held()
    if not race.control:
        a.heartbeat(stale)
    held.finish().reply()
    fresh = b.claim(job)
    b.complete(fresh)

    race.expect(job, state="succeeded")


@scenario(classified=True, witnesses=[lease_expired, reclaimed, found_nothing("C").of_the_race()])
def two_claimers_of_a_lost_job(race: Race) -> None:
    """A lost the job, B takes it, and C comes for it at the same moment."""
    job = race.enqueue()
    a, b, c = race.workers("A", "B", "C")

    _, fresh = a_loses_the_job_to_b(race, job, a, b)
    if race.control:
        b.complete(fresh).accepted()
        c.finds_nothing()
    else:
        third_worker_then_holder(race, c, b, fresh)

    race.expect(job, state="succeeded")


@scenario(classified=True, witnesses=[found_nothing("B").of_the_race(), reclaimed.of_the_control()])
def recovery_of_a_live_lease(race: Race) -> None:
    """Recovery runs while A's lease is live: A keeps the job. (In the control run it has expired, and B gets it.)"""
    job = race.enqueue()
    a, b = race.workers("A", "B")

    lease = a.claim(job)
    if race.control:
        race.clock.advance_past(lease)
    race.sweep()
    taken = b.try_claim().claims()
    for claim in taken:
        b.complete(claim)
    if race.control:
        race.check(bool(taken), "B should get the job, the lease of A has expired")
    else:
        a.complete(lease)


@scenario(
    classified=True,
    requires={HEARTBEAT, CLOCK},
    witnesses=[found_nothing("B").of_the_race(), reclaimed.of_the_control()],
)
def recovery_of_a_renewed_lease(race: Race) -> None:
    """A renews its lease in time: recovery leaves it alone. (In the control run it does not, and B gets the job.)"""
    job = race.enqueue()
    a, b = race.workers("A", "B")

    lease = a.claim(job)
    race.clock.advance(MOST_OF_A_LEASE_S)
    if not race.control:
        a.heartbeat(lease).accepted()
    race.clock.advance(MOST_OF_A_LEASE_S)
    race.sweep()
    taken = b.try_claim().claims()
    for claim in taken:
        b.complete(claim)
    if race.control:
        race.check(bool(taken), "B should get the job, the lease of A has expired")
    else:
        a.complete(lease)
