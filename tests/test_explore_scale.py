"""The same set of orders here, in processes and on a Dask cluster; a worker that dies loses nothing."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from fencepost.harness.errors import UsageError
from fencepost.harness.explore.exhaustive import Exhaustive
from fencepost.harness.explore.pct import Pct
from fencepost.harness.explore.processes import processes
from fencepost.harness.explore.random_walk import RandomWalk
from fencepost.harness.explore.reduced import Reduced
from fencepost.harness.explore.result import Result
from fencepost.harness.explore.scale import Here, Pooled, WorkersLost, dask
from fencepost.harness.explore.search import explore
from fencepost.harness.explore.strategy import Strategy
from fencepost.tests.fix_toy_executor import DyingExecutor, ToyExecutor, lost_update, toy

PROGRAM = toy("A:begin,read-x,write-x,commit B:begin,write-x,read-y,commit C:write-x")
STRATEGIES: dict[str, Callable[[], Strategy]] = {
    "exhaustive": partial(Exhaustive, 2_000),
    "exhaustive, not to its end": partial(Exhaustive, 333),
    "reduced": partial(Reduced, 2_000),
    "pct": partial(Pct, 400, 7, 3),
    "random": partial(RandomWalk, 400, 7),
}


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


def test_a_dask_worker_that_is_killed_loses_nothing(tmp_path: Path) -> None:
    alone = explore(PROGRAM, Exhaustive(2_000), Here(ToyExecutor(), PROGRAM))
    died = tmp_path / "died"
    with dask(DyingExecutor(died, 300), PROGRAM, address=None, jobs=3) as workers:
        result = explore(PROGRAM, Exhaustive(2_000), workers)
    assert died.exists(), "no worker was killed, so nothing was shown"
    assert told(result) == told(alone)


def test_a_task_that_kills_every_worker_is_given_up(tmp_path: Path) -> None:
    never = tmp_path / "no such directory" / "died"  # cannot be made, so every worker gets there and fails
    workers = Pooled(
        DyingExecutor(never, 0), PROGRAM, partial(ThreadPoolExecutor, 1), lost=(FileNotFoundError,)
    )
    with pytest.raises(WorkersLost, match="given to 4 workers and each was lost with it"):
        explore(PROGRAM, Exhaustive(10), workers)
    workers.close()


def test_no_scheduler_there_is_one_sentence() -> None:
    with (
        pytest.raises(UsageError, match=r"no Dask scheduler answers at tcp://127\.0\.0\.1:9"),
        dask(ToyExecutor(), PROGRAM, address="tcp://127.0.0.1:9", connect_s=0.5),
    ):
        pytest.fail("it answered")


def test_no_workers_is_no_number() -> None:
    with pytest.raises(UsageError, match="at least 1"), processes(ToyExecutor(), PROGRAM, 0):
        pytest.fail("they were started")
