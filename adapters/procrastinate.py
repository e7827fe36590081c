"""Procrastinate (PyPI `procrastinate`, written against 3.10) in the harness's words.

Every operation is the call the library's own worker makes: `JobManager.fetch_job`, `finish_job`, `retry_job`,
`update_heartbeat`. What stands for a lease there:

- The *worker* beats, not the job: a job is lost once the heartbeat of the worker that fetched it is older than
  the `seconds_since_heartbeat` its reaper asks with. So every claim here registers a worker of its own, as if a
  one-slot worker had just been started for it, and that worker's id stands as the claim's token: it tells two
  leases of one job apart. The library never compares it, so FENCING is not declared.
- Recovery is nobody's by default. The documentation's recipe is a periodic task that calls `get_stalled_jobs`
  and `retry_job` on each; that is `reap`, with the checkpoint `after_snapshot` between the two.
- `finish_job` and `retry_job` name the job by its id alone. They raise where its status does not allow them.

What the variants family finds (3.10.0; tests/test_adapters_findings.py replays each):

- A worker that lost its job and fails while another runs it ends the other's job (`corrupted`: its completion is
  refused) or, with a retry strategy, puts it back into the queue for a third (`corrupted`: two execute it).
- A worker whose retry comes after the job's last attempt has failed brings the failed job back (`corrupted`).
- Two runs of the recipe at once: the later one retries what it listed, also from a worker that has just fetched
  it (`corrupted`). A queueing lock, as in the recipe, limits waiting jobs and not running ones.
- Completing a job another one runs, or after the heartbeat ran out, counts (`accepted`); so does a heartbeat that
  comes between the recipe's two calls, which the second then does not look at.
- After the other completed it, late writes are refused. A lost worker's heartbeat changes nothing (`harmless`).

Not declared: RETRY (how often is decided by the worker's code, and recovery does not count), DELAY (counted by
the submitting client's clock), IDEMPOTENCY_KEY (a queueing lock refuses a second waiting job, and no more).
"""

from __future__ import annotations

from typing import Any

import procrastinate
import psycopg
from procrastinate import exceptions, jobs, manager

