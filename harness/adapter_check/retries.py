"""Attempts: how often a job is tried again, how long it waits before, and what becomes of it in the end."""

from __future__ import annotations

from fencepost.harness.adapter import LIVE_STATES, Capability, JobId, JobState
from fencepost.harness.adapter_check.findings import Check, NotMade, Wrong, why
from fencepost.harness.adapter_check.hands import Hands

MOST_ATTEMPTS = 50
"""A queue that tries a job more often than this is not waited for."""
FAILURES = 3
GROWTH = 1.05
"""What a wait must have grown to by then: more than what passes between a failure and the look at it."""


def attempts_are_bounded(hands: Hands) -> None:
    job = hands.enqueue(max_attempts=2)
    _fails(hands, job)
    view = hands.observe().by_job.get(job)
    if view is None or view.state not in (JobState.READY, JobState.DELAYED):
        shown = "not shown any more" if view is None else f"shown as {view.state}"
        raise Wrong(
            f"a job with two attempts failed once and is {shown}.",
            "Let a job with attempts left wait for the next one.",
        )
    if not hands.make_due(job):
        return
    _fails(hands, job)
    view = hands.observe().by_job.get(job)
    if view is not None and view.state in LIVE_STATES:
        raise Wrong(
            f"a job with two attempts failed twice and is shown as {view.state}.",
            "Let a job end with its last attempt: max_attempts counts attempts, not retries.",
        )


def lost_leases_are_attempts(hands: Hands) -> None:
    job = hands.enqueue(max_attempts=2)
    for attempt in (1, 2):
        claim = hands.claim("A", job)
        shown = hands.view(job, "while it was leased").attempts
        if shown is not None and shown != attempt:
            raise Wrong(
                f"claim number {attempt} of a job shows {shown} attempts.",
                "Count each claim as an attempt, also one whose lease was lost.",
            )
        hands.pass_lease(claim)
        hands.recover()
    if hands.try_claim("B") is not None:
        raise Wrong(
            "a job with two attempts lost two leases and was claimed a third time.",
            "Count each claim as an attempt, also one whose lease was lost.",
        )


def waits_grow(hands: Hands) -> None:
    job = _enqueue_for(hands, FAILURES + 1)
    waits_us: list[int] = []
    for _ in range(FAILURES):
        _fails(hands, job)
        observation = hands.observe()
        view = observation.by_job.get(job)
        if view is None or view.state is not JobState.DELAYED or view.next_run_at_us is None:
            shown = "not shown" if view is None else f"shown as {view.state}"
            raise Wrong(
                f"a job that failed is {shown}, and for when, next_run_at_us says: "
                f"{None if view is None else view.next_run_at_us}.",
                "Show a job that waits for its retry as delayed, with next_run_at_us.",
            )
        waits_us.append(view.next_run_at_us - observation.at_us)
        if not hands.make_due(job):
            return
    if waits_us[-1] < waits_us[0] * GROWTH:
        raise Wrong(
            f"after failure {FAILURES} a job waits {waits_us[-1] / 1e6:.1f} s, "
            f"after the first {waits_us[0] / 1e6:.1f} s.",
            "Let the wait before a retry grow with every failure.",
        )


def dead_letters_stay(hands: Hands) -> None:
    job = _enqueue_for(hands, 1)
    for _ in range(MOST_ATTEMPTS):
        _fails(hands, job)
        view = hands.observe().by_job.get(job)
        if view is None or view.state not in (JobState.READY, JobState.DELAYED):
            break
        if not hands.make_due(job):
            raise NotMade("the job waits for its next attempt, and this server's clock cannot be moved")
    if view is None or view.state is not JobState.FAILED:
        raise Wrong(
            f"a job out of attempts is {'not shown any more' if view is None else f'shown as {view.state}'}.",
            "Keep it, and show it as failed.",
        )
    if hands.try_claim("A") is not None:
        raise Wrong(
            "a job out of attempts can be claimed.", "Let claim leave alone what has failed for good."
        )
    again = hands.do("O", "requeue", job=job)
    after = hands.observe().by_job
    if again.job is None or again.job == job or again.job not in after:
        raise Wrong(
            f"requeue of a dead letter made no new job (it answered {again.job or why(again)}).",
            "Let requeue make a new job, and return its id.",
        )
    if job not in after or after[job].state is not JobState.FAILED:
        raise Wrong("requeue of a dead letter changed the dead letter.", "Leave it as it is: failed.")
    if (claim := hands.try_claim("A")) is None or claim.job != again.job:
        raise Wrong(
            "the job that requeue made cannot be claimed.", "Let requeue make a job that is due at once."
        )


def _enqueue_for(hands: Hands, attempts: int) -> JobId:
    """With so many attempts, where that can be said."""
    if hands.capabilities & {Capability.MAX_ATTEMPTS, Capability.RETRY}:
        return hands.enqueue(max_attempts=attempts)
    return hands.enqueue()


def _fails(hands: Hands, job: JobId) -> None:
    hands.accepted("A", "fail", hands.claim("A", job), error="checked")


FAILS = ("fail settles",)


def _probe(capability: Capability) -> frozenset[Capability]:
    return frozenset({capability})


RETRIES = (
    Check(
        "attempts are bounded",
        attempts_are_bounded,
        _probe(Capability.MAX_ATTEMPTS),
        after=FAILS,
        probes=Capability.MAX_ATTEMPTS,
    ),
    Check(
        "lost leases are attempts",
        lost_leases_are_attempts,
        _probe(Capability.RETRY),
        after=("an expired lease is recovered", "attempts are bounded"),
        probes=Capability.RETRY,
    ),
    Check(
        "waits grow",
        waits_grow,
        _probe(Capability.BACKOFF),
        after=(*FAILS, "attempts are bounded", "a delayed job waits"),
        probes=Capability.BACKOFF,
    ),
    Check(
        "dead letters stay",
        dead_letters_stay,
        _probe(Capability.DEAD_LETTER),
        after=(*FAILS, "attempts are bounded"),
        probes=Capability.DEAD_LETTER,
    ),
)
