"""Leases: who holds a job, until when, and how a lost one comes back."""

from __future__ import annotations

from dataclasses import dataclass

from fencepost.harness.adapter import Capability, Claim, JobId, JobState, JobView, Observation
from fencepost.harness.history import Call, Step, StepKind, Violation
from fencepost.harness.invariants.base import (
    SETTLING,
    Invariant,
    answers,
    applied,
    same_token,
    taker,
    token_of,
    ttl_us,
    verb,
    who,
)
from fencepost.harness.invariants.movers import FollowsMovers, Movers, acts_on
from fencepost.harness.postgres.provider import ServerFault


@dataclass(slots=True)
class _Lease:
    """The lease rows show for a job. `promised_us` is what its holder was told, once it was told."""

    token: int | None
    holder: str | None
    row_until_us: int
    promised_us: int = 0
    call: int | None = None
    told_at_step: int = 0
    settled: bool = False  # its holder was told that it is over, whatever the rows show

    @property
    def until_us(self) -> int:
        return 0 if self.settled else max(self.promised_us, self.row_until_us)

    def is_in(self, view: JobView) -> bool:
        same_holder = self.holder is None or view.holder is None or self.holder == view.holder
        return same_holder and same_token(self.token, view.token)


class SingleHolder(FollowsMovers):
    """A lease ends when its holder settles it, when it is rewritten as expired, or when rows show the job
    waiting or finished; whether it should have ended so is for other invariants to say."""

    name = "single_holder"
    sentence = "Nobody gets a job while another claim of it is live."

    def __init__(self) -> None:
        super().__init__()
        self._live: dict[JobId, _Lease] = {}
        self._given: dict[tuple[JobId, int], tuple[int, str]] = {}  # by which call, to whom
        self._first_step: dict[int, int] = {}
        self._expired: set[tuple[JobId, int | None]] = set()
        self._seen: Observation | None = None

    def check(self, step: Step) -> Violation | None:
        self._movers.note(step)
        if step.call is not None:
            self._first_step.setdefault(step.call.number, step.number)
        self._note_expired(step)
        latest_us = self._movers.latest_us(step)
        if step.call is not None and verb(step.call) == "claim":
            self.exercised += any(lease.until_us > latest_us for lease in self._live.values())
        violation = None
        if step.after is not self._seen:
            violation = self._check_rows(step, latest_us)
            self._seen = step.after
        return self._check_answer(step, latest_us) or violation

    def _note_expired(self, step: Step) -> None:
        claim = step.clock.expired_claim if step.clock is not None else None
        if claim is None:
            return
        lease = self._live.get(claim.job)
        if lease is not None and same_token(lease.token, claim.token):
            lease.promised_us = lease.row_until_us = 0
        if claim.token is not None:
            self._expired.add((claim.job, claim.token))

    def _check_rows(self, step: Step, latest_us: int) -> Violation | None:
        violation = None
        for view in step.after.jobs:
            lease = self._live.get(view.job)
            if view.state is not JobState.LEASED:
                self._live.pop(view.job, None)
                continue
            until_us = view.lease_until_us or 0
            if lease is not None and lease.is_in(view):
                lease.row_until_us = until_us
                continue
            self._live[view.job] = _Lease(view.token, view.holder, until_us)
            if lease is not None and violation is None:
                violation = self._stolen(step, view.job, lease, view.token, taker(step, view), latest_us)
        if not self._live.keys() <= step.after.by_job.keys():
            self._live = {job: lease for job, lease in self._live.items() if job in step.after.by_job}
        return violation

    def _check_answer(self, step: Step, latest_us: int) -> Violation | None:
        call, reply = step.call, step.reply
        if call is None or reply is None:
            return None
        ttl = ttl_us(call)
        if verb(call) == "heartbeat" and ttl is not None:
            for claim, item in answers(step):
                held = self._live.get(claim.job)
                if applied(item) and held is not None and same_token(held.token, claim.token):
                    held.promised_us = max(held.promised_us, self._movers.reckoned_from_us(call, step) + ttl)
        for job, token in _settled(step):
            held = self._live.get(job)
            if held is not None and same_token(held.token, token):
                held.settled = True
        violation = None
        for claim in reply.claims:
            promised_us = 0 if ttl is None else self._movers.reckoned_from_us(call, step) + ttl
            found = self._given_twice(step, call, claim.job, claim.token)
            found = found or self._register(step, call, claim.job, claim.token, promised_us, latest_us)
            violation = violation or found
        self._first_step.pop(call.number, None)
        return violation

    def _given_twice(self, step: Step, call: Call, job: JobId, token: int | None) -> Violation | None:
        if token is None:
            return None
        number, actor = self._given.setdefault((job, token), (call.number, call.actor))
        if number == call.number:
            return None
        self.exercised += 1
        if actor == call.actor:
            return self.violation(step, job, f"{actor} was given it twice under token {token}")
        return self.violation(step, job, f"{actor} and {call.actor} were both given it under token {token}")

    def _register(
        self, step: Step, call: Call, job: JobId, token: int | None, promised_us: int, latest_us: int
    ) -> Violation | None:
        """Attach the promise to the lease rows show. An answer that comes late finds another lease there."""
        lease = self._live.get(job)
        if lease is None or (job, token) in self._expired:
            return None
        if lease.token is not None and token is not None and token < lease.token:
            # Its holder is told of it only now, so it cannot have settled it before the later claim.
            untold = _Lease(token, call.actor, 0, promised_us)
            return self._stolen(step, job, untold, lease.token, lease.holder or "somebody", latest_us)
        if lease.call is None:
            lease.call, lease.told_at_step = call.number, step.number
            lease.token = token if lease.token is None else lease.token
            lease.promised_us = max(lease.promised_us, promised_us)
            return None
        if lease.call == call.number or (lease.token is not None and lease.token == token):
            return None
        self._live[job] = _Lease(token, None, lease.row_until_us, promised_us, call.number, step.number)
        # Without tokens the order of two claims that overlapped is not known: the rows judged them.
        in_order = token is not None or self._first_step[call.number] > lease.told_at_step
        earlier = _Lease(lease.token, lease.holder, 0, lease.promised_us)
        return self._stolen(step, job, earlier, token, call.actor, latest_us) if in_order else None

    def _stolen(
        self, step: Step, job: JobId, lease: _Lease, token: int | None, by: str, latest_us: int
    ) -> Violation | None:
        if latest_us >= lease.until_us or self._movers.may_have_settled(job, lease.token):
            return None
        if token is not None and lease.token is not None and token < lease.token:
            return None
        holder = lease.holder or "its holder"
        under = "" if token is None else f" under token {token}"
        message = f"{by} got it{under} while the lease of {holder} was live"
        return self.violation(step, job, message)


