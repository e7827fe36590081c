"""The reference queue in the harness's words."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from queue import SimpleQueue
from typing import Any

import psycopg
from psycopg.pq import ExecStatus
from psycopg.pq.abc import PGresult

from fencepost.harness.adapter import (
    ActorSeat,
    Answer,
    Capability,
    Claim,
    ConnectionCache,
    IdempotencyConflict,
    JobId,
    JobState,
    JobView,
    Json,
    LedgerEntry,
    Observation,
    QueueRefusal,
)

from . import errors
from .client import ReferenceQueue
from .model import Claim as TakenClaim
from .model import Decision, JobToken, Settings
from .sql import REFERENCE_SCHEMA, parse_statements, read_sql
from .worker import NO_ANSWER, Heartbeats

CAPABILITIES = frozenset(Capability) - {Capability.DEFERRED_RECLAIM}
"""Everything but that: a claim takes an expired lease at once, nobody has to reap first."""

RESETS_PER_TRUNCATE = 1000
"""Emptying a few rows takes DELETE 0.25 ms and TRUNCATE 6 ms or more, and TRUNCATE makes every plan anew.

But deleted rows stay until somebody vacuums, and on a test server nobody does: reset, observe and claim have
become a quarter slower after some thousand resets.
"""

ADAPTER_STATEMENTS = parse_statements(read_sql("adapter.sql"))

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


class ReferenceAdapter:
    """The reference queue, or a twin of it: another client class, or another schema, or both."""

    def __init__(
        self,
        name: str = "reference",
        *,
        client: type[ReferenceQueue] = ReferenceQueue,
        schema: str = REFERENCE_SCHEMA,
        settings: Settings | None = None,
        capabilities: frozenset[Capability] = CAPABILITIES,
    ) -> None:
        self.name = name
        self.capabilities = capabilities
        self._client = client
        self._schema = schema
        self._settings = settings or Settings()
        self._connections = ConnectionCache()
        self._cursors: dict[str, psycopg.Cursor[Any]] = {}
        self._observers: dict[str, psycopg.Connection[Any]] = {}
        self._resets: Counter[str] = Counter()

    def install(self, dsn: str) -> None:
        with psycopg.connect(dsn) as connection:
            found = connection.execute("SELECT to_regnamespace('lease_queue') IS NOT NULL").fetchone()
            if found != (True,):
                connection.execute(self._schema.encode())

    def worker(self, actor: ActorSeat, dsn: str) -> ReferenceWorker:
        def on(connection: psycopg.Connection[Any]) -> ReferenceQueue:
            return self._client(
                connection, worker=actor.worker_name, checkpoint=actor.checkpoint, settings=self._settings
            )

        def connect() -> psycopg.Connection[Any]:
            return psycopg.connect(dsn, autocommit=True)

        connection = connect()
        return ReferenceWorker(on(connection), connection, lambda: on(connect()), actor.checkpoint)

    def observe(self, dsn: str) -> Observation:
        at_us, jobs, ledger = map(json.loads, self._observed(dsn))
        return Observation(
            at_us,
            tuple(_job_view(job) for job in jobs),
            tuple(LedgerEntry(str(job_id), token, worker) for job_id, token, worker in ledger),
        )

    def _observed(self, dsn: str) -> tuple[bytes, bytes, bytes]:
        """Without a cursor, in half the time: nothing is asked as often as this."""
        connection = self._connections.get(dsn)
        if self._observers.get(dsn) is not connection:
            _checked(connection.pgconn.prepare(b"observe", ADAPTER_STATEMENTS["observe"].encode()))
            self._observers[dsn] = connection
        result = _checked(connection.pgconn.exec_prepared(b"observe", None))
        at_us, jobs, ledger = (result.get_value(0, column) for column in range(3))
        assert at_us is not None and jobs is not None and ledger is not None, "an aggregate always has a row"
        return at_us, jobs, ledger

    def reset(self, dsn: str) -> None:
        self._resets[dsn] += 1
        if self._resets[dsn] % RESETS_PER_TRUNCATE:
            self._execute(dsn, "reset_by_delete")
        else:
            self._execute(dsn, "reset_by_truncate")

    def expire(self, dsn: str, claim: Claim) -> None:
        lease = _job_token(claim)
        try:
            cursor = self._execute(dsn, "expire", {"job_id": lease.job_id, "token": lease.token})
        except psycopg.errors.LockNotAvailable as error:
            raise QueueRefusal(
                "row_locked",
                f"the row of job {claim.job} is locked by an open transaction: its lease cannot be rewritten "
                "as expired now, only the clock can be moved past it",
            ) from error
        if cursor.rowcount != 1:
            raise QueueRefusal("no_such_lease", f"job {claim.job} is not leased under token {lease.token}")

    def close(self) -> None:
        self._connections.close()

    def _execute(
        self, dsn: str, name: str, parameters: dict[str, object] | None = None
    ) -> psycopg.Cursor[Any]:
        connection = self._connections.get(dsn)
        cursor = self._cursors.get(dsn)
        if cursor is None or cursor.connection is not connection:
            cursor = self._cursors[dsn] = connection.cursor()
        return cursor.execute(ADAPTER_STATEMENTS[name].encode(), parameters, prepare=True)


class ReferenceWorker:
    """One actor's connection, and while `keep_alive` runs a second one for its heartbeats."""

    def __init__(
        self,
        queue: ReferenceQueue,
        connection: psycopg.Connection[Any],
        connect_for_heartbeats: Callable[[], ReferenceQueue],
        checkpoint: Callable[[str], None],
    ) -> None:
        self._queue = queue
        self._connection = connection
        self._connect_for_heartbeats = connect_for_heartbeats
        self._checkpoint = checkpoint

    def enqueue(
        self,
        payload: Json,
        *,
        key: str | None = None,
        delay_s: float = 0.0,
        max_attempts: int | None = None,
        priority: int = 0,
    ) -> JobId:
        try:
            job_id = self._queue.enqueue(
                payload, key=key, delay_s=delay_s, max_attempts=max_attempts, priority=priority
            )
        except errors.IdempotencyConflict as conflict:
            raise IdempotencyConflict(str(conflict)) from conflict
        return str(job_id)

    def claim(self, ttl_s: float) -> Claim | None:
        claims = self.claim_batch(ttl_s, 1)
        return claims[0] if claims else None

    def claim_batch(self, ttl_s: float, limit: int) -> list[Claim]:
        try:
            return [_claim(taken) for taken in self._queue.claim_batch(ttl_s, limit)]
        except errors.TokenExhausted as exhausted:
            raise QueueRefusal("token_exhausted", str(exhausted)) from exhausted

    def heartbeat(self, claim: Claim, ttl_s: float) -> Answer:
        return _answer(self._queue.heartbeat(_job_token(claim), ttl_s))

    def keep_alive(self, claim: Claim, ttl_s: float, beats: int = 1, every_s: float = 0.01) -> Answer:
        """What the worker loop does while a handler runs; this handler is done after `beats` heartbeats."""
        ended: SimpleQueue[Answer] = SimpleQueue()
        left = beats

        def note(event: str, **details: object) -> None:
            nonlocal left
            left -= 1
            if event == "lease_lost":
                ended.put(_answer_to_loss(str(details["reason"])))
            elif left == 0:
                heartbeats.last_one()
                ended.put(Answer.accepted())

        with Heartbeats(
            self._connect_for_heartbeats, ttl_s, note, every_s=every_s, checkpoint=self._checkpoint
        ) as heartbeats:
            heartbeats.keep(_job_token(claim), held_since=time.monotonic(), on_lost=lambda: None)
            heartbeats.join()
            heartbeats.release()
        if ended.empty():
            raise RuntimeError("the thread that sends the heartbeats broke")
        return ended.get()

    def complete(self, claim: Claim, result: Json = None) -> Answer:
        return _answer(self._queue.complete(_job_token(claim), result))

    def complete_batch(self, claims: Sequence[Claim], results: Sequence[Json] | None = None) -> list[Answer]:
        decisions = self._queue.complete_batch([_job_token(claim) for claim in claims], results)
        return [_answer(decision) for decision in decisions]

    def fail(self, claim: Claim, error: str) -> Answer:
        return _answer(self._queue.fail(_job_token(claim), error))

    def cancel(self, job: JobId) -> Answer:
        return _answer(self._queue.cancel(int(job)))

    def reap(self, limit: int | None = None) -> int:
        return len(self._queue.reap(limit))

    def requeue(self, job: JobId) -> JobId:
        try:
            return str(self._queue.requeue(int(job)))
        except errors.RequeueRefused as refused:
            raise QueueRefusal(refused.reason, str(refused)) from refused

    # What no worker does: behind the queue's back, over the worker's connection.

    def bypass_guard(self, claim: Claim) -> Answer:
        lease = _job_token(claim)
        self._behind_its_back(
            "insert_ledger_unguarded",
            {"job_id": lease.job_id, "token": lease.token, "worker": self._queue.worker},
        )
        return Answer.accepted()

    def set_token(self, job: JobId, token: int) -> Answer:
        changed = self._behind_its_back("set_token", {"job_id": int(job), "token": token})
        return Answer.accepted() if changed else Answer.refused("unknown_job")

    def _behind_its_back(self, name: str, parameters: dict[str, object]) -> int:
        return self._connection.execute(ADAPTER_STATEMENTS[name].encode(), parameters).rowcount

    def close(self) -> None:
        self._queue.close()


