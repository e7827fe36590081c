"""Whatever ends a run, nothing of it stays: no process, and no directory beyond the next start."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from fencepost.harness.postgres.keeper import processes_in

DEADLINE_S = 20.0

# A run of its own: starts the servers, says who they are, and waits to be killed.
SCRIPT = """
import json, os, sys
from fencepost.harness.postgres.embedded import EmbeddedServers
servers = EmbeddedServers.start()
facts = {
    "run_dir": str(servers.test.data_dir.parent.parent),
    "keeper": servers._keeper.pid,
    "postmasters": [servers.test.pid, servers.control.pid],
}
sys.stdout.write(json.dumps(facts) + "\\n")
sys.stdout.flush()
BEHAVE
"""
WAIT = "sys.stdin.read()"
# The child inherits the pipe to the keeper, as one of `multiprocessing` would, and lives on.
FORK_AND_WAIT = """
child = os.fork()
if child == 0:
    import time
    os.close(1)
    time.sleep(300)
    os._exit(0)
sys.stdout.write(f"{child}\\n")
sys.stdout.flush()
sys.stdin.read()
"""


@dataclass
class Run:
    harness: subprocess.Popen[str]
    keeper: int
    postmasters: list[int]
    run_dir: Path

    def kill_harness(self) -> None:
        self.harness.kill()
        self.harness.wait(DEADLINE_S)

    def processes(self) -> list[int]:
        directories = [self.run_dir / "test" / "data", self.run_dir / "control" / "data"]
        return [pid for directory in directories for pid in processes_in(directory)]


@pytest.fixture
def private_tmp() -> Iterator[Path]:
    """A temporary directory of its own, so that runs of other tests neither clear up here nor are cleared."""
    made = Path(tempfile.mkdtemp(prefix="fp", dir="/tmp"))
    made.chmod(0o755)
    yield made
    shutil.rmtree(made, ignore_errors=True)


@pytest.fixture
def run(private_tmp: Path) -> Iterator[Callable[[str], Run]]:
    started: list[subprocess.Popen[str]] = []

    def start(behave: str = WAIT) -> Run:
        harness = subprocess.Popen(
            [sys.executable, "-c", SCRIPT.replace("BEHAVE", behave)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "TMPDIR": str(private_tmp)},
        )
        started.append(harness)
        assert harness.stdout is not None
        facts = json.loads(harness.stdout.readline())
        made = Run(harness, facts["keeper"], facts["postmasters"], Path(facts["run_dir"]))
        assert set(made.postmasters) < set(made.processes())
        assert made.run_dir.is_relative_to(private_tmp)
        return made

    yield start
    for harness in started:
        if harness.poll() is None:
            harness.kill()
        harness.communicate(timeout=DEADLINE_S)


def _eventually(true: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not true():
        assert time.monotonic() < deadline, f"not within {DEADLINE_S:g} s: {what}"
        time.sleep(0.01)


def _exists(pid: int) -> bool:
    try:
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


def _nothing_left(run: Run) -> None:
    _eventually(lambda: not run.processes(), "no server process")
    _eventually(lambda: not run.run_dir.exists(), "no run directory")
    _eventually(lambda: not _exists(run.keeper), "no keeper")
    assert not [pid for pid in run.postmasters if _exists(pid)]


def test_a_run_that_ends_leaves_nothing(run: Callable[..., Run]) -> None:
    made = run()
    made.harness.communicate(timeout=DEADLINE_S)
    assert made.harness.returncode == 0
    assert not made.run_dir.exists()  # gone before the harness is, not some time later
    _nothing_left(made)


def test_an_interrupted_run_leaves_nothing(run: Callable[..., Run]) -> None:
    made = run()
    made.harness.send_signal(signal.SIGINT)
    made.harness.communicate(timeout=DEADLINE_S)
    assert made.harness.returncode != 0
    _nothing_left(made)


def test_a_killed_run_leaves_nothing(run: Callable[..., Run]) -> None:
    made = run()
    made.kill_harness()
    _nothing_left(made)


def test_a_killed_run_with_a_stopped_server_leaves_nothing(run: Callable[..., Run]) -> None:
    made = run()
    os.kill(made.postmasters[0], signal.SIGSTOP)
    made.kill_harness()
    _nothing_left(made)


def test_a_forked_child_does_not_keep_a_killed_runs_servers(run: Callable[..., Run]) -> None:
    made = run(FORK_AND_WAIT)
    assert made.harness.stdout is not None
    child = int(made.harness.stdout.readline())
    try:
        made.kill_harness()
        _nothing_left(made)
        assert _exists(child)
    finally:
        os.kill(child, signal.SIGKILL)


def test_a_killed_keeper_takes_its_servers_along(run: Callable[..., Run]) -> None:
    made = run()
    os.kill(made.keeper, signal.SIGKILL)
    _eventually(lambda: not made.processes(), "no server process")
    made.harness.communicate(timeout=DEADLINE_S)
    assert made.harness.returncode == 0
    assert not made.run_dir.exists()


def test_the_next_start_removes_what_a_killed_run_and_its_keeper_left(run: Callable[..., Run]) -> None:
    made = run()
    os.kill(made.keeper, signal.SIGSTOP)  # else it might clear up before it is killed itself
    made.kill_harness()
    os.kill(made.keeper, signal.SIGKILL)
    _eventually(lambda: not made.processes(), "no server process")
    assert made.run_dir.exists()
    following = run()
    assert not made.run_dir.exists()
    assert following.run_dir.exists()


def test_the_next_start_ends_servers_that_nobody_keeps(run: Callable[..., Run]) -> None:
    """Servers that are stopped outlive their keeper: the signal of its death does not reach them."""
    made = run()
    os.kill(made.keeper, signal.SIGSTOP)
    for pid in made.postmasters:
        os.kill(pid, signal.SIGSTOP)
    made.kill_harness()
    os.kill(made.keeper, signal.SIGKILL)
    _eventually(lambda: not _exists(made.keeper), "no keeper")
    assert set(made.postmasters) < set(made.processes())
    run()
    assert not made.processes()
    assert not made.run_dir.exists()


def test_a_start_leaves_running_runs_alone(run: Callable[..., Run]) -> None:
    first = run()
    second = run()
    assert first.run_dir.exists()
    assert set(first.postmasters) < set(first.processes())
    assert second.run_dir != first.run_dir


def test_an_unrelated_process_named_by_a_leftover_is_spared(
    run: Callable[..., Run], private_tmp: Path
) -> None:
    """A process id is reused in time; only a process that works in the data directory is the server's."""
    leftover = private_tmp / f"fencepost-{os.geteuid()}" / "run-1-deadbeef" / "test" / "data"
    run()
    leftover.mkdir(parents=True)
    with subprocess.Popen(["sleep", "60"]) as bystander:
        (leftover / "postmaster.pid").write_text(f"{bystander.pid}\n{leftover}\n")
        run()
        assert not leftover.exists()
        assert bystander.poll() is None
        bystander.kill()