def _settled(step: Step) -> list[tuple[JobId, int | None]]:
    """The leases whose holder was told in this step that they are over."""
    if step.call is None or step.reply is None or verb(step.call) not in SETTLING:
        return []
    job = step.call.arguments.get("job")
    if not step.call.claims and job is not None:
        return [(job, None)] if step.reply.accepted else []
    return [(claim.job, claim.token) for claim, item in answers(step) if item.accepted]


@dataclass(slots=True)
class _Promise:
    """What a heartbeat says about one lease: in force once it is accepted."""

    job: JobId
    token: int | None
    holder: str | None
    ttl_us: int
    until_us: int
    """Reckoned from the heartbeat's start, or from an earlier time the clock was set back to while in flight."""
    over: bool = False  # nothing is owed any more: settled, cancelled, expired by rewriting, or past its time
    broken: str | None = None


class HeartbeatHonoured(FollowsMovers):
    name = "heartbeat_honoured"
    sentence = "An accepted heartbeat keeps the job with its holder until the promised time."
    needs = frozenset({Capability.HEARTBEAT})

    def __init__(self) -> None:
        super().__init__()
        self._in_flight: dict[int, list[_Promise]] = {}
        self._in_force: dict[JobId, _Promise] = {}
        self._claimed_until_us: dict[tuple[JobId, int | None], int] = {}
        self._last_given: dict[JobId, Claim] = {}

    def check(self, step: Step) -> Violation | None:
        self._movers.note(step)
        self._begin(step)
        expired = step.clock.expired_claim if step.clock is not None else None
        if expired is not None:
            self._claimed_until_us.pop((expired.job, expired.token), None)
        latest_us = self._movers.latest_us(step)
        for promises in self._in_flight.values():
            for promise in promises:
                promise.until_us = min(promise.until_us, step.after.at_us + promise.ttl_us)
                self._follow(promise, step, latest_us)
        violation = None
        for promise in tuple(self._in_force.values()):
            self._follow(promise, step, latest_us)
            violation = violation or self._verdict(promise, step)
        return self._note_answer(step) or violation

    def _begin(self, step: Step) -> None:
        call = step.call
        if call is None or verb(call) != "heartbeat" or call.number in self._in_flight:
            return
        ttl = ttl_us(call)
        self._in_flight[call.number] = promises = []
        for claim in call.claims:
            view = step.before.by_job.get(claim.job)
            if claim.token is None and self._last_given.get(claim.job, claim) != claim:
                continue  # the lease that rows show is another's, and no token tells the two apart
            if ttl is not None and view is not None and _holds(view, claim.token, None):
                promises.append(_Promise(claim.job, claim.token, view.holder, ttl, call.started_us + ttl))

    def _follow(self, promise: _Promise, step: Step, latest_us: int) -> None:
        """Note what became of the lease in this step: nothing, an end nobody is to blame for, or a breach."""
        if promise.over or promise.broken:
            return
        expired = step.clock.expired_claim if step.clock is not None else None
        view = step.after.by_job.get(promise.job)
        if (
            (expired is not None and expired.job == promise.job and same_token(expired.token, promise.token))
            or latest_us >= promise.until_us
            or view is None
        ):
            promise.over = True
        elif not _holds(view, promise.token, promise.holder):
            settled = self._movers.may_have_settled(promise.job, promise.token)
            if settled or view.state is JobState.CANCELLED:
                promise.over = True
            else:
                promise.broken = self._breach(view, step)

    def _breach(self, view: JobView, step: Step) -> str:
        if view.state is JobState.LEASED:
            return f"{taker(step, view)} took it before the time an accepted heartbeat had promised to its holder"
        return f"it became {view.state} before the time an accepted heartbeat had promised to its holder"

    def _verdict(self, promise: _Promise, step: Step) -> Violation | None:
        if not promise.over:
            self.exercised += 1
        if (promise.over or promise.broken) and self._in_force.get(promise.job) is promise:
            del self._in_force[promise.job]
        if promise.broken:
            return self.violation(step, promise.job, promise.broken)
        return self._check_row(promise, step)

    def _check_row(self, promise: _Promise, step: Step) -> Violation | None:
        view = step.after.by_job.get(promise.job)
        if promise.over or view is None or view.lease_until_us is None:
            return None
        if view.lease_until_us >= promise.until_us:
            return None
        self._in_force.pop(promise.job, None)
        return self.violation(step, promise.job, "its lease ends before the time its holder was promised")

    def _note_answer(self, step: Step) -> Violation | None:
        call, reply = step.call, step.reply
        if call is None or reply is None:
            return None
        for job, token in _settled(step):
            held = self._in_force.get(job)
            if held is not None and same_token(held.token, token):
                del self._in_force[job]
        ttl = ttl_us(call)
        self._last_given |= {claim.job: claim for claim in reply.claims}
        if ttl is not None:
            for claim in reply.claims:
                until_us = self._movers.reckoned_from_us(call, step) + ttl
                self._claimed_until_us[claim.job, claim.token] = until_us
        promises = {promise.job: promise for promise in self._in_flight.pop(call.number, ())}
        violation = None
        for claim, item in answers(step):
            promise = promises.get(claim.job)
            if promise is None or not applied(item):
                continue
            if not promise.over:
                self._extend(promise)
            violation = violation or self._verdict(promise, step)
        return violation

    def _extend(self, promise: _Promise) -> None:
        """A heartbeat extends: what the claim and earlier heartbeats promised stays promised."""
        claimed_us = self._claimed_until_us.get((promise.job, promise.token), 0)
        promise.until_us = max(promise.until_us, claimed_us)
        earlier = self._in_force.get(promise.job)
        if earlier is not None and earlier.token == promise.token:
            promise.until_us = max(promise.until_us, earlier.until_us)
        self._in_force[promise.job] = promise


