"""What a lease queue must answer and show, predicted from what it showed before. Pure.

The model follows the rows: after every step it knows the jobs as they are, and what it adds is what rows do not show
(priorities, how a lease was settled, how long retries waited). It speaks of operations that began and answered in one
step; of one that was held or blocked on its way it allows every answer that was right at some moment of it, and leaves
the rest to the invariants and to the search for an explanation (`outcomes.py`).

Invariants say what must never be. The model says what must be, so it also finds what breaks no invariant: a claim that
overlooks a job that is due, a retry that comes too soon, a sweep that takes the wrong lease.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from fencepost.harness.adapter import (
    LIVE_STATES,
    TERMINAL_STATES,
    Capability,
    Claim,
    JobId,
    JobState,
    JobView,
    Json,
    Observation,
    Outcome,
)
from fencepost.harness.history import Call, Reply, Step, StepKind
from fencepost.harness.invariants.base import same_token

WAITING = frozenset({JobState.READY, JobState.DELAYED})
US_PER_S = 1_000_000
FAILURES_UNTIL_CAPPED = 12
"""By then the waits between retries must have stopped growing, and must have grown."""


@dataclass(slots=True)
class KnownJob:
    """What rows do not show of a job."""

    claim: Claim | None = None  # the last one that somebody was given
    priority: int | None = None  # None: not known, since the answer of the enqueue that made it has not come
    payload: Json = None
    maybe_settled: set[tuple[int | None, str]] = field(default_factory=set)  # by writes whose answer was lost
    settled: tuple[int | None, str] | None = (
        None  # the token and the operation of the last accepted settlement
    )
    waits_us: list[tuple[int, int]] = field(default_factory=list)  # before each retry: at least, at most
    successor: JobId | None = None  # the job a requeue made of it
    maybe_requeued: bool = False  # by a requeue whose answer was lost

    def is_news(self, token: int | None) -> bool:
        """An answer may come late, after a later claim was settled."""
        settled = None if self.settled is None else self.settled[0]
        return settled is None or token is None or token >= settled


@dataclass(slots=True)
class _Flight:
    """A call that has not answered yet, and the moments at which it may have been judged."""

    call: Call
    moments: list[tuple[Observation, Observation]] = field(default_factory=list)


class Model:
    def __init__(self, capabilities: frozenset[Capability]) -> None:
        self._has = capabilities
        self._known: dict[JobId, KnownJob] = {}
        self._keys: dict[str, JobId] = {}
        self._flights: dict[int, _Flight] = {}
        self._left_behind: list[Call] = []
        """Calls that were given up while others stood still: what waits for those in the server may yet come true."""
        self._adrift = False
        """Something the model does not speak of was done to the rows: it follows them and says no more."""
        self.predictions = 0
        """How many answers were foretold."""

    def judge(self, group: Sequence[Step]) -> list[str]:
        """A step and those it freed, which share their observations. What is not as it must be, a sentence each."""
        first = group[0]
        wrong: list[str] = []
        movers = [step for step in group if step.call is not None]
        for step in movers:
            assert step.call is not None
            self._flights.setdefault(step.call.number, _Flight(step.call))
        for flight in self._flights.values():
            flight.moments.append((first.before, first.after))
        whole = self._whole(movers)
        if first.kind is StepKind.FAULT or self._adrift:
            pass
        elif whole is not None and not self._left_behind:
            wrong += self._exactly(whole, first.before, first.after)
        else:
            for step in movers:
                if step.reply is not None and not _met_another(step, movers):
                    wrong += self._at_some_moment(step)
            if not movers and not self._left_behind:
                wrong += _changed(first.before, first.after, touched=())
        for step in movers:
            if step.reply is not None:
                assert step.call is not None
                self._remember(step.call, step.reply, first.before if step is whole else None)
                del self._flights[step.call.number]
                if step.reply.outcome is Outcome.UNKNOWN:
                    self._left_behind.append(step.call)
        if not self._flights:
            self._left_behind = []
        return wrong

    def _whole(self, movers: Sequence[Step]) -> Step | None:
        """The one call of this step, where it began and answered in it."""
        if len(movers) != 1 or movers[0].reply is None:
            return None
        call = movers[0].call
        assert call is not None
        return movers[0] if len(self._flights[call.number].moments) == 1 else None

    # -- one call from its beginning to its answer ------------------------------------------------------------

    def _exactly(self, step: Step, before: Observation, after: Observation) -> list[str]:
        call, reply = step.call, step.reply
        assert call is not None and reply is not None
        if reply.outcome is Outcome.UNKNOWN or reply.error is not None:
            return []  # what an error left behind, the search for an explanation says
        self.predictions += 1
        match call.operation:
            case "enqueue":
                return self._enqueue(call, reply, before, after)
            case "claim" | "claim_batch":
                return self._claim(call, reply, before, after)
            case "heartbeat" | "complete" | "fail":
                return self._write(call, call.claims[0], reply, before, after) + _changed(
                    before, after, touched=[call.claims[0].job]
                )
            case "complete_batch":
                return self._complete_batch(call, reply, before, after)
            case "cancel":
                return self._cancel(call, reply, before, after)
            case "reap":
                return self._reap(call, reply, before, after)
            case "requeue":
                return self._requeue(call, reply, before, after)
        self._adrift = call.operation in ("set_token", "bypass_guard")
        return []

    def _enqueue(self, call: Call, reply: Reply, before: Observation, after: Observation) -> list[str]:
        key = call.arguments.get("key")
        if key is not None and any(
            other.call is not call and other.call.arguments.get("key") == key
            for other in self._flights.values()
        ):
            return []  # whose job it is, is being decided
        known = None if key is None else self._keys.get(key) or _with_key(before, key)
        if known is not None and known not in before.by_job:
            return []  # a queue may forget a job that is over, and its key with it
        if known is not None:
            made = self._known.get(known)
            payload = made.payload if made and made.priority is not None else before.by_job[known].payload
            same = payload == call.arguments.get("payload")
            if same and reply.job != known:
                return [f"the key {key!r} belongs to job {known}, {_who(call)} got {_told(reply)}"]
            if not same and reply.accepted:
                return [
                    f"the key {key!r} belongs to a job with another payload, {_who(call)} got {_told(reply)}"
                ]
            return _changed(before, after, touched=())
        if reply.job is None:
            return [f"{_who(call)} should make a job, it was {_told(reply)}"]
        if reply.job in before.by_job:
            return [f"{_who(call)} should make a new job, it got job {reply.job}"]
        view = after.by_job.get(reply.job)
        if view is None or view.state not in WAITING or view.attempts not in (0, None):
            return [f"job {reply.job} was just enqueued and should wait, it shows {_shown(view)}"]
        return _changed(before, after, touched=[reply.job])

    def _claim(self, call: Call, reply: Reply, before: Observation, after: Observation) -> list[str]:
        wanted = call.arguments.get("limit", 1)
        assert isinstance(wanted, int)
        taken = [claim.job for claim in reply.claims]
        wrong = [message for claim in reply.claims for message in self._taken(call, claim, before, after)]
        if reply.outcome is Outcome.REFUSED:
            return [*wrong, *_changed(before, after, touched=())]
        overlooked = [
            view
            for view in self._surely_claimable(before)
            if view.job not in taken and not self._may_be_locked(view)
        ]
        if len(taken) < wanted and overlooked:
            wrong.append(f"job {overlooked[0].job} is there to be claimed, {_who(call)} got {_told(reply)}")
        if Capability.PRIORITY in self._has:
            wrong += self._out_of_order(
                call, [before.by_job[job] for job in taken if job in before.by_job], overlooked
            )
        return wrong + _changed(before, after, touched=taken)

    def _taken(self, call: Call, claim: Claim, before: Observation, after: Observation) -> list[str]:
        was, now = before.by_job.get(claim.job), after.by_job.get(claim.job)
        if was is None or now is None or not self._may_be_claimable(was, after.at_us):
            return [f"{_who(call)} got job {claim.job}, which was {_shown(was)}"]
        wrong = []
        if now.state is not JobState.LEASED or now.token != claim.token:
            wrong.append(
                f"{_who(call)} got job {claim.job} under token {claim.token}, it shows {_shown(now)}"
            )
        wrong += self._wrong_token(claim, was)
        counts = Capability.RETRY in self._has and was.attempts is not None
        if counts and now.attempts != (was.attempts or 0) + 1:
            wrong.append(
                f"job {claim.job} was claimed and shows {now.attempts} attempts after {was.attempts}"
            )
        return wrong + _lease_length(call, claim.job, now, before, after)

    def _wrong_token(self, claim: Claim, was: JobView) -> Iterable[str]:
        if Capability.FENCING not in self._has or was.token is None or claim.token is None:
            return
        consecutive = Capability.CONSECUTIVE_TOKENS in self._has
        if claim.token != was.token + 1 if consecutive else claim.token <= was.token:
            yield f"job {claim.job} had token {was.token}, the next claim got {claim.token}"

    def _out_of_order(self, call: Call, taken: Sequence[JobView], left: Sequence[JobView]) -> list[str]:
        """Highest priority first, and on a queue with OLDEST_FIRST what has been claimable for the longest."""
        for got in taken:
            for other in left:
                if None in (self._of(got.job).priority, self._of(other.job).priority):
                    continue
                if self._rank(other) < self._rank(got):
                    return [f"job {other.job} comes before job {got.job}, {_who(call)} got job {got.job}"]
        return []

    def _rank(self, view: JobView) -> tuple[int, int]:
        urgency = -(self._of(view.job).priority or 0)
        if Capability.OLDEST_FIRST not in self._has:
            return (urgency, 0)
        moment_us = view.lease_until_us if view.state is JobState.LEASED else view.next_run_at_us
        return (urgency, moment_us or 0)

    def _write(
        self, call: Call, claim: Claim, reply: Reply, before: Observation, after: Observation
    ) -> list[str]:
        verb = call.operation.removesuffix("_batch")
        was, now = before.by_job.get(claim.job), after.by_job.get(claim.job)
        allowed = self._answers(call, claim, before, after)
        told = _answer(reply)
        if told not in allowed:
            should = " or ".join(sorted(allowed))
            return [
                f"{_who(call)} on job {claim.job} ({_shown(was)}) should be {should}, it was {_told(reply)}"
            ]
        if told != "accepted":
            return _changed_one(before, after, claim.job)
        if Capability.FENCING not in self._has and not self._is_rightful(claim, before, after):
            return []  # what became of it, harness/classify.py says
        if now is None:
            return []  # a queue may delete what is over; no_lost_job speaks of that
        match verb:
            case "heartbeat":
                ttl_us = _ttl_us(call)
                low_us = before.at_us + ttl_us
                high_us = max(after.at_us + ttl_us, (was.lease_until_us or 0) if was else 0)
                if now.lease_until_us is not None and not low_us <= now.lease_until_us <= high_us:
                    return [
                        f"{_who(call)} should keep job {claim.job} for {ttl_us / US_PER_S:g} s, {_until(now, after)}"
                    ]
            case "complete":
                return self._completed(claim, now, before, after)
            case "fail":
                return self._failed(call, claim, was, now, before, after)
        return []

    def _answers(self, call: Call, claim: Claim, before: Observation, after: Observation) -> set[str]:
        """What may be answered to a write judged between these observations."""
        verb = call.operation.removesuffix("_batch")
        view = before.by_job.get(claim.job)
        known = self._known.get(claim.job)
        if Capability.FENCING not in self._has:
            rightful = self._is_rightful(claim, before, after)
            return {"accepted"} if rightful else {"accepted", "accepted before", "refused"}
        if known is not None and (claim.token, verb) in known.maybe_settled:
            return {"accepted before", "accepted", "refused"}  # the search for an explanation knows more
        if (
            view is not None
            and view.state is not JobState.LEASED
            and self._is_being_answered(call, claim, verb)
        ):
            return {"accepted before", "refused"} if view.token == claim.token else {"refused"}
        if (
            known is not None
            and known.settled == (claim.token, verb)
            and (view is None or (view.state is not JobState.LEASED and view.token == claim.token))
        ):
            return {"accepted before"} if Capability.REPEATS in self._has else {"accepted before", "refused"}
        if view is None or view.state is not JobState.LEASED or view.token != claim.token:
            return {"refused"}
        answers: set[str] = set()
        until_us = view.lease_until_us if view.lease_until_us is not None else claim.lease_until_us
        if until_us is None or until_us > before.at_us:
            answers.add("accepted")
        if until_us is None or until_us <= after.at_us:
            answers.add("refused")
        if verb == "heartbeat" and until_us is not None and before.at_us + _ttl_us(call) < until_us:
            answers.add("refused")  # it would end the lease sooner than was promised
        return answers

    def _is_rightful(self, claim: Claim, before: Observation, after: Observation) -> bool:
        """Without tokens: whether it is sure that nobody was given the job since, and that the lease is live."""
        view, known = before.by_job.get(claim.job), self._known.get(claim.job)
        if view is None or view.state is not JobState.LEASED or known is None or known.claim is not claim:
            return False
        until_us = view.lease_until_us if view.lease_until_us is not None else claim.lease_until_us
        return until_us is not None and until_us > after.at_us

    def _is_being_answered(self, call: Call, claim: Claim, verb: str) -> bool:
        """Whether another has written the same under the same claim, and its answer has not come."""
        return any(
            flight.call is not call
            and flight.call.operation.removesuffix("_batch") == verb
            and any((other.job, other.token) == (claim.job, claim.token) for other in flight.call.claims)
            for flight in self._flights.values()
        )

    def _completed(self, claim: Claim, now: JobView, before: Observation, after: Observation) -> list[str]:
        wrong = []
        if now.state is not JobState.SUCCEEDED:
            wrong.append(f"job {claim.job} was completed and shows {_shown(now)}")
        grown = len(after.ledger_of(claim.job)) - len(before.ledger_of(claim.job))
        if Capability.LEDGER in self._has and grown != 1:
            wrong.append(f"job {claim.job} was completed and its ledger grew by {grown}")
        return wrong

    def _failed(
        self,
        call: Call,
        claim: Claim,
        was: JobView | None,
        now: JobView,
        before: Observation,
        after: Observation,
    ) -> list[str]:
        if (
            Capability.RETRY not in self._has
            or was is None
            or was.attempts is None
            or was.max_attempts is None
        ):
            return []
        if was.attempts >= was.max_attempts:
            if now.state is JobState.FAILED:
                return []
            return [f"job {claim.job} failed its last attempt and shows {_shown(now)}"]
        if now.state not in WAITING:
            return [f"job {claim.job} has attempts left and shows {_shown(now)} after a failure"]
        if Capability.BACKOFF not in self._has or now.next_run_at_us is None:
            return []
        wait = (now.next_run_at_us - after.at_us, now.next_run_at_us - before.at_us)
        waits = self._of(claim.job).waits_us
        waits.append(wait)
        return [f"job {claim.job}: {wrong}" for wrong in _wrong_wait(waits)]

    def _complete_batch(self, call: Call, reply: Reply, before: Observation, after: Observation) -> list[str]:
        jobs = [claim.job for claim in call.claims]
        if len(reply.items) != len(jobs):
            return [f"{_who(call)} gave {len(jobs)} claims and got {len(reply.items)} answers"]
        wrong = _changed(before, after, touched=jobs)
        # Of several items of one job: the first that changed it, or else the first. The others saw another state.
        deciding: dict[JobId, tuple[Claim, Reply]] = {}
        for claim, item in zip(call.claims, reply.items, strict=True):
            known = deciding.setdefault(claim.job, (claim, item))
            if _answer(item) == "accepted" != _answer(known[1]):
                deciding[claim.job] = (claim, item)
        for claim, item in deciding.values():
            wrong += self._write(call, claim, item, before, after)
        return wrong

    def _cancel(self, call: Call, reply: Reply, before: Observation, after: Observation) -> list[str]:
        job = str(call.arguments["job"])
        view = before.by_job.get(job)
        ends = view is not None and view.state in LIVE_STATES
        if reply.accepted is not ends:
            return [f"{_who(call)} of job {job} ({_shown(view)}) was {_told(reply)}"]
        now = after.by_job.get(job)
        if ends and now is not None and now.state is not JobState.CANCELLED:
            return [f"job {job} was cancelled and shows {_shown(now)}"]
        return _changed(before, after, touched=[job] if ends else ())

    def _reap(self, call: Call, reply: Reply, before: Observation, after: Observation) -> list[str]:
        expired = [
            view for view in before.jobs if view.state is JobState.LEASED and _ended_by(view, after.at_us)
        ]
        surely = [v for v in expired if _ended_by(v, before.at_us) and not self._may_be_locked(v)]
        left = [v for v in surely if _same_lease(v, after.by_job.get(v.job))]
        reaped = [v for v in expired if not _same_lease(v, after.by_job.get(v.job))]
        limit = call.arguments.get("limit")
        wrong = []
        if left and (limit is None or len(reaped) < limit) and (reply.count or 0) < REAPS_AT_ONCE:
            wrong.append(f"job {left[0].job} is to be recovered, {_who(call)} left it")
        if limit is not None and len(reaped) > limit:
            wrong.append(f"{_who(call)} was to recover at most {limit} and recovered {len(reaped)}")
        for got in reaped:
            for other in left:
                if limit is not None and (other.lease_until_us or 0) < (got.lease_until_us or 0):
                    wrong.append(f"{_who(call)} recovered job {got.job} before job {other.job}, lost earlier")
        for view in reaped:
            wrong += self._recovered(view, after.by_job.get(view.job))
        if reply.accepted and reply.count != len(reaped):
            wrong.append(f"{_who(call)} recovered {len(reaped)} and says {reply.count}")
        return wrong + _changed(before, after, touched=[view.job for view in expired])

    def _recovered(self, was: JobView, now: JobView | None) -> list[str]:
        if now is None:
            return []
        last = was.attempts is not None and was.max_attempts is not None and was.attempts >= was.max_attempts
        ends = last and Capability.DEAD_LETTER in self._has
        if (now.state is JobState.FAILED) is not ends or (not ends and now.state not in WAITING):
            return [f"job {was.job} was recovered from {_shown(was)} and shows {_shown(now)}"]
        spent = Capability.RETRY in self._has and now.attempts != was.attempts
        if spent or (Capability.FENCING in self._has and now.token != was.token):
            return [f"job {was.job} was recovered and its token or attempts changed: {_shown(now)}"]
        return []

    def _requeue(self, call: Call, reply: Reply, before: Observation, after: Observation) -> list[str]:
        job = str(call.arguments["job"])
        view = before.by_job.get(job)
        if view is None or view.state is not JobState.FAILED:
            if reply.accepted:
                return [
                    f"{_who(call)} of job {job} ({_shown(view)}) should be refused, it was {_told(reply)}"
                ]
            return _changed(before, after, touched=())
        successor = self._of(job).successor
        if successor is not None and reply.job != successor:
            return [f"job {job} was requeued as job {successor} before, {_who(call)} got {_told(reply)}"]
        is_decided = successor is not None or self._may_be_requeued(call, job)
        if reply.job is None or (reply.job in before.by_job and not is_decided):
            return [f"{_who(call)} of the dead letter {job} should make a new job, it was {_told(reply)}"]
        now = after.by_job.get(reply.job)
        if now is not None and (now.payload, now.max_attempts) != (view.payload, view.max_attempts):
            return [
                f"job {reply.job} has not the payload and attempts of the dead letter {job} it stands for"
            ]
        return _changed(before, after, touched=[reply.job])

    def _may_be_requeued(self, call: Call, job: str) -> bool:
        """By somebody who was not told, or has not been yet."""
        return self._of(job).maybe_requeued or any(
            flight.call is not call
            and flight.call.operation == "requeue"
            and flight.call.arguments["job"] == call.arguments["job"]
            for flight in self._flights.values()
        )

    # -- a call that was held or blocked on its way -----------------------------------------------------------

    def _at_some_moment(self, step: Step) -> list[str]:
        call, reply = step.call, step.reply
        assert call is not None and reply is not None
        if reply.outcome is Outcome.UNKNOWN or reply.error is not None:
            return []
        moments = self._flights[call.number].moments
        match call.operation:
            case "heartbeat" | "complete" | "fail":
                self.predictions += 1
                allowed = set().union(
                    *(self._answers(call, call.claims[0], before, after) for before, after in moments)
                )
                # Where others moved in the same step, it may have been judged after them.
                allowed |= self._answers(call, call.claims[0], step.after, step.after)
                # Another's settlement under the same claim may have come while it was on its way.
                allowed |= {"accepted before"} if _answer(reply) == "accepted before" else set()
                if _answer(reply) not in allowed:
                    should = " or ".join(sorted(allowed))
                    return [
                        f"{_who(call)} on job {call.claims[0].job} should be {should}, it was {_told(reply)}"
                    ]
            case "enqueue":
                known = self._keys.get(call.arguments.get("key") or "")
                if known is not None and reply.accepted and reply.job != known:
                    return [f"the key of job {known} was submitted again, {_who(call)} got {_told(reply)}"]
            case "requeue":
                successor = self._of(str(call.arguments["job"])).successor
                if successor is not None and reply.accepted and reply.job != successor:
                    return [f"a dead letter was requeued as job {successor}, {_who(call)} got {_told(reply)}"]
        return []

    # -- what it knows ----------------------------------------------------------------------------------------

    def _remember(self, call: Call, reply: Reply, before: Observation | None) -> None:
        """`before`: the rows as they were when it began, of a call that began and answered in one step."""
        arguments = call.arguments
        key = arguments.get("key")
        if call.operation == "enqueue" and reply.job is not None:
            # Of several that submit one key, the first to be answered need not be the one that made the job.
            if key is None or (before is not None and reply.job not in before.by_job):
                self._of(reply.job).priority = int(arguments.get("priority") or 0)
                self._of(reply.job).payload = arguments.get("payload")
            if key is not None:
                self._keys.setdefault(str(key), reply.job)
        if call.operation == "requeue" and reply.outcome is Outcome.UNKNOWN:
            self._of(str(arguments["job"])).maybe_requeued = True
        if call.operation == "requeue" and reply.job is not None:
            old = self._of(str(arguments["job"]))
            old.successor = reply.job
            successor = self._of(reply.job)
            successor.priority, successor.payload = old.priority, old.payload
        for claim in reply.claims:
            self._of(claim.job).claim = claim
            if self._of(claim.job).is_news(claim.token):
                self._of(claim.job).settled = None
        verb = call.operation.removesuffix("_batch")
        if verb in ("complete", "fail"):
            items = reply.items or (reply,)
            for claim, item in zip(call.claims, items, strict=False):
                if item.accepted and self._of(claim.job).is_news(claim.token):
                    self._of(claim.job).settled = (claim.token, verb)
                if item.outcome is Outcome.UNKNOWN:
                    self._of(claim.job).maybe_settled.add((claim.token, verb))

    def _of(self, job: JobId) -> KnownJob:
        return self._known.setdefault(job, KnownJob())

    def _may_be_claimable(self, view: JobView, at_us: int) -> bool:
        if view.state in WAITING:
            return view.next_run_at_us is None or view.next_run_at_us <= at_us
        if view.state is not JobState.LEASED or Capability.DEFERRED_RECLAIM in self._has:
            return False
        attempts_left = (
            view.attempts is None or view.max_attempts is None or view.attempts < view.max_attempts
        )
        return attempts_left and _ended_by(view, at_us)

    def _surely_claimable(self, before: Observation) -> list[JobView]:
        return [
            view
            for view in before.jobs
            if self._may_be_claimable(view, before.at_us)
            and (view.state is not JobState.LEASED or view.lease_until_us is not None)
        ]

    def _may_be_locked(self, view: JobView) -> bool:
        """Whether a call on its way may hold the job's row."""
        for flight in self._flights.values():
            if len(flight.moments) == 1:
                continue  # the one that is being judged
            call = flight.call
            if call.operation in ("claim", "claim_batch", "reap", "requeue"):
                return True
            if call.arguments.get("job") == view.job or any(claim.job == view.job for claim in call.claims):
                return True
        return False


