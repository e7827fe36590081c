"""What a plain stress test hits: 8 threads on one queue, nothing held, no clock moved, judged by the rows at the end.

    python benchmarks/stress.py [--seconds 60] [--twin NAME …]

Each thread claims with a short lease and completes, fails or beats, sometimes late. An anomaly is a job with two ledger
entries, a succeeded job without one, a job that two completes were accepted for, or one beyond its attempts. What it
hits per twin is written to .fencepost/stress.json, for the table of docs/found-by-the-machine.md.
"""

from __future__ import annotations

import argparse
import json
import random
import threading
import time
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import psycopg

from fencepost.harness.adapter import Claim, JobState, Outcome, Queue
from fencepost.harness.lab import Lab, LabOptions
from fencepost.harness.loading import load_queue
from fencepost.queue_impl.twins import TWINS

THREADS = 8
LEASE_S = 0.02
LIVE_JOBS = 20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--twin", action="append", default=[])
    arguments = parser.parse_args()
    hits = {}
    with Lab(LabOptions()) as lab:
        for twin in TWINS:
            if arguments.twin and twin.name not in arguments.twin:
                continue
            loaded = load_queue(twin.path)
            bench = lab.bench(loaded)
            operations, anomalies = stress(loaded.queue, bench.dsn, arguments.seconds)
            hits[twin.name] = {"operations": operations, "anomalies": anomalies}
            print(
                f"{twin.name}: {anomalies} anomalies in {operations:,} operations, {arguments.seconds:g} s",
                flush=True,
            )
            lab.put_away(loaded)
    kept = Path(".fencepost/stress.json")
    kept.parent.mkdir(exist_ok=True)
    kept.write_text(json.dumps({"seconds": arguments.seconds, "hits": hits}))


def stress(queue: Queue, dsn: str, seconds: float) -> tuple[int, int]:
    queue.reset(dsn)
    accepted: Counter[str] = Counter()
    done = [0] * THREADS
    until = time.monotonic() + seconds

    def work(number: int) -> None:
        chance = random.Random(number)
        actor = SimpleNamespace(name=f"W{number}", worker_name=f"W{number}", checkpoint=lambda _: None)
        worker = queue.worker(actor, dsn)  # type: ignore[arg-type]
        late: list[Claim] = []
        while time.monotonic() < until:
            done[number] += 1
            try:
                if chance.random() < 0.2:
                    worker.enqueue({}, max_attempts=5)
                claim = worker.claim(LEASE_S)
                if claim is not None and chance.random() < 0.3:
                    late.append(claim)  # it stalls, and comes back
                    continue
                mine = late.pop(0) if late and chance.random() < 0.5 else claim
                if mine is None:
                    continue
                if chance.random() < 0.7:
                    if worker.complete(mine).outcome is Outcome.ACCEPTED:
                        accepted[f"{mine.job}/{mine.token}"] += 1
                else:
                    worker.fail(mine, "stress")
            except psycopg.Error:
                continue
        worker.close()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(done), anomalies(queue, dsn, accepted)


def anomalies(queue: Queue, dsn: str, accepted: Counter[str]) -> int:
    rows = queue.observe(dsn)
    entries = Counter(entry.job for entry in rows.ledger)
    completes = Counter(name.partition("/")[0] for name in accepted)
    count = sum(1 for job in entries if entries[job] > 1)
    count += sum(1 for job in completes if completes[job] > 1)
    for view in rows.jobs:
        count += view.state is JobState.SUCCEEDED and entries[view.job] == 0
        count += view.state is not JobState.SUCCEEDED and entries[view.job] > 0
        count += (view.attempts or 0) > (view.max_attempts or 0)
    return count


if __name__ == "__main__":
    main()
