"""Histories written by hand, for tests of what judges them.

`History` keeps the rows of an imaginary queue. `put` and `write` change them, the next step commits them. The
methods named after operations do what a correct queue does; a broken one is written out with `do`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from fencepost.harness.adapter import (
    GUARD_PASSED,
    Capability,
    Claim,
    JobState,
    JobView,
    LedgerEntry,
    Observation,
    Outcome,
)
from fencepost.harness.history import Call, CallStatus, ClockMove, Reply, Step, StepKind, Violation
from fencepost.harness.invariants import INVARIANTS, Invariant

US = 1_000_000
TICK_US = 1_000
"""Database time between two steps: it never stands still."""

ACCEPTED = Reply(Outcome.ACCEPTED)
REPEATED = Reply(Outcome.ACCEPTED, repeated=True)
UNKNOWN = Reply(Outcome.UNKNOWN)
STALE = Reply(Outcome.REFUSED, reason="token_mismatch")
EXPIRED = Reply(Outcome.REFUSED, reason="lease_expired")
NOTHING = Reply(Outcome.ACCEPTED)
ALL_CAPABILITIES = frozenset(Capability)


class History:
    def __init__(self, *, tokens: bool = True) -> None:
        self.steps: list[Step] = []
        self._tokens = tokens
        self._now_us = 1_000 * US
        self._rows: dict[str, JobView] = {}
        self._ledger: list[LedgerEntry] = []
        self._calls = 0
        self._unguarded: dict[int, Call] = {}
        self._seen = self._observe()

    # Rows

    def put(self, job: str, **fields: Any) -> None:
        row = self._rows.get(job) or JobView(
            job, JobState.READY, token=0 if self._tokens else None, attempts=0, next_run_at_us=self._now_us
        )
        self._rows[job] = replace(row, **fields)

    def put_back(self, row: JobView) -> None:
        self._rows[row.job] = row

    def drop(self, job: str) -> None:
        del self._rows[job]

    def write(self, job: str, token: int | None, worker: str | None = None) -> None:
        self._ledger.append(LedgerEntry(job, token, worker))

    def erase_ledger(self) -> None:
        self._ledger.clear()

    def row(self, job: str) -> JobView:
        return self._rows[job]

    @property
    def now_us(self) -> int:
        return self._now_us

    def _observe(self) -> Observation:
        return Observation(self._now_us, tuple(self._rows.values()), tuple(self._ledger))

    # Steps

    def let_go(self, actor: str, operation: str, *claims: Claim, worker: str = "", **arguments: Any) -> Call:
        self._calls += 1
        at_us = self._seen.at_us
        return Call(
            self._calls,
            actor,
            worker or actor,
            operation,
            arguments,
            claims,
            started_step=len(self.steps) + 1,
            started_us=at_us,
            unguarded_until_us=at_us,
        )

    def answer(self, call: Call, reply: Reply = ACCEPTED) -> None:
        self._step(StepKind.CALL, call, CallStatus.ANSWERED, reply)

    def park(self, call: Call, checkpoint: str = GUARD_PASSED, *, guarded: bool = True) -> None:
        self._step(StepKind.CALL, call, CallStatus.PARKED, checkpoint=checkpoint, unguarded=not guarded)

    def block(self, call: Call, *by: str) -> None:
        self._step(StepKind.CALL, call, CallStatus.BLOCKED, unguarded=True, blocked_by=by)

    def freed(self, call: Call, reply: Reply | None = ACCEPTED) -> None:
        """In the group of the last step: around the same two observations."""
        status = CallStatus.PARKED if reply is None else CallStatus.ANSWERED
        self._step(StepKind.FREED, call, status, reply)

    def do(
        self, actor: str, operation: str, *claims: Claim, reply: Reply = ACCEPTED, **arguments: Any
    ) -> None:
        self.answer(self.let_go(actor, operation, *claims, **arguments), reply)

    def fault(self, name: str, actor: str | None = None) -> None:
        self._step(StepKind.FAULT, fault=name, actor=actor)

    def exit(self, actor: str) -> None:
        self._step(StepKind.EXIT, actor=actor)

    def end(self) -> None:
        self._step(StepKind.END)

    def advance(self, seconds: float) -> None:
        self._now_us += int(seconds * US)
        self._step(StepKind.CLOCK, clock=ClockMove("clock", seconds))

    def expire(self, claim: Claim) -> None:
        self.put(claim.job, lease_until_us=self._now_us - 1)
        self._step(StepKind.CLOCK, clock=ClockMove("expire", 0.0, claim))

    def _step(
        self,
        kind: StepKind,
        call: Call | None = None,
        status: CallStatus | None = None,
        reply: Reply | None = None,
        *,
        unguarded: bool = False,
        **fields: Any,
    ) -> None:
        if kind is StepKind.FREED:
            before, after = self.steps[-1].before, self.steps[-1].after
        else:
            self._now_us += TICK_US
            before, after = self._seen, self._observe()
        self._seen = after
        if call is not None:
            call.reply = reply
            self._unguarded.pop(call.number, None)
            if unguarded:
                self._unguarded[call.number] = call
        for waiting in self._unguarded.values():
            waiting.unguarded_until_us = after.at_us
        actor = fields.pop("actor", call.actor if call is not None else None)
        self.steps.append(Step(len(self.steps) + 1, kind, before, after, call, status, actor=actor, **fields))

    # What a correct queue does

    def enqueue(self, job: str = "1", *, actor: str = "P", delay_s: float = 0.0, **fields: Any) -> None:
        due_us = self._now_us + TICK_US + int(delay_s * US)
        self.put(job, state=JobState.DELAYED if delay_s else JobState.READY, next_run_at_us=due_us, **fields)
        arguments = {"payload": fields.get("payload"), "key": fields.get("key"), "delay_s": delay_s}
        self.do(actor, "enqueue", reply=Reply(Outcome.ACCEPTED, job=job), **arguments)

    def lease(self, actor: str, job: str = "1", ttl_s: float = 30.0, *, worker: str = "") -> Claim:
        """Commit in the rows what a claim commits, without a step."""
        row = self._rows[job]
        token = None if row.token is None else row.token + 1
        until_us = self._now_us + TICK_US + int(ttl_s * US)
        self.put(
            job,
            state=JobState.LEASED,
            token=token,
            attempts=(row.attempts or 0) + 1,
            holder=worker or actor,
            lease_until_us=until_us,
        )
        return Claim(job, token, until_us)

    def claim(self, actor: str, job: str = "1", ttl_s: float = 30.0, *, worker: str = "") -> Claim:
        call = self.let_go(actor, "claim", worker=worker, ttl_s=ttl_s)
        claim = self.lease(actor, job, ttl_s, worker=worker)
        self.answer(call, given(claim))
        return claim

    def finish(self, claim: Claim, actor: str = "A") -> None:
        self.put(claim.job, state=JobState.SUCCEEDED, holder=None, lease_until_us=None)
        self.write(claim.job, claim.token, actor)

    def requeue(self, job: str = "1", *, delay_s: float = 0.0) -> None:
        self.put(
            job,
            state=JobState.DELAYED if delay_s else JobState.READY,
            holder=None,
            lease_until_us=None,
            next_run_at_us=self._now_us + TICK_US + int(delay_s * US),
        )

    def complete(self, actor: str, claim: Claim) -> None:
        self.finish(claim, actor)
        self.do(actor, "complete", claim)

    def fail(self, actor: str, claim: Claim, *, delay_s: float = 0.0) -> None:
        self.requeue(claim.job, delay_s=delay_s)
        self.do(actor, "fail", claim)

    def heartbeat(self, actor: str, claim: Claim, ttl_s: float = 30.0) -> None:
        self.put(claim.job, lease_until_us=self._now_us + TICK_US + int(ttl_s * US))
        self.do(actor, "heartbeat", claim, ttl_s=ttl_s)

    def reap(self, *jobs: str, actor: str = "R") -> None:
        for job in jobs:
            self.requeue(job)
        self.do(actor, "reap", reply=reaped(len(jobs)))


def given(*claims: Claim) -> Reply:
    return Reply(Outcome.ACCEPTED, claims=claims)


def reaped(count: int) -> Reply:
    return Reply(Outcome.ACCEPTED, count=count)


def job_of(job: str) -> Reply:
    return Reply(Outcome.ACCEPTED, job=job)


def items(*replies: Reply) -> Reply:
    return Reply(Outcome.ACCEPTED, items=replies)


def violations(invariant: Invariant, history: History) -> list[Violation]:
    found = [invariant.judge(step) for step in history.steps]
    return [violation for violation in found if violation is not None]


def every_violation(history: History) -> list[Violation]:
    return [violation for invariant in INVARIANTS for violation in violations(invariant(), history)]


Build = Callable[[], History]


@dataclass(frozen=True)
class BadCase:
    build: Build
    invariant: str
    says: str
    job: str | None
    steps_before_end: int


@dataclass
class Cases:
    """The histories of one test module, by the invariant they are about."""

    bad: dict[str, BadCase] = field(default_factory=dict)
    good: dict[str, tuple[str, Build]] = field(default_factory=dict)

    def breaks(
        self, invariant: str, says: str, *, job: str | None = "1", steps_before_end: int = 0
    ) -> Callable[[Build], Build]:
        """The history breaks it at its last step, or so many steps before."""

        def register(build: Build) -> Build:
            name = f"{invariant}: {build.__name__}"
            self.bad[name] = BadCase(build, invariant, says, job, steps_before_end)
            return build

        return register

    def keeps(self, invariant: str) -> Callable[[Build], Build]:
        """The history breaks no invariant at all, and puts this one to the test."""

        def register(build: Build) -> Build:
            self.good[f"{invariant}: {build.__name__}"] = (invariant, build)
            return build

        return register

    def covered(self) -> tuple[set[str], set[str]]:
        return {case.invariant for case in self.bad.values()}, {name for name, _ in self.good.values()}


def assert_breaks(case: BadCase) -> None:
    history = case.build()
    invariant = next(kind for kind in INVARIANTS if kind.name == case.invariant)()
    found = violations(invariant, history)
    assert found, f"{case.invariant} saw nothing"
    assert found[0].invariant == case.invariant
    assert found[0].job == case.job
    assert found[0].message == case.says
    assert found[0].step == len(history.steps) - case.steps_before_end
    assert invariant.exercised > 0, "violated and yet never exercised"


def assert_keeps(name: str, build: Build) -> None:
    history = build()
    assert every_violation(history) == []
    invariant = next(kind for kind in INVARIANTS if kind.name == name)()
    violations(invariant, history)
    assert invariant.evaluated > 0
    assert invariant.exercised > 0, "a good history that never met the antecedent shows nothing"
