"""What a plain stress test hits: 8 threads on one queue, nothing held, no clock moved, no connection lost.

    python benchmarks/stress.py [--seconds 60] [--jobs 2] [--twin NAME … | --missing]

Each thread enqueues (some under a key, some for later), claims with a short lease and completes, fails or beats,
sometimes late; some cancel and some reap. When the time is over the threads drain what is left. It is judged by what a
test of this kind has at hand: the answers its threads got, and the rows at the end. The reference queue comes first and
must show nothing, or the rest would mean nothing. The figures go to docs/figures/stress.json; with `--missing` those of
the twins that have none there are added, with `--twin` they are only printed.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
import sys
import threading
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import psycopg

from fencepost.docs.twin_figures import FIGURES, Figures
from fencepost.harness.adapter import (
    TERMINAL_STATES,
    Claim,
    IdempotencyConflict,
    JobId,
    JobState,
    Observation,
    Outcome,
    Queue,
    QueueRefusal,
)
from fencepost.harness.lab import Lab, LabOptions
from fencepost.harness.loading import load_queue
from fencepost.harness.pinning import WORKER_VARIABLE, pinned
from fencepost.queue_impl.twins import TWINS

THREADS = 8
LEASE_S = 0.02
DELAY_S = 0.05
ATTEMPTS = 5
DRAIN_S = 3.0
US_PER_S = 1_000_000


@dataclass
class Told:
    """What the threads were answered. Appending to a list is safe between threads."""

    operations: list[int] = field(default_factory=lambda: [0] * THREADS)
    enqueued: list[tuple[JobId, str | None]] = field(default_factory=list)  # with its key
    claimed: list[Claim] = field(default_factory=list)
    completed: list[Claim] = field(default_factory=list)
    cancelled: list[JobId] = field(default_factory=list)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--twin", action="append", default=[])
    which.add_argument(
        "--missing", action="store_true", help="twins without a figure; keep those of the others"
    )
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="queues at a time, a core each")
    arguments = parser.parse_args()
    kept = figures_so_far() if arguments.missing else {}
    wanted = [twin for twin in TWINS if not arguments.twin or twin.name in arguments.twin]
    chosen = [twin for twin in wanted if twin.name not in kept]
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(arguments.jobs, context, take_a_core, (context.Value("i", 0),)) as pool:
        told_of_reference = pool.submit(hit, "reference", arguments.seconds)
        if told_of_reference.result()["kinds"]:
            print("the reference queue shows anomalies: this stress test is wrong", file=sys.stderr)
            return 1
        hits = dict(
            zip(
                [twin.name for twin in chosen],
                pool.map(hit, [twin.path for twin in chosen], [arguments.seconds] * len(chosen)),
                strict=True,
            )
        )
    if not arguments.twin:
        write({**kept, **hits}, arguments.seconds)
    return 0


def figures_so_far() -> dict[str, dict[str, Any]]:
    told = json.loads((FIGURES / "stress.json").read_text())["twins"]
    return {twin.name: told[twin.name] for twin in TWINS if twin.name in told}


def take_a_core(given_out: Any) -> None:
    with given_out.get_lock():
        os.environ[WORKER_VARIABLE] = str(given_out.value)
        given_out.value += 1


def hit(path: str, seconds: float) -> dict[str, Any]:
    loaded = load_queue(path)
    with Lab(LabOptions()) as lab, pinned(lab.core):
        told, rows = stress(loaded.queue, lab.bench(loaded).dsn, seconds)
        lab.put_away(loaded)
    seen = anomalies(told, rows)
    operations = sum(told.operations)
    kinds = ", ".join(f"{count} {kind}" for kind, count in seen.most_common())
    print(
        f"{loaded.queue.name}: {seen.total()} anomalies in {operations:,} operations ({kinds or 'none'})",
        flush=True,
    )
    a_minute = seen.total() / seconds * 60
    return {"rate": f"{a_minute:.3g}" if seen else 0, "operations": operations, "kinds": dict(seen)}


def write(hits: dict[str, dict[str, Any]], seconds: float) -> None:
    Figures(
        command=f"python benchmarks/stress.py --seconds {seconds:g}",
        says=(
            f"A plain stress test: {THREADS} threads on the queue for {seconds:g} s, nothing held, no clock moved, no "
            "connection lost; anomalies a minute in the answers the threads got and in the rows at the end. It is "
            "chance, so the next run differs."
        ),
        columns={"rate": "stress test: anomalies a minute"},
        twins=hits,
    ).write("stress")


def stress(queue: Queue, dsn: str, seconds: float) -> tuple[Told, Observation]:
    queue.reset(dsn)
    told = Told()
    until = time.monotonic() + seconds
    threads = [
        threading.Thread(target=_work, args=(queue, dsn, number, told, until)) for number in range(THREADS)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return told, queue.observe(dsn)


def _work(queue: Queue, dsn: str, number: int, told: Told, until: float) -> None:
    chance = random.Random(number)
    seat = SimpleNamespace(name=f"W{number}", worker_name=f"W{number % 6}", checkpoint=lambda _: None)
    worker: Any = queue.worker(seat, dsn)  # type: ignore[arg-type]
    late: list[Claim] = []
    while time.monotonic() < until + DRAIN_S:
        told.operations[number] += 1
        try:
            if time.monotonic() > until:
                if not _drain(worker, told):
                    break
            else:
                _act(worker, chance, late, told)
        except (psycopg.Error, IdempotencyConflict, QueueRefusal):
            continue
    worker.close()


def _act(worker: Any, chance: random.Random, late: list[Claim], told: Told) -> None:
    dice = chance.random()
    if dice < 0.2:
        key = f"key-{chance.randrange(10**6) // 10**3}" if chance.random() < 0.3 else None
        delayed = key is None and chance.random() < 0.2
        job = worker.enqueue({}, key=key, max_attempts=ATTEMPTS, delay_s=DELAY_S if delayed else 0.0)
        told.enqueued.append((job, key))
        return
    if dice < 0.25:
        worker.reap()
        return
    if dice < 0.28 and told.enqueued:
        job = chance.choice(told.enqueued[-50:])[0]
        if worker.cancel(job).outcome is Outcome.ACCEPTED:
            told.cancelled.append(job)
        return
    claim = worker.claim(LEASE_S)
    if claim is not None:
        told.claimed.append(claim)
        if chance.random() < 0.3:
            late.append(claim)  # it stalls, and comes back
            return
    mine = late.pop(0) if late and chance.random() < 0.5 else claim
    if mine is None:
        return
    if chance.random() < 0.2:
        worker.heartbeat(mine, LEASE_S)
    if chance.random() < 0.7:
        if worker.complete(mine).outcome is Outcome.ACCEPTED:
            told.completed.append(mine)
    else:
        worker.fail(mine, "stress")


def _drain(worker: Any, told: Told) -> bool:
    """Whether there was anything left to do."""
    worker.reap()
    claim = worker.claim(10.0)
    if claim is None:
        time.sleep(0.05)  # a retry waits; the threads have DRAIN_S for it
        return True
    told.claimed.append(claim)
    if worker.complete(claim).outcome is Outcome.ACCEPTED:
        told.completed.append(claim)
    return True


def anomalies(told: Told, rows: Observation) -> Counter[str]:
    seen: Counter[str] = Counter()
    entries = Counter(entry.job for entry in rows.ledger)
    completes = Counter(job for job, _ in {(claim.job, claim.token) for claim in told.completed})
    seen["entered twice"] += sum(count > 1 for count in entries.values())
    seen["completed twice"] += sum(count > 1 for count in completes.values())
    tokens = Counter((claim.job, claim.token) for claim in told.claimed)
    seen["two claims with one token"] += sum(count > 1 for count in tokens.values())
    for job in completes:
        view = rows.by_job.get(job)
        seen["completed and not succeeded"] += view is None or view.state is not JobState.SUCCEEDED
    for job in set(told.cancelled):
        view = rows.by_job.get(job)
        seen["cancelled and not cancelled"] += view is None or view.state is not JobState.CANCELLED
    of_key: dict[str, set[JobId]] = {}
    for job, key in told.enqueued:
        seen["lost"] += job not in rows.by_job
        if key is not None:
            of_key.setdefault(key, set()).add(job)
    seen["one key, two jobs"] += sum(len(jobs) > 1 for jobs in of_key.values())
    owners = Counter(job for jobs in of_key.values() for job in jobs)
    seen["two keys, one job"] += sum(count > 1 for count in owners.values())
    for view in rows.jobs:
        seen["succeeded without an entry"] += view.state is JobState.SUCCEEDED and not entries[view.job]
        seen["an entry and not succeeded"] += view.state is not JobState.SUCCEEDED and entries[view.job] > 0
        seen["beyond its attempts"] += (view.attempts or 0) > ATTEMPTS
        seen["never ended"] += view.state not in TERMINAL_STATES and (view.next_run_at_us or 0) < (
            rows.at_us - US_PER_S
        )
    return +seen


if __name__ == "__main__":
    sys.exit(main())
