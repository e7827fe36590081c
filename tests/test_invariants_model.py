"""A correct queue, driven at random, is never accused.

The model is a queue of one table with row locks: an operation takes effect at once, or is held before or after
its commit, or loses its answer. Whatever is let go of meanwhile runs into the lock and is freed later.
"""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given as forall
from hypothesis import settings
from hypothesis import strategies as st

from fencepost.harness.adapter import Claim, JobState, JobView
from fencepost.harness.history import Call, Reply
from fencepost.harness.invariants import applicable
from fencepost.tests.histories import (
    ACCEPTED,
    ALL_CAPABILITIES,
    EXPIRED,
    NOTHING,
    STALE,
    TICK_US,
    UNKNOWN,
    US,
    History,
    every_violation,
    given,
    reaped,
)

TTL_S = 30.0
MAX_ATTEMPTS = 3
ACTORS = ("A", "B", "C")
WRITES = ("complete", "fail", "heartbeat")


@dataclass
class Held:
    """A call that stands still. Before its commit it holds the row; after, only its answer is missing."""

    call: Call
    job: str
    reply: Reply
    committed: bool
    row: JobView | None = None  # what a claim is going to commit


class Model:
    def __init__(self, *, tokens: bool) -> None:
        self.h = History(tokens=tokens)
        self.jobs = 0
        self.claims: dict[str, list[Claim]] = {actor: [] for actor in ACTORS}
        self.held: dict[str, Held] = {}
        self.waiting: dict[str, tuple[Call, str]] = {}
        self.current: dict[str, int] = {}  # job: which claim of it is current, for queues without tokens

    def locked(self, job: str) -> bool:
        return any(held.job == job and not held.committed for held in self.held.values())

    def idle(self, actor: str) -> bool:
        return actor not in self.held and actor not in self.waiting

    # Operations

    def enqueue(self, delay_s: float) -> None:
        if self.jobs < 3:
            self.jobs += 1
            self.current[str(self.jobs)] = 0
            self.h.enqueue(str(self.jobs), delay_s=delay_s, max_attempts=MAX_ATTEMPTS)

    def claim(self, actor: str, how: str) -> None:
        if not self.idle(actor):
            return
        call = self.h.let_go(actor, "claim", ttl_s=TTL_S)
        job = self._claimable()
        if job is None:
            self.h.answer(call, NOTHING)
            return
        if how == "held before":
            before = self.h.row(job)
            claim = self._lease(actor, job)
            self.held[actor] = Held(call, job, given(claim), committed=False, row=self.h.row(job))
            self.h.put_back(before)
            self.current[job] -= 1
            self.h.park(call, "before_commit")
            return
        claim = self._lease(actor, job)
        if how == "lost":
            self.h.answer(call, UNKNOWN)
            return
        self.claims[actor].append(claim)
        self._answer(call, job, given(claim), how)

    def write(self, actor: str, operation: str, which: int, how: str) -> None:
        if not self.idle(actor) or not self.claims[actor]:
            return
        claim = self.claims[actor][which % len(self.claims[actor])]
        arguments = {"ttl_s": TTL_S} if operation == "heartbeat" else {}
        call = self.h.let_go(actor, operation, claim, **arguments)
        if self.locked(claim.job):
            self.waiting[actor] = (call, claim.job)
            self.h.block(call)
        elif how == "held before":
            reply = self._judge(call)
            self.held[actor] = Held(call, claim.job, reply, committed=False)
            self.h.park(call)
        else:
            reply = self._judge(call)
            if reply is ACCEPTED:
                self._apply(call)
            self._answer(call, claim.job, UNKNOWN if how == "lost" else reply, how)

    def reap(self, how: str) -> None:
        if "R" in self.held:
            return
        call = self.h.let_go("R", "reap")
        lost = [
            view.job
            for view in self.h.steps[-1].after.jobs
            if view.state is JobState.LEASED and self._expired(view.job) and not self.locked(view.job)
        ]
        for job in lost:
            if (self.h.row(job).attempts or 0) >= MAX_ATTEMPTS:
                self.h.put(job, state=JobState.FAILED, holder=None, lease_until_us=None)
            else:
                self.h.requeue(job)
        self._answer(call, "", UNKNOWN if how == "lost" else reaped(len(lost)), how)

    def cancel(self, job: str) -> None:
        if int(job) > self.jobs or self.locked(job):
            return
        if self.h.row(job).state in (JobState.READY, JobState.DELAYED, JobState.LEASED):
            self.h.put(job, state=JobState.CANCELLED, holder=None, lease_until_us=None)
            self.h.do("P", "cancel", job=job)
        else:
            self.h.do("P", "cancel", reply=STALE, job=job)

    def go_on(self, actor: str) -> None:
        held = self.held.pop(actor, None)
        if held is None:
            return
        if held.committed:
            self.h.answer(held.call, held.reply)
            return
        if held.row is not None:
            self.h.put_back(held.row)
            self.current[held.job] += 1
            self.claims[actor].extend(held.reply.claims)
        elif held.reply is ACCEPTED:
            self._apply(held.call)
        freed = [(name, call) for name, (call, job) in sorted(self.waiting.items()) if job == held.job]
        answers: list[tuple[Call, Reply]] = []
        for name, call in freed:
            del self.waiting[name]
            reply = self._judge(call)
            if reply is ACCEPTED:
                self._apply(call)
            answers.append((call, reply))
        self.h.answer(held.call, held.reply)
        for call, reply in answers:
            self.h.freed(call, reply)

    def expire(self, job: str) -> None:
        """Only where no lock is held: `expire` would wait for it."""
        known = [claim for claims in self.claims.values() for claim in claims if claim.job == job]
        live = [claim for claim in known if self._current(claim)]
        if live and not self.locked(job) and self.h.row(job).state is JobState.LEASED:
            self.h.expire(live[-1])

    def end(self) -> None:
        for actor in (*ACTORS, "R"):
            self.go_on(actor)
        for job in range(1, self.jobs + 1):
            self.cancel(str(job))
        self.h.end()

    # Inside

    def _claimable(self) -> str | None:
        for number in range(1, self.jobs + 1):
            job = str(number)
            row = self.h.row(job)
            waits = row.state in (JobState.READY, JobState.DELAYED)
            due = waits and (row.next_run_at_us or 0) <= self.h.now_us
            lost = row.state is JobState.LEASED and self._expired(job)
            if (due or lost) and (row.attempts or 0) < MAX_ATTEMPTS and not self.locked(job):
                return job
        return None

    def _lease(self, actor: str, job: str) -> Claim:
        claim = self.h.lease(actor, job, TTL_S)
        self.current[job] += 1
        return Claim(claim.job, claim.token, claim.lease_until_us, raw=self.current[job])

    def _expired(self, job: str) -> bool:
        return (self.h.row(job).lease_until_us or 0) <= self.h.now_us

    def _current(self, claim: Claim) -> bool:
        return self.current[claim.job] == claim.raw

    def _judge(self, call: Call) -> Reply:
        (claim,) = call.claims
        if self.h.row(claim.job).state is not JobState.LEASED or not self._current(claim):
            return STALE
        return EXPIRED if self._expired(claim.job) else ACCEPTED

    def _apply(self, call: Call) -> None:
        (claim,) = call.claims
        row = self.h.row(claim.job)
        if call.operation == "complete":
            self.h.finish(claim, call.actor)
        elif call.operation == "heartbeat":
            until_us = max(row.lease_until_us or 0, self.h.now_us + TICK_US + int(TTL_S * US))
            self.h.put(claim.job, lease_until_us=until_us)
        elif (row.attempts or 0) >= MAX_ATTEMPTS:
            self.h.put(claim.job, state=JobState.FAILED, holder=None, lease_until_us=None)
        else:
            self.h.requeue(claim.job, delay_s=5.0)

    def _answer(self, call: Call, job: str, reply: Reply, how: str) -> None:
        if how == "held after":
            self.held[call.actor] = Held(call, job, reply, committed=True)
            self.h.park(call, "after_commit")
        else:
            self.h.answer(call, reply)


