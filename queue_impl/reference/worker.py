"""The worker loop: claim, run the handler, keep the lease alive meanwhile, settle, report.

It claims expired leases that have attempts left by itself. Leases whose last attempt expired are ended by
`ReferenceQueue.reap`, which somebody has to call now and then: a timer, or a worker's idle moment.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import psycopg

from .checkpoints import Checkpoint, no_checkpoint
from .client import ReferenceQueue
from .model import Claim, Decision, JobToken, Json, Settings, checked_duration_s

Handler: TypeAlias = Callable[["Lease"], Json]
"""Does the work and returns its result. What it raises fails the attempt."""

OnEvent: TypeAlias = Callable[[dict[str, Any]], None]
"""Takes one event, ready for `json.dumps`. Called from the worker's and from the heartbeat's thread."""

HEARTBEATS_PER_TTL = 3
"""Two may go missing before the lease does."""


NO_ANSWER = "no_answer"
"""Why a lease counts as lost though nobody refused it: no heartbeat got through for the whole of it."""


def no_event(_event: dict[str, Any]) -> None:
    """The callback of a worker nobody watches."""


@dataclass(frozen=True, slots=True)
class Lease:
    """What a handler is given: its claim, and whether it still holds it."""

    claim: Claim
    _lost: threading.Event = field(default_factory=threading.Event, repr=False, compare=False)

    @property
    def payload(self) -> Json:
        return self.claim.payload

    @property
    def lost(self) -> bool:
        """A heartbeat was refused, or none got through for the whole lease: the work is in vain."""
        return self._lost.is_set()

    def wait_lost(self, timeout_s: float) -> bool:
        return self._lost.wait(timeout_s)

    def mark_lost(self) -> None:
        self._lost.set()


class Worker:
    """Runs one handler, one job at a time, over its own connections: one to work and one for heartbeats."""

    def __init__(
        self,
        dsn: str,
        name: str,
        *,
        ttl_s: float = 30.0,
        poll_s: float = 1.0,
        on_event: OnEvent = no_event,
        checkpoint: Checkpoint = no_checkpoint,
        settings: Settings | None = None,
        client: type[ReferenceQueue] = ReferenceQueue,
    ) -> None:
        self.name = name
        self._dsn = dsn
        self._ttl_s = checked_duration_s("ttl_s", ttl_s)
        self._poll_s = checked_duration_s("poll_s", poll_s)
        self._on_event = on_event
        self._checkpoint = checkpoint
        self._settings = settings or Settings()
        self._client = client
        self._stopping = threading.Event()

    def stop(self) -> None:
        """Let the job in hand finish and take no other. Returns at once; may be called from any thread."""
        self._stopping.set()

    def run(self, handler: Handler, *, max_jobs: int | None = None) -> int:
        """Work until `stop()`, or until `max_jobs` were executed; the number of jobs executed.

        A lost connection ends it with psycopg's error: whoever started the worker decides when to try again.
        """
        reason = "error"
        try:
            with self._connect() as connection:
                queue = self._queue(connection, self._checkpoint)
                executed = self._work_off(queue, handler, max_jobs)
            reason = "stopped" if self._stopping.is_set() else "max_jobs"
            return executed
        finally:
            self._emit("worker_exit", reason=reason)

    def _work_off(self, queue: ReferenceQueue, handler: Handler, max_jobs: int | None) -> int:
        executed = 0
        with Heartbeats(self._connect_for_heartbeats, self._ttl_s, self._emit) as heartbeats:
            while not self._stopping.is_set() and (max_jobs is None or executed < max_jobs):
                asked_at = time.monotonic()
                claim = queue.claim(self._ttl_s)
                if claim is None:
                    self._stopping.wait(self._poll_s)
                    continue
                self._emit("lease_acquired", job_id=str(claim.job_id), token=claim.token)
                self._execute(queue, heartbeats, handler, claim, asked_at)
                executed += 1
        return executed

    def _execute(
        self, queue: ReferenceQueue, heartbeats: Heartbeats, handler: Handler, claim: Claim, asked_at: float
    ) -> None:
        lease = Lease(claim)
        heartbeats.keep(claim, held_since=asked_at, on_lost=lease.mark_lost)
        try:
            self._emit("execution_started", job_id=str(claim.job_id), token=claim.token)
            result, error = handler(lease), None
        except Exception as raised:  # noqa: BLE001 -- whatever a handler raises is a failed attempt, not our error
            result, error = None, f"{type(raised).__name__}: {raised}"
        finally:
            heartbeats.release()
        # Also when the lease is known to be lost: the database decides, and its refusal is what is reported.
        decision = queue.complete(claim, result) if error is None else queue.fail(claim, error)
        if not decision.accepted:
            self._report_stale(claim, decision)

    def _report_stale(self, claim: Claim, decision: Decision) -> None:
        self._emit(
            "stale_write_blocked",
            job_id=str(claim.job_id),
            stale_token=claim.token,
            current_token=decision.current_token,
            reason=decision.reason,
        )

    def _emit(self, event: str, **details: object) -> None:
        self._on_event({"event": event, "worker": self.name, **details})

    def _connect(self) -> psycopg.Connection[Any]:
        return psycopg.connect(self._dsn, autocommit=True)

    def _queue(self, connection: psycopg.Connection[Any], checkpoint: Checkpoint) -> ReferenceQueue:
        return self._client(connection, worker=self.name, checkpoint=checkpoint, settings=self._settings)

    def _connect_for_heartbeats(self) -> ReferenceQueue:
        return self._queue(self._connect(), no_checkpoint)


class Heartbeats:
    """Renews one lease at a time from a thread of its own, every third of its duration or every `every_s`.

    The connection is opened at the first heartbeat: a job that is done before then costs none. A heartbeat
    that did not get through is tried again on a new connection, and at the next beat, until the lease is over.
    `checkpoint` is called in that thread.
    """

    def __init__(
        self,
        connect: Callable[[], ReferenceQueue],
        ttl_s: float,
        emit: Callable[..., None],
        *,
        every_s: float | None = None,
        checkpoint: Checkpoint = no_checkpoint,
    ) -> None:
        self._connect = connect
        self._ttl_s = ttl_s
        self._emit = emit
        self._every_s = ttl_s / HEARTBEATS_PER_TTL if every_s is None else every_s
        self._checkpoint = checkpoint
        self._queue: ReferenceQueue | None = None
        self._released = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Heartbeats:
        return self

    def __exit__(self, *_error: object) -> None:
        self._disconnect()

    def keep(self, claim: JobToken, *, held_since: float, on_lost: Callable[[], None]) -> None:
        """`held_since`: when the claim was *sent*, by the monotonic clock: the lease began no earlier."""
        self._released = threading.Event()
        self._thread = threading.Thread(
            target=self._renew,
            args=(claim, held_since, on_lost, self._released),
            name=f"heartbeat-{claim.job_id}",
            daemon=True,
        )
        self._thread.start()

    def join(self) -> None:
        """Until no more heartbeats come: the lease is lost, or `last_one` was said."""
        assert self._thread is not None, "keep() comes first"
        self._thread.join()

    def last_one(self) -> None:
        """No heartbeat after this one: for `emit`, which is called in the thread that `release` waits for."""
        self._released.set()

    def release(self) -> None:
        """Stop renewing. A heartbeat that hangs on a dead network is left behind with its connection."""
        assert self._thread is not None, "keep() comes first"
        self._released.set()
        self._thread.join(self._ttl_s)
        if self._thread.is_alive():
            self._queue = None

    def _renew(
        self, claim: JobToken, held_since: float, on_lost: Callable[[], None], released: threading.Event
    ) -> None:
        while not released.wait(self._every_s):
            self._checkpoint("before_heartbeat")
            asked_at = time.monotonic()
            decision = self._beat(claim)
            if released.is_set():
                return
            if decision is not None and decision.accepted:
                held_since = asked_at
                self._emit("heartbeat", job_id=str(claim.job_id), token=claim.token)
            elif decision is not None:
                self._lose(claim, on_lost, str(decision.reason))
                return
            elif time.monotonic() - held_since >= self._ttl_s:
                self._lose(claim, on_lost, NO_ANSWER)
                return

    def _beat(self, claim: JobToken) -> Decision | None:
        was_connected = self._queue is not None
        decision = self._try_beat(claim)
        if decision is None and was_connected:
            # A connection that died while it was idle shows only when it is used.
            decision = self._try_beat(claim)
        return decision

    def _try_beat(self, claim: JobToken) -> Decision | None:
        try:
            if self._queue is None:
                self._queue = self._connect()
            return self._queue.heartbeat(claim, self._ttl_s)
        except psycopg.Error:
            self._disconnect()
            return None

    def _lose(self, claim: JobToken, on_lost: Callable[[], None], reason: str) -> None:
        on_lost()
        self._emit("lease_lost", job_id=str(claim.job_id), token=claim.token, reason=reason)

    def _disconnect(self) -> None:
        queue, self._queue = self._queue, None
        if queue is not None:
            queue.close()