def _met_another(step: Step, movers: Sequence[Step]) -> bool:
    """Whether another call moved in the same step and may have changed what this one was judged by.

    The rows between the two are seen by nobody; the search for an explanation tries both orders.
    """
    call = step.call
    assert call is not None
    own = _jobs_of(call)
    for other in movers:
        assert other.call is not None
        if other.call is not call and (not _jobs_of(other.call) or not own.isdisjoint(_jobs_of(other.call))):
            return True
    return False


def _jobs_of(call: Call) -> set[JobId]:
    """Those it names. A claim, a sweep or an enqueue names none, and may act on any."""
    named = {claim.job for claim in call.claims}
    return named | {str(call.arguments["job"])} if "job" in call.arguments else named


def _with_key(before: Observation, key: Json) -> JobId | None:
    """Of a job nobody was told of: the answer of the enqueue that made it was lost, or is on its way."""
    return next((view.job for view in before.jobs if view.key == key), None)


REAPS_AT_ONCE = 50
"""A sweep may bound itself; one that recovered fewer than this had room for one more."""


def _wrong_wait(waits: Sequence[tuple[int, int]]) -> Iterable[str]:
    """Each wait counts from the failure, is no shorter than the last, grows, and is capped."""
    low_us, high_us = waits[-1]
    if high_us <= 0:
        yield "it may run again before the failure that sent it back"
    if len(waits) > 1 and high_us < waits[-2][0]:
        yield f"it waits {high_us / US_PER_S:.1f} s at most after this failure, and longer after the one before"
    if len(waits) >= FAILURES_UNTIL_CAPPED:
        if high_us <= 2 * waits[0][0]:
            yield f"it waits no longer after {len(waits)} failures than after the first"
        if low_us > waits[-2][1]:
            yield f"its wait still grows after {len(waits)} failures: {low_us / US_PER_S:.0f} s"


