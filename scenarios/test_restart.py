"""The server dies, or is restarted, at a moment the queue did not choose: what was acknowledged stays."""

from __future__ import annotations

from fencepost.harness.adapter import Capability
from fencepost.harness.postgres.provider import ServerFault
from fencepost.harness.race import Race
from fencepost.harness.scenario import scenario
from fencepost.harness.witness import (
    answer_lost,
    answered,
    found_nothing,
    lease_expired,
    reaped,
    reclaimed,
    struck,
    was_accepted,
    was_held,
    was_refused,
)

CHECKPOINTS = Capability.CHECKPOINTS
FENCING = Capability.FENCING
WHOLE_SERVER = (
    ServerFault.CRASH,
    ServerFault.KILL_POSTMASTER,
    ServerFault.KILL_ALL,
    ServerFault.KILL_BACKEND,
    ServerFault.FAST_RESTART,
)


@scenario(
    witnesses=[struck(), found_nothing("B"), was_accepted("A", "complete")],
    each={"fault": tuple(fault.value for fault in WHOLE_SERVER)},
    server_faults=WHOLE_SERVER,
)
def lease_survives(race: Race, fault: str) -> None:
    """The server dies while A holds a live lease: A goes on under it, and nobody else gets the job."""
    job = race.enqueue()
    a, b = race.workers("A", "B")

    lease = a.claim(job)
    race.server.strike(ServerFault(fault), of="A")
    race.expect(job, state="leased", ledger=0, token=lease.token, holder="A")
    b.finds_nothing()
    a.complete(lease).accepted()

    race.expect(job, state="succeeded", ledger=1, token=lease.token)


@scenario(
    requires={FENCING},
    witnesses=[struck("crash"), lease_expired, reclaimed, was_refused("A", "complete", "token_mismatch")],
    each={"order": ("expires_then_crash", "crash_then_expires")},
    server_faults={ServerFault.CRASH},
)
def expired_lease_is_recovered(race: Race, order: str) -> None:
    """A's lease is over when the server is back: B takes the job, and A is refused."""
    job = race.enqueue()
    a, b = race.workers("A", "B")

    stale = a.claim(job)
    if order == "expires_then_crash":
        race.clock.advance_past(stale)
    race.server.crash()
    if order == "crash_then_expires":
        race.clock.advance_past(stale)
    race.recover()
    fresh = b.claim(job)
    a.complete(stale).refused("token_mismatch")
    b.complete(fresh).accepted()

    race.expect(job, state="succeeded", ledger=1, token=fresh.token)


@scenario(
    requires={FENCING, CHECKPOINTS},
    witnesses=[
        struck("crash"),
        was_held("A", "claim"),
        answered("A", "claim"),
        was_accepted("B", "complete"),
    ],
    each={"checkpoint": ("before_claim", "after_claim", "before_commit", "after_commit")},
    server_faults={ServerFault.CRASH},
)
def during_claims_commit(race: Race, checkpoint: str) -> None:
    """The server crashes around the commit of A's claim: A has the lease and knows it, or nobody has it."""
    job = race.enqueue()
    a, b = race.workers("A", "B")

    claiming = a.start("claim", ttl_s=60.0, hold_at=checkpoint).is_held()
    race.server.crash()
    claiming.go_on()
    if checkpoint == "after_commit":
        lease = claiming.claim(job)
        race.expect(job, state="leased", token=lease.token, holder="A")
        b.finds_nothing()
        race.clock.advance_past(lease)
        race.recover()
    else:
        claiming.result().unknown()
        race.expect(job, state="ready", ledger=0, attempts=0)
    fresh = b.claim(job)
    b.complete(fresh).accepted()

    race.expect(job, state="succeeded", ledger=1, token=fresh.token)


