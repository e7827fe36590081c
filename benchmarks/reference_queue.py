"""What the reference queue costs: `python benchmarks/reference_queue.py [--jobs N]`.

Prints, from one run with the client and the server pinned to one core:

1. the latency of a claim among 1,000 jobs and among a million, then with a million delayed jobs and a million
   live leases of a higher priority in front, each as a ratio to the first; and what becomes of it when
   many claims have gone by without a VACUUM;
2. what checkpoints nobody armed cost: the same complete with the calls and without them.

The claims compared run alternately on two databases, so that whatever else the machine does hits both alike.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable
from typing import Any

import psycopg

from fencepost.harness.postgres.embedded import EmbeddedServers
from fencepost.queue_impl.reference import REFERENCE_SCHEMA, JobToken, Judgement, ReferenceQueue

TTL_S = 3600.0
FEW_JOBS = 1_000
CLAIMS = 300
COMPLETES = 1_500
ROUNDS = 5
CLAIMS_WITHOUT_VACUUM = 20_000

ADD_READY = """
    INSERT INTO lease_queue.jobs (payload, max_attempts, next_run_at)
    SELECT '{}', 5, clock_timestamp() - interval '1 minute' FROM generate_series(1, %s)
"""
ADD_DELAYED = """
    INSERT INTO lease_queue.jobs (payload, max_attempts, priority, next_run_at)
    SELECT '{}', 5, 10, clock_timestamp() + interval '1 day' FROM generate_series(1, %s)
"""
ADD_LEASED = """
    INSERT INTO lease_queue.jobs
        (payload, max_attempts, priority, state, attempts, fencing_token, lease_holder, lease_expires_at)
    SELECT '{}', 5, 20, 'leased', 1, 1, 'another', clock_timestamp() + interval '1 day'
    FROM generate_series(1, %s)
"""


class WithoutCheckpoints(ReferenceQueue):
    """What `complete` runs, word for word, less the checkpoint calls."""

    def _guard(self, operation: str, write: dict[str, object]) -> Judgement | None:
        if not self._lock(write):
            return None
        return self._judge(operation, write)

    def _record_success(self, write: dict[str, object]) -> None:
        self._session.run("insert_ledger", write)
        self._session.run("mark_succeeded", write)

    def _commit(self) -> None:
        self._session.commit()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--jobs", type=int, default=1_000_000, help="how many `a million` is")
    jobs: int = parser.parse_args().jobs
    core = min(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {core})
    with EmbeddedServers.start(core=core) as servers:
        print(f"PostgreSQL {servers.test.version}, client and server on core {core}")
        few, many = (new_database(servers, name) for name in ("few", "many"))
        try:
            claim_latency(few, many, jobs)
            unarmed_checkpoints(few)
        finally:
            few.close()
            many.close()


def new_database(servers: EmbeddedServers, name: str) -> psycopg.Connection[Any]:
    servers.test.create_database(name)
    connection = psycopg.connect(servers.test.dsn(name), autocommit=True)
    connection.execute(REFERENCE_SCHEMA.encode())
    return connection


def claim_latency(few: psycopg.Connection[Any], many: psycopg.Connection[Any], jobs: int) -> None:
    few_queue, many_queue = ReferenceQueue(few, worker="few"), ReferenceQueue(many, worker="many")
    few.execute(ADD_READY, [FEW_JOBS])
    print(
        f"\nclaim: median and 99th percentile of {CLAIMS}, against {FEW_JOBS:,} ready jobs measured alternately"
    )
    stages = [
        ("ready", ADD_READY),
        ("+ delayed, higher priority", ADD_DELAYED),
        ("+ leased, highest", ADD_LEASED),
    ]
    for name, fill in stages:
        many.execute(fill.encode(), [jobs])
        many.execute("CHECKPOINT")
        for analyzed in (False, True):
            if analyzed:
                many.execute("VACUUM ANALYZE lease_queue.jobs")
            compare_claims(f"{jobs:,} {name}{', analyzed' if analyzed else ''}", few, few_queue, many_queue)
    for _ in range(CLAIMS_WITHOUT_VACUUM // 100):
        many_queue.complete_batch(many_queue.claim_batch(TTL_S, 100))
    compare_claims(f"after {CLAIMS_WITHOUT_VACUUM:,} more claims, no vacuum", few, few_queue, many_queue)
    many.execute("VACUUM lease_queue.jobs")
    compare_claims("and after the vacuum", few, few_queue, many_queue)


def compare_claims(
    label: str, few: psycopg.Connection[Any], few_queue: ReferenceQueue, many_queue: ReferenceQueue
) -> None:
    few.execute("TRUNCATE lease_queue.jobs, lease_queue.ledger")
    few.execute(ADD_READY, [FEW_JOBS])
    few.execute("VACUUM ANALYZE lease_queue.jobs")
    few_ms, many_ms = [], []
    for _ in range(CLAIMS):
        few_ms.append(elapsed_ms(lambda: claimed(few_queue)))
        many_ms.append(elapsed_ms(lambda: claimed(many_queue)))
    ratio = statistics.median(many_ms) / statistics.median(few_ms)
    print(f"  {label:<48} {summary(many_ms)}   {FEW_JOBS:,}: {summary(few_ms)}   ratio {ratio:.2f}")


def claimed(queue: ReferenceQueue) -> JobToken:
    claim = queue.claim(TTL_S)
    assert claim is not None, "there is always a due job here"
    return claim


def unarmed_checkpoints(connection: psycopg.Connection[Any]) -> None:
    """Pairs of jobs are completed in turn, one each way; which goes first alternates."""
    print(f"\ncomplete: {ROUNDS} rounds of {COMPLETES} pairs, seven checkpoints each")
    unarmed, without = (
        ReferenceQueue(connection, worker="unarmed"),
        WithoutCheckpoints(connection, worker="none"),
    )
    ratios = []
    for _ in range(ROUNDS):
        connection.execute("TRUNCATE lease_queue.jobs, lease_queue.ledger")
        connection.execute(ADD_READY, [2 * COMPLETES])
        claims = [claim for _ in range(2 * COMPLETES // 100) for claim in unarmed.claim_batch(TTL_S, 100)]
        unarmed_ms: list[float] = []
        without_ms: list[float] = []
        ways = [(unarmed, unarmed_ms), (without, without_ms)]
        for pair in zip(claims[::2], claims[1::2], strict=True):
            ways.reverse()
            for claim, (queue, times_ms) in zip(pair, ways, strict=True):
                times_ms.append(completed_ms(queue, claim))
        ratios.append(statistics.median(unarmed_ms) / statistics.median(without_ms))
        print(f"  unarmed {summary(unarmed_ms)}   without {summary(without_ms)}   ratio {ratios[-1]:.4f}")
    print(f"  median ratio {statistics.median(ratios):.4f}")


def completed_ms(queue: ReferenceQueue, claim: JobToken) -> float:
    def complete() -> None:
        assert queue.complete(claim).accepted

    return elapsed_ms(complete)


def elapsed_ms(call: Callable[[], object]) -> float:
    started = time.perf_counter()
    call()
    return (time.perf_counter() - started) * 1e3


def summary(times_ms: list[float]) -> str:
    ordered = sorted(times_ms)
    return f"{statistics.median(ordered):.3f} ms, {ordered[len(ordered) * 99 // 100]:.3f} ms"


if __name__ == "__main__":
    main()
