"""The COMMIT's answer is lost, or the COMMIT itself: the caller cannot tell, and must be able to ask again."""

from __future__ import annotations

from fencepost.harness.adapter import Capability, Claim
from fencepost.harness.race import Participant, Pending, Race
from fencepost.harness.scenario import scenario, where
from fencepost.harness.wire import lose_reply, lose_request
from fencepost.harness.witness import (
    answer_lost,
    answered,
    found_nothing,
    key_submitted,
    lease_expired,
    was_accepted,
)

FENCING = Capability.FENCING
HEARTBEAT = Capability.HEARTBEAT
TTL_S = 60.0
LONGER_TTL_S = 120.0
COMMIT = "^COMMIT"
LOST = {"reply": lose_reply(COMMIT), "request": lose_request(COMMIT)}
EACH_LOSS = {"lost": tuple(LOST)}
ASKED_TWICE = [where(Capability.REPEATS, lost="reply")]
"""What was lost is the answer: the settlement has happened and is asked for once more."""


def _start_losing(worker: Participant, operation: str, lease: Claim, lost: str) -> Pending:
    arguments = {"fail": {"error": "boom"}, "heartbeat": {"ttl_s": LONGER_TTL_S}}.get(operation, {})
    return worker.start(operation, lease, faults=[LOST[lost]], **arguments)


@scenario(
    requires={FENCING},
    witnesses=[answer_lost("A", "complete"), answered("A", "complete", times=2), found_nothing("B")],
    needs_where=ASKED_TWICE,
    each=EACH_LOSS,
    path="gate",
)
def complete_is_asked_again(race: Race, lost: str) -> None:
    """A's COMMIT of a complete is lost, or its answer is: A asks again and gets one answer and one effect."""
    job = race.enqueue()
    a, b = race.workers("A", "B")

    lease = a.claim(job)
    _start_losing(a, "complete", lease, lost).result().unknown()
    if lost == "reply":
        race.expect(job, state="succeeded", ledger=1, token=lease.token)
    else:
        race.expect(job, state="leased", ledger=0, token=lease.token)
    b.finds_nothing()
    a.complete(lease).accepted()

    race.expect(job, state="succeeded", ledger=1, token=lease.token)


@scenario(
    requires={FENCING, Capability.RETRY},
    witnesses=[answer_lost("A", "fail"), answered("A", "fail", times=2)],
    needs_where=ASKED_TWICE,
    each=EACH_LOSS,
    path="gate",
)
def fail_is_asked_again(race: Race, lost: str) -> None:
    """A's COMMIT of a fail is lost, or its answer is: asked again it spends no second attempt and waits no longer."""
    job = race.enqueue(max_attempts=3)
    (a,) = race.workers("A")

    lease = a.claim(job)
    _start_losing(a, "fail", lease, lost).result().unknown()
    due_us = race.look(job).next_run_at_us
    a.fail(lease).accepted()

    race.expect(job, ledger=0, token=lease.token, attempts=1)
    if lost == "reply":
        race.check(
            race.look(job).next_run_at_us == due_us, "the fail that was asked again moved the next run"
        )


@scenario(
    requires={FENCING, HEARTBEAT, Capability.LEASE_LENGTH},
    witnesses=[
        answer_lost("A", "heartbeat"),
        answered("A", "heartbeat", times=2),
        was_accepted("A", "complete"),
    ],
    each=EACH_LOSS,
    path="gate",
)
def heartbeat_is_asked_again(race: Race, lost: str) -> None:
    """A's COMMIT of a heartbeat is lost, or its answer is: A asks again, and the lease is as long as it asked for."""
    job = race.enqueue()
    (a,) = race.workers("A")

    lease = a.claim(job, ttl_s=TTL_S)
    until_us = race.look(job).lease_until_us or 0
    _start_losing(a, "heartbeat", lease, lost).result().unknown()
    longer = (race.look(job).lease_until_us or 0) > until_us
    race.check(longer == (lost == "reply"), f"the lease was {'' if longer else 'not '}extended")
    a.heartbeat(lease, ttl_s=LONGER_TTL_S).accepted()
    a.complete(lease).accepted()

    race.expect(job, state="succeeded", ledger=1, token=lease.token)