@scenario(
    requires={FENCING, CHECKPOINTS},
    witnesses=[struck("crash"), was_held("A", "complete"), was_accepted("A", "complete")],
    each={"checkpoint": ("before_lock", "after_guard", "after_ledger", "before_commit", "after_commit")},
    server_faults={ServerFault.CRASH},
)
def during_completes_commit(race: Race, checkpoint: str) -> None:
    """The server crashes around the commit of A's complete: all of it stays or none, and A may ask again."""
    job = race.enqueue()
    (a,) = race.workers("A")

    lease = a.claim(job)
    completing = a.start("complete", lease, hold_at=checkpoint).is_held()
    race.server.crash()
    completing.go_on()
    if checkpoint == "after_commit":
        completing.result().accepted()
        race.expect(job, state="succeeded", ledger=1, token=lease.token)
    else:
        completing.result().unknown()
        race.expect(job, state="leased", ledger=0, token=lease.token, holder="A")
    a.complete(lease).accepted()

    race.expect(job, state="succeeded", ledger=1, token=lease.token)


@scenario(
    requires={Capability.REAPER, CHECKPOINTS, Capability.CLOCK},
    witnesses=[struck("crash"), was_held("R", "reap"), answer_lost("R", "reap"), reaped("S")],
    each={"checkpoint": ("after_snapshot", "after_recheck", "before_requeue", "before_commit")},
    server_faults={ServerFault.CRASH},
)
def during_a_sweep(race: Race, checkpoint: str) -> None:
    """The server crashes in the middle of R's sweep: none of it stays, and S requeues each lost lease once."""
    jobs = [race.enqueue(), race.enqueue()]
    a, r, s = race.workers("A", "R", "S")

    a.claim()
    lease = a.claim()
    race.clock.advance_past(lease)
    sweep = r.start("reap", hold_at=checkpoint).is_held()
    race.server.crash()
    sweep.go_on().result().unknown()
    for job in jobs:
        race.expect(job, state="leased", holder="A")
    race.check(s.reap() == 2, "the sweep after the crash should have recovered both leases")

    for job in jobs:
        race.expect(job, state="ready", attempts=1)


@scenario(
    witnesses=[struck("crash", times=3), was_accepted("A", "complete")],
    server_faults={ServerFault.CRASH},
)
def three_crashes_in_a_row(race: Race) -> None:
    """Three crashes, something acknowledged before each: all of it is there after the last."""
    job = race.enqueue()
    (a,) = race.workers("A")

    lease = a.claim(job)
    jobs = []
    for _ in range(3):
        jobs.append(race.enqueue())
        race.server.crash()
    race.expect(job, state="leased", ledger=0, token=lease.token, holder="A")
    for waiting in jobs:
        race.expect(waiting, state="ready", ledger=0)
    a.complete(lease).accepted()

    race.expect(job, state="succeeded", ledger=1, token=lease.token)


@scenario(
    requires={FENCING},
    witnesses=[struck("refuse_connections"), found_nothing("B"), was_accepted("A", "complete")],
    server_faults={ServerFault.REFUSE_CONNECTIONS},
)
def refused_while_the_server_starts(race: Race) -> None:
    """A comes back while the crashed server still recovers and is turned away: its lease is there when it is let in."""
    job = race.enqueue()
    a, b = race.workers("A", "B")

    lease = a.claim(job)
    a.is_refused_while_the_server_starts()
    race.expect(job, state="leased", ledger=0, token=lease.token, holder="A")
    b.finds_nothing()
    a.complete(lease).accepted()

    race.expect(job, state="succeeded", ledger=1, token=lease.token)


@scenario(
    requires={FENCING, CHECKPOINTS},
    witnesses=[struck("fast_restart"), was_held("W1", "complete"), answer_lost("W1", "complete")],
    server_faults={ServerFault.FAST_RESTART},
)
def fast_restart_under_ten_workers(race: Race) -> None:
    """Ten workers are at work, half of them in the middle of a complete: each job is done once, by its holder."""
    jobs = [race.enqueue() for _ in range(10)]
    workers = race.workers(*(f"W{number}" for number in range(10)))
    leases = [worker.claim() for worker in workers]

    completing = [
        worker.start("complete", lease, hold_at="before_commit").is_held()
        for worker, lease in list(zip(workers, leases, strict=True))[1::2]
    ]
    race.server.fast_restart()
    for pending in completing:
        pending.go_on().result().unknown()
    for lease, worker in zip(leases, workers, strict=True):
        race.expect(lease.job, state="leased", ledger=0, token=lease.token, holder=worker.name)
    for worker, lease in zip(workers, leases, strict=True):
        worker.complete(lease).accepted()

    for job in jobs:
        race.expect(job, state="succeeded", ledger=1)
