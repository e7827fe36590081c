"""What a lease's holder writes: it counts, for its own job, and the ledger and the result show it."""

from __future__ import annotations

from fencepost.harness.adapter import GUARD_PASSED, Capability, JobState, LedgerEntry, Outcome
from fencepost.harness.adapter_check.findings import Check, Wrong, why
from fencepost.harness.adapter_check.hands import Hands


def completes(hands: Hands) -> None:
    job = hands.enqueue()
    reply = hands.do("A", "complete", hands.claim("A", job))
    if reply.outcome is not Outcome.ACCEPTED:
        raise Wrong(
            f"complete under a live lease was {reply.outcome.value} ({why(reply)}).",
            "Accept what the lease's holder writes.",
        )
    view = hands.observe().by_job.get(job)
    if view is not None and view.state is not JobState.SUCCEEDED:
        raise Wrong(
            f"a completed job is shown as {view.state}.",
            "Show it as succeeded or, where the row is deleted, not at all; commit before answering.",
        )


def fails(hands: Hands) -> None:
    job = hands.enqueue()
    reply = hands.do("A", "fail", hands.claim("A", job), error="checked")
    if reply.outcome is not Outcome.ACCEPTED:
        raise Wrong(
            f"fail under a live lease was {reply.outcome.value} ({why(reply)}).",
            "Accept what the lease's holder writes.",
        )
    view = hands.observe().by_job.get(job)
    if view is not None and view.state in (JobState.LEASED, JobState.SUCCEEDED):
        raise Wrong(
            f"a job whose holder reported a failure is shown as {view.state}.",
            "Show it as ready or delayed if it is tried again, as failed if not.",
        )


def ledger_is_there(hands: Hands) -> None:
    job = hands.enqueue()
    hands.do("A", "complete", hands.claim("A", job))
    entries = hands.observe().ledger_of(job)
    if len(entries) != 1 or not isinstance(entries[0], LedgerEntry):
        raise Wrong(
            f"the ledger shows {len(entries)} entries for one completed job.",
            "Show one LedgerEntry for each accepted completion, or take LEDGER out of the capabilities.",
        )


def one_write_touches_one_job(hands: Hands) -> None:
    for operation in ("complete", "fail"):
        hands.reset()
        jobs = {hands.enqueue() for _ in range(3)}
        mine, other = hands.try_claim("A"), hands.try_claim("B")
        if mine is None or other is None or mine.job == other.job:
            raise Wrong(
                "of three jobs that were enqueued, two workers could not claim one each.",
                "Let claim take any job that is due, and each job once.",
            )
        before = [hands.view(job, "beside others") for job in sorted(jobs - {mine.job})]
        arguments = {"error": "checked"} if operation == "fail" else {}
        hands.accepted("A", operation, mine, **arguments)
        hands.unchanged(before, f"{operation} of job {mine.job}")


def reset_removes_everything(hands: Hands) -> None:
    completed = hands.claim("A", hands.enqueue())
    hands.accepted("A", "complete", completed)
    attempts = {"max_attempts": 1} if Capability.MAX_ATTEMPTS in hands.capabilities else {}
    failed = hands.claim("A", hands.enqueue(**attempts))
    hands.accepted("A", "fail", failed, error="checked")
    hands.reset()
    seen = hands.observe()
    for job, what in ((completed.job, "completed"), (failed.job, "failed")):
        if job in seen.by_job:
            raise Wrong(
                f"after reset() observe() still shows a {what} job.",
                "Let reset() remove finished and failed jobs as well, wherever the queue keeps them.",
            )
    if seen.ledger:
        raise Wrong(
            f"after reset() the ledger still has {len(seen.ledger)} entries.",
            "Let reset() remove the ledger's entries.",
        )


def result_is_kept(hands: Hands) -> None:
    job = hands.enqueue()
    result = {"answer": 42}
    hands.accepted("A", "complete", hands.claim("A", job), result=result)
    view = hands.observe().by_job.get(job)
    if view is None or view.result != result:
        shown = "nothing" if view is None else repr(view.result)
        raise Wrong(
            f"a job was completed with the result {result}, and observe() shows {shown}.",
            "Keep the result in the transaction that completes the job, and show it.",
        )


