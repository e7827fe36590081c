"""Scenarios about blocked and held steps. Not in the test module: the plugin would collect them there."""

from __future__ import annotations

from fencepost.harness.adapter import Capability
from fencepost.harness.race import Race
from fencepost.harness.scenario import scenario
from fencepost.harness.witness import reclaimed, was_blocked, was_held

NEEDS = {Capability.FENCING, Capability.CHECKPOINTS}


@scenario(requires=NEEDS, witnesses=[reclaimed, was_blocked("A", "complete"), was_blocked("C", "fail")])
def one_step_frees_two(race: Race) -> None:
    """A and C wait behind B's uncommitted reclaim; B's commit frees both."""
    job = race.enqueue()
    a, b, c = race.workers("A", "B", "C")
    first = c.claim(job)
    race.clock.advance_past(first)
    second = a.claim(job)
    race.clock.advance_past(second)
    reclaim = b.start("claim", ttl_s=60.0, hold_at="after_claim").is_held()
    late_fail = c.start("fail", first, error="late").is_blocked()
    late_complete = a.start("complete", second).is_blocked()
    third = reclaim.go_on().claim(job)
    late_complete.result().refused("token_mismatch")
    late_fail.result().refused("token_mismatch")
    b.complete(third).accepted()


@scenario(requires=NEEDS, witnesses=[was_blocked("B", "complete"), was_held("B", "complete", "after_lock")])
def freed_and_then_held(race: Race) -> None:
    """B waits for the row, is freed, and is then held at a checkpoint behind it."""
    job = race.enqueue()
    a, b = race.workers("A", "B")
    stale = a.claim(job)
    race.clock.advance_past(stale)
    lease = b.claim(job)
    in_the_way = a.start("complete", stale, hold_at="after_lock").is_held()
    waiting = b.start("complete", lease, hold_at="after_lock").is_blocked()
    in_the_way.go_on().result().refused("token_mismatch")
    waiting.is_held().go_on().result().accepted()
    race.expect(job, state="succeeded", ledger=1, token=lease.token)


@scenario(requires=NEEDS, witnesses=[was_held("A", "complete", "after_guard")])
def left_in_flight(race: Race) -> None:
    """A is left held at the end of the scenario, with B waiting behind it."""
    job = race.enqueue()
    a, b = race.workers("A", "B")
    lease = a.claim(job)
    a.start("complete", lease, hold_at="after_guard").is_held()
    b.start("cancel", job=job).is_blocked()


@scenario(requires=NEEDS, witnesses=[was_held("A", "complete", "no_such_place")])
def held_where_it_never_comes(race: Race) -> None:
    """A is to be held at a checkpoint that its operation does not have."""
    job = race.enqueue()
    (a,) = race.workers("A")
    a.start("complete", a.claim(job), hold_at="no_such_place").result().accepted()


@scenario(requires=NEEDS, witnesses=[was_held("A", "complete", "after_guard")])
def two_at_once(race: Race) -> None:
    """A is held and told to do something else."""
    job = race.enqueue()
    (a,) = race.workers("A")
    a.start("complete", a.claim(job), hold_at="after_guard").is_held()
    a.finds_nothing()
