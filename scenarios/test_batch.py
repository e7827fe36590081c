"""Several jobs in one operation: each is given, judged and answered on its own."""

from __future__ import annotations

from fencepost.harness.adapter import Capability
from fencepost.harness.race import Race
from fencepost.harness.scenario import scenario
from fencepost.harness.witness import (
    answered,
    came_after_the_end,
    came_due,
    found_nothing,
    lease_expired,
    named_twice,
    reclaimed,
    was_accepted,
    was_held,
    was_refused,
)

FENCING = Capability.FENCING
BATCH = Capability.BATCH
BATCH_COMPLETE = Capability.BATCH_COMPLETE
CHECKPOINTS = Capability.CHECKPOINTS


@scenario(
    requires={FENCING, Capability.REPEATS, BATCH, BATCH_COMPLETE, Capability.HEARTBEAT},
    witnesses=[
        lease_expired,
        reclaimed,
        named_twice("A", "complete_batch"),
        was_refused("A", "complete_batch", "token_mismatch"),
        was_refused("A", "complete_batch", "unknown_job"),
    ],
    each={"order": ("good_last", "good_first")},
)
def batch_complete_with_stale_duplicate_and_unknown(race: Race, order: str) -> None:
    """A completes a batch with a job it lost, one twice and one that never was: the others are unharmed."""
    jobs = [race.enqueue({"part": part}) for part in range(4)]
    a, b = race.workers("A", "B")

    stale, *kept = a.claim_batch(len(jobs))
    for lease in kept:
        a.heartbeat(lease, ttl_s=600.0).accepted()
    race.clock.advance_past(stale)
    race.recover()
    fresh = b.claim(stale.job)
    unknown, twice = race.unknown_claim(like=stale), kept[0]
    batch = [unknown, stale, *kept, twice] if order == "good_last" else [*kept, twice, stale, unknown]
    answers = a.complete_batch(*batch)
    b.complete(fresh).accepted()

    for lease, answer in zip(batch, answers, strict=True):
        if lease is unknown:
            answer.refused("unknown_job")
        elif lease is stale:
            answer.refused("token_mismatch")
        else:
            answer.accepted()
    for job in jobs:
        race.expect(job, state="succeeded", ledger=1)


@scenario(
    requires={BATCH, CHECKPOINTS},
    witnesses=[was_held("A", "claim_batch"), was_accepted("B", "claim_batch")],
    each={"checkpoint": ("before_claim", "after_claim", "before_commit", "after_commit")},
)
def two_batch_claims(race: Race, checkpoint: str) -> None:
    """A is held inside its batch claim while B claims a batch: no job goes to both, and none to nobody."""
    jobs = [race.enqueue({"part": part}) for part in range(5)]
    a, b = race.workers("A", "B")

    held = a.start("claim_batch", ttl_s=60.0, limit=3, hold_at=checkpoint).is_held()
    by_b = b.start("claim_batch", ttl_s=60.0, limit=3)
    held.go_on()
    mine, theirs = held.result().claims(), by_b.result().claims()
    for worker, leases in ((a, mine), (b, theirs)):
        for lease in leases:
            worker.complete(lease).accepted()

    given = sorted(lease.job for lease in (*mine, *theirs))
    race.check(
        given == sorted(jobs), f"A and B should get jobs {sorted(jobs)} between them, they got {given}"
    )
    first, second = (theirs, mine) if checkpoint == "before_claim" else (mine, theirs)
    race.check((len(first), len(second)) == (3, 2), f"the batches have {len(first)} and {len(second)} jobs")


@scenario(
    requires={FENCING, BATCH, BATCH_COMPLETE, Capability.CANCEL, CHECKPOINTS},
    witnesses=[was_held("A", "complete_batch"), answered("C", "cancel")],
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
)
def cancel_against_batch_complete(race: Race, checkpoint: str) -> None:
    """A is held inside its batch complete while its first job is cancelled: one wins, the other jobs succeed."""
    jobs = [race.enqueue({"part": part}) for part in range(3)]
    a, c = race.workers("A", "C")

    leases = a.claim_batch(len(jobs))
    held = a.start("complete_batch", *leases, hold_at=checkpoint).is_held()
    cancel = c.start("cancel", job=jobs[0])
    held.go_on()

    first, *others = held.results()
    cancelled = cancel.result().reply.accepted
    race.check(first.reply.accepted != cancelled, f"complete and cancel of job {jobs[0]} should not agree")
    race.expect(jobs[0], state="cancelled" if cancelled else "succeeded", ledger=0 if cancelled else 1)
    for job, other in zip(jobs[1:], others, strict=True):
        other.accepted()
        race.expect(job, state="succeeded", ledger=1)


@scenario(
    requires={BATCH, Capability.DELAY, Capability.CLOCK},
    witnesses=[came_due, was_accepted("A", "claim_batch", times=2), found_nothing("B")],
)
def batch_claim_waits_for_the_time(race: Race) -> None:
    """One job of three is for later: a batch claim leaves it alone before its time, and takes it then."""
    ready = [race.enqueue({"part": part}) for part in range(2)]
    later = race.enqueue({"part": 2}, delay_s=3600.0)
    a, b = race.workers("A", "B")

    first = a.start("claim_batch", ttl_s=60.0, limit=3).result().claims()
    b.finds_nothing()
    for lease in first:
        a.complete(lease).accepted()
    race.clock.advance_to(race.next_run_us(later), "next_run_at")
    second = a.start("claim_batch", ttl_s=60.0, limit=3).result().claims()
    for lease in second:
        a.complete(lease).accepted()

    got = sorted(lease.job for lease in first)
    race.check(got == sorted(ready), f"A should get jobs {sorted(ready)} at first, it got {got}")
    race.check([lease.job for lease in second] == [later], f"A should get job {later} at its time")


@scenario(
    requires={FENCING, BATCH, BATCH_COMPLETE, Capability.RETRY, Capability.DEAD_LETTER, Capability.CANCEL},
    witnesses=[came_after_the_end("A", "complete_batch")],
    each={"end": ("failed", "cancelled")},
)
def late_batch_on_a_finished_job(race: Race, end: str) -> None:
    """One job of A's batch has ended otherwise: the batch leaves it as it is, and completes the other."""
    jobs = [race.enqueue({"part": part}, max_attempts=1) for part in range(2)]
    a = race.worker("A")

    over, good = a.claim_batch(len(jobs))
    a.end(over, end).accepted()
    first, second = a.complete_batch(over, good)

    first.refused("terminal")
    second.accepted()
    race.expect(over.job, state=end, ledger=0)
    race.expect(good.job, state="succeeded", ledger=1)
