"""What happened in one run, step by step: the only thing invariants and verdicts look at.

Pure data. The runner fills it; nothing here talks to a server.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from fencepost.harness.adapter import Claim, JobId, Json, Observation, Outcome


class StepKind(StrEnum):
    CALL = "call"  # an actor was let go: its operation started, or went on from where it was held
    FREED = "freed"  # a blocked operation went on because another step freed it
    CLOCK = "clock"  # the database's clock was moved, or a lease was rewritten as expired
    FAULT = "fault"  # crash, restart, kill, cut, …
    EXIT = "exit"  # an actor left the race
    END = "end"  # the faults are over, what was live has been drained; the last step of a run


class CallStatus(StrEnum):
    ANSWERED = "answered"
    PARKED = "parked"  # held at a checkpoint
    BLOCKED = "blocked"  # waits in the server for a lock another actor holds
    CUT_OFF = "cut_off"  # waits for its path to the server, which holds back or swallows what is sent


@dataclass(frozen=True, slots=True)
class Reply:
    """What came back from one operation, whatever the operation."""

    outcome: Outcome
    reason: str | None = None
    current_token: int | None = None
    repeated: bool = False
    claims: tuple[Claim, ...] = ()  # claim, claim_batch: what was leased
    job: JobId | None = None  # enqueue, requeue: the job
    count: int | None = None  # reap: how many leases it recovered
    items: tuple[Reply, ...] = ()  # batch writes: one reply per item, in the order given
    error: str | None = None  # SQLSTATE or exception class, where the operation raised
    message: str | None = None  # its text: shown to people, never compared

    @property
    def accepted(self) -> bool:
        return self.outcome is Outcome.ACCEPTED


@dataclass(frozen=True, slots=True)
class Statement:
    """One SQL statement of an operation, as the gate saw it pass when the step was over."""

    number: int  # its ordinal in the operation, from 1 on
    sql: str
    parameters: tuple[str | None, ...]
    answer: str  # "SELECT 1", "error 40001", "lost", …; "pending" while there is none
    pid: int | None = None  # of the backend that got it


@dataclass(frozen=True, slots=True)
class Lock:
    """A lock an actor held, or waited for, when a step had left somebody blocked."""

    actor: str
    kind: str  # relation, tuple, transactionid, advisory, …
    relation: str | None
    mode: str
    granted: bool


@dataclass(slots=True)
class Call:
    """One operation by one actor, from the moment it is let go until its answer."""

    number: int
    actor: str
    worker_name: str
    operation: str
    arguments: Mapping[str, Json]
    claims: tuple[Claim, ...]  # the leases it acts under: empty for enqueue, claim and reap
    started_step: int
    started_us: int
    """Database time of the observation before it was let go."""
    unguarded_until_us: int
    """Database time of the last observation at which it was in flight and had provably not been judged yet:
    at its start, and after each step that left it blocked, or parked before its guard."""
    faults: tuple[str, ...] = ()
    """Faults armed at its statements, as rules of the gate."""
    passed: list[str] = field(default_factory=list)
    """Checkpoints it has passed so far, in order."""
    reply: Reply | None = None
    """None until it has answered."""


@dataclass(frozen=True, slots=True)
class ClockMove:
    """How time was moved in one CLOCK step."""

    how: str  # "clock": the server's clock; "expire": the row was rewritten; "wait": the run really waited
    seconds: float
    expired_claim: Claim | None = None  # with "expire": the one lease that was rewritten


@dataclass(frozen=True, slots=True)
class Step:
    """The smallest thing the runner orders. `before` and `after` are whole observations around it."""

    number: int
    kind: StepKind
    before: Observation
    after: Observation
    call: Call | None = None  # CALL, FREED
    status: CallStatus | None = None  # CALL, FREED: where the call stood when the step was over
    checkpoint: str | None = None  # PARKED: where, a checkpoint's name or a statement's place
    blocked_by: tuple[str, ...] = ()  # BLOCKED: actors that hold what it waits for
    actor: str | None = None  # who moved; None for clock moves and faults of the server
    clock: ClockMove | None = None  # CLOCK
    fault: str | None = None  # FAULT: its name
    detail: Mapping[str, Json] = field(default_factory=dict)  # EXIT: reason; FAULT: parameters
    line: str | None = None  # "file.py:42" of the scenario
    statements: tuple[Statement, ...] = ()  # CALL, FREED of an actor behind the gate: those of this step
    locks: tuple[Lock, ...] = ()  # BLOCKED: what actors held and waited for

    @property
    def reply(self) -> Reply | None:
        """The answer that arrived in this step, if one did."""
        if self.call is None or self.status is not CallStatus.ANSWERED:
            return None
        return self.call.reply


@dataclass(frozen=True, slots=True)
class Execution:
    """An entry of the journal of effects: this actor began to execute this job under this claim."""

    seq: int
    actor: str
    job: JobId
    token: int | None


@dataclass(frozen=True, slots=True)
class Violation:
    """An invariant that did not hold."""

    invariant: str
    job: JobId | None
    step: int
    message: str
