"""A job has succeeded, failed or been cancelled, or is about to: whatever comes late leaves it as it is."""

from __future__ import annotations

from fencepost.harness.adapter import Capability, Claim
from fencepost.harness.race import Participant, Race, Result
from fencepost.harness.scenario import scenario, where
from fencepost.harness.witness import (
    answered,
    came_after_the_end,
    end_of_a_claim_passed,
    lease_expired,
    reaped,
    reclaimed,
    was_held,
)

FENCING = Capability.FENCING
CANCEL = Capability.CANCEL
CHECKPOINTS = Capability.CHECKPOINTS
ENDS = {Capability.RETRY, Capability.DEAD_LETTER, CANCEL}

LATE_WRITES = ("complete", "fail", "heartbeat")

REPEATS = {("succeeded", "complete"), ("failed", "fail")}
"""The same write by the same claim again, as after a lost answer: it gets the same answer."""


@scenario(
    requires={FENCING, Capability.HEARTBEAT, *ENDS},
    witnesses=[came_after_the_end("A", late).where(late=late) for late in LATE_WRITES],
    each={"end": ("succeeded", "failed", "cancelled"), "late": LATE_WRITES},
    needs_where=[where(Capability.REPEATS, end=end, late=late) for end, late in sorted(REPEATS)],
)
def late_write_on_a_finished_job(race: Race, end: str, late: str) -> None:
    """A's job has ended and A writes under its claim once more: nothing changes."""
    job = race.enqueue(max_attempts=1)
    a = race.worker("A")

    lease = a.claim(job)
    a.end(lease, end).accepted()
    answer = _write(a, late, lease)

    if (end, late) in REPEATS:
        answer.accepted()
    else:
        answer.refused("terminal")
    race.expect(job, state=end, ledger=1 if end == "succeeded" else 0)


@scenario(
    requires=ENDS,
    witnesses=[came_after_the_end("C", "cancel")],
    each={"end": ("succeeded", "failed", "cancelled")},
)
def late_cancel(race: Race, end: str) -> None:
    """A job that has ended is cancelled: it stays what it is."""
    job = race.enqueue(max_attempts=1)
    a, c = race.workers("A", "C")

    a.end(a.claim(job), end).accepted()
    answer = c.cancel(job)

    if end != "cancelled":  # a second cancel may be refused or be answered like the first
        answer.refused("terminal")
    race.expect(job, state=end, ledger=1 if end == "succeeded" else 0)


@scenario(
    requires={Capability.REAPER, Capability.CLOCK, *ENDS},
    witnesses=[
        end_of_a_claim_passed,
        came_after_the_end("B", "claim").where(late="claim"),
        came_after_the_end("B", "reap").where(late="reap"),
    ],
    each={
        "end": ("succeeded", "failed", "cancelled"),
        "late": ("claim", "reap"),
    },
)
def time_passes_after_the_end(race: Race, end: str, late: str) -> None:
    """A job has ended and the time of its lease runs out: there is nothing to reap and nothing to claim."""
    job = race.enqueue(max_attempts=1)
    a, b = race.workers("A", "B")

    lease = a.claim(job)
    a.end(lease, end).accepted()
    race.clock.advance_past(lease)
    if late == "reap":
        race.check(b.reap() == 0, "B should find nothing to reap")
    else:
        b.finds_nothing()

    race.expect(job, state=end, ledger=1 if end == "succeeded" else 0)


@scenario(
    requires={FENCING, Capability.HEARTBEAT, Capability.REAPER, *ENDS},
    witnesses=[
        lease_expired,
        reaped("R"),
        *(came_after_the_end("A", late).where(late=late) for late in (*LATE_WRITES, "cancel")),
    ],
    each={"late": (*LATE_WRITES, "cancel")},
)
def late_write_on_a_reaped_dead_letter(race: Race, late: str) -> None:
    """A lost its job's last attempt and a reaper has ended the job: nothing A does to it counts."""
    job = race.enqueue(max_attempts=1)
    a, r = race.workers("A", "R")

    lease = a.claim(job)
    race.clock.advance_past(lease)
    race.check(r.reap() == 1, "R should end the job, its last attempt is lost")
    answer = a.cancel(job) if late == "cancel" else _write(a, late, lease)

    answer.refused("terminal")
    race.expect(job, state="failed", ledger=0, attempts=1)


@scenario(
    requires={FENCING, Capability.RESULT},
    witnesses=[came_after_the_end("A", "complete"), lease_expired, reclaimed],
)
def late_complete_leaves_the_result(race: Race) -> None:
    """B finished A's job and left its result: A's late complete is refused, and the result stays B's."""
    job = race.enqueue()
    a, b = race.workers("A", "B")

    stale = a.claim(job)
    race.clock.advance_past(stale)
    race.recover()
    b.complete(b.claim(job)).accepted()
    a.complete(stale).refused("token_mismatch")

    race.check(
        race.look(job).result == {"by": "B"}, f"the result should be B's, it is {race.look(job).result}"
    )


