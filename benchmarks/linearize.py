"""How fast the linearizability search is: calls a second on whole histories, without and with unknown answers.

    python benchmarks/linearize.py [--jobs 300] [--operations 60] [--seed 1]

Histories are played on a job that behaves, so that the search has to find an explanation and cannot stop early. Two
calls in five overlap their neighbours.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time

from fencepost.harness.lease_job import LeaseJob
from fencepost.harness.linearize import check
from fencepost.tests.random_histories import random_history

ROUNDS = 3
LOSSY = 0.67
"""The share of calls in these histories whose answer can be lost: not reads, sweeps and the enqueue."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=300)
    parser.add_argument("--operations", type=int, default=60)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    for share in (0.0, 0.3):
        chance = random.Random(arguments.seed)
        operations = [
            op
            for job in range(arguments.jobs)
            for op in random_history(
                chance,
                calls=arguments.operations - 1,
                job=str(job),
                unknown=share / LOSSY,
                wrong=0.0,
                ending=0.02,
            )
        ]
        lost = sum(op.is_optional for op in operations) / len(operations)
        rates = []
        for _ in range(ROUNDS):
            started = time.perf_counter()
            found = check(operations, LeaseJob())
            rates.append(len(operations) / (time.perf_counter() - started))
            assert found is None, found
        print(
            f"{arguments.jobs} jobs x {arguments.operations} operations, {lost:.0%} of the answers unknown: "
            f"{statistics.median(rates):,.0f} operations/s (median of {ROUNDS})"
        )


if __name__ == "__main__":
    main()