def _holds(view: JobView, token: int | None, holder: str | None) -> bool:
    return (
        view.state is JobState.LEASED
        and same_token(view.token, token)
        and (holder is None or view.holder is None or view.holder == holder)
    )


class RequeuedOnce(FollowsMovers):
    name = "requeued_once"
    sentence = "The reaper requeues or ends a lease only once it is lost, and each lost lease only once."
    needs = frozenset({Capability.REAPER})

    def __init__(self) -> None:
        super().__init__()
        self._ended_before = 0  # leases seen to end in earlier groups, that a reaper may have ended
        self._ended_now: dict[JobId, int | None] = {}  # those of this group, with their tokens
        self._reaped = 0  # leases reapers have answered for
        self._requeued: dict[JobId, int | None] = {}  # jobs waiting after a lost lease, with its token

    def check(self, step: Step) -> Violation | None:
        self._movers.note(step)
        violation = None
        if step.kind is not StepKind.FREED:
            self._ended_before += len(self._ended_now)
            self._ended_now.clear()
            if step.after is not step.before:
                violation = self._check_rows(step)
        return violation or self._check_count(step)

    def _check_rows(self, step: Step) -> Violation | None:
        violation = None
        for before in step.before.jobs:
            after = step.after.by_job.get(before.job)
            if before.state is JobState.LEASED:
                violation = violation or self._check_lease(step, before, after)
            elif before.job in self._requeued and after is not None:
                violation = violation or self._check_waiting(step, before, after)
        return violation

    def _check_lease(self, step: Step, before: JobView, after: JobView | None) -> Violation | None:
        if self._movers.any_of("reap") and _may_be_lost(before, after):
            self._ended_now[before.job] = before.token
            self.exercised += 1
        if after is None or after.state not in _NO_LONGER_LEASED:
            return None
        self._requeued[before.job] = before.token
        live = before.lease_until_us is not None and before.lease_until_us > self._movers.latest_us(step)
        if live and self._only_a_reaper_explains(before):
            return self.violation(step, before.job, f"{who(step)} requeued it while its lease was live")
        return None

    def _check_waiting(self, step: Step, before: JobView, after: JobView) -> Violation | None:
        if after.state is JobState.LEASED or token_of(after) != token_of(before):
            del self._requeued[before.job]
            return None
        self.exercised += self._movers.any_of("reap")
        again = (
            before.attempts != after.attempts
            or before.next_run_at_us != after.next_run_at_us
            or (after.state is JobState.FAILED and before.state is not JobState.FAILED)
        )
        if not again or not self._only_a_reaper_explains(before):
            return None
        lease = "one lost lease" if before.token is None else f"the lost lease of token {before.token}"
        return self.violation(step, before.job, f"{who(step)} requeued it a second time for {lease}")

    def _only_a_reaper_explains(self, before: JobView) -> bool:
        if self._movers.any_of("claim") or self._movers.may_have_settled(before.job, before.token):
            return False
        return self._movers.any_of("reap")

    def _check_count(self, step: Step) -> Violation | None:
        call, reply = step.call, step.reply
        if call is None or reply is None:
            return None
        if verb(call) == "fail":
            for claim, item in answers(step):
                if applied(item) and same_token(self._ended_now.get(claim.job, -1), claim.token):
                    self._ended_now.pop(claim.job, None)
        if verb(call) != "reap" or not reply.count:
            return None
        self._reaped += reply.count
        ended = self._ended_before + len(self._ended_now)
        if self._reaped <= ended:
            return None
        message = f"reapers recovered {self._reaped} leases, and only {ended} had been lost"
        return self.violation(step, self._waiting_job(), message)

    def _waiting_job(self) -> JobId | None:
        """The job to name: where only one waits after a lost lease, it is the one recovered too often."""
        return next(iter(self._requeued)) if len(self._requeued) == 1 else None


