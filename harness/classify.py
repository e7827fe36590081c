"""What became of a late write: refused, harmless, accepted or corrupted. Judged by rows and executions alone.

Invariants speak of promises a queue may not have made. This asks less, and of any queue: did a write under a lost
lease count, and did anything come of it that the job's rightful holder has to pay for? A pure function over the
steps of a run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from fencepost.harness.adapter import (
    LIVE_STATES,
    TERMINAL_STATES,
    Claim,
    JobId,
    JobState,
    JobView,
    Observation,
    Outcome,
)
from fencepost.harness.history import Execution, Step, StepKind
from fencepost.harness.invariants.base import US_PER_S, answers, verb
from fencepost.harness.witness import Witness


class Class(StrEnum):
    """From good to bad. Of several late writes in one run the worst counts."""

    REFUSED = "refused"  # it was told no, and the rows are as they were
    HARMLESS = "harmless"  # it was not told no, and the rows are as they were
    ACCEPTED = "accepted"  # it changed the job's rows, and nobody else has lost by it
    CORRUPTED = (
        "corrupted"  # a second execution beside a live holder, an acknowledgement lost, a job stuck or back
    )


SEVERITY = {kind: rank for rank, kind in enumerate(Class)}
GOOD = frozenset({Class.REFUSED, Class.HARMLESS})

WRITES = frozenset({"complete", "fail", "heartbeat"})
RECOVERIES = frozenset({"claim", "reap"})

_WAITING = frozenset({JobState.READY, JobState.DELAYED})
_LEAVES: Mapping[str, frozenset[JobState]] = {
    "claim": frozenset({JobState.LEASED}),
    "heartbeat": frozenset({JobState.LEASED}),
    "complete": frozenset({JobState.SUCCEEDED}),
    "fail": _WAITING | {JobState.FAILED},
    "reap": _WAITING | {JobState.FAILED},
    "cancel": frozenset({JobState.CANCELLED}),
}
"""In which state a job can be once an operation on it has counted."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was seen, at the step that shows it."""

    kind: Class
    step: int
    job: JobId
    message: str


@dataclass(frozen=True, slots=True)
class Classification:
    """The class of a run, and every finding of that class. `findings` is in the order of the steps."""

    kind: Class
    findings: tuple[Finding, ...]


def classify(steps: Sequence[Step]) -> Classification | None:
    """None where nothing was tried that a queue would have to refuse."""
    book = LeaseBook()
    found: list[Finding] = []
    for step in steps:
        found.extend(book.read(step))
    if not found:
        return None
    worst = max((finding.kind for finding in found), key=SEVERITY.__getitem__)
    return Classification(worst, tuple(finding for finding in found if finding.kind is worst))


def late_write(actor: str, operation: str) -> Witness:
    """The witness that this actor wrote under a lease it had lost. Not asked of the control run."""

    def seen(steps: Sequence[Step], executions: Sequence[Execution]) -> bool:
        book = LeaseBook()
        for step in steps:
            for _ in book.read(step):
                pass
        return (actor, operation) in book.late_writes

    return Witness(f"{actor}'s {operation} came under a lease it had lost", seen, asked_of="the race")


@dataclass(slots=True, eq=False)
class _Lease:
    """A claim as its holder may count on it: until its time, whatever the rows say meanwhile."""

    claim: Claim
    actor: str
    until_us: int
    settled: bool = False  # its holder has settled it
    superseded: bool = False  # it was past its time when somebody else was given the job
    beside: bool = False  # it was given while another's was live: neither late nor rightful

    def live(self, now_us: int) -> bool:
        return not self.settled and not self.superseded and self.until_us > now_us


