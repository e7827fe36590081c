"""Running `fencepost` and pytest as a user does, and looking for what a run left behind."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fencepost.harness.postgres.base_directory import base_directory
from fencepost.harness.postgres.keeper import processes_in

COMMAND_DEADLINE_S = 120.0
GONE_DEADLINE_S = 30.0
FENCEPOST = (sys.executable, "-m", "fencepost.harness.cli")


@dataclass(frozen=True)
class Done:
    code: int
    out: str
    err: str


def run_fencepost(*arguments: str, cwd: Path, environment: Mapping[str, str] | None = None) -> Done:
    done = subprocess.run(
        [*FENCEPOST, *arguments],
        cwd=cwd,
        env={**os.environ, **(environment or {})},
        capture_output=True,
        text=True,
        timeout=COMMAND_DEADLINE_S,
        check=False,
    )
    return Done(done.returncode, done.stdout, done.stderr)


@contextlib.contextmanager
def private_tmp() -> Iterator[Path]:
    """A temporary directory short enough for sockets and open enough for servers: what starts, starts in here."""
    made = Path(tempfile.mkdtemp(prefix="fp", dir="/tmp"))
    made.chmod(0o755)
    try:
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)


def runs_in(tmp: Path) -> list[Path]:
    """Run directories below a private temporary directory: of servers that run, or were left."""
    return sorted(tmp.glob("fencepost-*/run-*"))


def eventually(true: Callable[[], bool], what: str, deadline_s: float = GONE_DEADLINE_S) -> None:
    deadline = time.monotonic() + deadline_s
    while not true():
        assert time.monotonic() < deadline, f"not within {deadline_s:g} s: {what}"
        time.sleep(0.01)


def exists(pid: int) -> bool:
    try:
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


def children_of(pid: int) -> dict[int, str]:
    """Its living children, with their command lines."""
    found: dict[int, str] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                parent = (entry / "stat").read_text().rpartition(")")[2].split()[1]
                if parent == str(pid) and exists(int(entry.name)):
                    found[int(entry.name)] = (entry / "cmdline").read_text().replace("\0", " ")
    return found


@dataclass(frozen=True)
class Household:
    """All that one running harness process has: its run directories, servers, keepers and process actors."""

    pid: int
    run_dirs: Sequence[Path]
    servers: Sequence[int]
    children: Mapping[int, str]

    @classmethod
    def of(cls, pid: int) -> Household:
        run_dirs = sorted(base_directory().glob(f"run-{pid}-*"))
        servers = [
            server for run_dir in run_dirs for data in run_dir.glob("*/data") for server in processes_in(data)
        ]
        return cls(pid, run_dirs, servers, children_of(pid))

    @property
    def keepers(self) -> list[int]:
        return [pid for pid, command in self.children.items() if "keeper.py" in command]

    @property
    def actors(self) -> list[int]:
        return [pid for pid, command in self.children.items() if "process_main" in command]

    def is_gone(self) -> None:
        for pid in [self.pid, *self.servers, *self.children]:
            eventually(lambda pid=pid: not exists(pid), f"process {pid} is gone")  # type: ignore[misc]
        for run_dir in self.run_dirs:
            eventually(lambda run_dir=run_dir: not run_dir.exists(), f"{run_dir} is gone")  # type: ignore[misc]