def _answer(reply: Reply) -> str:
    if reply.outcome is Outcome.ACCEPTED:
        return "accepted before" if reply.repeated else "accepted"
    return reply.outcome.value


def _ttl_us(call: Call) -> int:
    ttl_s = call.arguments.get("ttl_s", 60.0)
    assert isinstance(ttl_s, int | float)
    return round(ttl_s * US_PER_S)


def _lease_length(call: Call, job: JobId, now: JobView, before: Observation, after: Observation) -> list[str]:
    ttl_us = _ttl_us(call)
    if now.lease_until_us is None or before.at_us + ttl_us <= now.lease_until_us <= after.at_us + ttl_us:
        return []
    return [f"{_who(call)} should have job {job} for {ttl_us / US_PER_S:g} s, {_until(now, after)}"]


def _until(now: JobView, after: Observation) -> str:
    assert now.lease_until_us is not None
    return f"its lease ends in {(now.lease_until_us - after.at_us) / US_PER_S:.1f} s"


def _ended_by(view: JobView, at_us: int) -> bool:
    return view.lease_until_us is None or view.lease_until_us <= at_us


def _same_lease(was: JobView, now: JobView | None) -> bool:
    return now is not None and now.state is JobState.LEASED and now.lease_until_us == was.lease_until_us


