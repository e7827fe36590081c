"""The race of `claim_without_lock` by frontrun: `frontrun python benchmarks/explore_frontrun.py`.

Two workers claim one job; both must not get it. The queue's own Python client runs in frontrun's threads, over
connections that stay open, and each execution begins with the queue's reset. benchmarks/explore.py runs this beside
`fencepost explore` on the same race, where frontrun is installed (the extra `bench`).
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable
from typing import Any

import psycopg
from psycopg.conninfo import make_conninfo

from fencepost.harness.lab import Lab, LabOptions
from fencepost.harness.loading import load_queue

try:
    import frontrun
except ImportError:
    sys.stderr.write(
        "frontrun is not installed: pip install --constraint constraints.txt --editable '.[bench]'\n"
    )
    raise SystemExit(2) from None

QUEUE = "fencepost.queue_impl.twins:claim_without_lock"


class Seat:
    def __init__(self, name: str) -> None:
        self.name = self.worker_name = name

    def checkpoint(self, name: str) -> None:
        """Nobody is held here."""


def main() -> None:
    loaded = load_queue(QUEUE)
    with Lab(LabOptions()) as lab:
        bench = lab.bench(loaded)
        # A worker that waits in the server for one that frontrun holds would wait for ever: it gives up instead.
        dsn = make_conninfo(bench.dsn, options="-c lock_timeout=500")
        workers: dict[str, Any] = {name: loaded.queue.worker(Seat(name), dsn) for name in "PAB"}

        def setup() -> dict[str, Any]:
            bench.reset()
            workers["P"].enqueue({})
            return {}

        def claim(name: str) -> Callable[[dict[str, Any]], None]:
            def work(state: dict[str, Any]) -> None:
                with contextlib.suppress(psycopg.errors.LockNotAvailable):
                    state[name] = workers[name].claim(60.0)

            return work

        started = time.perf_counter()
        result = frontrun.explore(
            setup=setup,
            workers=[claim("A"), claim("B")],
            invariant=lambda state: state.get("A") is None or state.get("B") is None,
            reproduce_on_failure=0,
            timeout_per_run=60,
            deadlock_timeout=30,
            total_timeout=120,
        )
        elapsed_s = time.perf_counter() - started
        found = {False: "the race found", True: "no race found"}.get(result.property_holds, "inconclusive")
        reason = "" if result.property_holds is not None else f" ({result.inconclusive_reason})"
        print(
            f"frontrun: {found} after {result.num_explored} executions in {elapsed_s:.2f} s, "
            f"{result.num_explored / elapsed_s:,.1f} executions/s{reason}"
        )
        for worker in workers.values():
            worker.close()


if __name__ == "__main__":
    main()
