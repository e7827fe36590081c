"""A reaper recovers each lost lease once, and touches nothing that is not lost."""

from __future__ import annotations

import itertools

from fencepost.harness.adapter import Capability, Claim, JobState
from fencepost.harness.history import CallStatus
from fencepost.harness.race import Pending, Race
from fencepost.harness.scenario import scenario
from fencepost.harness.witness import (
    answered,
    found_nothing,
    lease_expired,
    met_more_than_its_bound,
    more_lost_after_a_sweep,
    reaped,
    reclaimed,
    time_passed,
    was_held,
)

FENCING = Capability.FENCING
REAPER = Capability.REAPER
CHECKPOINTS = Capability.CHECKPOINTS
CLOCK = Capability.CLOCK
RETRY = Capability.RETRY
DEAD_LETTER = Capability.DEAD_LETTER
REAP_SNAPSHOT = Capability.REAP_SNAPSHOT

SWEEPING = ("after_snapshot", "after_recheck", "before_requeue", "before_commit")

_MOVES = len(SWEEPING) + 1
INTERLEAVINGS = tuple(
    "1" + "".join("2" if place in others else "1" for place in range(2 * _MOVES - 1))
    for others in itertools.combinations(range(2 * _MOVES - 1), _MOVES)
)
"""Who moves next, to his next checkpoint or to his end. Two reapers are alike, so it is always the first who begins."""

SWEEP = 2
"""The bound of a sweep that the backlog of `backlog_larger_than_a_sweep` exceeds."""


@scenario(requires={REAPER}, witnesses=[lease_expired, reaped("R"), reclaimed])
def reaped_job_is_claimable(race: Race) -> None:
    """A is gone for good and nobody else is around: what the reaper recovered, B can claim and finish."""
    job = race.enqueue()
    a, b, r = race.workers("A", "B", "R")

    lost = a.claim(job)
    race.clock.advance_past(lost)
    recovered = r.reap()
    fresh = b.claim(job)
    b.complete(fresh).accepted()

    race.check(recovered == 1, f"one lease was lost, the reaper recovered {recovered}")
    race.expect(job, state="succeeded", ledger=1, token=fresh.token)


@scenario(requires={REAPER, CLOCK}, witnesses=[time_passed(55.0), answered("R", "reap"), found_nothing("B")])
def reaper_spares_a_live_lease(race: Race) -> None:
    """A's lease has five seconds to go: a sweep leaves it alone, and so does B."""
    job = race.enqueue()
    a, b, r = race.workers("A", "B", "R")

    lease = a.claim(job, ttl_s=60.0)
    race.clock.advance(55.0)
    recovered = r.reap()
    b.finds_nothing()
    a.complete(lease).accepted()

    race.check(recovered == 0, "the reaper recovered a lease that was live")
    race.expect(job, state="succeeded", ledger=1, token=lease.token)


@scenario(
    requires={REAPER, REAP_SNAPSHOT, CHECKPOINTS},
    witnesses=[
        lease_expired,
        *(was_held(reaper, "reap", place) for reaper in ("R1", "R2") for place in SWEEPING),
        reaped("R1", "R2"),
    ],
    each={"order": INTERLEAVINGS},
)
def two_reapers(race: Race, order: str) -> None:
    """Two reapers sweep at once, from checkpoint to checkpoint in every order: the job is requeued once."""
    job = race.enqueue()
    a, r1, r2, b = race.workers("A", "R1", "R2", "B")

    lost = a.claim(job)
    race.clock.advance_past(lost)
    sweeps: dict[str, Pending] = {}
    for who, reaper in [(who, r1 if who == "1" else r2) for who in order]:
        if who not in sweeps:
            sweeps[who] = reaper.start("reap", hold_at=SWEEPING)
        elif sweeps[who].status is CallStatus.PARKED:
            sweeps[who].go_on()
    recovered = [sweep.finish().reply().count for sweep in sweeps.values()]
    fresh = b.claim(job)
    b.complete(fresh).accepted()

    race.check(
        sorted(map(bool, recovered)) == [False, True], f"one lease was lost, they recovered {recovered}"
    )
    race.expect(job, state="succeeded", ledger=1, token=fresh.token)


