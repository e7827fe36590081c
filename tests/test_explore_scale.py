"""The same set of orders here, in processes and on a Dask cluster; a worker that dies loses nothing."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from fencepost.harness.errors import UsageError
from fencepost.harness.explore.dask_cluster import dask
from fencepost.harness.explore.exhaustive import Exhaustive
from fencepost.harness.explore.pct import Pct
from fencepost.harness.explore.processes import processes
from fencepost.harness.explore.random_walk import RandomWalk
from fencepost.harness.explore.reduced import Reduced
from fencepost.harness.explore.result import Result
from fencepost.harness.explore.scale import MOST_WORKERS_LOST, Here, Pooled, WorkersLost
from fencepost.harness.explore.search import explore
from fencepost.harness.explore.strategy import Strategy
from fencepost.tests.fix_toy_executor import (
    DeadlyExecutor,
    DyingExecutor,
    FailingExecutor,
    ToyExecutor,
    lost_update,
    toy,
)

PROGRAM = toy("A:begin,read-x,write-x,commit B:begin,write-x,read-y,commit C:write-x")
STRATEGIES: dict[str, Callable[[], Strategy]] = {
    "exhaustive": partial(Exhaustive, 2_000),
    "exhaustive, not to its end": partial(Exhaustive, 333),
    "reduced": partial(Reduced, 2_000),
    "pct": partial(Pct, 400, 7, 3),
    "random": partial(RandomWalk, 400, 7),
}


DASK_RETRIES, WE_RETRY = 3, 0
WHO_RETRIES = {"dask, which retries": DASK_RETRIES, "dask, which does not": WE_RETRY}
GIVEN_UP = (
    rf"task 1 of 1 \(Beginnings\) was given to {MOST_WORKERS_LOST} workers and each was lost with it: ."
)


def told(result: Result) -> tuple[object, ...]:
    """All that a result says, but for who ran what."""
    tally = result.tally
    failures = [(failure.number, failure.schedule) for failure in tally.failures]
    return (result.basis, result.complete, tally.fingerprint, tally.outcomes, failures, tally.first_failure)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_the_number_of_workers_changes_nothing(strategy: str) -> None:
    executor = ToyExecutor(lost_update)
    alone = explore(PROGRAM, STRATEGIES[strategy](), Here(executor, PROGRAM))
    for count in (2, 5):
        workers = Pooled(executor, PROGRAM, partial(ThreadPoolExecutor, count))
        many = explore(PROGRAM, STRATEGIES[strategy](), workers)
        workers.close()
        assert told(many) == told(alone)


def test_a_process_that_is_killed_loses_nothing(tmp_path: Path) -> None:
    alone = explore(PROGRAM, Exhaustive(2_000), Here(ToyExecutor(), PROGRAM))
    died = tmp_path / "died"
    with processes(DyingExecutor(died, 500), PROGRAM, 2) as workers:
        result = explore(PROGRAM, Exhaustive(2_000), workers)
        assert workers.retried > 0
    assert died.exists(), "no worker was killed, so nothing was shown"
    assert told(result) == told(alone)


@contextlib.contextmanager
def cluster_of(workers: int, allowed_failures: int) -> Iterator[str]:
    """Somebody's cluster of worker processes, whose scheduler gives a task to so many more when one dies with it."""
    import dask.config
    from distributed import LocalCluster

    with (
        dask.config.set({"distributed.scheduler.allowed-failures": allowed_failures}),
        LocalCluster(  # type: ignore[no-untyped-call]
            n_workers=workers,
            threads_per_worker=1,
            host="127.0.0.1",
            dashboard_address="127.0.0.1:0",
            silence_logs=50,
        ) as cluster,
    ):
        yield cluster.scheduler_address


@pytest.mark.parametrize("who_retries", [DASK_RETRIES, WE_RETRY])
def test_a_dask_worker_that_is_killed_loses_nothing(who_retries: int, tmp_path: Path) -> None:
    alone = explore(PROGRAM, Exhaustive(2_000), Here(ToyExecutor(), PROGRAM))
    died = tmp_path / "died"
    with (
        cluster_of(3, allowed_failures=who_retries) as address,
        dask(DyingExecutor(died, 300), PROGRAM, address) as workers,
    ):
        result = explore(PROGRAM, Exhaustive(2_000), workers)
        assert bool(workers.retried) == (who_retries == WE_RETRY)
    assert died.exists(), "no worker was killed, so nothing was shown"
    assert told(result) == told(alone)


@pytest.mark.parametrize("engine", ["jobs", *WHO_RETRIES])
def test_a_task_that_kills_every_worker_is_given_up(engine: str, tmp_path: Path) -> None:
    deadly = DeadlyExecutor(tmp_path)
    with contextlib.ExitStack() as stack:
        if engine == "jobs":
            workers = stack.enter_context(processes(deadly, PROGRAM, 2))
        else:
            address = stack.enter_context(cluster_of(2, allowed_failures=WHO_RETRIES[engine]))
            workers = stack.enter_context(dask(deadly, PROGRAM, address))
        stack.enter_context(pytest.raises(WorkersLost, match=GIVEN_UP))
        explore(PROGRAM, Exhaustive(10), workers)
    assert MOST_WORKERS_LOST <= len(list(tmp_path.iterdir())) <= 2 * MOST_WORKERS_LOST


def test_what_a_task_itself_ends_by_is_no_loss_of_a_worker(tmp_path: Path) -> None:
    with processes(FailingExecutor(), PROGRAM, 1) as workers:
        with pytest.raises(TimeoutError, match="the queue did not answer"):
            explore(PROGRAM, Exhaustive(10), workers)
        assert not workers.retried


def test_no_scheduler_there_is_one_sentence() -> None:
    with (
        pytest.raises(UsageError, match=r"no Dask scheduler answers at tcp://127\.0\.0\.1:9"),
        dask(ToyExecutor(), PROGRAM, address="tcp://127.0.0.1:9", connect_s=0.5),
    ):
        pytest.fail("it answered")


def test_no_workers_is_no_number() -> None:
    with pytest.raises(UsageError, match="at least 1"), processes(ToyExecutor(), PROGRAM, 0):
        pytest.fail("they were started")