def repeats_are_recognised(hands: Hands) -> None:
    for operation, arguments in (("complete", {}), ("fail", {"error": "checked"})):
        hands.reset()
        claim = hands.claim("A", hands.enqueue())
        hands.accepted("A", operation, claim, **arguments)
        before = hands.observe()
        again = hands.do("A", operation, claim, **arguments)
        if not (again.accepted and again.repeated):
            answer = "accepted as new" if again.accepted else f"{again.outcome.value} ({why(again)})"
            raise Wrong(
                f"{operation} asked again under its own claim was {answer}.",
                "Answer accepted(repeated=True) to the same write under the same claim.",
            )
        after = hands.observe()
        if (before.jobs, before.ledger) != (after.jobs, after.ledger):
            raise Wrong(
                f"{operation} asked again under its own claim changed the rows.",
                "Let a repeated write change nothing.",
            )


def checkpoints_are_passed(hands: Hands) -> None:
    for operation, arguments in (("complete", {}), ("fail", {"error": "checked"})):
        claim = hands.claim("A", hands.enqueue())
        hands.accepted("A", operation, claim, **arguments)
        passed = hands.passed("A")
        if GUARD_PASSED not in passed:
            raise Wrong(
                f"{operation} passed {', '.join(passed) or 'no checkpoint'}, and not {GUARD_PASSED!r}.",
                f"Call actor.checkpoint({GUARD_PASSED!r}) where a write has been judged and holds the row.",
            )


def warm_workers_forget(hands: Hands) -> None:
    """What a bench does between two races: the rows are reset, the workers stay."""
    for time in ("first", "second"):
        job = hands.enqueue()
        reply = hands.do("A", "complete", hands.claim("A", job))
        view = hands.observe().by_job.get(job)
        if not reply.accepted or (view is not None and view.state is not JobState.SUCCEEDED):
            raise Wrong(
                f"a worker that was kept over a reset() could not complete its {time} job.",
                "Let a worker keep nothing but its connections.",
            )
        hands.claim("A", hands.enqueue())  # one that the reset takes away from it
        hands.reset()


def cancel_ends_a_job(hands: Hands) -> None:
    leased = hands.enqueue()
    claim = hands.claim("A", leased)
    waiting = hands.enqueue()
    for job, what in ((waiting, "waits"), (leased, "is leased")):
        hands.accepted("B", "cancel", job=job)
        view = hands.observe().by_job.get(job)
        if view is not None and view.state is not JobState.CANCELLED:
            raise Wrong(
                f"a job that {what} was cancelled and is shown as {view.state}.",
                "Show it as cancelled or, where the row is deleted, not at all.",
            )
    if hands.try_claim("B") is not None:
        raise Wrong("a cancelled job can be claimed.", "Let claim leave alone what was cancelled.")
    hands.do("A", "complete", claim)
    view = hands.observe().by_job.get(leased)
    if view is not None and view.state is not JobState.CANCELLED:
        raise Wrong(
            f"a leased job was cancelled, its holder completed it, and it is shown as {view.state}.",
            "Refuse the writes of a lease whose job was cancelled.",
        )


SETTLED = ("complete settles", "fail settles")

WRITES = (
    Check("complete settles", completes, after=("a lease has its length",)),
    Check("fail settles", fails, after=("a lease has its length",)),
    Check(
        "completions are in the ledger",
        ledger_is_there,
        frozenset({Capability.LEDGER}),
        after=("complete settles",),
        probes=Capability.LEDGER,
    ),
    Check("one write touches one job", one_write_touches_one_job, after=(*SETTLED, "a live lease is kept")),
    Check("reset removes everything", reset_removes_everything, after=SETTLED),
    Check(
        "results are kept",
        result_is_kept,
        frozenset({Capability.RESULT}),
        after=("complete settles",),
        probes=Capability.RESULT,
    ),
    Check(
        "repeated writes are recognised",
        repeats_are_recognised,
        frozenset({Capability.REPEATS}),
        after=SETTLED,
        probes=Capability.REPEATS,
    ),
    Check(
        "checkpoints are passed",
        checkpoints_are_passed,
        frozenset({Capability.CHECKPOINTS}),
        after=SETTLED,
        probes=Capability.CHECKPOINTS,
    ),
    Check(
        "warm workers forget",
        warm_workers_forget,
        frozenset({Capability.WARM_WORKERS}),
        after=("complete settles", "reset removes everything"),
        probes=Capability.WARM_WORKERS,
    ),
    Check(
        "cancel ends a job",
        cancel_ends_a_job,
        frozenset({Capability.CANCEL}),
        probes=Capability.CANCEL,
    ),
)