_NO_LONGER_LEASED = frozenset({JobState.READY, JobState.DELAYED, JobState.FAILED})


def _may_be_lost(before: JobView, after: JobView | None) -> bool:
    """Generously: requeued and claimed again within one group, a lost lease shows as another lease; requeued and
    cancelled by one that waited for the reaper, as a cancelled job."""
    if after is not None and after.state is JobState.LEASED:
        return (before.token, before.holder, before.lease_until_us) != (
            after.token,
            after.holder,
            after.lease_until_us,
        )
    return after is None or after.state in _NO_LONGER_LEASED or after.state is JobState.CANCELLED


RESTARTS = frozenset(fault.value for fault in ServerFault) - {ServerFault.TERMINATE_BACKEND.value}
"""Every fault after which the whole server has started again."""


class RestartKeepsLeases(Invariant):
    name = "restart_keeps_leases"
    sentence = (
        "A crash or restart of the server leaves every committed job, lease and ledger entry as it was."
    )

    def __init__(self) -> None:
        super().__init__()
        self._movers = Movers()

    def check(self, step: Step) -> Violation | None:
        blocked = tuple(self._movers.blocked())
        self._movers.note(step)
        if step.fault not in RESTARTS:
            return None
        self.exercised += bool(step.before.jobs)
        for before in step.before.jobs:
            # A dying server may still let one of them commit, once the one it waited for is gone.
            if any(not call.claims or acts_on(call, before.job) for call in blocked):
                continue
            after = step.after.by_job.get(before.job)
            if after is None:
                return self.violation(
                    step, before.job, f"it was {before.state} and is gone after the restart"
                )
            if _as_leased(before) != _as_leased(after):
                changed = ", ".join(
                    name
                    for name, old, new in zip(
                        _LEASE_FIELDS, _as_leased(before), _as_leased(after), strict=True
                    )
                    if old != new
                )
                return self.violation(step, before.job, f"the restart changed its {changed}")
            if step.before.ledger_of(before.job) != step.after.ledger_of(before.job):
                return self.violation(step, before.job, "the restart changed its ledger entries")
        return None


_LEASE_FIELDS = ("state", "token", "holder", "lease", "attempts")


def _as_leased(view: JobView) -> tuple[object, ...]:
    return view.state, view.token, view.holder, view.lease_until_us, view.attempts
