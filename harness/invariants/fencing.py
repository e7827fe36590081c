"""Tokens: they only rise, and a write under one that is no longer current has no effect."""

from __future__ import annotations

from dataclasses import dataclass, field

from fencepost.harness.adapter import Capability, Claim, JobId, JobState, JobView, Observation, Outcome
from fencepost.harness.history import Call, Reply, Step, StepKind, Violation
from fencepost.harness.invariants.base import Invariant, answers, applied, token_of, ttl_us, verb, who
from fencepost.harness.invariants.movers import FollowsMovers, acts_on

_WRITES = frozenset({"complete", "fail", "heartbeat"})


class TokenMonotone(Invariant):
    name = "token_monotone"
    sentence = "A job's token never goes down, and every claim gets a higher one than any claim before it."
    needs = frozenset({Capability.FENCING})

    def __init__(self) -> None:
        super().__init__()
        self._rises: dict[JobId, list[tuple[int, int]]] = {}  # job: (step, token it rose to), rising
        self._first_step: dict[int, int] = {}  # call in flight: the step it was let go in
        self._claimed: dict[tuple[JobId, int], int] = {}  # the call that was given the token

    def check(self, step: Step) -> Violation | None:
        call = step.call
        if call is not None:
            self._first_step.setdefault(call.number, step.number)
        if not self._rises:
            self._remember(step.before.jobs, step.number - 1)
        violation = self._check_rows(step) or self._check_claims(step)
        self._remember(step.after.jobs, step.number)
        if call is not None and step.reply is not None:
            self._first_step.pop(call.number, None)
            for claim in step.reply.claims:
                if claim.token is not None:
                    self._rise(claim.job, claim.token, step.number)
        return violation

    def _check_rows(self, step: Step) -> Violation | None:
        for view in step.after.jobs:
            rises = self._rises.get(view.job)
            if rises is None or view.token is None:
                continue
            highest = rises[-1][1]
            if view.token < highest:
                return self.violation(step, view.job, f"its token went down from {highest} to {view.token}")
        return None

    def _check_claims(self, step: Step) -> Violation | None:
        """Against what was committed when the claim was let go: its answer may come after a later claim's."""
        call, reply = step.call, step.reply
        if call is None or reply is None:
            return None
        for claim in reply.claims:
            if claim.token is None:
                continue
            self.exercised += 1
            first = self._claimed.setdefault((claim.job, claim.token), call.number)
            if first != call.number:
                return self.violation(step, claim.job, f"token {claim.token} was given to two claims")
            started = self._first_step[call.number]
            known = [token for at, token in self._rises.get(claim.job, ()) if at < started]
            if known and claim.token <= known[-1]:
                message = f"{call.actor} claimed it under token {claim.token} after {known[-1]} had been used"
                return self.violation(step, claim.job, message)
        return None

    def _remember(self, views: tuple[JobView, ...], at_step: int) -> None:
        for view in views:
            if view.token is not None:
                self._rise(view.job, view.token, at_step)

    def _rise(self, job: JobId, token: int, at_step: int) -> None:
        rises = self._rises.setdefault(job, [])
        if not rises or token > rises[-1][1]:
            rises.append((at_step, token))


@dataclass(slots=True)
class _Write:
    """A complete, fail or heartbeat in flight, and what was committed when it was let go."""

    highest: dict[JobId, int]
    lease_at_us: dict[tuple[JobId, int | None], dict[int, int]] = field(default_factory=dict)
    """Per lease: when it was to end, as seen at each observation since, by that observation's time."""
    renewed_us: dict[tuple[JobId, int | None], int] = field(default_factory=dict)
    """Per lease: when another's heartbeat under it was last on its way, while this write was."""


@dataclass(frozen=True, slots=True)
class _Suspicion:
    """A change made while a stale writer moved, which a call still blocked may turn out to explain."""

    violation: Violation
    before: JobView
    after: JobView | None


