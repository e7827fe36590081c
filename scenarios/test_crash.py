"""A worker dies or freezes, or its session is ended, at a moment it did not choose."""

from __future__ import annotations

from fencepost.harness.adapter import Capability
from fencepost.harness.postgres.provider import ServerFault
from fencepost.harness.race import Race
from fencepost.harness.scenario import scenario
from fencepost.harness.witness import (
    answer_lost,
    found_nothing,
    lease_expired,
    reclaimed,
    struck,
    was_accepted,
    was_held,
    was_refused,
)

CHECKPOINTS = Capability.CHECKPOINTS
FENCING = Capability.FENCING


@scenario(witnesses=[struck("kill"), found_nothing("B"), lease_expired, reclaimed], processes=True)
def killed_mid_execution(race: Race) -> None:
    """A is killed while it executes: until its lease ends nobody gets the job, then B does it."""
    job = race.enqueue()
    a = race.worker("A", process=True)
    b = race.worker("B")

    lost = a.claim(job)
    a.kill()
    race.expect(job, state="leased", ledger=0, holder="A")
    b.finds_nothing()
    race.clock.advance_past(lost)
    race.recover()
    fresh = b.claim(job)
    b.complete(fresh).accepted()

    race.expect(job, state="succeeded", ledger=1, token=fresh.token)


@scenario(
    requires={FENCING, CHECKPOINTS},
    witnesses=[struck("kill"), was_held("A", "complete"), answer_lost("A", "complete")],
    each={"checkpoint": ("before_lock", "after_guard", "after_ledger", "before_commit", "after_commit")},
    processes=True,
)
def killed_while_completing(race: Race, checkpoint: str) -> None:
    """A is killed in the middle of its complete: before the commit nothing of it stays, after it all of it."""
    job = race.enqueue()
    a = race.worker("A", process=True)
    b = race.worker("B")

    lost = a.claim(job)
    completing = a.start("complete", lost, hold_at=checkpoint).is_held()
    a.kill()
    completing.result().unknown()
    if checkpoint == "after_commit":
        race.expect(job, state="succeeded", ledger=1, token=lost.token)
        b.finds_nothing()
        return
    race.expect(job, state="leased", ledger=0, token=lost.token, holder="A")
    race.clock.advance_past(lost)
    race.recover()
    fresh = b.claim(job)
    b.complete(fresh).accepted()

    race.expect(job, state="succeeded", ledger=1, token=fresh.token)


@scenario(
    requires={FENCING},
    witnesses=[struck("stop"), struck("cont"), lease_expired, reclaimed, was_refused("A", "complete")],
    each={"comes_back": ("while_b_runs", "after_b_is_done")},
    processes=True,
)
def stopped_for_longer_than_the_lease(race: Race, comes_back: str) -> None:
    """A is frozen past its lease and continued: B has the job by then, and A's complete is refused."""
    job = race.enqueue()
    a = race.worker("A", process=True)
    b = race.worker("B")

    stale = a.claim(job)
    a.stop()
    race.clock.advance_past(stale)
    race.recover()
    fresh = b.claim(job)
    if comes_back == "after_b_is_done":
        b.complete(fresh).accepted()
    a.cont()
    a.complete(stale).refused("token_mismatch")
    if comes_back == "while_b_runs":
        b.complete(fresh).accepted()

    race.expect(job, state="succeeded", ledger=1, token=fresh.token)


@scenario(
    requires={FENCING, CHECKPOINTS, Capability.CLOCK},
    witnesses=[struck("stop"), struck("cont"), lease_expired, was_held("A", "complete"), found_nothing("B")],
    each={"checkpoint": ("after_guard", "before_ledger", "before_commit")},
    processes=True,
)
def stopped_while_completing(race: Race, checkpoint: str) -> None:
    """A is frozen past its lease with its guard behind it: the row is locked, so B finds nothing, and A finishes."""
    job = race.enqueue()
    a = race.worker("A", process=True)
    b = race.worker("B")

    lease = a.claim(job)
    completing = a.start("complete", lease, hold_at=checkpoint).is_held()
    a.stop()
    race.clock.advance_past(lease)
    b.finds_nothing()
    a.cont()
    completing.go_on().result().accepted()

    race.expect(job, state="succeeded", ledger=1, token=lease.token)


@scenario(
    requires={FENCING, CHECKPOINTS},
    witnesses=[struck("terminate_backend"), was_held("A", "complete"), was_accepted("A", "complete")],
    each={
        "checkpoint": (
            "before_lock",
            "after_lock",
            "after_guard",
            "before_ledger",
            "after_ledger",
            "before_commit",
            "after_commit",
        )
    },
    server_faults={ServerFault.TERMINATE_BACKEND},
)
def session_ended_while_completing(race: Race, checkpoint: str) -> None:
    """A's session is ended at each checkpoint of its complete: all of it stays or none, and A may ask again."""
    job = race.enqueue()
    a, b = race.workers("A", "B")

    lease = a.claim(job)
    completing = a.start("complete", lease, hold_at=checkpoint).is_held()
    race.server.terminate_backend("A")
    completing.go_on()
    if checkpoint == "after_commit":
        completing.result().accepted()
        race.expect(job, state="succeeded", ledger=1, token=lease.token)
    else:
        completing.result().unknown()
        race.expect(job, state="leased", ledger=0, token=lease.token, holder="A")
    b.finds_nothing()
    a.complete(lease).accepted()

    race.expect(job, state="succeeded", ledger=1, token=lease.token)


@scenario(
    requires={FENCING, CHECKPOINTS},
    witnesses=[struck("terminate_backend"), was_held("A", "claim"), answer_lost("A", "claim")],
    each={"checkpoint": ("before_claim", "after_claim", "before_commit")},
    server_faults={ServerFault.TERMINATE_BACKEND},
)
def session_ended_while_claiming(race: Race, checkpoint: str) -> None:
    """A's session is ended in the middle of its claim: nobody has the job, and B gets it at once."""
    job = race.enqueue()
    a, b = race.workers("A", "B")

    claiming = a.start("claim", ttl_s=60.0, hold_at=checkpoint).is_held()
    race.server.terminate_backend("A")
    claiming.go_on().result().unknown()
    race.expect(job, state="ready", attempts=0)
    lease = b.claim(job)
    b.complete(lease).accepted()

    race.expect(job, state="succeeded", ledger=1, token=lease.token)