def _changed(before: Observation, after: Observation, *, touched: Iterable[JobId]) -> list[str]:
    """Jobs that nobody acted on stay as they are."""
    spared = set(touched)
    wrong = []
    for job in {**before.by_job, **after.by_job}:
        if job not in spared:
            wrong += _changed_one(before, after, job)
    return wrong


def _changed_one(before: Observation, after: Observation, job: JobId) -> list[str]:
    was, now = before.by_job.get(job), after.by_job.get(job)
    if was is not None and was.state in TERMINAL_STATES and now is None:
        return []  # a queue may delete what is over
    if not _same_row(was, now, after.at_us):
        return [f"nobody changed job {job} in this step; it was {_shown(was)} and is {_shown(now)}"]
    if before.ledger_of(job) != after.ledger_of(job):
        return [f"nobody completed job {job} in this step, and its ledger changed"]
    return []


def _same_row(was: JobView | None, now: JobView | None, at_us: int) -> bool:
    if was is None or now is None:
        return was is now
    return same_token(was.token, now.token) and _row(was, at_us) == _row(now, at_us)


def _row(view: JobView, at_us: int) -> object:
    state = JobState.READY if view.state is JobState.DELAYED else view.state  # time alone makes a job due
    is_over = view.lease_until_us is not None and view.lease_until_us <= at_us  # since when, decides nothing
    lease = "over" if is_over else view.lease_until_us
    return (state, view.attempts, view.holder, lease, view.next_run_at_us, view.result)


def _shown(view: JobView | None) -> str:
    if view is None:
        return "not there"
    parts = [view.state.value]
    if view.token is not None:
        parts.append(f"token {view.token}")
    if view.attempts is not None:
        of = f" of {view.max_attempts}" if view.max_attempts is not None else ""
        parts.append(f"attempts {view.attempts}{of}")
    return ", ".join(parts)


def _who(call: Call) -> str:
    return f"{call.actor}'s {call.operation}"


def _told(reply: Reply) -> str:
    if reply.claims:
        return ", ".join(f"job {claim.job} under token {claim.token}" for claim in reply.claims)
    if reply.job is not None:
        return f"job {reply.job}"
    text = _answer(reply) if reply.outcome is not Outcome.ACCEPTED or reply.repeated else "accepted"
    return f"{text} ({reply.reason})" if reply.reason else text