HOW = st.sampled_from(["at once", "at once", "held before", "held after", "lost"])
ACTOR = st.sampled_from(ACTORS)
JOB = st.sampled_from(["1", "2", "3"])
MOVES = st.one_of(
    st.tuples(st.just("enqueue"), st.sampled_from([0.0, 20.0])),
    st.tuples(st.just("claim"), ACTOR, HOW),
    st.tuples(st.just("claim"), ACTOR, HOW),
    st.tuples(st.just("write"), ACTOR, st.sampled_from(WRITES), st.integers(0, 3), HOW),
    st.tuples(st.just("write"), ACTOR, st.sampled_from(WRITES), st.integers(0, 3), HOW),
    st.tuples(st.just("reap"), HOW),
    st.tuples(st.just("cancel"), JOB),
    st.tuples(st.just("go_on"), st.sampled_from([*ACTORS, "R"])),
    st.tuples(st.just("advance"), st.sampled_from([1.0, 10.0, 31.0])),
    st.tuples(st.just("rewind"), st.sampled_from([1.0, 10.0])),
    st.tuples(st.just("expire"), JOB),
    st.tuples(st.just("restart")),
)


def play(moves: list[tuple[object, ...]], *, tokens: bool) -> History:
    model = Model(tokens=tokens)
    model.enqueue(0.0)
    for name, *arguments in moves:
        if name == "advance":
            model.h.advance(float(str(arguments[0])))
        elif name == "rewind":
            if not model.waiting:  # never rewound while a call is blocked
                model.h.advance(-float(str(arguments[0])))
        elif name == "restart":
            if not model.held and not model.waiting:
                model.h.fault("fast_restart")
        else:
            getattr(model, str(name))(*arguments)
    model.end()
    return model.h


@pytest.mark.parametrize("tokens", [True, False], ids=["with tokens", "without tokens"])
@settings(max_examples=300, deadline=None)
@forall(moves=st.lists(MOVES, min_size=5, max_size=60))
def test_a_correct_queue_is_never_accused(moves: list[tuple[object, ...]], tokens: bool) -> None:
    assert every_violation(play(moves, tokens=tokens)) == []


def test_the_model_meets_what_the_invariants_speak_about() -> None:
    """Else the property above would hold of a queue in which nothing happens."""
    moves: list[tuple[object, ...]] = [
        ("enqueue", 20.0),
        ("claim", "B", "at once"),
        ("write", "B", "heartbeat", 0, "at once"),
        ("claim", "A", "at once"),
        ("advance", 31.0),
        ("reap", "at once"),
        ("claim", "A", "at once"),
        ("write", "B", "complete", 0, "at once"),
        ("restart",),
        ("write", "A", "complete", 0, "at once"),
        ("go_on", "A"),
    ]
    history = play(moves, tokens=True)
    invariants = applicable(ALL_CAPABILITIES)
    for step in history.steps:
        for invariant in invariants:
            assert invariant.judge(step) is None
    idle = {invariant.name for invariant in invariants if not invariant.exercised}
    assert idle == {"idempotent_submit"}
