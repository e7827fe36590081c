"""The harness's end of the keeper's pipe."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from fencepost.harness.errors import UsageError
from fencepost.harness.postgres import keeper
from fencepost.harness.postgres.os_user import ServerUser

_ANSWER_DEADLINE_S = 30.0
_CLOSE_DEADLINE_S = 2 * (keeper.GRACE_S + keeper.KILL_DEADLINE_S)


class KeeperIsGone(UsageError):
    pass


class KeeperClient:
    """One keeper process. Its methods may be called from any thread; each waits for the answer."""

    def __init__(self, run_dir: Path, lock_fd: int, user: ServerUser, core: int | None) -> None:
        """The keeper inherits `lock_fd` and so holds the run directory's lock for as long as it lives."""
        spec = {"run_dir": str(run_dir), "parent": os.getpid(), "core": core, "run_as": user.run_as()}
        self._run_dir = run_dir
        self._turn = threading.Lock()
        self._received = b""
        self._asked = 0
        self._process = subprocess.Popen(
            # -I and -S: no site packages, no user settings. It starts in a third of the time, and a broken
            # environment cannot break the one process that has to clear up.
            [sys.executable, "-I", "-S", keeper.__file__, json.dumps(spec)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            pass_fds=[lock_fd],
            start_new_session=True,
            cwd="/",
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    def ask(self, command: str, **arguments: Any) -> dict[str, Any]:
        with self._turn:
            self._asked += 1
            line = json.dumps({"command": command, "number": self._asked, **arguments}).encode() + b"\n"
            try:
                os.write(self._fileno(self._process.stdin), line)
                answer = self._read_answer(self._asked)
            except (BrokenPipeError, ValueError) as problem:
                raise KeeperIsGone(
                    "the process that keeps the embedded servers has ended, so start the run again"
                ) from problem
        if "error" in answer:
            raise UsageError(f"the embedded server could not be started: {answer['error']}")
        return answer

    def close(self) -> None:
        """Lets the keeper end the servers and remove the run's directory, and waits until it has."""
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None and not pipe.closed:
                pipe.close()
        try:
            self._process.wait(_CLOSE_DEADLINE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(_CLOSE_DEADLINE_S)
        keeper.remove_run(self._run_dir)  # nothing to do, unless the keeper was killed

    def _read_answer(self, number: int) -> dict[str, Any]:
        """Answers are numbered: a Ctrl-C may have left an earlier one unread."""
        while True:
            answer: dict[str, Any] = json.loads(self._read_line())
            if answer.pop("number") == number:
                return answer

    def _read_line(self) -> bytes:
        answers = self._fileno(self._process.stdout)
        deadline = time.monotonic() + _ANSWER_DEADLINE_S
        while b"\n" not in self._received:
            readable, _, _ = select.select([answers], [], [], max(0.0, deadline - time.monotonic()))
            received = os.read(answers, 65536) if readable else b""
            if not received:
                raise BrokenPipeError("no answer from the keeper")
            self._received += received
        line, _, self._received = self._received.partition(b"\n")
        return line

    @staticmethod
    def _fileno(pipe: Any) -> int:
        return int(pipe.fileno())  # ValueError once closed
