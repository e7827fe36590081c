"""Witnesses: what a scenario declares as proof that its race really happened.

A witness is a sentence and a predicate over the history and the journal. The run's own drain at the end does
not count: only what the scenario's actors did.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from fencepost.harness.adapter import TERMINAL_STATES, JobId, JobState, JobView, Observation, Outcome
from fencepost.harness.endings import is_gone, says_why
from fencepost.harness.history import CallStatus, Execution, Step, StepKind
from fencepost.harness.invariants.base import US_PER_S
from fencepost.harness.sink import EFFECT

_Predicate = Callable[[Sequence[Step], Sequence[Execution]], bool]


@dataclass(frozen=True, slots=True)
class Witness:
    sentence: str
    seen: _Predicate
    asked_of: str = "every run"
    """`the race` or `the control`, of a classified scenario: the control run leaves out the fault itself."""
    chosen: Mapping[str, str] = field(default_factory=dict)
    """Only of the variants with these values: what happens in one need not happen in another."""

    def of_the_race(self) -> Witness:
        return replace(self, asked_of="the race")

    def of_the_control(self) -> Witness:
        return replace(self, asked_of="the control")

    def where(self, **chosen: str) -> Witness:
        return replace(self, chosen=chosen)

    def is_asked(self, *, control: bool, chosen: Mapping[str, str]) -> bool:
        asked = self.asked_of != ("the race" if control else "the control")
        return asked and all(chosen[name] == value for name, value in self.chosen.items())


def _reclaimed(steps: Sequence[Step], executions: Sequence[Execution]) -> bool:
    jobs = [execution.job for execution in executions]
    return len(jobs) != len(set(jobs))


reclaimed = Witness("a second claim of one job, in the journal of executions", _reclaimed)


def _some_lease_expired(steps: Sequence[Step], executions: Sequence[Execution]) -> bool:
    return any(step.kind is StepKind.CLOCK and _expired_between(step.before, step.after) for step in steps)


def _expired_between(before: Observation, after: Observation) -> bool:
    return bool(leases_expired_between(before, after))


def leases_expired_between(before: Observation, after: Observation) -> list[str]:
    """Jobs whose lease was live before and is past now, by database time."""
    return [
        view.job
        for view in before.jobs
        if view.state is JobState.LEASED
        and view.lease_until_us is not None
        and view.lease_until_us > before.at_us
        and _is_past(after, view.job)
    ]


def _is_past(after: Observation, job: str) -> bool:
    view = after.by_job.get(job)
    return view is None or view.lease_until_us is None or view.lease_until_us <= after.at_us


lease_expired = Witness("a live lease expired when the clock was moved", _some_lease_expired)


def _kept_past_its_claim(steps: Sequence[Step], executions: Sequence[Execution]) -> bool:
    first_end_us: dict[tuple[str, int | None], int] = {}
    for step in steps:
        if step.reply is not None:
            for claim in step.reply.claims:
                view = step.after.by_job.get(claim.job)
                end_us = claim.lease_until_us or (view.lease_until_us if view is not None else None)
                if end_us is not None:
                    first_end_us[claim.job, claim.token] = end_us
        if step.kind is StepKind.CLOCK and any(
            view.state is JobState.LEASED
            and view.lease_until_us is not None
            and first_end_us.get((view.job, view.token), step.after.at_us)
            < step.after.at_us
            < view.lease_until_us
            for view in step.after.jobs
        ):
            return True
    return False


kept_past_its_claim = Witness(
    "a lease was still live when the clock had passed the end its claim was given", _kept_past_its_claim
)


def time_passed(seconds: float) -> Witness:
    """For a clock that is moved and expires nothing. By the server's time, not by what was asked for."""

    def seen(steps: Sequence[Step], executions: Sequence[Execution]) -> bool:
        moved_us = sum(step.after.at_us - step.before.at_us for step in steps if step.kind is StepKind.CLOCK)
        return moved_us >= seconds * US_PER_S

    return Witness(f"the clock was moved by {seconds:g} s", seen)


def came_long_after_its_claim(actor: str, operation: str, seconds: float) -> Witness:
    def seen(steps: Sequence[Step], executions: Sequence[Execution]) -> bool:
        claimed_us: dict[tuple[JobId, int | None], int] = {}
        for step in steps:
            if step.call is None or step.reply is None:
                continue
            claimed_us |= {(claim.job, claim.token): step.after.at_us for claim in step.reply.claims}
            if step.actor == actor and step.call.operation == operation:
                for claim in step.call.claims:
                    since_us = claimed_us.get((claim.job, claim.token), step.before.at_us)
                    if step.before.at_us - since_us >= seconds * US_PER_S:
                        return True
        return False

    return Witness(f"{actor}'s {operation} came {seconds:g} s after its claim", seen)


