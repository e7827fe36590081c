"""The adapter contract: how the harness speaks to one queue.

An adapter is a `Queue` (installs, observes, resets) that makes `Worker`s (one per actor, each with its own
connections). Nothing else of a queue is ever touched. Methods may be `def` or `async def`; the harness
awaits what comes back awaitable.

Times are integers in microseconds of *database* time since the epoch: exact, comparable and JSON as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol, TypeAlias, runtime_checkable

import psycopg

JobId: TypeAlias = str
"""A job's id as text: ids of any type have a text form, and only identity matters here."""

Json: TypeAlias = Any
"""A value that `json.dumps` takes."""


class Capability(StrEnum):
    """What a queue can do, or lets the harness do. A scenario that needs more is skipped and says so."""

    FENCING = "FENCING"  # a claim carries a token, and a write under an old one is refused
    CONSECUTIVE_TOKENS = "CONSECUTIVE_TOKENS"  # tokens not only grow: each is the job's last one plus one
    REPEATS = "REPEATS"  # a complete or fail asked again under its own claim is answered as before
    HEARTBEAT = "HEARTBEAT"  # a lease can be extended
    BACKGROUND_HEARTBEAT = "BACKGROUND_HEARTBEAT"  # heartbeats by themselves, from a thread, while a job runs
    LEDGER = "LEDGER"  # accepted completions are recorded in a ledger that `observe` shows
    MAX_ATTEMPTS = "MAX_ATTEMPTS"  # `enqueue` takes `max_attempts`: what failed so often is not tried again
    RETRY = "RETRY"  # MAX_ATTEMPTS, and each claim is an attempt, also one whose lease was lost
    BACKOFF = "BACKOFF"  # the wait before a retry grows with every failure, up to a cap
    DELAY = "DELAY"  # a job can be enqueued for later
    PRIORITY = "PRIORITY"  # a job with a higher priority is claimed first
    OLDEST_FIRST = "OLDEST_FIRST"  # within a priority, what waited longest is claimed first
    DEAD_LETTER = "DEAD_LETTER"  # a job out of attempts ends in `failed` and stays there
    IDEMPOTENCY_KEY = "IDEMPOTENCY_KEY"  # enqueue takes a key, one job per key
    REAPER = "REAPER"  # `reap` recovers expired leases
    BOUNDED_REAP = "BOUNDED_REAP"  # `reap` takes a `limit`: the most leases one sweep recovers
    BATCH = "BATCH"  # `claim_batch` claims several jobs in one operation
    BATCH_COMPLETE = "BATCH_COMPLETE"  # `complete_batch` completes several, each judged on its own
    CANCEL = "CANCEL"  # `cancel` ends a live job
    CHECKPOINTS = "CHECKPOINTS"  # the worker calls `actor.checkpoint(name)` inside its operations
    CLOCK = "CLOCK"  # leases are decided by the database's clock, so moving it expires them
    EXPIRE = "EXPIRE"  # the adapter can rewrite one lease as expired (`expire`)
    WARM_WORKERS = "WARM_WORKERS"  # a worker keeps nothing between races but its connections
    DEFERRED_RECLAIM = "DEFERRED_RECLAIM"  # an expired lease comes back only through `reap`
    REAP_SNAPSHOT = "REAP_SNAPSHOT"  # `reap` passes `after_snapshot` between listing and recovering
    RESULT = "RESULT"  # `complete` keeps the result it is given, and `observe` shows it
    LEASE_LENGTH = "LEASE_LENGTH"  # claim and heartbeat take any `ttl_s`; without it every lease lasts 60 s
    GUARD_BYPASS = "GUARD_BYPASS"  # writes a completion without the guard, to see what else protects
    TOKEN_SETTING = "TOKEN_SETTING"  # lets a test put a job's token anywhere


class JobState(StrEnum):
    READY = "ready"
    DELAYED = "delayed"
    LEASED = "leased"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


LIVE_STATES = frozenset({JobState.READY, JobState.DELAYED, JobState.LEASED})
TERMINAL_STATES = frozenset({JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED})

GUARD_PASSED = "after_guard"
"""The checkpoint every adapter with CHECKPOINTS reports once a write has been judged and holds the row.

The `fence` invariant leans on it: a lease that expires later than this is still fenced by the lock.
"""


