"""A real queue explored here, by two processes and on a Dask cluster that loses a worker: the same orders and ends."""

from __future__ import annotations

import ast
import contextlib
import json
import os
import select
import time
from collections.abc import Iterable
from pathlib import Path

import pytest

from fencepost.harness.cli import main
from fencepost.harness.explore import dask_cluster
from fencepost.harness.explore.dask_cluster import dask
from fencepost.harness.explore.processes import processes
from fencepost.harness.explore.program import parse
from fencepost.harness.explore.random_walk import RandomWalk
from fencepost.harness.explore.real import close_stages
from fencepost.harness.explore.result import Result
from fencepost.harness.explore.scale import Here, Workers
from fencepost.harness.explore.search import explore
from fencepost.tests.fix_queue_executor import NotedExecutor

TWIN = "fencepost.queue_impl.twins:claim_without_lock"
PROGRAM = parse("A:claim B:claim")
ORDERS = 60
SEED = 7
ENDING_DEADLINE_S = 30.0
COMMAND = ["explore", "--ops", "A:claim B:claim", "--strategy", "random", "--budget", "12", "--seed", "3"]


def searched(workers: Workers) -> Result:
    return explore(PROGRAM, RandomWalk(ORDERS, SEED), workers)


def told(result: Result) -> tuple[object, ...]:
    """All that a result says, but for who ran what."""
    tally = result.tally
    failures = [(failure.number, failure.schedule) for failure in tally.failures]
    return (tally.runs, tally.fingerprint, tally.distinct, tally.outcomes, failures, tally.differences)


def still_there(processes: Iterable[int]) -> list[int]:
    """Those that have not ended when the deadline is over."""
    deadline = time.monotonic() + ENDING_DEADLINE_S
    there = []
    for pid in processes:
        with contextlib.suppress(ProcessLookupError):
            handle = os.pidfd_open(pid)
            ended, _, _ = select.select([handle], [], [], max(0.0, deadline - time.monotonic()))
            os.close(handle)
            if not ended:
                there.append(pid)
    return there


def test_one_seed_is_one_set_of_orders_for_any_workers_and_one_that_dies(tmp_path: Path) -> None:
    executor = NotedExecutor(TWIN, tmp_path)
    here = Here(executor, PROGRAM)
    alone = searched(here)
    here.close()
    close_stages()
    assert alone.tally.failed, "the twin was not caught, so there is nothing to agree about"
    first = executor.servers()

    with processes(executor, PROGRAM, 2) as two:
        two.open_all(2)
        assert told(searched(two)) == told(alone)
    of_two = {pid: note for pid, note in executor.servers().items() if pid not in first}
    assert len(of_two) == 2
    # Each process has one core together with its server, and not the other's where there is another.
    cores = [ast.literal_eval(note.partition(" ")[2]) for note in of_two.values()]
    assert [len(each) for each in cores] == [1, 1]
    assert len({core for (core,) in cores}) == min(2, len(os.sched_getaffinity(0)))

    dying = NotedExecutor(TWIN, tmp_path, dies_after=30)
    with dask(dying, PROGRAM, address=None, jobs=2) as cluster:
        assert told(searched(cluster)) == told(alone)
    died = (tmp_path / "died").read_text()
    on_dask = {pid: note for pid, note in dying.servers().items() if pid not in (*first, *of_two)}
    assert died in {note.split()[0] for note in on_dask.values()}, "the worker that died had no server"
    assert len({note.split()[0] for note in on_dask.values()}) >= 2, "nobody else was there to go on"
    assert still_there(dying.servers()) == []


def test_nothing_is_left_on_a_cluster_that_goes_on(tmp_path: Path) -> None:
    """Somebody's own: its workers stay, the servers they started for a search do not; and they can search again."""
    from distributed import LocalCluster  # type: ignore[attr-defined]

    with LocalCluster(  # type: ignore[no-untyped-call]
        n_workers=1, threads_per_worker=2, host="127.0.0.1", dashboard_address="127.0.0.1:0"
    ) as cluster:
        fingerprints = []
        for search in ("first", "second"):
            (tmp_path / search).mkdir()
            executor = NotedExecutor(TWIN, tmp_path / search)
            with dask(executor, PROGRAM, address=cluster.scheduler_address) as workers:
                fingerprints.append(searched(workers).tally.fingerprint)
                assert executor.servers(), "nobody searched"
                assert all(Path(f"/proc/{server}").exists() for server in executor.servers())
            assert still_there(executor.servers()) == []
            worker_pids = {int(note.split()[0]) for note in executor.servers().values()}
            assert all(Path(f"/proc/{pid}").exists() for pid in worker_pids), "the cluster's own goes on"
        assert fingerprints[0] == fingerprints[1]


def test_the_command_explores_on_dask_what_it_explores_here(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results = []
    for engine in (["--engine", "dask", "--jobs", "2"], []):
        assert main([*COMMAND, *engine, "--json", "--trace-dir", str(tmp_path)]) == 0
        results.append(json.loads(capsys.readouterr().out))
    for result in results:
        assert result.pop("schedules_per_s") > 0
    assert results[0] == results[1]
    assert results[0]["runs"] == 12 and results[0]["conclusive"]


def test_a_cluster_that_is_not_there_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(dask_cluster, "CONNECT_S", 0.5)
    assert main([*COMMAND, "--engine", "dask", "--address", "tcp://127.0.0.1:9"]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("\n") == 1 and "no Dask scheduler answers at tcp://127.0.0.1:9" in said.err


@pytest.mark.parametrize("strategy", ["exhaustive", "reduced", "pct", "random"])
def test_the_number_of_jobs_changes_nothing_on_a_real_queue(
    strategy: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    search = [
        "explore",
        "--ops",
        "A:claim B:claim",
        "--faults",
        "expire",
        "--strategy",
        strategy,
        "--budget",
        "70",
    ]
    results = []
    for jobs in ("1", "2"):
        main([*search, "--seed", "3", "--jobs", jobs, "--json", "--trace-dir", str(tmp_path)])
        results.append(json.loads(capsys.readouterr().out))
    for result in results:
        assert result.pop("schedules_per_s") > 0
    assert results[0] == results[1]
    assert results[0]["runs"] > 16 and results[0]["fingerprint"] != f"{0:016x}"