@scenario(
    requires={FENCING, CANCEL, CHECKPOINTS},
    witnesses=[was_held("A", "complete"), was_held("C", "cancel", "after_guard")],
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
def cancel_against_complete(race: Race, checkpoint: str) -> None:
    """A is held inside its complete while its job is cancelled: one of the two wins, and the other is told."""
    job = race.enqueue()
    a, c = race.workers("A", "C")

    complete = a.start("complete", a.claim(job), hold_at=checkpoint).is_held()
    cancel = c.start("cancel", job=job, hold_at="after_guard")  # so that A's end is seen before C goes on
    complete.go_on()
    cancel.go_on()

    _one_won(race, job, complete.result(), cancel.result())


@scenario(
    requires={FENCING, CANCEL, CHECKPOINTS},
    witnesses=[was_held("C", "cancel"), was_held("A", "complete", "after_guard")],
    each={"checkpoint": ("before_lock", "after_lock", "after_guard", "before_commit", "after_commit")},
)
def complete_against_cancel(race: Race, checkpoint: str) -> None:
    """A's job is being cancelled while A completes it: one of the two wins, and the other is told."""
    job = race.enqueue()
    a, c = race.workers("A", "C")

    lease = a.claim(job)
    cancel = c.start("cancel", job=job, hold_at=checkpoint).is_held()
    complete = a.start("complete", lease, hold_at="after_guard")  # so that C's end is seen before A goes on
    cancel.go_on()
    complete.go_on()

    _one_won(race, job, complete.result(), cancel.result())


@scenario(
    requires={Capability.DEAD_LETTER, Capability.RETRY},
    witnesses=[came_after_the_end("Q", "requeue")],
)
def requeue_of_a_dead_letter(race: Race) -> None:
    """A dead letter is requeued: a new job that names it runs and succeeds, and the dead letter stays."""
    dead = race.enqueue({"order": 1}, max_attempts=1)
    q, a, b = race.workers("Q", "A", "B")

    a.fail(a.claim(dead)).accepted()
    job = q.requeue(dead)
    race.expect(dead, state="failed", attempts=1)
    b.complete(b.claim(job)).accepted()

    race.check(race.look(job).requeued_from in (dead, None), f"job {job} should name {dead}")
    race.check(race.look(job).payload == race.look(dead).payload, f"job {job} has another payload")
    race.expect(job, state="succeeded", ledger=1, attempts=1)
    race.expect(dead, state="failed", ledger=0, attempts=1)


@scenario(
    requires={Capability.DEAD_LETTER, Capability.RETRY, Capability.PRIORITY},
    witnesses=[came_after_the_end("Q", "requeue")],
)
def requeue_keeps_what_was_asked_for(race: Race) -> None:
    """An urgent dead letter with one attempt is requeued: the new job is as urgent, and has as many."""
    dead = race.enqueue(priority=5, max_attempts=1)
    q, a, b = race.workers("Q", "A", "B")

    a.fail(a.claim(dead)).accepted()
    ordinary = race.enqueue(priority=0)
    job = q.requeue(dead)
    leases = [b.claim(), b.claim()]
    for lease in leases:
        b.complete(lease).accepted()

    order = [lease.job for lease in leases]
    race.check(order == [job, ordinary], f"B should get {job} before {ordinary}, it got {order}")
    attempts = race.look(job).max_attempts
    race.check(attempts in (1, None), f"job {job} should have one attempt as {dead} had, it has {attempts}")


@scenario(
    requires={Capability.DEAD_LETTER, CANCEL},
    witnesses=[came_after_the_end("Q", "requeue")],
    each={"end": ("succeeded", "cancelled")},
)
def requeue_of_another_finished_job(race: Race, end: str) -> None:
    """A job that succeeded or was cancelled is requeued as if it were a dead letter: that is refused."""
    job = race.enqueue()
    q, a, b = race.workers("Q", "A", "B")

    a.end(a.claim(job), end).accepted()
    answer = q.try_requeue(job)
    b.finds_nothing()

    answer.refused()
    race.expect(job, state=end)


@scenario(
    requires={Capability.DEAD_LETTER, Capability.RETRY, CHECKPOINTS},
    witnesses=[was_held("Q", "requeue", "before_commit"), answered("Q2", "requeue")],
)
def two_requeues_of_one_dead_letter(race: Race) -> None:
    """Two requeue one dead letter at the same time: they get the same new job, and it runs once."""
    dead = race.enqueue(max_attempts=1)
    q, q2, a, b = race.workers("Q", "Q2", "A", "B")

    a.fail(a.claim(dead)).accepted()
    first = q.start("requeue", job=dead, hold_at="before_commit").is_held()
    second = q2.start("requeue", job=dead)
    first.go_on()
    jobs = {first.result().reply.job, second.result().reply.job}
    a.complete(a.claim()).accepted()
    b.finds_nothing()

    race.check(len(jobs) == 1, f"Q and Q2 should get one job, they got {sorted(map(str, jobs))}")


def _write(worker: Participant, operation: str, claim: Claim) -> Result:
    match operation:
        case "complete":
            return worker.complete(claim)
        case "fail":
            return worker.fail(claim)
    return worker.heartbeat(claim, ttl_s=600.0)


def _one_won(race: Race, job: str, complete: Result, cancel: Result) -> None:
    completed, cancelled = complete.reply.accepted, cancel.reply.accepted
    both = "accepted" if completed else "refused"
    race.check(completed != cancelled, f"complete and cancel of job {job} were both {both}")
    race.expect(job, state="succeeded" if completed else "cancelled", ledger=int(completed))
    (cancel if completed else complete).refused("terminal")