def _some_end_passed(steps: Sequence[Step], executions: Sequence[Execution]) -> bool:
    ends_us: list[int] = []
    for step in steps:
        if step.reply is not None:
            for claim in step.reply.claims:
                view = step.after.by_job.get(claim.job)
                end_us = claim.lease_until_us or (view.lease_until_us if view is not None else None)
                ends_us += [] if end_us is None else [end_us]
        if step.kind is StepKind.CLOCK and any(
            step.before.at_us < end_us <= step.after.at_us for end_us in ends_us
        ):
            return True
    return False


end_of_a_claim_passed = Witness(
    "the clock was moved past the end a claim had been given, whatever became of the job", _some_end_passed
)


def reaped(*actors: str, times: int = 1) -> Witness:
    """By one of these reapers, in so many sweeps."""

    def seen(steps: Sequence[Step], executions: Sequence[Execution]) -> bool:
        return len(_sweeps_that_recovered(steps, actors)) >= times

    often = f" in {times} sweeps" if times > 1 else ""
    return Witness(f"{' or '.join(actors)} recovered a lost lease{often}", seen)


def _sweeps_that_recovered(steps: Sequence[Step], actors: Sequence[str]) -> list[Step]:
    return [
        step
        for step in steps
        if step.actor in actors
        and step.call is not None
        and step.call.operation == "reap"
        and step.reply is not None
        and step.reply.count
    ]


def met_more_than_its_bound(actor: str) -> Witness:
    def seen(steps: Sequence[Step], executions: Sequence[Execution]) -> bool:
        return any(
            step.actor == actor
            and step.call is not None
            and step.call.operation == "reap"
            and step.reply is not None
            and len(_lost(step.before)) > step.call.arguments.get("limit", len(_lost(step.before)))
            for step in steps
        )

    return Witness(f"more leases were lost than {actor}'s sweep was to recover", seen)


def _lost(rows: Observation) -> list[JobId]:
    return [view.job for view in rows.jobs if view.state is JobState.LEASED and _is_past(rows, view.job)]


def more_lost_after_a_sweep(actor: str) -> Witness:
    def seen(steps: Sequence[Step], executions: Sequence[Execution]) -> bool:
        swept = _sweeps_that_recovered(steps, [actor])
        return bool(swept) and _some_lease_expired(
            [step for step in steps if step.number > swept[0].number], ()
        )

    return Witness(f"a lease expired after {actor} had recovered others", seen)


def asked_shortly_before(actor: str, operation: str, within_s: float) -> Witness:
    """Before a live lease would end, or a waiting job be due: where a queue that comes too early is found."""

    def seen(steps: Sequence[Step], executions: Sequence[Execution]) -> bool:
        return any(
            step.actor == actor
            and step.call is not None
            and step.call.operation == operation
            and step.reply is not None
            and any(
                0 < moment_us - step.before.at_us <= within_s * US_PER_S
                for view in step.before.jobs
                if (moment_us := _next_moment_us(view)) is not None
            )
            for step in steps
        )

    return Witness(
        f"{actor}'s {operation} came {within_s:g} s at most before a lease's end or a job's time", seen
    )


def _next_moment_us(view: JobView) -> int | None:
    return view.lease_until_us if view.state is JobState.LEASED else view.next_run_at_us


def named_twice(actor: str, operation: str) -> Witness:
    def seen(steps: Sequence[Step], executions: Sequence[Execution]) -> bool:
        return any(
            step.actor == actor
            and step.call is not None
            and step.call.operation == operation
            and step.reply is not None
            and len({claim.job for claim in step.call.claims}) < len(step.call.claims)
            for step in steps
        )

    return Witness(f"{actor}'s {operation} named a job twice", seen)


def found_nothing(actor: str) -> Witness:
    """The outcome declared instead of a reclaim: the job was not to be had."""

    def seen(steps: Sequence[Step], executions: Sequence[Execution]) -> bool:
        return any(
            step.actor == actor
            and step.call is not None
            and step.call.operation == "claim"
            and step.reply is not None
            and step.reply.accepted
            and not step.reply.claims
            for step in steps
        )

    return Witness(f"{actor}'s claim found nothing", seen)


def was_blocked(actor: str, operation: str) -> Witness:
    def seen(steps: Sequence[Step], executions: Sequence[Execution]) -> bool:
        return any(
            step.actor == actor
            and step.call is not None
            and step.call.operation == operation
            and step.status is CallStatus.BLOCKED
            for step in steps
        )

    return Witness(f"{actor}'s {operation} waited for a lock another actor held", seen)


def was_held(actor: str, operation: str, checkpoint: str | None = None) -> Witness:
    """At this checkpoint, or at any."""

    def seen(steps: Sequence[Step], executions: Sequence[Execution]) -> bool:
        return any(
            step.actor == actor
            and step.call is not None
            and step.call.operation == operation
            and step.status is CallStatus.PARKED
            and (checkpoint is None or step.checkpoint == checkpoint)
            for step in steps
        )

    return Witness(f"{actor}'s {operation} was held at {checkpoint or 'a checkpoint'}", seen)