@dataclass(slots=True)
class LeaseBook:
    """Who may count on which job, read off the steps of a run in order."""

    late_writes: set[tuple[str, str]] = field(default_factory=set)
    _written: dict[tuple[int, JobId], str] = field(default_factory=dict)  # by a call before its answer: what
    _mover: Step | None = None  # of those it set free
    _leases: dict[JobId, list[_Lease]] = field(default_factory=dict)
    _completed: dict[JobId, str] = field(default_factory=dict)  # by its rightful holder: who
    _copy_of: dict[JobId, JobId] = field(default_factory=dict)  # a retry that is a job of its own: of which

    def read(self, step: Step) -> Iterator[Finding]:
        """What this step shows. To be called for every step, in order, and read to the end."""
        expired = step.clock.expired_claim if step.clock is not None else None
        if expired is not None and (lease := self._lease_of(expired)) is not None:
            lease.until_us = 0
        if step.kind is not StepKind.FREED:
            self._mover = step
        self._note_what_was_written(step)
        yield from self._changed_ends(step)
        if step.reply is not None and step.call is not None:
            operation = verb(step.call)
            if operation in WRITES:
                yield from self._write(step, operation)
            elif operation in RECOVERIES:
                yield from self._recovery(step)
        if step.kind is StepKind.END:
            yield from self._ends(step)

    def _note_what_was_written(self, step: Step) -> None:
        """A call that is taken statement by statement may have written, and committed, long before it answers."""
        if step.call is None or verb(step.call) not in WRITES:
            return
        for claim in step.call.claims:
            changed = _rows_of(step.before, claim.job) != _rows_of(step.after, claim.job)
            if changed and not self._is_its_movers(step, claim.job):
                self._written[step.call.number, claim.job] = _change(step, claim.job)

    def _is_its_movers(self, step: Step, job: JobId) -> bool:
        """Of one who was set free: whether who set it free left the row like this, in the same step."""
        mover, view = self._mover, step.after.by_job.get(job)
        if step.kind is not StepKind.FREED or mover is None or mover.call is None or view is None:
            return False
        return view.state in _LEAVES.get(verb(mover.call), ())

    # -- writes -------------------------------------------------------------------------------------------

    def _write(self, step: Step, operation: str) -> Iterator[Finding]:
        assert step.call is not None
        answered = list(answers(step))
        copies = (
            self._new_jobs(step) if len(answered) == 1 else []
        )  # of a batch: nobody can tell of which job
        for claim, reply in answered:
            self._copy_of.update(dict.fromkeys(copies, claim.job))
            lease = self._lease_of(claim)
            if lease is None or lease.settled or lease.beside:
                continue
            if lease.live(step.call.started_us):
                yield from self._rightful_write(step, operation, lease, reply.outcome)
            else:
                self.late_writes.add((step.call.actor, operation))
                written = self._written.get((step.call.number, claim.job))
                yield _late(step, operation, lease, reply.outcome, copies, written)

    def _new_jobs(self, step: Step) -> list[JobId]:
        known = {**step.before.by_job, **self._leases}
        return [view.job for view in step.after.jobs if view.job not in known]

    def _rightful_write(
        self, step: Step, operation: str, lease: _Lease, outcome: Outcome
    ) -> Iterator[Finding]:
        job, view = lease.claim.job, step.after.by_job.get(lease.claim.job)
        if operation == "heartbeat":
            if outcome is Outcome.ACCEPTED and view is not None and view.lease_until_us is not None:
                lease.until_us = max(lease.until_us, view.lease_until_us)
            return
        lease.settled = True
        if operation != "complete":
            return
        if view is None or view.state is JobState.SUCCEEDED:
            self._completed[job] = lease.actor
            return
        yield Finding(
            Class.CORRUPTED,
            step.number,
            job,
            f"{lease.actor} completed it under a live lease, and it is {view.state}: the acknowledgement is lost",
        )

    # -- recoveries ---------------------------------------------------------------------------------------

    def _recovery(self, step: Step) -> Iterator[Finding]:
        """A claim or a sweep: what it took from somebody who could still count on it, and what it left alone."""
        assert step.call is not None and step.reply is not None
        now_us = step.before.at_us  # not when it started: it may have been held while a lease ran out
        given = {claim.job for claim in step.reply.claims}
        for job, leases in self._leases.items():
            held = [lease for lease in leases if lease.live(now_us)]
            if held and job not in given:
                yield _left_alone_or_taken(step, held[-1])
        for claim in step.reply.claims:
            yield from self._given(step, claim, now_us)

    def _given(self, step: Step, claim: Claim, now_us: int) -> Iterator[Finding]:
        assert step.call is not None
        leases = self._leases.setdefault(claim.job, [])
        original = self._copy_of.get(claim.job)
        counted_on = [*(self._leases.get(original, ()) if original is not None else ()), *leases]
        held = [lease for lease in counted_on if lease.live(now_us)]
        fresh = _Lease(claim, step.call.actor, _until_us(step, claim), beside=bool(held))
        for lease in leases:
            lease.superseded = lease.superseded or not lease.live(now_us)
        leases.append(fresh)
        it = "it" if original is None else f"its copy, job {claim.job},"
        job = claim.job if original is None else original
        if held:
            message = f"{fresh.actor} began to execute {it} beside {held[-1].actor}, whose lease is live"
            yield Finding(Class.CORRUPTED, step.number, job, message)
        elif job in self._completed:
            message = f"{fresh.actor} began to execute {it} after {self._completed[job]} had completed it"
            yield Finding(Class.CORRUPTED, step.number, job, message)

    # -- ends ---------------------------------------------------------------------------------------------

    def _changed_ends(self, step: Step) -> Iterator[Finding]:
        if step.kind is StepKind.FREED:
            return  # the same two observations as the step that freed it
        for before in step.before.jobs:
            after = step.after.by_job.get(before.job)
            if before.state not in TERMINAL_STATES or after is None or after.state is before.state:
                continue
            message = f"it was {before.state} and {'came back' if after.state in LIVE_STATES else 'became'}"
            yield Finding(Class.CORRUPTED, step.number, before.job, f"{message} {after.state}")

    def _ends(self, step: Step) -> Iterator[Finding]:
        for view in step.after.jobs:
            if view.state in LIVE_STATES:
                message = f"it is stuck: nobody could bring it to an end, it is still {view.state}"
                yield Finding(Class.CORRUPTED, step.number, view.job, message)

    def _lease_of(self, claim: Claim) -> _Lease | None:
        """By the very claim that was given: two of one job may be equal where claims name nothing but the job."""
        leases = self._leases.get(claim.job, ())
        return next(
            (lease for lease in leases if lease.claim is claim),
            next((lease for lease in leases if lease.claim == claim), None),
        )


