"""A run's history as calls on single jobs, for the search that explains unknown outcomes (`linearize.py`)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from fencepost.harness.adapter import Capability, JobId, JobState, JobView, Observation, Outcome
from fencepost.harness.history import Call, Reply, Step, StepKind
from fencepost.harness.lease_job import CANCELLED, FAILED, LEASED, SUCCEEDED, WAITING, LeaseJob
from fencepost.harness.linearize import Operation, Unexplained, check

PHASES = {
    JobState.READY: WAITING,
    JobState.DELAYED: WAITING,
    JobState.LEASED: LEASED,
    JobState.SUCCEEDED: SUCCEEDED,
    JobState.FAILED: FAILED,
    JobState.CANCELLED: CANCELLED,
}
WRITES = frozenset({"heartbeat", "complete", "fail"})
BEHIND_ITS_BACK = frozenset({"set_token", "bypass_guard"})
"""What no worker does. A history with one of these on a job says nothing about how the queue treats it."""

US_PER_S = 1_000_000


def explain(steps: Sequence[Step], capabilities: frozenset[Capability]) -> Unexplained | None:
    """Where no order of the calls explains the answers and the rows: the first that cannot be true.

    Only of a queue with fencing tokens: without them one lease cannot be told from the next.
    """
    if Capability.FENCING not in capabilities:
        return None
    specification = LeaseJob(
        ledger=Capability.LEDGER in capabilities, repeats=Capability.REPEATS in capabilities
    )
    return check(operations_of(steps), specification)


def operations_of(steps: Sequence[Step]) -> list[Operation]:
    return _Telling(steps).operations()


class _Telling:
    def __init__(self, steps: Sequence[Step]) -> None:
        self._steps = steps
        self._position = 0
        self._started: dict[int, int] = {}
        self._window: dict[int, tuple[int, int]] = {}
        self._calls: dict[int, Call] = {}
        self._told: list[Operation] = []
        self._seen: dict[JobId, JobView] = {}
        self._entries: dict[JobId, int] = {}

    def operations(self) -> list[Operation]:
        for group in groups(self._steps):
            self._group(group)
        for number, call in self._calls.items():
            if call.operation not in BEHIND_ITS_BACK:
                self._lost(number, call)
        excluded = {
            job
            for step in self._steps
            if step.call is not None and step.call.operation in BEHIND_ITS_BACK
            for job in _named(step.call)
        }
        return [operation for operation in self._told if operation.job not in excluded]

    def _group(self, group: Sequence[Step]) -> None:
        before, after = group[0].before, group[0].after
        for step in group:
            if step.call is not None and step.call.number not in self._started:
                number = step.call.number
                self._started[number] = self._next()
                self._window[number] = (before.at_us, after.at_us)
                self._calls[number] = step.call
        for number in self._calls:
            low, high = self._window[number]
            self._window[number] = (min(low, after.at_us), max(high, after.at_us))
        acted_on: set[JobId] = set()
        for step in group:
            if step.reply is not None and step.call is not None:
                acted_on |= self._answered(step.call, step.reply)
        for view in after.jobs:
            entries = len(after.ledger_of(view.job))
            changed = self._seen.get(view.job) != view or self._entries.get(view.job) != entries
            if changed or view.job in acted_on:
                self._seen[view.job], self._entries[view.job] = view, entries
                self._told.append(self._read(view, entries, after))

    def _next(self) -> int:
        self._position += 1
        return self._position

    def _answered(self, call: Call, reply: Reply) -> set[JobId]:
        del self._calls[call.number]
        if reply.outcome is Outcome.UNKNOWN:
            self._lost(call.number, call)
            return set()
        if reply.error is not None:
            return set()  # the server refused the transaction: nothing of it happened
        answered = self._next()
        made = list(self._of_call(call, reply, answered))
        self._told.extend(made)
        return {operation.job for operation in made}

    def _of_call(self, call: Call, reply: Reply, answered: int) -> Iterator[Operation]:
        low, high = self._window[call.number]
        base = Operation(
            "",
            call.operation.removesuffix("_batch"),
            self._started[call.number],
            answered,
            reply.outcome,
            call.actor,
            earliest_us=low,
            latest_us=high,
            ttl_us=_ttl_us(call),
        )
        match base.name:
            case "enqueue" | "requeue":
                if reply.job is not None:
                    may_exist = base.name == "requeue" or call.arguments.get("key") is not None
                    yield replace(base, name="enqueue", job=reply.job, may_exist=may_exist)
            case "claim":
                for claim in reply.claims:
                    yield replace(base, job=claim.job, token=claim.token, lease_until_us=claim.lease_until_us)
            case "heartbeat" | "complete" | "fail":
                for claim, item in zip(call.claims, reply.items or (reply,), strict=False):
                    if claim.job in self._seen:
                        yield replace(
                            base,
                            job=claim.job,
                            token=claim.token,
                            outcome=item.outcome,
                            repeated=item.repeated,
                        )
            case "cancel":
                if str(call.arguments["job"]) in self._seen:
                    yield replace(base, job=str(call.arguments["job"]))
            case "reap":
                for job in self._seen:
                    yield replace(base, job=job)

    def _lost(self, number: int, call: Call) -> None:
        """Its answer never came. Which job a claim took, a sweep recovered or an enqueue made is not known: any."""
        low, _ = self._window[number]
        verb = call.operation.removesuffix("_batch")
        base = Operation("", verb, self._started[number], None, Outcome.UNKNOWN, call.actor, earliest_us=low)
        if verb in WRITES:
            for claim in call.claims:
                self._told.append(replace(base, job=claim.job, token=claim.token, ttl_us=_ttl_us(call)))
        elif verb == "cancel":
            self._told.append(replace(base, job=str(call.arguments["job"])))
        else:
            everyone = {view.job for step in self._steps for view in step.after.jobs}
            name = verb if verb in ("claim", "reap") else "enqueue"
            made = replace(base, name=name, ttl_us=_ttl_us(call), may_exist=True)
            self._told.extend(replace(made, job=job) for job in sorted(everyone))

    def _read(self, view: JobView, entries: int, after: Observation) -> Operation:
        return Operation(
            view.job,
            "read",
            self._next(),
            self._next(),
            token=view.token,
            earliest_us=after.at_us,
            latest_us=after.at_us,
            lease_until_us=view.lease_until_us,
            phase=PHASES[view.state],
            attempts=view.attempts,
            max_attempts=view.max_attempts,
            entries=entries,
        )


def groups(steps: Sequence[Step]) -> Iterator[Sequence[Step]]:
    """A step with those it freed: they share their observations."""
    group: list[Step] = []
    for step in steps:
        if group and step.kind is not StepKind.FREED:
            yield group
            group = []
        group.append(step)
    if group:
        yield group


def _named(call: Call) -> set[JobId]:
    named = {claim.job for claim in call.claims}
    if "job" in call.arguments:
        named.add(str(call.arguments["job"]))
    return named


def _ttl_us(call: Call) -> int | None:
    ttl_s = call.arguments.get("ttl_s")
    return None if ttl_s is None else round(float(ttl_s) * US_PER_S)
