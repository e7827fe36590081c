"""Explores a real queue and leaves a note of every server it starts; one of its workers can be killed midway."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass
from pathlib import Path

import psycopg

from fencepost.harness.explore.executor import Choice, StepResult
from fencepost.harness.explore.program import Program
from fencepost.harness.explore.real import QueueExecutor, RealExecution, stage_of
from fencepost.harness.lab import LabOptions


@dataclass(frozen=True)
class NotedExecutor:
    """`notes` gets a file for each server, named by its process; with `dies_after` the first worker that has taken so
    many steps is killed in the middle of a run, and `notes/died` is its process."""

    queue_path: str
    notes: Path
    dies_after: int | None = None

    def open(self, program: Program) -> RealExecution:
        stage = stage_of(QueueExecutor(self.queue_path, LabOptions()).open(program))
        with psycopg.connect(stage.bench.dsn) as connection:
            row = connection.execute("SELECT current_setting('data_directory')").fetchone()
        assert row is not None
        postmaster = Path(row[0], "postmaster.pid").read_text().split()[0]
        cores = sorted(os.sched_getaffinity(int(postmaster)) | os.sched_getaffinity(0))
        (self.notes / f"server-{postmaster}").write_text(f"{os.getpid()} {cores}")
        return _NotedExecution(stage, program, self)

    def servers(self) -> dict[int, str]:
        """By process: the worker it belongs to, and the cores the two may use."""
        return {int(note.name.partition("-")[2]): note.read_text() for note in self.notes.glob("server-*")}


class _NotedExecution(RealExecution):
    def __init__(self, stage: object, program: Program, of: NotedExecutor) -> None:
        super().__init__(stage, program)  # type: ignore[arg-type]
        self._of = of
        self._takes = 0

    def take(self, choice: Choice) -> StepResult:
        self._takes += 1
        died = self._of.notes / "died"
        if self._of.dies_after is not None and self._takes > self._of.dies_after and not died.exists():
            with died.open("x") as note:
                note.write(str(os.getpid()))
            os.kill(os.getpid(), signal.SIGKILL)
        return super().take(choice)
