"""The path between a worker and the server pauses, delays, goes deaf or breaks, on either network engine."""

from __future__ import annotations

from fencepost.harness.adapter import Capability
from fencepost.harness.race import Race
from fencepost.harness.scenario import scenario
from fencepost.harness.witness import (
    answer_lost,
    answered,
    found_nothing,
    lease_expired,
    reclaimed,
    struck,
    was_accepted,
    was_cut_off,
    was_held,
    was_refused,
)

CHECKPOINTS = Capability.CHECKPOINTS
CLOCK = Capability.CLOCK
FENCING = Capability.FENCING
TTL_S = 60.0
LONGER_THAN_ANY_STEP_S = 600.0


@scenario(
    requires={FENCING},
    witnesses=[
        struck("pause"),
        struck("resume"),
        was_cut_off("A", "complete"),
        lease_expired,
        reclaimed,
        was_refused("A", "complete"),
    ],
    each={"resumes": ("while_b_runs", "after_b_is_done")},
    path="network",
)
def pause_longer_than_the_lease(race: Race, resumes: str) -> None:
    """A's complete is on its way when its path freezes past the lease: it arrives after B's claim, and is refused."""
    job = race.enqueue()
    a, b = race.workers("A", "B")

    stale = a.claim(job)
    a.path.pause()
    late = a.start("complete", stale).is_cut_off()
    race.clock.advance_past(stale)
    race.recover()
    fresh = b.claim(job)
    if resumes == "after_b_is_done":
        b.complete(fresh).accepted()
    a.path.resume()
    late.result().refused("token_mismatch")
    if resumes == "while_b_runs":
        b.complete(fresh).accepted()

    race.expect(job, state="succeeded", ledger=1, token=fresh.token)


@scenario(
    requires={FENCING, CHECKPOINTS, CLOCK},
    witnesses=[
        struck("lose_reply"),
        struck("cut"),
        was_cut_off("A", "claim"),
        answer_lost("A", "claim"),
        found_nothing("B"),
    ],
    path="network",
)
def cut_during_claim(race: Race) -> None:
    """A's path dies when its claim has just committed: the job is leased to nobody who knows, until it expires."""
    job = race.enqueue()
    a, b = race.workers("A", "B")

    claiming = a.start("claim", ttl_s=TTL_S, hold_at="before_commit").is_held()
    a.path.lose_reply()
    claiming.go_on().is_cut_off()
    race.expect(job, state="leased", ledger=0, holder="A")
    a.path.cut()
    claiming.result().unknown()
    b.finds_nothing()
    race.clock.advance(TTL_S + 1)
    race.recover()
    lease = b.claim(job)
    b.complete(lease).accepted()

    race.expect(job, state="succeeded", ledger=1, token=lease.token)


@scenario(
    requires={FENCING},
    witnesses=[
        struck("delay"),
        was_cut_off("A", "complete"),
        lease_expired,
        was_refused("A", "complete", "lease_expired"),
    ],
    path="network",
)
def delayed_past_expiry(race: Race) -> None:
    """A's complete is sent in time and arrives after its lease: it is judged when it arrives, and refused."""
    job = race.enqueue()
    a, b = race.workers("A", "B")

    lease = a.claim(job)
    a.path.delay(LONGER_THAN_ANY_STEP_S)
    late = a.start("complete", lease).is_cut_off()
    race.clock.advance_past(lease)
    a.path.arrive()
    late.result().refused("lease_expired")
    race.recover()
    fresh = b.claim(job)
    b.complete(fresh).accepted()

    race.expect(job, state="succeeded", ledger=1, token=fresh.token)


@scenario(
    requires={FENCING},
    witnesses=[
        struck("half_open"),
        was_cut_off("A", "complete"),
        answer_lost("A", "complete"),
        found_nothing("B"),
        lease_expired,
        reclaimed,
    ],
    path="network",
)
def half_open_connection(race: Race) -> None:
    """A's connection is gone and A is not told: its complete goes nowhere, and after the lease B does the job."""
    job = race.enqueue()
    a, b = race.workers("A", "B")

    stale = a.claim(job)
    a.path.half_open()
    lost = a.start("complete", stale).is_cut_off()
    b.finds_nothing()
    race.clock.advance_past(stale)
    race.recover()
    fresh = b.claim(job)
    a.path.cut()
    lost.result().unknown()
    a.complete(stale).refused("token_mismatch")
    b.complete(fresh).accepted()

    race.expect(job, state="succeeded", ledger=1, token=fresh.token)


@scenario(
    requires={FENCING, CHECKPOINTS},
    witnesses=[
        struck("cut_mid_message"),
        was_held("A", "complete"),
        answer_lost("A", "complete"),
        answered("A", "complete", times=2),
    ],
    path="network",
)
def cut_in_the_middle_of_a_message(race: Race) -> None:
    """Half of the answer to A's COMMIT arrives: A cannot tell what happened, asks again, and is told."""
    job = race.enqueue()
    (a,) = race.workers("A")

    lease = a.claim(job)
    completing = a.start("complete", lease, hold_at="before_commit").is_held()
    a.path.cut_mid_message()
    completing.go_on().result().unknown()
    race.expect(job, state="succeeded", ledger=1, token=lease.token)
    a.path.mend()
    a.complete(lease).accepted()

    race.expect(job, state="succeeded", ledger=1, token=lease.token)


@scenario(
    requires={FENCING},
    witnesses=[struck("cut"), answer_lost("A", "complete"), was_accepted("A", "complete")],
    each={"how": ("fin", "rst")},
    path="network",
)
def pool_hands_out_a_dead_connection(race: Race, how: str) -> None:
    """A's connection died while A worked, and its pool does not look: A learns it from its complete, and asks again."""
    job = race.enqueue()
    a = race.worker("A", path="network" if how == "fin" else "network_rst")

    lease = a.claim(job)
    a.path.cut("fin" if how == "fin" else "rst", notice=False)
    a.complete(lease).unknown()
    race.expect(job, state="leased", ledger=0, token=lease.token)
    a.complete(lease).accepted()

    race.expect(job, state="succeeded", ledger=1, token=lease.token)