def _checked(result: PGresult) -> PGresult:
    if result.status not in (ExecStatus.COMMAND_OK, ExecStatus.TUPLES_OK):
        raise psycopg.OperationalError(result.get_error_message())
    return result


def _claim(taken: TakenClaim) -> Claim:
    return Claim(
        job=str(taken.job_id),
        token=taken.token,
        lease_until_us=(taken.expires_at - _EPOCH) // _MICROSECOND,
        raw={"job_id": taken.job_id, "token": taken.token},
    )


def _job_token(claim: Claim) -> JobToken:
    return JobToken(claim.raw["job_id"], claim.raw["token"])


def _answer(decision: Decision) -> Answer:
    if decision.accepted:
        return Answer.accepted(repeated=decision.repeated, current_token=decision.current_token)
    return Answer.refused(str(decision.reason), current_token=decision.current_token)


def _answer_to_loss(reason: str) -> Answer:
    return Answer.unknown(reason) if reason == NO_ANSWER else Answer.refused(reason)


def _job_view(columns: list[Any]) -> JobView:
    job_id, state, token, attempts, max_attempts, holder, lease_until_us, next_run_at_us, *rest = columns
    key, payload, result, requeued_from = rest
    return JobView(
        job=str(job_id),
        state=JobState(state),
        token=token,
        attempts=attempts,
        max_attempts=max_attempts,
        holder=holder,
        lease_until_us=lease_until_us,
        next_run_at_us=next_run_at_us,
        key=key,
        payload=payload,
        result=result,
        requeued_from=None if requeued_from is None else str(requeued_from),
    )


reference = ReferenceAdapter()