UNSPECIFIED = "unspecified"
"""The reason of a refusal where the queue does not say why. The harness's words are `token_mismatch`,
`lease_expired`, `not_leased`, `terminal`, `unknown_job` and `would_shorten`."""


class Outcome(StrEnum):
    ACCEPTED = "accepted"
    REFUSED = "refused"
    UNKNOWN = "unknown"  # the answer was lost: it may or may not have happened


@dataclass(frozen=True, slots=True)
class Answer:
    """What the queue said to one write. Evidence only: the observation decides."""

    outcome: Outcome
    reason: str | None = None  # why it was refused, e.g. `token_mismatch`
    current_token: int | None = None  # the token the queue holds as current, where it tells
    repeated: bool = False  # the same write had been applied before; nothing changed now

    @classmethod
    def accepted(cls, *, repeated: bool = False, current_token: int | None = None) -> Answer:
        return cls(Outcome.ACCEPTED, repeated=repeated, current_token=current_token)

    @classmethod
    def refused(cls, reason: str, *, current_token: int | None = None) -> Answer:
        return cls(Outcome.REFUSED, reason, current_token)

    @classmethod
    def unknown(cls, reason: str | None = None) -> Answer:
        return cls(Outcome.UNKNOWN, reason)


@dataclass(frozen=True, slots=True)
class Claim:
    """One lease as its worker knows it.

    `raw` is whatever the adapter needs to act on the lease later. It crosses a process boundary with process
    actors, so it must be JSON; a live object stays in the adapter, in a table keyed by something in `raw`.
    """

    job: JobId
    token: int | None = None
    lease_until_us: int | None = None
    raw: Json = None


@dataclass(frozen=True, slots=True)
class JobView:
    """One job as committed rows show it. Fields a queue has no notion of stay None."""

    job: JobId
    state: JobState
    token: int | None = None
    attempts: int | None = None
    max_attempts: int | None = None
    holder: str | None = None
    lease_until_us: int | None = None
    next_run_at_us: int | None = None
    key: str | None = None
    payload: Json = None
    result: Json = None  # what the complete that counted was given
    requeued_from: JobId | None = None
    places: frozenset[JobState] | None = None  # for queues that keep a job in several tables; None: {state}


@dataclass(frozen=True, slots=True)
class LedgerEntry:
    job: JobId
    token: int | None = None
    worker: str | None = None


@dataclass(frozen=True, slots=True)
class Observation:
    """Jobs, ledger and server time in ONE snapshot: one statement, or one repeatable-read transaction.

    Two statements see two moments, and a third of all alarms raised on such a pair were false.
    """

    at_us: int
    jobs: tuple[JobView, ...] = ()
    ledger: tuple[LedgerEntry, ...] = ()
    by_job: Mapping[JobId, JobView] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "by_job", {view.job: view for view in self.jobs})

    def ledger_of(self, job: JobId) -> tuple[LedgerEntry, ...]:
        return tuple(entry for entry in self.ledger if entry.job == job)


class IdempotencyConflict(Exception):
    """`enqueue` raises it: the key is taken by a job with another payload."""


class QueueRefusal(Exception):
    """`enqueue`, `claim` or `reap` raise it to refuse with a reason a scenario can expect."""

    def __init__(self, reason: str, message: str = "") -> None:
        super().__init__(message or reason)
        self.reason = reason


class ActorSeat(Protocol):
    """What an adapter's worker is told about the actor it works for."""

    @property
    def name(self) -> str:
        """The actor's name. Two actors may carry one worker name: see `worker_name`."""

    @property
    def worker_name(self) -> str:
        """The name the worker goes by in the queue; the actor's name unless a scenario says otherwise."""

    @property
    def checkpoint(self) -> Callable[[str], None]:
        """To be called at each named place inside an operation. Returns at once unless the runner holds it."""


class Worker(Protocol):
    """One actor's own connections to the queue. Never called by two threads at once."""

    def enqueue(
        self,
        payload: Json,
        *,
        key: str | None = None,
        delay_s: float = 0.0,
        max_attempts: int | None = None,
        priority: int = 0,
    ) -> JobId: ...

    def claim(self, ttl_s: float) -> Claim | None:
        """One job, without waiting; None where there is nothing to claim."""

    def complete(self, claim: Claim, result: Json = None) -> Answer: ...

    def fail(self, claim: Claim, error: str) -> Answer: ...

    def close(self) -> None: ...


