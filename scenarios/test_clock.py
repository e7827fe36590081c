"""Clocks that are wrong, jump, or are read in different time zones: only the database's decides a lease."""

from __future__ import annotations

from fencepost.harness.adapter import Capability
from fencepost.harness.race import DEFAULT_TTL_S, Race
from fencepost.harness.scenario import scenario
from fencepost.harness.witness import (
    came_due,
    found_nothing,
    lease_expired,
    reclaimed,
    was_accepted,
    was_held,
    was_refused,
)

CHECKPOINTS = Capability.CHECKPOINTS
CLOCK = Capability.CLOCK
DELAY = Capability.DELAY
FENCING = Capability.FENCING

SKEWS_S = {"an_hour_fast": 3600.0, "an_hour_slow": -3600.0}
LEASE_TOLERANCE_S = 30.0
"""Between a claim's start and the look at its lease: far below the skew, far above any step's time."""


@scenario(
    requires={FENCING, CLOCK, Capability.LEASE_LENGTH},
    witnesses=[found_nothing("B"), lease_expired, reclaimed, was_refused("A", "complete", "token_mismatch")],
    each={"clock": tuple(SKEWS_S)},
    processes=True,
)
def workers_clock_is_wrong(race: Race, clock: str) -> None:
    """A's own clock is an hour wrong: its lease is as long as it asked for, and it loses it like anybody."""
    job = race.enqueue()
    a = race.worker("A", clock_skew_s=SKEWS_S[clock])
    b = race.worker("B")

    stale = a.claim(job)
    until_us = race.look(job).lease_until_us or 0
    wrong_s = (until_us - race.now_us) / 1e6 - DEFAULT_TTL_S
    race.check(abs(wrong_s) < LEASE_TOLERANCE_S, f"A's lease is {wrong_s:+.0f} s off what it asked for")
    b.finds_nothing()
    race.clock.advance_past(stale)
    race.recover()
    fresh = b.claim(job)
    a.complete(stale).refused("token_mismatch")
    b.complete(fresh).accepted()

    race.expect(job, state="succeeded", ledger=1, token=fresh.token)


@scenario(
    requires={FENCING, CLOCK, DELAY},
    witnesses=[found_nothing("B"), was_accepted("A", "complete"), reclaimed],
)
def database_clock_jumps_back(race: Race) -> None:
    """The database's clock is set back under a live lease: it stays A's, tokens go on rising, order is kept."""
    first, second = race.enqueue(), race.enqueue()
    a, b = race.workers("A", "B")

    lease = a.claim(first)
    race.clock.rewind(1800)
    race.expect(first, state="leased", token=lease.token, holder="A")
    b.finds_nothing()
    a.complete(lease).accepted()
    race.expect(first, state="succeeded", ledger=1, token=lease.token)
    race.clock.advance(1800)
    lost = b.claim(second)
    race.clock.advance_past(lost)
    race.recover()
    again = a.claim(second)
    a.complete(again).accepted()

    race.check((again.token or 0) > (lost.token or 0), "the token did not rise after the clock was set back")
    race.expect(second, state="succeeded", ledger=1, token=again.token)


@scenario(
    requires={FENCING, CLOCK, CHECKPOINTS},
    witnesses=[lease_expired, was_held("A", "complete"), was_refused("A", "complete", "lease_expired")],
    each={"checkpoint": ("before_lock", "after_lock")},
)
def database_clock_jumps_forward(race: Race, checkpoint: str) -> None:
    """The clock jumps past A's lease before its guard ran: A is refused, although nobody took the job."""
    job = race.enqueue()
    a, b = race.workers("A", "B")

    lease = a.claim(job)
    completing = a.start("complete", lease, hold_at=checkpoint).is_held()
    race.clock.advance_past(lease)
    completing.go_on().result().refused("lease_expired")
    race.expect(job, state="leased", ledger=0, token=lease.token)
    race.recover()
    fresh = b.claim(job)
    b.complete(fresh).accepted()

    race.expect(job, state="succeeded", ledger=1, token=fresh.token)


@scenario(
    requires={FENCING, CLOCK, DELAY},
    witnesses=[found_nothing("B"), came_due, lease_expired, reclaimed],
    each={"zones": ("Pacific/Kiritimati,America/Adak", "America/Adak,Pacific/Kiritimati")},
)
def session_time_zones_differ(race: Race, zones: str) -> None:
    """A and B live in time zones a day apart: delay and lease end for both at the same moment."""
    of_a, of_b = zones.split(",")
    a = race.worker("A", time_zone=of_a)
    b = race.worker("B", time_zone=of_b)

    job = a.enqueue(delay_s=600)
    b.finds_nothing()
    race.clock.advance_to(race.next_run_us(job), "next_run_at")
    stale = b.claim(job)
    a.finds_nothing()
    race.clock.advance_past(stale)
    race.recover()
    fresh = a.claim(job)
    b.complete(stale).refused("token_mismatch")
    a.complete(fresh).accepted()

    race.expect(job, state="succeeded", ledger=1, token=fresh.token)
