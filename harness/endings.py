"""How a job ended whose row is gone: queues may delete what is over. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fencepost.harness.adapter import UNSPECIFIED, JobId, JobState, Observation, Outcome
from fencepost.harness.history import Call, Reply, Step
from fencepost.harness.invariants.base import answers_of, verb

UNKNOWN_JOB = "unknown_job"

STATE_AFTER: Mapping[str, JobState] = {
    "complete": JobState.SUCCEEDED,
    "fail": JobState.FAILED,
    "cancel": JobState.CANCELLED,
}


def ended_as(steps: Sequence[Step], job: JobId) -> JobState | None:
    """By the call that took its row away; None where no such call was seen, and where it was refused."""
    for step in reversed(steps):
        if job not in step.before.by_job or job in step.after.by_job:
            continue
        if step.call is not None and verb(step.call) in STATE_AFTER and _may_have_ended(step.call, job):
            return STATE_AFTER[verb(step.call)]
    return None


def _may_have_ended(call: Call, job: JobId) -> bool:
    if not call.claims:
        named = call.arguments.get("job") == job
        return named and (call.reply is None or call.reply.outcome is not Outcome.REFUSED)
    if call.reply is None:
        return any(claim.job == job for claim in call.claims)
    return any(claim.job == job and reply.outcome is not Outcome.REFUSED for claim, reply in answers_of(call))


def says_why(reply: Reply, reason: str, *, row_is_gone: bool) -> bool:
    """Whether a refusal has this reason, or says no more than the queue can know.

    Of a job whose row is deleted with its end a queue knows nothing: not that a token is old, or a lease over.
    """
    return reply.reason in (reason, UNSPECIFIED) or (row_is_gone and reply.reason == UNKNOWN_JOB)


def is_gone(observation: Observation, call: Call) -> bool:
    """Whether the job that a call is about is in nobody's rows."""
    return any(claim.job not in observation.by_job for claim in call.claims)