class Fence(FollowsMovers):
    name = "fence"
    sentence = "No write takes effect from a claim that is no longer current."
    needs = frozenset({Capability.FENCING})

    def __init__(self) -> None:
        super().__init__()
        self._highest: dict[JobId, int] = {}
        self._lease_us: dict[tuple[JobId, int | None], int] = {}  # last known end of each lease
        self._writes: dict[int, _Write] = {}
        self._renewed_in_group: set[tuple[JobId, int | None]] = set()
        self._suspicions: list[_Suspicion] = []
        self._seen: Observation | None = None

    def check(self, step: Step) -> Violation | None:
        overdue = self._settle_suspicions(step)
        self._movers.note(step)
        if step.kind is not StepKind.FREED:
            self._renewed_in_group.clear()
        if step.before is not self._seen and step.kind is not StepKind.FREED:
            self._remember(step.before.jobs)
        self._begin_write(step)
        self.exercised += self._writes_from_lost_claim(step)
        violation = self._stale_ledger_entry(step) or self._stale_change(step) or self._stale_acceptance(step)
        if step.after is not self._seen:
            self._remember(step.after.jobs)
            self._seen = step.after
        self._remember_renewal(step)
        self._follow_writes(step)
        return overdue or violation

    def _remember(self, views: tuple[JobView, ...]) -> None:
        for view in views:
            if view.token is not None and view.token > self._highest.get(view.job, -1):
                self._highest[view.job] = view.token
            if view.state is JobState.LEASED and view.lease_until_us is not None:
                self._lease_us[view.job, view.token] = view.lease_until_us

    def _writes_from_lost_claim(self, step: Step) -> bool:
        """Whether the writer's claim is no longer current, or its lease is over, guarded or not."""
        call = step.call
        if call is None or verb(call) not in _WRITES:
            return False
        for claim in call.claims:
            if claim.token is not None and self._highest.get(claim.job, -1) > claim.token:
                return True
            ends_us = self._lease_us.get((claim.job, claim.token))
            if ends_us is not None and ends_us <= step.after.at_us:
                return True
        return False

    def _remember_renewal(self, step: Step) -> None:
        """Leases the rows do not date are dated by what their holders were told."""
        call = step.call
        if call is None or verb(call) != "heartbeat":
            return
        ttl = ttl_us(call)
        for claim, item in answers(step):
            view = step.after.by_job.get(claim.job)
            dated = view is not None and view.lease_until_us is not None
            if applied(item) and ttl is not None and not dated:
                self._lease_us[claim.job, claim.token] = self._movers.latest_us(step) + ttl

    def _begin_write(self, step: Step) -> None:
        call = step.call
        if call is None or verb(call) not in _WRITES or call.number in self._writes:
            return
        write = _Write({claim.job: self._highest.get(claim.job, -1) for claim in call.claims})
        self._writes[call.number] = write
        for claim in call.claims:
            lease = (claim.job, claim.token)
            ends_us = self._lease_us.get(lease, claim.lease_until_us)
            if ends_us is not None:
                self._lease_us[lease] = ends_us
                write.lease_at_us[lease] = {step.before.at_us: ends_us, call.started_us: ends_us}

    def _follow_writes(self, step: Step) -> None:
        call = step.call
        if call is not None and step.reply is not None:
            self._writes.pop(call.number, None)
        if call is not None and verb(call) == "heartbeat":
            renewed = {(claim.job, claim.token) for claim in call.claims}
            self._renewed_in_group.update(renewed)
            for number, write in self._writes.items():
                if number != call.number:
                    write.renewed_us.update(
                        dict.fromkeys(renewed & write.lease_at_us.keys(), step.after.at_us)
                    )
        expired = step.clock.expired_claim if step.clock is not None else None
        if expired is not None:
            key = (expired.job, expired.token)
            self._lease_us[key] = min(self._lease_us.get(key, step.after.at_us), step.after.at_us)
        for write in self._writes.values():
            for lease, seen in write.lease_at_us.items():
                seen[step.after.at_us] = self._lease_us[lease]

    def _stale_ledger_entry(self, step: Step) -> Violation | None:
        if step.after.ledger == step.before.ledger:
            return None
        known = {(entry.job, entry.token) for entry in step.before.ledger}
        for entry in step.after.ledger:
            if entry.token is None or (entry.job, entry.token) in known:
                continue
            # In `after` as well: a complete leaves no room for a higher token, so that one came first.
            current = max(
                token_of(step.before.by_job.get(entry.job)), token_of(step.after.by_job.get(entry.job))
            )
            if current > entry.token:
                writer = entry.worker or who(step)
                message = (
                    f"{writer} wrote to the ledger under token {entry.token} while {current} was current"
                )
                return self.violation(step, entry.job, message)
        return None

    def _stale_change(self, step: Step) -> Violation | None:
        """By rows, whatever the answer: a stale writer moved and the row is not as it was."""
        call = step.call
        if call is None:
            return None
        for claim in call.claims:
            before = step.before.by_job.get(claim.job)
            if before is None or before.token is None or claim.token is None or before.token <= claim.token:
                continue
            after = step.after.by_job.get(claim.job)
            if not _changed(before, after) or self._explained(before, after, step, call):
                continue
            if any(other.job == claim.job and other.token == before.token for other in call.claims):
                continue  # a batch that holds the current claim of the job as well
            message = f"{call.actor} wrote under token {claim.token} while {before.token} was current"
            violation = self.violation(step, claim.job, message)
            if any(_explains(other, before, after, step) for other in self._movers.blocked()):
                self._suspicions.append(_Suspicion(violation, before, after))
            else:
                return violation
        return None

    def _explained(self, before: JobView, after: JobView | None, step: Step, blamed: Call) -> bool:
        return any(
            other.number != blamed.number
            and self._movers.moved(other.number)
            and not self._movers.refused(other, before.job)
            and _explains(other, before, after, step)
            for other in self._movers.possible()
        )

    def _settle_suspicions(self, step: Step) -> Violation | None:
        if not self._suspicions:
            return None
        if step.kind is StepKind.FREED and step.call is not None:
            call, reply = step.call, step.reply
            refused = reply is not None and reply.outcome is Outcome.REFUSED
            self._suspicions = [
                suspicion
                for suspicion in self._suspicions
                if refused or not _explains(call, suspicion.before, suspicion.after, step)
            ]
            return None
        overdue = self._suspicions[0].violation
        self._suspicions.clear()
        return overdue

    def _stale_acceptance(self, step: Step) -> Violation | None:
        call = step.call
        if call is None or verb(call) not in _WRITES:
            return None
        for claim, reply in answers(step):
            violation = self._judge_answer(step, call, claim, reply)
            if violation is not None:
                return violation
        return None

    def _judge_answer(self, step: Step, call: Call, claim: Claim, reply: Reply) -> Violation | None:
        write = self._writes[call.number]
        current = write.highest.get(claim.job, -1)
        if verb(call) == "complete":
            # A completed job is never claimed again: a higher token now was there before.
            current = max(current, token_of(step.after.by_job.get(claim.job)))
        stale = claim.token is not None and current > claim.token
        ends_us = self._lease_when_unguarded(write, call, claim)
        if not applied(reply):
            return None
        if stale:
            message = (
                f"{call.actor}'s {call.operation} under token {claim.token} was accepted"
                f" while {current} was current"
            )
            return self.violation(step, claim.job, message)
        lease = (claim.job, claim.token)
        # A heartbeat that held the row's lock may have renewed the lease before this write was judged.
        renewed = lease in self._renewed_in_group or write.renewed_us.get(lease, -1) > call.unguarded_until_us
        if ends_us is not None and ends_us <= call.unguarded_until_us and not renewed:
            message = (
                f"{call.actor}'s {call.operation} was accepted under a lease"
                " that had expired before it was judged"
            )
            return self.violation(step, claim.job, message)
        return None

    def _lease_when_unguarded(self, write: _Write, call: Call, claim: Claim) -> int | None:
        """When the lease ended, as the rows stood when the write was last known not to be judged yet.

        Later rows do not count: an accepted heartbeat has renewed them itself.
        """
        seen = write.lease_at_us.get((claim.job, claim.token))
        if seen is None:
            return None
        return seen.get(call.unguarded_until_us, next(iter(seen.values())))


def _changed(before: JobView, after: JobView | None) -> bool:
    return after is None or (
        before.state is not after.state
        or before.token != after.token
        or before.attempts != after.attempts
        or before.holder != after.holder
        or before.lease_until_us != after.lease_until_us
        or before.next_run_at_us != after.next_run_at_us
    )


def _explains(call: Call, before: JobView, after: JobView | None, step: Step) -> bool:
    """Whether a queue that keeps its promises could have made this change for this call."""
    operation = verb(call)
    state = None if after is None else after.state
    if operation == "claim":
        return state is JobState.FAILED or (state is JobState.LEASED and token_of(after) > token_of(before))
    if operation == "reap":
        lost = before.lease_until_us is None or before.lease_until_us <= step.after.at_us
        return lost and state in (None, JobState.READY, JobState.DELAYED, JobState.FAILED)
    if not acts_on(call, before.job, before.token):
        return False
    if operation == "complete":
        return state in (None, JobState.SUCCEEDED)
    if operation == "fail":
        return state in (None, JobState.READY, JobState.DELAYED, JobState.FAILED)
    if operation == "heartbeat":
        return state is JobState.LEASED
    if operation == "cancel":
        return state in (None, JobState.CANCELLED)
    return False
