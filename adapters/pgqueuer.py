"""PgQueuer (PyPI `pgqueuer`, written against 1.6) in the harness's words.

Every operation is the call the library's own `QueueManager` makes: `Queries.dequeue`, `update_heartbeat`,
`log_jobs`, `retry_job`. What stands for a lease there:

- A picked job's `heartbeat`; whoever dequeues takes a picked job whose heartbeat is older than the
  `heartbeat_timeout` it came with. There is no reaper to run, and taking a stale job counts no attempt.
- Whose a job is says `queue_manager_id` alone, which no write compares: heartbeat, log and retry name the job
  by its id. So there is no token, and FENCING is not declared.
- A finished job's row is deleted and its end written to `pgqueuer_log`; the observation reads both. None of
  these calls says whether it found the row, so every answer is `accepted` and only the rows tell.

A job fails as an entrypoint with the library's defaults fails (it ends as `exception`); enqueued with
`max_attempts` it fails as under `DatabaseRetryEntrypointExecutor`, retried without a delay.

What the variants family finds (1.6.0; tests/test_adapters_findings.py replays each):

- A worker that lost its job and fails while another runs it ends the other's job (`corrupted`: its completion is
  dropped and the log says `exception`) or, with retries, puts it back into the queue for a third (`corrupted`).
- Completing a job another one runs, or after the heartbeat ran out, counts (`accepted`). So does a second failure
  of one retried job: it spends one more attempt.
- A lost worker that goes on beating keeps alive the lease of the one that took its job, also once that one is
  dead (`accepted`): the job is not recovered before the beating stops.
- After the other completed it, late writes find no row (`harmless`).

Not declared: RETRY (how often is decided by the worker's code, and recovery does not count), IDEMPOTENCY_KEY (a
taken `dedupe_key` is an error, not the same job), CANCEL (it is a request by NOTIFY to whoever runs the job).
"""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any
from uuid import NAMESPACE_OID, UUID, uuid5

import anyio
import psycopg
from pgqueuer.core.executors import DatabaseRetryEntrypointExecutor, EntrypointExecutorParameters
from pgqueuer.domain.errors import RetryRequested
from pgqueuer.domain.models import Context, Job, TracebackRecord
from pgqueuer.domain.types import JOB_STATUS, QueueEntrypoint, QueueManagerId
from pgqueuer.ports.repository import EntrypointExecutionParameter
from pgqueuer.queries import Queries

from fencepost.harness.adapter import (
    ActorSeat,
    Answer,
    Capability,
    Claim,
    ConnectionCache,
    JobId,
    JobState,
    JobView,
    Json,
    Observation,
    QueueRefusal,
)

HEARTBEAT_TIMEOUT_S = 60.0
"""How old a heartbeat a dequeue takes for a dead worker's. The library's own default is 30."""

CAPABILITIES = frozenset(
    {
        Capability.HEARTBEAT,
        Capability.DELAY,
        Capability.PRIORITY,
        Capability.MAX_ATTEMPTS,
        Capability.CLOCK,
        Capability.EXPIRE,
        Capability.WARM_WORKERS,
    }
)

ENTRYPOINT = QueueEntrypoint("fencepost")

_STATES = {
    "queued": JobState.READY,
    "picked": JobState.LEASED,
    "successful": JobState.SUCCEEDED,
    "exception": JobState.FAILED,
    "failed": JobState.FAILED,
    "canceled": JobState.CANCELLED,
    "deleted": JobState.CANCELLED,
}

# A deleted row's end is the last thing its log says.
_OBSERVE = f"""
WITH gone AS (
    SELECT DISTINCT ON (log.job_id) log.job_id AS id, log.status
    FROM pgqueuer_log AS log
    WHERE NOT EXISTS (SELECT FROM pgqueuer AS kept WHERE kept.id = log.job_id)
    ORDER BY log.job_id, log.id DESC
), job AS (
    SELECT id, status::text, attempts, queue_manager_id,
           (extract(epoch FROM heartbeat) * 1000000)::bigint + {int(HEARTBEAT_TIMEOUT_S * 1e6)} AS lease_until_us,
           (extract(epoch FROM execute_after) * 1000000)::bigint AS next_run_at_us,
           convert_from(payload, 'UTF8')::json AS payload
    FROM pgqueuer
    UNION ALL
    SELECT id, status::text, NULL, NULL, NULL, NULL, NULL FROM gone
)
SELECT (extract(epoch FROM statement_timestamp()) * 1000000)::bigint,
       coalesce(json_agg(json_build_array(
           id, status, attempts, queue_manager_id, lease_until_us, next_run_at_us, payload
       ) ORDER BY id), '[]')
FROM job
"""

_EXPIRE = """
UPDATE pgqueuer SET heartbeat = heartbeat - make_interval(secs => %s)
WHERE id = %s AND status = 'picked' AND queue_manager_id = %s
"""


class PgQueuerAdapter:
    name = "pgqueuer"
    capabilities = CAPABILITIES

    def __init__(self) -> None:
        self._connections = ConnectionCache()

    async def install(self, dsn: str) -> None:
        async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as connection:
            queries = Queries.from_psycopg_connection(connection)
            if not await queries.schema_is_installed():
                await queries.install()

    async def worker(self, actor: ActorSeat, dsn: str) -> PgQueuerWorker:
        connection = await psycopg.AsyncConnection.connect(dsn, autocommit=True)
        return PgQueuerWorker(connection, _manager_id(actor.worker_name))

    def observe(self, dsn: str) -> Observation:
        row = self._connections.get(dsn).execute(_OBSERVE.encode(), prepare=True).fetchone()
        assert row is not None, "an aggregate always has a row"
        at_us, rows = row
        return Observation(at_us, tuple(_job_view(columns, at_us) for columns in rows))

    def reset(self, dsn: str) -> None:
        connection = self._connections.get(dsn)
        with connection.transaction():
            connection.execute("DELETE FROM pgqueuer")
            connection.execute("DELETE FROM pgqueuer_log")

    def expire(self, dsn: str, claim: Claim) -> None:
        values = (HEARTBEAT_TIMEOUT_S, claim.raw["id"], UUID(claim.raw["queue_manager_id"]))
        self._connections.get(dsn).execute(_EXPIRE.encode(), values)

    def close(self) -> None:
        self._connections.close()