def was_cut_off(actor: str, operation: str) -> Witness:
    def seen(steps: Sequence[Step], executions: Sequence[Execution]) -> bool:
        return any(
            step.actor == actor
            and step.call is not None
            and step.call.operation == operation
            and step.status is CallStatus.CUT_OFF
            for step in steps
        )

    return Witness(f"{actor}'s {operation} waited for a path that let nothing through", seen)


def answer_lost(actor: str, operation: str) -> Witness:
    def seen(steps: Sequence[Step], executions: Sequence[Execution]) -> bool:
        return any(
            step.actor == actor
            and step.call is not None
            and step.call.operation == operation
            and step.reply is not None
            and step.reply.outcome is Outcome.UNKNOWN
            for step in steps
        )

    return Witness(f"the answer to {actor}'s {operation} was lost", seen)


def struck(*faults: str, times: int = 1) -> Witness:
    """One of these faults, or any."""

    def seen(steps: Sequence[Step], executions: Sequence[Execution]) -> bool:
        strikes = [s for s in steps if s.kind is StepKind.FAULT and (not faults or s.fault in faults)]
        return len(strikes) >= times

    named = " or ".join(faults) or "a fault"
    return Witness(f"{named} struck" + (f" {times} times" if times > 1 else ""), seen)


def was_refused(actor: str, operation: str, reason: str | None = None) -> Witness:
    def seen(steps: Sequence[Step], executions: Sequence[Execution]) -> bool:
        return any(
            step.actor == actor
            and step.call is not None
            and step.call.operation == operation
            and step.reply is not None
            and any(
                not reply.accepted
                and (reason is None or says_why(reply, reason, row_is_gone=is_gone(step.before, step.call)))
                for reply in (step.reply, *step.reply.items)
            )
            for step in steps
        )

    because = f" with {reason}" if reason else ""
    return Witness(f"{actor}'s {operation} was refused{because}", seen)


def answered(actor: str, operation: str, times: int = 1) -> Witness:
    """For an operation that may win or lose: it took part, whatever came of it."""

    def seen(steps: Sequence[Step], executions: Sequence[Execution]) -> bool:
        answers = [
            step
            for step in steps
            if step.actor == actor
            and step.call is not None
            and step.call.operation == operation
            and step.reply is not None
        ]
        return len(answers) >= times

    often = f" {times} times" if times > 1 else ""
    return Witness(f"{actor}'s {operation} was answered{often}", seen)


def was_accepted(actor: str, operation: str, times: int = 1) -> Witness:
    def seen(steps: Sequence[Step], executions: Sequence[Execution]) -> bool:
        accepted = [
            step
            for step in steps
            if step.actor == actor
            and step.call is not None
            and step.call.operation == operation
            and step.reply is not None
            and step.reply.accepted
        ]
        return len(accepted) >= times

    often = f" {times} times" if times > 1 else ""
    return Witness(f"{actor}'s {operation} was accepted{often}", seen)


def _some_job_came_due(steps: Sequence[Step], executions: Sequence[Execution]) -> bool:
    return any(
        step.kind is StepKind.CLOCK
        and any(
            view.state in (JobState.READY, JobState.DELAYED)
            and view.next_run_at_us is not None
            and step.before.at_us < view.next_run_at_us <= step.after.at_us
            for view in step.before.jobs
        )
        for step in steps
    )


came_due = Witness("a waiting job's time came when the clock was moved", _some_job_came_due)


def key_submitted(key: str, times: int = 2) -> Witness:
    def seen(steps: Sequence[Step], executions: Sequence[Execution]) -> bool:
        answered = [
            step
            for step in steps
            if step.call is not None
            and step.call.operation == "enqueue"
            and step.call.arguments.get("key") == key
            and step.reply is not None
        ]
        return len(answered) >= times

    return Witness(f"{times} enqueues with the key {key!r} were answered", seen)


def came_after_the_end(actor: str, *operations: str) -> Witness:
    """One of these operations, or any."""

    def seen(steps: Sequence[Step], executions: Sequence[Execution]) -> bool:
        return any(
            step.actor == actor
            and step.call is not None
            and (not operations or step.call.operation in operations)
            and step.reply is not None
            and any(view.state in TERMINAL_STATES for view in step.before.jobs)
            for step in steps
        )

    named = " or ".join(operations) or "operation"
    return Witness(f"{actor}'s {named} came when a job had ended", seen)


def _some_effect_doubled(steps: Sequence[Step], executions: Sequence[Execution]) -> bool:
    effects = {
        (claim.job, claim.token)
        for step in steps
        if step.call is not None
        and step.call.operation == EFFECT
        and step.reply is not None
        and step.reply.accepted
        for claim in step.call.claims
    }
    return len(effects) > len({job for job, _ in effects})


effect_doubled = Witness(
    "an outside system did the work of one job for two claims of it", _some_effect_doubled
)
