"""Who may have changed rows in a step.

A step that frees blocked operations is recorded as one CALL followed by FREED steps, all around the same two
observations: a group. A difference between these observations is the work of *some* member of the group, so
nobody is blamed for it while another member explains it.
"""

from __future__ import annotations

from collections.abc import Iterable

from fencepost.harness.adapter import JobId, Outcome
from fencepost.harness.history import Call, CallStatus, Reply, Step, StepKind
from fencepost.harness.invariants.base import SETTLING, Invariant, same_token, verb


class Movers:
    """The calls of the current group, those that wait to be freed, and those whose answer was lost.

    A lost call may still be running in the server: what it could have done is never blamed on another.
    """

    def __init__(self) -> None:
        self._in_flight: dict[int, Call] = {}
        self._blocked: dict[int, Call] = {}
        self._lost: dict[int, Call] = {}
        self._group: dict[int, Call] = {}
        self._answered: set[int] = set()
        self._latest_us: dict[int, int] = {}
        self._earliest_us: dict[int, int] = {}
        self._noted: Step | None = None

    def note(self, step: Step) -> None:
        """To be called first for every step, by each invariant that shares them."""
        if step is self._noted:
            return
        self._noted = step
        if self._group and step.kind is not StepKind.FREED:
            self._group.clear()
            self._answered.clear()
            if len(self._latest_us) > len(self._in_flight):
                self._latest_us = {n: us for n, us in self._latest_us.items() if n in self._in_flight}
                self._earliest_us = {n: us for n, us in self._earliest_us.items() if n in self._in_flight}
        call = step.call
        if call is not None:
            self._note_call(step, call)
        elif step.kind in (StepKind.FAULT, StepKind.EXIT):
            self._note_fault(step)
        for number in self._in_flight:
            at_us = step.after.at_us
            if at_us > self._latest_us.get(number, at_us - 1):
                self._latest_us[number] = at_us
            if at_us < self._earliest_us.get(number, at_us + 1):
                self._earliest_us[number] = at_us

    def _note_call(self, step: Step, call: Call) -> None:
        number = call.number
        self._group[number] = call
        self._blocked.pop(number, None)
        if step.status is CallStatus.ANSWERED:
            self._in_flight.pop(number, None)
            self._lost.pop(number, None)
            self._answered.add(number)
            if call.reply is not None and _may_have_happened_unseen(call.reply):
                self._lost[number] = call
        else:
            self._in_flight[number] = call
            if step.status is CallStatus.BLOCKED:
                self._blocked[number] = call

    def _note_fault(self, step: Step) -> None:
        """A call whose actor or server was hit goes on, if at all, where no step shows it."""
        for number, call in self._in_flight.items():
            if step.actor is None or step.actor == call.actor:
                self._lost[number] = call

    def latest_us(self, step: Step) -> int:
        """The latest database time at which a call of this group can have been judged.

        After a rewind it lies later than the step: the call may have looked at the clock before.
        """
        latest = max(step.before.at_us, step.after.at_us)
        if self._latest_us:
            for number in self._group:
                latest = max(latest, self._latest_us.get(number, latest))
        return latest

    def reckoned_from_us(self, call: Call, step: Step) -> int:
        """The earliest database time a lease or a delay the call asked for can have been reckoned from.

        That is its start, unless the clock was set back while it was in flight.
        """
        earliest = min(call.started_us, step.after.at_us)
        return min(earliest, self._earliest_us.get(call.number, earliest))

    def moved(self, number: int) -> bool:
        """Whether the call has had its turn in this group, or its answer is lost."""
        return number in self._group or number in self._lost

    def refused(self, call: Call, job: JobId) -> bool:
        """Whether the call has answered, and answered that it did nothing to this job."""
        if call.number not in self._answered or call.reply is None:
            return False
        return _reply_about(call, call.reply, job).outcome is Outcome.REFUSED

    def possible(self) -> Iterable[Call]:
        """Every call that may have changed rows in this group, or may still turn out to be part of it."""
        if not self._blocked and not self._lost:
            return self._group.values()
        return {**self._lost, **self._blocked, **self._group}.values()

    def any_of(self, *verbs: str) -> bool:
        return any(verb(call) in verbs for call in self.possible())

    def blocked(self) -> Iterable[Call]:
        return self._blocked.values()

    def may_have_settled(self, job: JobId, token: int | None) -> bool:
        """Whether a complete, fail or cancel may have ended the job's lease under `token` in this group."""
        return any(
            verb(call) in SETTLING and acts_on(call, job, token) and not self.refused(call, job)
            for call in self.possible()
        )


class FollowsMovers(Invariant):
    """Notes every step before it asks about it, so that all that judge one run can ask the same movers."""

    def __init__(self) -> None:
        super().__init__()
        self._movers = Movers()

    def follow(self, movers: Movers) -> None:
        self._movers = movers


def acts_on(call: Call, job: JobId, token: int | None = None) -> bool:
    """Whether the call was made about this job, under this token where both are known."""
    if call.claims:
        return any(claim.job == job and same_token(claim.token, token) for claim in call.claims)
    return call.arguments.get("job") == job


def _reply_about(call: Call, reply: Reply, job: JobId) -> Reply:
    about = [item for claim, item in zip(call.claims, reply.items, strict=False) if claim.job == job]
    if not about:
        return reply
    # A batch may hold several claims of one job: what any of them did, the call did.
    return next((item for item in about if item.outcome is not Outcome.REFUSED), about[0])


def _may_have_happened_unseen(reply: Reply) -> bool:
    return reply.outcome is Outcome.UNKNOWN or any(item.outcome is Outcome.UNKNOWN for item in reply.items)
