"""The server answers a statement, or a connection, with an error nobody is to blame for."""

from __future__ import annotations

from fencepost.harness.adapter import Capability, Claim, JobId
from fencepost.harness.race import Participant, Pending, Race
from fencepost.harness.scenario import scenario
from fencepost.harness.wire import error
from fencepost.harness.witness import lease_expired, struck, was_accepted, was_refused

FENCING = Capability.FENCING
TTL_S = 60.0
MORE_THAN_STATEMENTS = 100
RETRIABLE = {"sqlstate": ("40001", "40P01")}
"""Serialization failure and deadlock: the transaction is gone, and the same one may go through next time."""


@scenario(
    requires={FENCING},
    witnesses=[was_refused("A", "complete"), was_accepted("A", "complete", times=3)],
    each=RETRIABLE,
    path="gate",
)
def complete_fails_at_each_statement(race: Race, sqlstate: str) -> None:
    """Each statement of a complete fails once: nothing of it stays or all of it, and asked again it is done."""
    (a,) = race.workers("A")
    for number in range(1, _statements(race, a, "complete") + 1):
        job, lease = _leased(race, a, "complete")
        told = _fails_at(a, "complete", lease, number, sqlstate)
        race.expect(job, state="succeeded" if told else "leased", ledger=1 if told else 0, token=lease.token)
        a.complete(lease).accepted()
        race.expect(job, state="succeeded", ledger=1, token=lease.token)


@scenario(
    requires={FENCING, Capability.RETRY, Capability.MAX_ATTEMPTS, Capability.DEAD_LETTER},
    witnesses=[was_refused("A", "fail"), was_accepted("A", "fail", times=3)],
    each=RETRIABLE,
    path="gate",
)
def fail_fails_at_each_statement(race: Race, sqlstate: str) -> None:
    """Each statement of a fail on the last attempt fails once: the job is live, or it has ended as failed."""
    (a,) = race.workers("A")
    for number in range(1, _statements(race, a, "fail") + 1):
        job, lease = _leased(race, a, "fail")
        told = _fails_at(a, "fail", lease, number, sqlstate)
        race.expect(job, state="failed" if told else "leased", ledger=0, token=lease.token, attempts=1)
        a.fail(lease).accepted()
        race.expect(job, state="failed", ledger=0, token=lease.token, attempts=1)


@scenario(
    requires={FENCING, Capability.HEARTBEAT, Capability.LEASE_LENGTH},
    witnesses=[was_refused("A", "heartbeat"), was_accepted("A", "heartbeat", times=3)],
    each=RETRIABLE,
    path="gate",
)
def heartbeat_fails_at_each_statement(race: Race, sqlstate: str) -> None:
    """Each statement of a heartbeat fails once: the lease is as it was, or extended, and A still holds it."""
    (a,) = race.workers("A")
    for number in range(1, _statements(race, a, "heartbeat") + 1):
        job, lease = _leased(race, a, "heartbeat")
        until_us = race.look(job).lease_until_us
        told = _fails_at(a, "heartbeat", lease, number, sqlstate)
        race.check(
            (race.look(job).lease_until_us != until_us) == told,
            f"the heartbeat was {'accepted' if told else 'refused'}, and the lease says otherwise",
        )
        a.heartbeat(lease, ttl_s=2 * TTL_S).accepted()
        a.complete(lease).accepted()
        race.expect(job, state="succeeded", ledger=1, token=lease.token)