# Operations only some queues have. An adapter that declares the capability has the method.
OPERATION_NEEDS: Mapping[str, Capability | None] = {
    "enqueue": None,
    "claim": None,
    "complete": None,
    "fail": None,
    "heartbeat": Capability.HEARTBEAT,  # heartbeat(claim, ttl_s) -> Answer
    # keep_alive(claim, ttl_s, beats, every_s) -> Answer, once the queue's own background heartbeats, one every
    # `every_s` of real time, were accepted `beats` times, or the lease was lost. Each passes `before_heartbeat`.
    "keep_alive": Capability.BACKGROUND_HEARTBEAT,
    "reap": Capability.REAPER,  # reap() -> int, the number of leases recovered; reap(limit) if BOUNDED_REAP
    "cancel": Capability.CANCEL,  # cancel(job) -> Answer
    "claim_batch": Capability.BATCH,  # claim_batch(ttl_s, limit) -> Sequence[Claim]
    "complete_batch": Capability.BATCH_COMPLETE,  # complete_batch(claims) -> Sequence[Answer], in their order
    "requeue": Capability.DEAD_LETTER,  # requeue(job) -> JobId, a new job
    "bypass_guard": Capability.GUARD_BYPASS,  # bypass_guard(claim) -> Answer
    "set_token": Capability.TOKEN_SETTING,  # set_token(job, token) -> Answer
}


@runtime_checkable
class Queue(Protocol):
    """The system under test."""

    name: str
    capabilities: frozenset[Capability]

    def install(self, dsn: str) -> None:
        """Create the queue's tables in an empty database the harness made."""

    def worker(self, actor: ActorSeat, dsn: str) -> Worker: ...

    def observe(self, dsn: str) -> Observation: ...

    def reset(self, dsn: str) -> None:
        """As after `install`, quickly."""


class ExpiringQueue(Queue, Protocol):
    """A queue with EXPIRE: for servers whose clock cannot be moved."""

    def expire(self, dsn: str, claim: Claim) -> None:
        """Rewrite the claim's lease as expired. Touch liveness data only: never state, token or attempts."""


@dataclass(frozen=True, slots=True)
class Twin:
    """A deliberately broken copy of a queue, one promise taken out, that the harness must catch."""

    name: str
    sentence: str  # which promise was taken out
    breaks: str
    """The invariant that must catch it; `expectation` where none speaks of the promise: then a scenario must
    fail by what it expects, with every one of its witnesses seen."""
    queue: Queue
    path: str  # MODULE:NAME of `queue`
    stands_for: str | None = None  # the public bug it stands for, where there is one


class ConnectionCache:
    """One open connection per DSN, for adapters' `observe` and `reset`: they run after every step.

    A connection found broken (the server was restarted) is replaced.
    """

    def __init__(self) -> None:
        self._open: dict[str, psycopg.Connection[Any]] = {}

    def get(self, dsn: str) -> psycopg.Connection[Any]:
        connection = self._open.get(dsn)
        if connection is None or connection.closed:
            connection = psycopg.connect(dsn, autocommit=True, application_name="fencepost-observer")
            self._open[dsn] = connection
        return connection

    def close(self) -> None:
        for connection in self._open.values():
            connection.close()
        self._open.clear()


def missing_methods(queue: object) -> list[str]:
    """What `queue` lacks of the contract, as `Queue.method` or `capabilities`; empty when complete."""
    missing: list[str] = []
    name = getattr(queue, "name", None)
    if not isinstance(name, str) or not name:
        missing.append("name (a non-empty string)")
    capabilities = getattr(queue, "capabilities", None)
    if not isinstance(capabilities, frozenset) or not all(isinstance(c, Capability) for c in capabilities):
        missing.append("capabilities (a frozenset of Capability)")
        capabilities = frozenset()
    wanted: Sequence[str] = ["install", "worker", "observe", "reset"]
    if Capability.EXPIRE in capabilities:
        wanted = [*wanted, "expire"]
    missing.extend(f"{method}()" for method in wanted if not callable(getattr(queue, method, None)))
    return missing


def missing_operations(worker: object, capabilities: frozenset[Capability]) -> list[str]:
    """Operations the declared capabilities promise and `worker` does not have."""
    wanted = [op for op, need in OPERATION_NEEDS.items() if need is None or need in capabilities]
    return [f"{op}()" for op in [*wanted, "close"] if not callable(getattr(worker, op, None))]
