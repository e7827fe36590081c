"""Jobs: none is lost, doubled, run too early or too often, and a finished one stays finished."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from fencepost.harness.adapter import (
    LIVE_STATES,
    TERMINAL_STATES,
    Capability,
    JobId,
    JobState,
    JobView,
    Json,
    LedgerEntry,
    Observation,
    Outcome,
)
from fencepost.harness.history import Step, StepKind, Violation
from fencepost.harness.invariants.base import SETTLING, US_PER_S, Invariant, taker, verb, who
from fencepost.harness.invariants.movers import FollowsMovers


@dataclass(frozen=True, slots=True)
class _Finished:
    view: JobView
    ledger: tuple[LedgerEntry, ...]


class TerminalAbsorbing(Invariant):
    name = "terminal_absorbing"
    sentence = "A job once succeeded, failed or cancelled never changes again."

    def __init__(self) -> None:
        super().__init__()
        self._finished: dict[JobId, _Finished] = {}
        self._seen: Observation | None = None

    def check(self, step: Step) -> Violation | None:
        after = step.after
        if self._finished:
            self.exercised += 1
        if after is self._seen:
            return None
        self._seen = after
        violation = None
        for job, finished in self._finished.items():
            violation = violation or self._check_job(step, job, finished)
        for view in after.jobs:
            if view.state in TERMINAL_STATES and view.job not in self._finished:
                self._finished[view.job] = _Finished(view, after.ledger_of(view.job))
        return violation

    def _check_job(self, step: Step, job: JobId, finished: _Finished) -> Violation | None:
        then, now = finished.view, step.after.by_job.get(job)
        ledger = step.after.ledger_of(job)
        if now is None:
            # Queues may delete what is finished, with its ledger entries; they may not add to it.
            grown = any(entry not in finished.ledger for entry in ledger)
            return self._changed(step, then, ["its ledger entries"]) if grown else None
        if now.state is not then.state:
            return self.violation(step, job, f"it was {then.state} and became {now.state}")
        changed = [f"its {name}" for name, old, new in _compared(then, now) if old != new]
        if ledger != finished.ledger:
            changed.append("its ledger entries")
        return self._changed(step, then, changed) if changed else None

    def _changed(self, step: Step, then: JobView, what: list[str]) -> Violation:
        return self.violation(step, then.job, f"it was {then.state} and {' and '.join(what)} changed")


def _compared(then: JobView, now: JobView) -> Iterator[tuple[str, object, object]]:
    if then is now:
        return
    yield "token", then.token, now.token
    yield "attempts", then.attempts, now.attempts
    yield "holder", then.holder, now.holder
    yield "next run", then.next_run_at_us, now.next_run_at_us
    yield "result", then.result, now.result


class NoLostJob(FollowsMovers):
    name = "no_lost_job"
    sentence = "A job whose enqueue was accepted is there until an operation that ends it explains its going."

    def __init__(self) -> None:
        super().__init__()
        self._owed: set[JobId] = set()
        self._may_be_gone: set[JobId] = set()
        self._seen: Observation | None = None

    def check(self, step: Step) -> Violation | None:
        self._movers.note(step)
        call, reply = step.call, step.reply
        if call is not None and reply is not None:
            if verb(call) in ("enqueue", "requeue") and reply.accepted and reply.job is not None:
                self._owed.add(reply.job)
                self._seen = None
            elif verb(call) in SETTLING:
                self._note_settled(step)
        if self._owed:
            self.exercised += 1
        if step.after is self._seen:
            return None
        self._seen = step.after
        for job in sorted(self._owed - step.after.by_job.keys() - self._may_be_gone):
            self._owed.discard(job)
            last = step.before.by_job.get(job)
            finished = last is not None and last.state in TERMINAL_STATES
            if not finished and not self._movers.may_have_settled(job, None):
                return self.violation(step, job, "it was enqueued, nobody ended it, and it is gone")
        return None

    def _note_settled(self, step: Step) -> None:
        call, reply = step.call, step.reply
        assert call is not None and reply is not None
        jobs: list[JobId | None] = [claim.job for claim in call.claims] or [call.arguments.get("job")]
        replies = reply.items or (reply,) * len(jobs)
        for job, item in zip(jobs, replies, strict=False):
            if job is not None and item.outcome is not Outcome.REFUSED:
                self._may_be_gone.add(job)


class IdempotentSubmit(Invariant):
    name = "idempotent_submit"
    sentence = "One key is one job of its own with one payload, however often it is submitted."
    needs = frozenset({Capability.IDEMPOTENCY_KEY})

    def __init__(self) -> None:
        super().__init__()
        self._submitted: dict[str, tuple[JobId, Json]] = {}
        self._key_of: dict[JobId, str] = {}  # as submitted: rows may show another form of it
        self._tried: dict[str, int] = {}  # key: the first call that carried it

    def check(self, step: Step) -> Violation | None:
        in_rows, in_answer = self._check_rows(step), self._check_answer(step)
        return in_rows or in_answer

    def _check_rows(self, step: Step) -> Violation | None:
        jobs: dict[str, JobId] = {}
        for view in step.after.jobs:
            if view.key is None:
                continue
            if view.key in jobs:
                message = f"key {view.key!r} has two jobs"
                return self.violation(step, view.job, message)
            jobs[view.key] = view.job
        return None

    def _check_answer(self, step: Step) -> Violation | None:
        call, reply = step.call, step.reply
        if call is None or reply is None or verb(call) != "enqueue":
            return None
        key = call.arguments.get("key")
        if key is None:
            return None
        if self._tried.setdefault(key, call.number) != call.number:
            self.exercised += 1
        if not reply.accepted or reply.job is None:
            return None
        payload = call.arguments.get("payload")
        job, first_payload = self._submitted.get(key, (reply.job, payload))
        if job != reply.job:
            if job not in step.before.by_job:
                # The queue has deleted the finished job and its key with it.
                self._submitted[key] = (reply.job, payload)
                return None
            message = f"{call.actor} submitted key {key!r} again and got another job"
            return self.violation(step, reply.job, message)
        self._submitted[key] = (job, first_payload)
        other_key = self._key_of.setdefault(job, key)
        if other_key != key:
            self.exercised += 1
            message = f"{call.actor} submitted key {key!r} and got the job of key {other_key!r}"
            return self.violation(step, job, message)
        view = step.before.by_job.get(job)
        known = (first_payload,) if view is None or view.payload is None else (first_payload, view.payload)
        if any(other != payload for other in known):
            message = f"{call.actor} submitted key {key!r} with another payload and was accepted"
            return self.violation(step, job, message)
        return None


class AttemptsBounded(Invariant):
    name = "attempts_bounded"
    sentence = "Every claim spends exactly one attempt, and no job has more than its maximum."
    needs = frozenset({Capability.RETRY})

    def __init__(self) -> None:
        super().__init__()
        self._attempts: dict[JobId, int] = {}
        self._claims: dict[JobId, int] = {}

    def check(self, step: Step) -> Violation | None:
        if step.reply is not None:
            for claim in step.reply.claims:
                self._claims[claim.job] = self._claims.get(claim.job, 0) + 1
        spent = False
        violation = None
        for view in step.after.jobs:
            if view.attempts is not None:
                spent = spent or view.attempts > 0
                violation = violation or self._check_job(step, view, view.attempts)
                self._attempts[view.job] = view.attempts
        self.exercised += spent
        return violation

    def _check_job(self, step: Step, view: JobView, attempts: int) -> Violation | None:
        if view.max_attempts is not None and attempts > view.max_attempts:
            message = f"it has had {attempts} attempts of at most {view.max_attempts}"
            return self.violation(step, view.job, message)
        last = self._attempts.get(view.job, attempts)
        if attempts < last:
            return self.violation(step, view.job, f"its attempts went down from {last} to {attempts}")
        claims = self._claims.get(view.job, 0)
        if attempts < claims:
            message = f"it was claimed {claims} times and only {attempts} attempts were spent"
            return self.violation(step, view.job, message)
        before = step.before.by_job.get(view.job)
        if before is None or before.attempts is None or before.token is None or step.kind is StepKind.FREED:
            return None
        if attempts > before.attempts and view.token == before.token:
            return self.violation(step, view.job, f"{who(step)} spent an attempt without a claim")
        return None


class NotBefore(FollowsMovers):
    name = "not_before"
    sentence = "Nobody claims a job before its time."

    def __init__(self) -> None:
        super().__init__()
        self._due_us: dict[JobId, int] = {}
        self._first_step: dict[int, int] = {}  # enqueue in flight: the step it was let go in
        self._seen_since: dict[JobId, int] = {}
        self._carried: dict[str, int] = {}  # key: the first enqueue that carried it
        self._shared_keys: set[str] = set()

    def check(self, step: Step) -> Violation | None:
        self._movers.note(step)
        if not self._seen_since:
            self._seen_since = {view.job: step.number - 1 for view in step.before.jobs}
        if step.call is not None:
            self._note_call(step)
        for view in step.after.jobs:
            self._seen_since.setdefault(view.job, step.number)
        latest_us = self._movers.latest_us(step)
        violation = None
        if step.kind is not StepKind.FREED and step.after is not step.before:
            violation = self._check_rows(step, latest_us)
        return violation or (self._check_promises(step, latest_us) if self._due_us else None)

    def _check_rows(self, step: Step, latest_us: int) -> Violation | None:
        for before in step.before.jobs:
            if before.next_run_at_us is None or before.next_run_at_us <= latest_us:
                continue
            if before.state is not JobState.READY and before.state is not JobState.DELAYED:
                continue
            after = step.after.by_job.get(before.job)
            if after is not None and after.state is JobState.LEASED:
                return self.violation(
                    step, before.job, f"{taker(step, after)} claimed it before its next run was due"
                )
        return None

    def _check_promises(self, step: Step, latest_us: int) -> Violation | None:
        for job, due_us in tuple(self._due_us.items()):
            view = step.after.by_job.get(job)
            if latest_us >= due_us:
                del self._due_us[job]
            elif view is not None and view.state is JobState.LEASED:
                del self._due_us[job]
                message = f"{taker(step, view)} claimed it before the delay it was enqueued with"
                return self.violation(step, job, message)
        return None

    def _note_call(self, step: Step) -> None:
        call, reply = step.call, step.reply
        assert call is not None
        if verb(call) == "claim":
            self.exercised += _somebody_waits(step.before)
            return
        if verb(call) != "enqueue":
            return
        started = self._first_step.setdefault(call.number, step.number)
        key = call.arguments.get("key")
        if key is not None and self._carried.setdefault(key, call.number) != call.number:
            self._shared_keys.add(key)
        if reply is None:
            return
        del self._first_step[call.number]
        delay_s = call.arguments.get("delay_s")
        if not delay_s or not reply.accepted or reply.job is None:
            return
        # Answered with a job that was there before, or that another enqueue made, it promises no delay.
        if key not in self._shared_keys and self._seen_since.get(reply.job, started) >= started:
            reckoned_from_us = self._movers.reckoned_from_us(call, step)
            self._due_us[reply.job] = reckoned_from_us + int(delay_s * US_PER_S)


def _somebody_waits(observation: Observation) -> bool:
    return any(
        view.next_run_at_us is not None
        and view.next_run_at_us > observation.at_us
        and view.state in (JobState.READY, JobState.DELAYED)
        for view in observation.jobs
    )


class Converges(Invariant):
    name = "converges"
    sentence = "After the faults stop, every job reaches a terminal state in a bounded number of operations."

    def check(self, step: Step) -> Violation | None:
        if step.kind is not StepKind.END:
            return None
        self.exercised += bool(step.after.jobs)
        live = [view for view in step.after.jobs if view.state in LIVE_STATES]
        if not live:
            return None
        named = ", ".join(f"{view.job} is {view.state}" for view in live)
        return self.violation(step, live[0].job, f"at the end {named}")


class OnePlace(Invariant):
    name = "one_place"
    sentence = "A live job is in exactly one of ready, delayed and leased."

    def check(self, step: Step) -> Violation | None:
        anybody_live = False
        for view in step.after.jobs:
            places = view.places
            if places is None:
                anybody_live = anybody_live or view.state in LIVE_STATES
                continue
            live = places & LIVE_STATES
            if not live and view.state not in LIVE_STATES:
                continue
            anybody_live = True
            if len(live) != 1 or len(places) != 1:
                self.exercised += 1
                return self.violation(step, view.job, _whereabouts(view.state, places))
        self.exercised += anybody_live
        return None


def _whereabouts(state: JobState, places: frozenset[JobState]) -> str:
    if not places:
        return "it is nowhere"
    named = " and ".join(sorted(places))
    return f"it is {named} at the same time" if len(places) > 1 else f"it is {named} and shown as {state}"