def _until_us(step: Step, claim: Claim) -> int:
    """When a lease just given ends: as its holder was told, or as the rows show, or as it was asked for."""
    assert step.call is not None
    if claim.lease_until_us is not None:
        return claim.lease_until_us
    view = step.after.by_job.get(claim.job)
    if view is not None and view.lease_until_us is not None:
        return view.lease_until_us
    return step.call.started_us + int(step.call.arguments.get("ttl_s", 0.0) * US_PER_S)


def _late(
    step: Step, operation: str, lease: _Lease, outcome: Outcome, copies: Sequence[JobId], written: str | None
) -> Finding:
    job = lease.claim.job
    told = f"{lease.actor}'s {operation} came under a lease it had lost"
    if copies:
        made = ", ".join(f"job {copy}" for copy in copies)
        return Finding(Class.ACCEPTED, step.number, job, f"{told}, and counted: it made {made}")
    if written is not None:
        return Finding(Class.ACCEPTED, step.number, job, f"{told}, and counted: {written}")
    if outcome is Outcome.REFUSED:
        return Finding(Class.REFUSED, step.number, job, f"{told}, and was refused")
    return Finding(Class.HARMLESS, step.number, job, f"{told}, was {outcome.value} and changed nothing")


def _left_alone_or_taken(step: Step, held: _Lease) -> Finding:
    job = held.claim.job
    assert step.call is not None
    before, after = step.before.by_job.get(job), step.after.by_job.get(job)
    taken = _is_leased(before) and not _is_leased(after)
    if taken:
        message = f"{step.call.actor} took it away from {held.actor}, whose lease is live"
        return Finding(Class.CORRUPTED, step.number, job, message)
    message = f"{step.call.actor}'s {step.call.operation} left it with {held.actor}, whose lease is live"
    return Finding(Class.REFUSED, step.number, job, message)


def _is_leased(view: JobView | None) -> bool:
    return view is not None and view.state is JobState.LEASED


def _rows_of(observation: Observation, job: JobId) -> object:
    view = observation.by_job.get(job)
    if view is None:
        return None
    state = JobState.READY if view.state is JobState.DELAYED else view.state  # time alone makes a job due
    return (
        state,
        view.token,
        view.attempts,
        view.holder,
        view.lease_until_us,
        view.next_run_at_us,
        view.result,
        observation.ledger_of(job),
    )


def _change(step: Step, job: JobId) -> str:
    before, after = step.before.by_job.get(job), step.after.by_job.get(job)
    if before is None or after is None:
        return "its row is gone" if after is None else "its row came back"
    if before.state is not after.state:
        return f"it was {before.state} and is {after.state}"
    changed = [
        name
        for name, old, new in (
            ("token", before.token, after.token),
            ("attempts", before.attempts, after.attempts),
            ("holder", before.holder, after.holder),
            ("lease", before.lease_until_us, after.lease_until_us),
            ("next run", before.next_run_at_us, after.next_run_at_us),
            ("result", before.result, after.result),
        )
        if old != new
    ]
    return f"its {', '.join(changed) or 'ledger'} changed"