@scenario(
    requires={Capability.IDEMPOTENCY_KEY},
    witnesses=[answer_lost("P", "enqueue"), key_submitted("order-1")],
    each=EACH_LOSS,
    path="gate",
)
def enqueue_is_asked_again(race: Race, lost: str) -> None:
    """The producer's COMMIT is lost, or its answer is: with a key it asks again, and there is one job."""
    p, a = race.workers("P", "A")

    p.start("enqueue", payload={"order": 1}, key="order-1", faults=[LOST[lost]]).result().unknown()
    race.check(race.jobs_seen == (1 if lost == "reply" else 0), f"{race.jobs_seen} jobs were enqueued")
    job = p.enqueue({"order": 1}, key="order-1")
    race.check(race.jobs_seen == 1, f"one key has {race.jobs_seen} jobs")
    lease = a.claim(job)
    a.complete(lease).accepted()

    race.expect(job, state="succeeded", ledger=1)


@scenario(
    requires={FENCING, Capability.CLOCK},
    witnesses=[answer_lost("A", "claim"), was_accepted("B", "complete")],
    each=EACH_LOSS,
    path="gate",
)
def claim_nobody_knows_of(race: Race, lost: str) -> None:
    """A's claim commits and A never hears of it: the lease is nobody's, it expires, and B gets the job."""
    job = race.enqueue()
    a, b = race.workers("A", "B")

    a.start("claim", ttl_s=TTL_S, faults=[LOST[lost]]).result().unknown()
    if lost == "reply":
        race.expect(job, state="leased", ledger=0, attempts=1, holder="A")
        b.finds_nothing()
        race.clock.advance(TTL_S + 1)
        race.recover()
    else:
        race.expect(job, state="ready", ledger=0, attempts=0)
    lease = b.claim(job)
    b.complete(lease).accepted()

    race.expect(job, state="succeeded", ledger=1, token=lease.token)


@scenario(
    requires={FENCING, Capability.REAPER, Capability.CLOCK},
    witnesses=[lease_expired, answer_lost("R", "reap"), answered("R", "reap", times=2)],
    each=EACH_LOSS,
    path="gate",
)
def sweep_is_asked_again(race: Race, lost: str) -> None:
    """The reaper's COMMIT is lost, or its answer is: it sweeps again, and the job was requeued once."""
    job = race.enqueue()
    a, r = race.workers("A", "R")

    lease = a.claim(job)
    race.clock.advance_past(lease)
    r.start("reap", faults=[LOST[lost]]).result().unknown()
    race.expect(job, state="ready" if lost == "reply" else "leased", attempts=1)
    recovered = r.reap()

    race.check(recovered == (0 if lost == "reply" else 1), f"the second sweep recovered {recovered}")
    race.expect(job, state="ready", attempts=1, token=lease.token)


@scenario(
    requires={Capability.CANCEL},
    witnesses=[answer_lost("P2", "cancel"), answered("P2", "cancel", times=2)],
    each=EACH_LOSS,
    path="gate",
)
def cancel_is_asked_again(race: Race, lost: str) -> None:
    """The COMMIT of a cancel is lost, or its answer is: asked again the job is cancelled, and nobody gets it."""
    job = race.enqueue()
    p, a = race.workers("P2", "A")

    p.start("cancel", job=job, faults=[LOST[lost]]).result().unknown()
    race.expect(job, state="cancelled" if lost == "reply" else "ready", ledger=0)
    again = p.cancel(job)
    if lost == "request":
        again.accepted()
    race.expect(job, state="cancelled", ledger=0)
    a.finds_nothing()


@scenario(
    requires={Capability.DEAD_LETTER, Capability.RETRY},
    witnesses=[
        answer_lost("P2", "requeue"),
        answered("P2", "requeue", times=2),
        was_accepted("A", "complete"),
    ],
    each=EACH_LOSS,
    path="gate",
)
def requeue_is_asked_again(race: Race, lost: str) -> None:
    """The COMMIT of a dead letter's requeue is lost, or its answer is: asked again there is one new job."""
    dead = race.enqueue(max_attempts=1)
    p, a = race.workers("P2", "A")

    a.fail(a.claim(dead)).accepted()
    p.start("requeue", job=dead, faults=[LOST[lost]]).result().unknown()
    race.check(race.jobs_seen == (2 if lost == "reply" else 1), f"there are {race.jobs_seen} jobs")
    job = p.requeue(dead)
    race.check(race.jobs_seen == 2, f"one dead letter was requeued as {race.jobs_seen - 1} jobs")
    lease = a.claim(job)
    a.complete(lease).accepted()

    race.expect(dead, state="failed", ledger=0)
    race.expect(job, state="succeeded", ledger=1)