class PgQueuerWorker:
    """One actor's connection, known to the queue as one queue manager."""

    def __init__(self, connection: psycopg.AsyncConnection[Any], manager_id: QueueManagerId) -> None:
        self._connection = connection
        self._queries = Queries.from_psycopg_connection(connection)
        self._manager_id = manager_id

    async def enqueue(
        self,
        payload: Json,
        *,
        key: str | None = None,
        delay_s: float = 0.0,
        max_attempts: int | None = None,
        priority: int = 0,
    ) -> JobId:
        if key is not None:
            raise QueueRefusal("unsupported", "this adapter enqueues without a key")
        body = json.dumps({"payload": payload, "max_attempts": max_attempts}).encode()
        (job_id,) = await self._queries.enqueue(
            ENTRYPOINT, body, priority, timedelta(seconds=delay_s) if delay_s else None
        )
        return str(job_id)

    async def claim(self, ttl_s: float) -> Claim | None:
        _check_ttl(ttl_s)
        picked = await self._queries.dequeue(
            batch_size=1,
            entrypoints={ENTRYPOINT: EntrypointExecutionParameter(concurrency_limit=0)},
            queue_manager_id=self._manager_id,
            global_concurrency_limit=None,
            heartbeat_timeout=timedelta(seconds=HEARTBEAT_TIMEOUT_S),
        )
        if not picked:
            return None
        (job,) = picked
        return Claim(job=str(job.id), raw=job.model_dump(mode="json"))

    async def heartbeat(self, claim: Claim, ttl_s: float) -> Answer:
        _check_ttl(ttl_s)
        await self._queries.update_heartbeat([_job(claim).id])
        return Answer.accepted()

    async def complete(self, claim: Claim, result: Json = None) -> Answer:
        return await self._log(_job(claim), "successful", None)

    async def fail(self, claim: Claim, error: str) -> Answer:
        """What `QueueManager` does when the entrypoint raised: retry where its executor asks for it, else log."""
        job = _job(claim)
        try:
            await _run_failing(job, error)
        except RetryRequested as retry:
            await self._queries.retry_job(job, retry.delay, _traceback(retry, job))
        except RuntimeError as raised:
            await self._log(job, "exception", _traceback(raised, job))
        return Answer.accepted()

    async def _log(self, job: Job, status: JOB_STATUS, traceback: TracebackRecord | None) -> Answer:
        await self._queries.log_jobs([(job, status, traceback)])
        return Answer.accepted()

    async def close(self) -> None:
        await self._connection.close()


async def _run_failing(job: Job, error: str) -> None:
    """Run an entrypoint that raises, under the executor the job was enqueued for."""

    async def entrypoint(_: Job) -> None:
        raise RuntimeError(error)

    max_attempts = json.loads(job.payload or b"{}").get("max_attempts")
    executor = DatabaseRetryEntrypointExecutor(
        parameters=EntrypointExecutorParameters(concurrency_limit=0, func=entrypoint),
        max_attempts=0 if max_attempts is None else max_attempts - 1,  # it counts retries, not attempts
        initial_delay=timedelta(0),
    )
    await executor.execute(job, Context(cancellation=anyio.CancelScope()))


def _traceback(error: Exception, job: Job) -> TracebackRecord:
    return TracebackRecord.from_exception(exc=error, job_id=job.id, additional_context={})


def _job(claim: Claim) -> Job:
    return Job.model_validate(claim.raw)


def _check_ttl(ttl_s: float) -> None:
    if ttl_s != HEARTBEAT_TIMEOUT_S:
        raise QueueRefusal(
            "fixed_lease_length",
            f"every lease lasts {HEARTBEAT_TIMEOUT_S:.0f} s here, one of {ttl_s} s cannot be had",
        )


def _manager_id(worker_name: str) -> QueueManagerId:
    """A queue manager's id is a UUID: the name's own bytes where they fit, so that rows can say who it is."""
    name = worker_name.encode()
    return QueueManagerId(
        UUID(bytes=name.ljust(16, b"\0")) if len(name) <= 16 else uuid5(NAMESPACE_OID, worker_name)
    )


def _holder(manager_id: str | None) -> str | None:
    if manager_id is None:
        return None
    name = UUID(manager_id).bytes.rstrip(b"\0")
    return name.decode() if name.isascii() and name.decode().isprintable() else manager_id


def _job_view(columns: list[Any], at_us: int) -> JobView:
    job_id, status, attempts, manager_id, lease_until_us, next_run_at_us, payload = columns
    state = _STATES[status]
    if state is JobState.READY and next_run_at_us > at_us:
        state = JobState.DELAYED
    leased = state is JobState.LEASED
    return JobView(
        job=str(job_id),
        state=state,
        attempts=attempts,
        holder=_holder(manager_id) if leased else None,
        lease_until_us=lease_until_us if leased else None,
        next_run_at_us=next_run_at_us,
        payload=None if payload is None else payload["payload"],
    )