@scenario(
    requires={REAPER, REAP_SNAPSHOT, CHECKPOINTS},
    witnesses=[lease_expired, was_held("R", "reap"), was_held("B", "claim"), reclaimed],
    each={
        "reaper_at": SWEEPING,
        "claim_at": ("before_claim", "after_claim", "before_commit"),
        "goes_on": ("reaper", "claim"),
    },
)
def reaper_against_claim(race: Race, reaper_at: str, claim_at: str, goes_on: str) -> None:
    """A sweep and B's claim are after the same lost lease: whoever gets it, B's new lease is left alone."""
    job = race.enqueue()
    a, b, r, c = race.workers("A", "B", "R", "C")

    lost = a.claim(job)
    race.clock.advance_past(lost)
    sweep = r.start("reap", hold_at=reaper_at)
    reclaim = b.start("claim", ttl_s=60.0, hold_at=claim_at)
    _finish_in_order(sweep, reclaim, second_first=goes_on == "claim")
    taken = reclaim.result().claims()
    fresh = taken[0] if taken else b.claim(job)
    stolen = c.try_claim().claims()
    b.complete(fresh).accepted()

    race.check(not stolen, "C got the job B holds")
    race.expect(job, state="succeeded", ledger=1, token=fresh.token)


@scenario(
    requires={REAPER, REAP_SNAPSHOT, FENCING, CHECKPOINTS, CLOCK},
    witnesses=[lease_expired, was_held("A", "complete"), was_held("R", "reap")],
    each={
        "complete_at": (
            "before_lock",
            "after_lock",
            "after_guard",
            "before_ledger",
            "after_ledger",
            "before_commit",
        ),
        "reaper_at": SWEEPING,
        "goes_on": ("complete", "reaper"),
    },
)
def reaper_against_complete(race: Race, complete_at: str, reaper_at: str, goes_on: str) -> None:
    """A's complete and a sweep are both under way as the lease expires: the job succeeds or comes back, not both."""
    job = race.enqueue()
    a, r, b = race.workers("A", "R", "B")

    lease = a.claim(job)
    finishing = a.start("complete", lease, hold_at=complete_at).is_held()
    race.clock.advance_past(lease)
    sweep = r.start("reap", hold_at=reaper_at)
    _finish_in_order(finishing, sweep, second_first=goes_on == "reaper")
    done, recovered = finishing.result().reply.accepted, sweep.reply().count
    again = b.try_claim().claims()

    race.check(not (done and recovered), "A was told the job is done, the reaper that it requeued it")
    race.check(bool(again) is not done, f"A was {finishing.reply().outcome}, and then B claimed {again}")
    race.expect(job, state="succeeded" if done else "leased", ledger=int(done))


@scenario(
    requires={REAPER, REAP_SNAPSHOT, FENCING, RETRY, CHECKPOINTS, CLOCK},
    witnesses=[lease_expired, was_held("A", "fail"), was_held("R", "reap")],
    each={
        "fail_at": ("before_lock", "after_lock", "after_guard", "before_commit"),
        "reaper_at": SWEEPING,
        "goes_on": ("fail", "reaper"),
    },
)
def reaper_against_fail(race: Race, fail_at: str, reaper_at: str, goes_on: str) -> None:
    """A's failure and a sweep are both under way as the lease expires: the job is given back once."""
    job = race.enqueue()
    a, r, b = race.workers("A", "R", "B")

    lease = a.claim(job)
    failing = a.start("fail", lease, error="boom", hold_at=fail_at).is_held()
    race.clock.advance_past(lease)
    sweep = r.start("reap", hold_at=reaper_at)
    _finish_in_order(failing, sweep, second_first=goes_on == "reaper")
    failed, recovered = failing.result().reply.accepted, sweep.reply().count
    if not failed and not recovered:  # the sweep passed over the row that A had locked: the next one has it
        recovered = r.reap()
    if race.look(job).state is JobState.DELAYED:
        race.clock.advance(60.0)  # past any backoff
    fresh = b.claim(job)
    b.complete(fresh).accepted()

    race.check(failed is not bool(recovered), f"A's fail: {failed}; recovered by the reaper: {recovered}")
    race.expect(job, state="succeeded", ledger=1, token=fresh.token, attempts=2)


