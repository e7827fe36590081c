"""What the reduction saves on a real server: three workers settle three different jobs, or all the same one.

    python benchmarks/explore_reduction.py

Each settles in three statements (BEGIN, UPDATE by primary key, COMMIT): 9!/(3!)^3 = 1,680 orders if nobody waits. Both
strategies run to their end and must reach the same outcomes. Exit code 1 if they do not, or if on different jobs
reduced runs more than a twentieth of the orders.
"""

from __future__ import annotations

import sys
from typing import Final

import psycopg

from fencepost.harness.adapter import ActorSeat, Answer, Capability
from fencepost.harness.explore.program import parse
from fencepost.harness.explore.real import QueueExecutor, close_stages
from fencepost.harness.explore.result import Result
from fencepost.harness.explore.scale import Here
from fencepost.harness.explore.search import explore
from fencepost.harness.explore.strategies import make_strategy
from fencepost.harness.lab import LabOptions
from fencepost.queue_impl.reference.adapter import ReferenceAdapter

WORKERS: Final = "ABC"
OPERATIONS: Final = " ".join(f"{name}:cancel" for name in WORKERS)
JOBS: Final = {"different_jobs": len(WORKERS), "one_job": 1}
MOST_RUN: Final = 0.05


class Settler:
    """A worker whose `cancel` settles its own job, whatever it is asked for; the rest is there and not used."""

    def __init__(self, dsn: str, job: int) -> None:
        self._connection = psycopg.connect(dsn, autocommit=True)
        self._job = job

    def enqueue(self, payload: object, **options: object) -> str:
        sql = "INSERT INTO lease_queue.jobs (payload, max_attempts) VALUES ('{}', 1) RETURNING id"
        (job,) = self._connection.execute(sql).fetchone() or (None,)
        return str(job)

    def cancel(self, job: str) -> Answer:
        self._connection.execute("BEGIN ISOLATION LEVEL READ COMMITTED")
        done = self._connection.execute(
            "UPDATE lease_queue.jobs SET state = 'cancelled', finished_at = clock_timestamp() "
            "WHERE id = %s AND state = 'ready'",
            (self._job,),
        )
        self._connection.execute("COMMIT")
        return Answer.accepted() if done.rowcount else Answer.refused("terminal")

    def claim(self, **options: object) -> None:
        return None

    complete = fail = claim

    def close(self) -> None:
        self._connection.close()


class Settling(ReferenceAdapter):
    """The reference queue's tables; `shared`: all workers settle the first job."""

    def __init__(self, name: str, *, shared: bool) -> None:
        super().__init__(name, capabilities=frozenset({Capability.CANCEL, Capability.CLOCK}))
        self._shared = shared

    def worker(self, actor: ActorSeat, dsn: str) -> Settler:  # type: ignore[override]
        place = WORKERS.find(actor.worker_name)
        return Settler(dsn, 1 if self._shared else place + 1)


different_jobs = Settling("different_jobs", shared=False)
one_job = Settling("one_job", shared=True)


def searched(queue: str, strategy: str) -> Result:
    program = parse(OPERATIONS, jobs=JOBS[queue])
    here = Here(QueueExecutor(f"fencepost.benchmarks.explore_reduction:{queue}", LabOptions()), program)
    try:
        return explore(program, make_strategy(strategy, program, budget=20_000), here)
    finally:
        here.close()


def main() -> int:
    alike = True
    try:
        for queue in JOBS:
            every, fewer = searched(queue, "exhaustive"), searched(queue, "reduced")
            sys.stdout.write(f"{queue}: {every.basis}; {fewer.basis}\n")
            sys.stdout.flush()
            alike = alike and fewer.tally.outcomes.keys() == every.tally.outcomes.keys()
            alike = alike and every.complete and fewer.conclusive and not fewer.tally.failed
            if queue == "different_jobs":
                alike = alike and fewer.tally.runs <= MOST_RUN * every.tally.runs
    finally:
        close_stages()
    return 0 if alike else 1


if __name__ == "__main__":
    raise SystemExit(main())