from fencepost.harness.adapter import (
    UNSPECIFIED,
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

STALLED_AFTER_S = 60.0
"""How old a heartbeat the reaper takes for a dead worker's. The library's own default is 30."""

CAPABILITIES = frozenset(
    {
        Capability.HEARTBEAT,
        Capability.REAPER,
        Capability.REAP_SNAPSHOT,
        Capability.DEFERRED_RECLAIM,
        Capability.PRIORITY,
        Capability.MAX_ATTEMPTS,
        Capability.CLOCK,
        Capability.EXPIRE,
        Capability.WARM_WORKERS,
    }
)

TASK = "fencepost"

_STATES = {
    "todo": JobState.READY,
    "doing": JobState.LEASED,
    "succeeded": JobState.SUCCEEDED,
    "failed": JobState.FAILED,
    "cancelled": JobState.CANCELLED,
    "aborting": JobState.LEASED,
    "aborted": JobState.CANCELLED,
}

_OBSERVE = f"""
SELECT (extract(epoch FROM statement_timestamp()) * 1000000)::bigint,
       coalesce(json_agg(json_build_array(
           job.id, job.status, job.attempts, job.worker_id,
           (extract(epoch FROM worker.last_heartbeat) * 1000000)::bigint + {int(STALLED_AFTER_S * 1e6)},
           (extract(epoch FROM job.scheduled_at) * 1000000)::bigint,
           job.args
       ) ORDER BY job.id) FILTER (WHERE job.id IS NOT NULL), '[]')
FROM (SELECT) AS always
LEFT JOIN procrastinate_jobs AS job ON true
LEFT JOIN procrastinate_workers AS worker ON worker.id = job.worker_id
"""

PRUNED_US = 0
"""When the lease of a job ended whose worker was pruned: its heartbeat is gone, and the recipe recovers it at once."""

_RESET = (
    "DELETE FROM procrastinate_periodic_defers",
    "DELETE FROM procrastinate_jobs",
    "DELETE FROM procrastinate_workers",
)

_EXPIRE = """
UPDATE procrastinate_workers SET last_heartbeat = last_heartbeat - make_interval(secs => %s)
WHERE id = %s
"""


class ProcrastinateAdapter:
    name = "procrastinate"
    capabilities = CAPABILITIES

    def __init__(self) -> None:
        self._connections = ConnectionCache()

    async def install(self, dsn: str) -> None:
        app = _make_app(dsn)
        async with app.open_async():
            if not await app.job_manager.check_connection_async():
                await app.schema_manager.apply_schema_async()

    async def worker(self, actor: ActorSeat, dsn: str) -> ProcrastinateWorker:
        app = _make_app(dsn)
        await app.open_async()
        return ProcrastinateWorker(app, actor)

    def observe(self, dsn: str) -> Observation:
        row = self._connections.get(dsn).execute(_OBSERVE.encode(), prepare=True).fetchone()
        assert row is not None, "an aggregate always has a row"
        at_us, rows = row
        return Observation(at_us, tuple(_job_view(columns, at_us) for columns in rows))

    def reset(self, dsn: str) -> None:
        connection = self._connections.get(dsn)
        with connection.transaction():
            for statement in _RESET:
                connection.execute(statement.encode())

    def expire(self, dsn: str, claim: Claim) -> None:
        worker_id = claim.raw["worker_id"]
        self._connections.get(dsn).execute(_EXPIRE.encode(), (STALLED_AFTER_S, worker_id))

    def close(self) -> None:
        self._connections.close()


class ProcrastinateWorker:
    """One actor's pool of one connection. It keeps nothing else between two operations."""

    def __init__(self, app: procrastinate.App, actor: ActorSeat) -> None:
        self._app = app
        self._actor = actor
        self._manager: manager.JobManager = app.job_manager

    async def enqueue(
        self,
        payload: Json,
        *,
        key: str | None = None,
        delay_s: float = 0.0,
        max_attempts: int | None = None,
        priority: int = 0,
    ) -> JobId:
        if key is not None or delay_s:
            raise QueueRefusal("unsupported", "this adapter enqueues without a key and without a delay")
        task = self._app.tasks[TASK].configure(priority=priority)
        return str(await task.defer_async(payload=payload, max_attempts=max_attempts))

    async def claim(self, ttl_s: float) -> Claim | None:
        """What `Worker.run` does when it starts, with room for one job."""
        _check_ttl(ttl_s)
        await self._manager.prune_stalled_workers(STALLED_AFTER_S)
        worker_id = await self._manager.register_worker()
        job = await self._manager.fetch_job(queues=None, worker_id=worker_id)
        if job is None:
            await self._manager.unregister_worker(worker_id)
            return None
        return Claim(
            job=str(job.id),
            token=worker_id,
            raw={
                "worker_id": worker_id,
                "job_id": job.id,
                "attempts": job.attempts,
                "task_kwargs": job.task_kwargs,
            },
        )

    async def heartbeat(self, claim: Claim, ttl_s: float) -> Answer:
        _check_ttl(ttl_s)
        await self._manager.update_heartbeat(claim.raw["worker_id"])
        return Answer.accepted()

    async def complete(self, claim: Claim, result: Json = None) -> Answer:
        return await self._persist(_job(claim), jobs.Status.SUCCEEDED, None)

    async def fail(self, claim: Claim, error: str) -> Answer:
        """The task raised: its own retry strategy decides, on the attempts known when the job was fetched."""
        job = _job(claim)
        retry = self._app.tasks[TASK].get_retry_exception(exception=RuntimeError(error), job=job)
        return await self._persist(job, jobs.Status.FAILED, None if retry is None else retry.retry_decision)

    async def _persist(
        self, job: jobs.Job, status: jobs.Status, retry: procrastinate.RetryDecision | None
    ) -> Answer:
        """`Worker._persist_job_status`, call for call."""
        try:
            if retry is not None:
                await self._manager.retry_job(
                    job=job,
                    retry_at=retry.retry_at,
                    lock=retry.lock,
                    priority=retry.priority,
                    queue=retry.queue,
                )
            else:
                await self._manager.finish_job(job=job, status=status, delete_job=False)
        except exceptions.ConnectorException as error:
            return _refusal(error)
        return Answer.accepted()

    async def reap(self) -> int:
        """The periodic task of the documentation: list what is stalled, then retry each."""
        stalled = list(await self._manager.get_stalled_jobs(seconds_since_heartbeat=STALLED_AFTER_S))
        self._actor.checkpoint("after_snapshot")
        recovered = 0
        for job in stalled:
            try:
                await self._manager.retry_job(job)
            except exceptions.ConnectorException as error:
                _refusal(error)
            else:
                recovered += 1
        return recovered

    async def close(self) -> None:
        await self._app.close_async()


class _AttemptsOfTheJob(procrastinate.BaseRetryStrategy):
    """The library's strategy, with the number of attempts the job was enqueued with; without one, no retry."""

    def get_retry_decision(
        self, *, exception: BaseException, job: jobs.Job
    ) -> procrastinate.RetryDecision | None:
        max_attempts = job.task_kwargs.get("max_attempts")
        if not isinstance(max_attempts, int):
            return None
        if max_attempts == 1:
            return None  # RetryStrategy takes a maximum of 0 for none at all
        strategy = procrastinate.RetryStrategy(max_attempts=max_attempts - 1)
        return strategy.get_retry_decision(exception=exception, job=job)


def _make_app(dsn: str) -> procrastinate.App:
    connector = procrastinate.PsycopgConnector(conninfo=dsn, min_size=1, max_size=1)
    app = procrastinate.App(connector=connector)

    @app.task(name=TASK, retry=_AttemptsOfTheJob())
    def never_run(payload: Json, max_attempts: int | None) -> None:
        """Only its name and its retry strategy are used: the harness is the worker."""

    return app


def _job(claim: Claim) -> jobs.Job:
    """The job as `fetch_job` gave it, as far as settling reads it."""
    raw = claim.raw
    return jobs.Job(
        id=raw["job_id"],
        queue=jobs.DEFAULT_QUEUE,
        lock=None,
        queueing_lock=None,
        task_name=TASK,
        task_kwargs=raw["task_kwargs"],
        attempts=raw["attempts"],
        worker_id=raw["worker_id"],
    )


def _check_ttl(ttl_s: float) -> None:
    if ttl_s != STALLED_AFTER_S:
        raise QueueRefusal(
            "fixed_lease_length",
            f"every lease lasts {STALLED_AFTER_S:.0f} s here, one of {ttl_s} s cannot be had",
        )


def _refusal(error: exceptions.ConnectorException) -> Answer:
    """The library's functions say no with a plain RAISE; anything else is the driver's error."""
    cause = error.__cause__
    if isinstance(cause, psycopg.errors.RaiseException):
        return Answer.refused(UNSPECIFIED)
    raise cause if isinstance(cause, psycopg.Error) else error


def _job_view(columns: list[Any], at_us: int) -> JobView:
    job_id, status, attempts, worker_id, lease_until_us, next_run_at_us, args = columns
    state = _STATES[status]
    if state is JobState.READY and next_run_at_us is not None and next_run_at_us > at_us:
        state = JobState.DELAYED
    leased = state is JobState.LEASED  # the worker's id stays on the row when the lease is over
    if leased and worker_id is None:
        lease_until_us = PRUNED_US
    return JobView(
        job=str(job_id),
        state=state,
        token=worker_id if leased else None,
        attempts=attempts,
        lease_until_us=lease_until_us if leased else None,
        next_run_at_us=next_run_at_us,
        payload=args.get("payload"),
    )