@scenario(
    requires={REAPER, Capability.BOUNDED_REAP, DEAD_LETTER},
    witnesses=[lease_expired, reaped("R"), met_more_than_its_bound("R"), more_lost_after_a_sweep("R")],
)
def backlog_larger_than_a_sweep(race: Race) -> None:
    """More leases are lost than one sweep recovers, and more are lost meanwhile: the oldest come first."""
    a, r = race.workers("A", "R")
    lost = [_lose_for_good(race, a.claim(race.enqueue(max_attempts=1))) for _ in range(2 * SWEEP)]

    sweeps, ended = [], []
    for _ in range(2 * SWEEP):
        sweeps.append(r.reap(limit=SWEEP))
        ended += [job for job in lost if race.look(job).state == "failed" and job not in ended]
        if sum(sweeps) < 3 * SWEEP:
            lost.append(_lose_for_good(race, a.claim(race.enqueue(max_attempts=1))))

    race.check(ended == lost, f"lost in the order {lost}, recovered in the order {ended}")
    race.check(max(sweeps) <= SWEEP, f"a sweep of at most {SWEEP} recovered more: {sweeps}")
    race.check(sum(sweeps) == len(lost), f"{len(lost)} leases were lost, {sum(sweeps)} recovered")


@scenario(
    requires={REAPER, Capability.BOUNDED_REAP, FENCING, CHECKPOINTS, CLOCK},
    witnesses=[lease_expired, was_held("A", "complete"), answered("R", "reap")],
)
def bounded_sweep_beside_a_held_row(race: Race) -> None:
    """The lease lost first belongs to a write that is on its way: a sweep of one recovers the next instead of none."""
    held_job, next_job = race.enqueue(), race.enqueue(max_attempts=1)
    a, b, r = race.workers("A", "B", "R")

    held = a.claim(held_job)
    behind = b.claim(next_job)
    finishing = a.start("complete", held, hold_at="after_guard").is_held()
    race.clock.advance_past(behind)
    recovered = r.reap(limit=1)
    finishing.finish()

    race.check(recovered == 1, f"a lease was lost and nobody held it, the sweep recovered {recovered}")
    race.expect(next_job, state="failed", ledger=0)
    race.expect(held_job, state="succeeded", ledger=1, token=held.token)


@scenario(
    requires={REAPER, RETRY, DEAD_LETTER},
    witnesses=[
        lease_expired,
        reclaimed,
        reaped("R"),
        reaped("R", times=3).where(taken_after="reap"),
        answered("D", "claim"),
    ],
    each={"taken_after": ("reap", "expiry")},
)
def crash_loop_ends(race: Race, taken_after: str) -> None:
    """Every worker that takes the job dies on it: each lost lease spends an attempt, and the last ends in `failed`."""
    job = race.enqueue(max_attempts=3)
    r = race.worker("R")

    for name in ("A", "B", "C"):
        lost = race.worker(name).claim(job)
        race.clock.advance_past(lost)
        if taken_after == "reap":
            r.reap()
        else:
            race.recover()
    left = race.worker("D").try_claim().claims()
    r.reap()

    race.check(not left, "D got a job that is out of attempts")
    race.expect(job, state="failed", attempts=3, ledger=0)


def _finish_in_order(first: Pending, second: Pending, *, second_first: bool) -> None:
    for pending in (second, first) if second_first else (first, second):
        pending.finish()


def _lose_for_good(race: Race, lease: Claim) -> str:
    """On its only attempt, so that no claim takes it up again and the reaper alone can end it."""
    race.clock.advance_past(lease)
    return lease.job
