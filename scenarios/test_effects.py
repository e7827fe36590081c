"""What a worker does outside of the database: no queue can take it back, a system that checks tokens can refuse it."""

from __future__ import annotations

from fencepost.harness.adapter import Capability
from fencepost.harness.race import Race
from fencepost.harness.scenario import scenario
from fencepost.harness.sink import Sink
from fencepost.harness.witness import effect_doubled, lease_expired, reclaimed, was_refused

FENCING = Capability.FENCING


@scenario(
    requires={FENCING},
    witnesses=[lease_expired, reclaimed, was_refused("A", "effect", "stale_token")],
)
def outside_system_checks_tokens(race: Race) -> None:
    """A stalls, B does the job's work in an outside system that checks tokens: A's late call is refused there."""
    job = race.enqueue()
    a, b = race.workers("A", "B")

    with Sink(checks_tokens=True) as outside:
        stale = a.claim(job)
        race.clock.advance_past(stale)
        race.recover()
        fresh = b.claim(job)
        b.act_on(outside, fresh).accepted()
        a.act_on(outside, stale).refused("stale_token")
        b.complete(fresh).accepted()
        a.complete(stale).refused("token_mismatch")

    done_for = [effect.worker for effect in outside.effects]
    race.check(done_for == ["B"], f"the work was done for {done_for}")
    race.expect(job, state="succeeded", ledger=1, token=fresh.token)


@scenario(requires={FENCING}, witnesses=[lease_expired, reclaimed, effect_doubled])
def outside_system_without_a_check(race: Race) -> None:
    """The same, and the outside system takes every call: the work is done twice, whatever the queue does.

    This is the limit that no queue can remove. The outcome declared here *is* the double effect.
    """
    job = race.enqueue()
    a, b = race.workers("A", "B")

    with Sink(checks_tokens=False) as outside:
        stale = a.claim(job)
        race.clock.advance_past(stale)
        race.recover()
        fresh = b.claim(job)
        b.act_on(outside, fresh).accepted()
        a.act_on(outside, stale).accepted()
        b.complete(fresh).accepted()
        a.complete(stale).refused("token_mismatch")

    race.expect(job, state="succeeded", ledger=1, token=fresh.token)


@scenario(
    requires={FENCING},
    witnesses=[lease_expired, reclaimed, effect_doubled, was_refused("A", "effect", "stale_token")],
)
def outside_system_knows_only_what_it_saw(race: Race) -> None:
    """A calls late and still before B: a system that checks tokens has not seen B's yet, and does both.

    A check of tokens orders effects, it does not make them happen once: A's comes first or not at all.
    """
    job = race.enqueue()
    a, b = race.workers("A", "B")

    with Sink(checks_tokens=True) as outside:
        stale = a.claim(job)
        race.clock.advance_past(stale)
        race.recover()
        fresh = b.claim(job)
        a.act_on(outside, stale).accepted()
        b.act_on(outside, fresh).accepted()
        a.act_on(outside, stale).refused("stale_token")
        b.complete(fresh).accepted()

    race.expect(job, state="succeeded", ledger=1, token=fresh.token)
