"""`fencepost explore` ended from outside while its workers search: no process, server or directory is left of it."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from fencepost.harness.postgres.keeper import processes_in
from fencepost.tests.fix_commands import FENCEPOST, children_of, eventually, exists, private_tmp, runs_in

STARTING_DEADLINE_S = 120.0
ENDING_DEADLINE_S = 60.0
DATABASES_OF_A_NEW_SERVER = ("template1", "template0", "postgres")
ENDLESS = ("explore", "--ops", "A:claim B:claim", "--strategy", "random", "--budget", "10000000")
ENGINES = {"jobs": ("--jobs", "2"), "dask": ("--engine", "dask", "--jobs", "2")}


@dataclass
class Search:
    """One that is under way: its process, all processes it started, and the directories of its servers."""

    process: subprocess.Popen[str]
    tmp: Path
    started: set[int]

    def ends(self) -> tuple[int, str]:
        """Its exit code and what it complained of, once nothing of it is left."""
        try:
            said, complained = self.process.communicate(timeout=ENDING_DEADLINE_S)
        except subprocess.TimeoutExpired:
            left = [pid for pid in self.started if exists(pid)]
            pytest.fail(f"not within {ENDING_DEADLINE_S:g} s: it ended and closed its output; left: {left}")
        assert said == ""
        for pid in self.started:
            eventually(lambda pid=pid: not exists(pid), f"process {pid} is gone")  # type: ignore[misc]
        eventually(lambda: not runs_in(self.tmp), "the servers' directories are gone")
        return self.process.returncode, complained

    def all_processes(self) -> set[int]:
        found = {self.process.pid}
        left = [self.process.pid]
        while left:
            children = children_of(left.pop())
            left += children
            found |= children.keys()
        servers = {
            pid for run in runs_in(self.tmp) for data in run.glob("*/data") for pid in processes_in(data)
        }
        return found | servers


@pytest.fixture
def search() -> Iterator[Callable[..., Search]]:
    searches: list[Search] = []

    def start(*options: str, until: Callable[[Search], bool]) -> Search:
        process = subprocess.Popen(
            [*FENCEPOST, *ENDLESS, *options],
            cwd=tmp,
            env={**os.environ, "TMPDIR": str(tmp)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        made = Search(process, tmp, {process.pid})
        searches.append(made)
        eventually(
            lambda: process.poll() is not None or until(made), "its workers search", STARTING_DEADLINE_S
        )
        assert process.poll() is None, process.communicate()[1]
        made.started = made.all_processes()
        return made

    with private_tmp() as tmp:
        yield start
        for made in searches:
            for pid in made.started:
                if exists(pid):
                    os.kill(pid, signal.SIGKILL)
            made.process.communicate(timeout=ENDING_DEADLINE_S)


def both_search(search: Search) -> bool:
    """Each has made a database for its queue, beside those of a new server."""
    runs = runs_in(search.tmp)
    databases = [len(list(run.glob("test/data/base/*"))) for run in runs]
    return len(runs) == 2 and min(databases) > len(DATABASES_OF_A_NEW_SERVER)


def both_begin(search: Search) -> bool:
    spawned = [line for line in children_of(search.process.pid).values() if "spawn_main" in line]
    return len(spawned) == 2


@pytest.mark.parametrize(
    ("engine", "ended_by"),
    [
        ("jobs", signal.SIGTERM),
        ("jobs", signal.SIGINT),
        ("jobs", signal.SIGKILL),
        ("dask", signal.SIGINT),
        ("dask", signal.SIGKILL),
    ],
)
def test_a_search_that_is_ended_leaves_nothing(
    engine: str, ended_by: signal.Signals, search: Callable[..., Search]
) -> None:
    made = search(*ENGINES[engine], until=both_search)
    assert len(made.started) > 20, "workers, keepers and servers"
    made.process.send_signal(ended_by)
    code, _ = made.ends()
    assert code == (130 if ended_by is signal.SIGINT else -ended_by)


@pytest.mark.parametrize("when", [both_begin, both_search])
def test_a_ctrl_c_of_the_whole_group_is_quiet(
    when: Callable[[Search], bool], search: Callable[..., Search]
) -> None:
    made = search(*ENGINES["jobs"], until=when)
    os.killpg(made.process.pid, signal.SIGINT)
    assert made.ends() == (130, "")
