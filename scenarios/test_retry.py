"""A job waits for its time, fails and is tried again: when, how often, and in which order."""

from __future__ import annotations

from itertools import pairwise

from fencepost.harness.adapter import LIVE_STATES, Capability, JobId
from fencepost.harness.race import Race
from fencepost.harness.scenario import scenario
from fencepost.harness.witness import (
    asked_shortly_before,
    came_due,
    came_long_after_its_claim,
    found_nothing,
    lease_expired,
    reclaimed,
    was_accepted,
)

RETRY = Capability.RETRY
BACKOFF = Capability.BACKOFF
CLOCK = Capability.CLOCK
PRIORITY = Capability.PRIORITY

FAILURES_UNTIL_CAPPED = 12
WORK_S = 30.0
SLACK_S = 1.0
"""Real time that may pass between a failure and the observation after it."""


@scenario(
    requires={Capability.DELAY, CLOCK},
    witnesses=[found_nothing("B"), asked_shortly_before("B", "claim", 15.0), came_due],
)
def delayed_job_waits_for_its_time(race: Race) -> None:
    """A job is enqueued for later: nobody gets it before its time by the database's clock, and B gets it then."""
    job = race.enqueue(delay_s=3600.0)

    _nobody_before_b_at_its_time(race, job)


@scenario(
    requires={RETRY, BACKOFF, CLOCK},
    witnesses=[found_nothing("B"), asked_shortly_before("B", "claim", 15.0), came_due, reclaimed],
)
def retry_waits_for_its_time(race: Race) -> None:
    """A job has failed: nobody gets it before its backoff is over by the database's clock, and B gets it then."""
    job = race.enqueue(max_attempts=8)
    a = race.worker("A")

    for _ in range(5):  # until the backoff is long beside the time a step takes
        a.fail(a.claim(job)).accepted()
        _until_due(race, job)
    a.fail(a.claim(job)).accepted()

    _nobody_before_b_at_its_time(race, job)


@scenario(
    requires={RETRY, BACKOFF, CLOCK},
    witnesses=[
        reclaimed,
        came_long_after_its_claim("A", "fail", WORK_S),
        was_accepted("A", "fail", times=FAILURES_UNTIL_CAPPED),
    ],
)
def backoff_grows_from_the_failure_and_is_capped(race: Race) -> None:
    """A fails again and again after half a minute's work: each wait counts from the failure, grows, is capped."""
    job = race.enqueue(max_attempts=FAILURES_UNTIL_CAPPED + 1)
    a = race.worker("A")

    waits_s: list[float] = []
    for _ in range(FAILURES_UNTIL_CAPPED):
        lease = a.claim(job)
        race.clock.advance(WORK_S)
        a.fail(lease).accepted()
        waits_s.append((race.next_run_us(job) - race.now_us) / 1e6)
        _until_due(race, job)
    a.complete(a.claim(job)).accepted()

    shown = ", ".join(f"{wait_s:.0f}" for wait_s in waits_s)
    race.check(min(waits_s) > 0, f"each wait should count from the failure; waits in seconds: {shown}")
    for earlier_s, later_s in pairwise(waits_s):
        race.check(later_s > earlier_s - SLACK_S, f"a wait should not be shorter than the last: {shown}")
    race.check(waits_s[-1] > 2 * waits_s[0] + SLACK_S, f"the waits should grow: {shown}")
    race.check(waits_s[-1] < waits_s[-2] + SLACK_S, f"the waits should be capped: {shown}")


@scenario(
    requires={RETRY, Capability.DEAD_LETTER, CLOCK}, witnesses=[reclaimed, was_accepted("A", "fail", times=3)]
)
def last_attempt_ends_in_failed(race: Race) -> None:
    """A fails a job as often as it may be tried: it ends as a dead letter, and no time brings it back."""
    job = race.enqueue(max_attempts=3)
    a, b = race.workers("A", "B")

    for _ in range(3):
        a.fail(a.claim(job)).accepted()
        _until_due(race, job)
    again = b.try_claim().claims()
    race.check(not again, "B got a job that was out of attempts")
    race.expect(job, state="failed", attempts=3, ledger=0)


@scenario(requires={RETRY, PRIORITY, CLOCK}, witnesses=[reclaimed, was_accepted("A", "fail")])
def priority_is_kept_across_retries(race: Race) -> None:
    """An urgent job fails and waits: once it is due again, it is claimed before one that is not urgent."""
    urgent = race.enqueue(priority=5)
    ordinary = race.enqueue(priority=0)
    a, b = race.workers("A", "B")

    a.fail(a.claim(urgent)).accepted()
    _until_due(race, urgent)
    leases = [b.claim(), b.claim()]
    for lease in leases:
        b.complete(lease).accepted()

    order = [lease.job for lease in leases]
    race.check(order == [urgent, ordinary], f"B should get {urgent} before {ordinary}, it got {order}")


@scenario(
    requires={PRIORITY, CLOCK, Capability.REAPER},
    witnesses=[lease_expired, reclaimed],
    each={"back_by": ("reap", "claim")},
)
def priority_is_kept_across_lost_leases(race: Race, back_by: str) -> None:
    """The worker of an urgent job is lost: the job still comes before one that is not urgent."""
    urgent = race.enqueue(priority=5)
    ordinary = race.enqueue(priority=0)
    a, b = race.workers("A", "B")

    race.clock.advance_past(a.claim(urgent))
    if back_by == "reap":
        race.sweep()
    else:
        race.recover()
    leases = [b.claim(), b.claim()]
    for lease in leases:
        b.complete(lease).accepted()

    order = [lease.job for lease in leases]
    race.check(order == [urgent, ordinary], f"B should get {urgent} before {ordinary}, it got {order}")


@scenario(
    requires={RETRY, PRIORITY, Capability.OLDEST_FIRST, CLOCK},
    witnesses=[reclaimed, was_accepted("A", "fail", times=2)],
)
def order_is_kept_across_retries(race: Race) -> None:
    """Two jobs fail one after the other while a third waits: the third comes first, then they in their order."""
    jobs = [race.enqueue() for _ in range(3)]
    a, b = race.workers("A", "B")

    failed = [a.claim(), a.claim()]
    for lease in failed:
        a.fail(lease).accepted()
    for lease in failed:
        _until_due(race, lease.job)
    leases = [b.claim(), b.claim(), b.claim()]
    for lease in leases:
        b.complete(lease).accepted()

    first, second = (lease.job for lease in failed)
    (waited,) = set(jobs) - {first, second}
    order = [lease.job for lease in leases]
    race.check(order == [waited, first, second], f"B should get {waited}, {first}, {second}, it got {order}")


def _nobody_before_b_at_its_time(race: Race, job: JobId) -> None:
    b = race.worker("B")
    due_us = race.next_run_us(job)
    b.finds_nothing()
    race.clock.advance_to(due_us - 10_000_000, "10 s before next_run_at")
    b.finds_nothing()
    race.clock.advance_to(due_us, "next_run_at")
    taken = b.try_claim().claims()
    race.check(bool(taken), f"B should get job {job} once its time has come")
    b.complete(taken[0]).accepted()


def _until_due(race: Race, job: JobId) -> None:
    """Let time pass until a waiting job may be claimed; one that has ended waits for nothing."""
    if race.look(job).state in LIVE_STATES:
        race.clock.advance_to(race.next_run_us(job), "next_run_at")