@scenario(
    requires={FENCING},
    witnesses=[was_refused("A", "claim"), was_accepted("A", "complete", times=2)],
    each=RETRIABLE,
    path="gate",
)
def claim_fails_at_each_statement(race: Race, sqlstate: str) -> None:
    """Each statement of a claim fails once: nobody has the job and no attempt is spent, and the next claim gets it."""
    (a,) = race.workers("A")
    job = race.enqueue()
    probe = a.start("claim", ttl_s=TTL_S)
    a.complete(probe.claim(job)).accepted()
    for number in range(1, probe.statements + 1):
        job = race.enqueue()
        failing = a.start("claim", ttl_s=TTL_S, faults=[error(sqlstate, number)])
        if failing.reply().accepted:
            lease = failing.claim(job)
        else:
            failing.result().refused(sqlstate)
            race.expect(job, state="ready", ledger=0, attempts=0)
            lease = a.claim(job)
        a.complete(lease).accepted()
        race.expect(job, state="succeeded", ledger=1, token=lease.token, attempts=1)


@scenario(
    requires={FENCING, Capability.REAPER, Capability.RETRY, Capability.CLOCK},
    witnesses=[was_refused("R", "reap"), was_accepted("R", "reap", times=2), lease_expired],
    each=RETRIABLE,
    path="gate",
)
def sweep_fails_at_each_statement(race: Race, sqlstate: str) -> None:
    """Each statement of a sweep fails once: the lost lease is as it was or recovered, and recovered once."""
    job = race.enqueue(max_attempts=MORE_THAN_STATEMENTS)
    a, r = race.workers("A", "R")
    race.clock.advance_past(a.claim(job, ttl_s=TTL_S))
    probe = r.start("reap")
    probe.result().accepted()
    for number in range(1, probe.statements + 1):
        lease = a.claim(job, ttl_s=TTL_S)
        race.clock.advance_past(lease)
        failing = r.start("reap", faults=[error(sqlstate, number)])
        if failing.reply().accepted:
            race.expect(job, state="ready", token=lease.token)
        else:
            failing.result().refused(sqlstate)
            race.expect(job, state="leased", token=lease.token, holder="A")
            race.check(r.reap() == 1, "the sweep after the error should have recovered the lease")
    a.complete(a.claim(job)).accepted()


@scenario(
    requires={FENCING},
    witnesses=[struck("refuse_connections"), was_accepted("A", "complete")],
    path="gate",
)
def connection_limit_reached(race: Race) -> None:
    """A's connection is gone and the server has none to give: A still holds its lease when it gets one again."""
    job = race.enqueue()
    a, b = race.workers("A", "B")

    lease = a.claim(job)
    a.is_refused_a_connection("53300")
    race.expect(job, state="leased", ledger=0, token=lease.token, holder="A")
    b.finds_nothing()
    a.complete(lease).accepted()

    race.expect(job, state="succeeded", ledger=1, token=lease.token)


def _leased(race: Race, worker: Participant, operation: str) -> tuple[JobId, Claim]:
    # A job that waits for a second attempt would come due in real time, in some runs and not in others.
    job = race.enqueue(max_attempts=1) if operation == "fail" else race.enqueue()
    return job, worker.claim(job, ttl_s=TTL_S)


def _statements(race: Race, worker: Participant, operation: str) -> int:
    """How many statements the operation has on this queue, counted on a job of its own."""
    _, lease = _leased(race, worker, operation)
    probe = _start(worker, operation, lease)
    probe.result().accepted()
    if operation == "heartbeat":
        worker.complete(lease).accepted()
    return probe.statements


def _fails_at(worker: Participant, operation: str, lease: Claim, number: int, sqlstate: str) -> bool:
    """Whether the queue got over the error by itself; if not, it must have told of it."""
    failing = _start(worker, operation, lease, number, sqlstate)
    if failing.reply().accepted:
        return True
    failing.result().refused(sqlstate)
    return False


def _start(
    worker: Participant, operation: str, lease: Claim, number: int | None = None, sqlstate: str = ""
) -> Pending:
    arguments = {"fail": {"error": "boom"}, "heartbeat": {"ttl_s": 2 * TTL_S}}.get(operation, {})
    faults = [] if number is None else [error(sqlstate, number)]
    return worker.start(operation, lease, faults=faults, **arguments)
