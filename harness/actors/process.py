"""Process actors: a warm pool of processes that speak JSON Lines on stdin and stdout."""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import sys
import time
from typing import Any

from fencepost.harness.actors.base import Actor, ActorFailed
from fencepost.harness.actors.messages import (
    ProtocolError,
    Request,
    Seat,
    decode,
    encode,
    reply_from_json,
    request_to_json,
    seat_to_json,
)
from fencepost.harness.errors import UsageError
from fencepost.harness.history import Reply

OPEN_DEADLINE_S = 60.0
CLOSE_DEADLINE_S = 10.0


class ActorProcess:
    """One process of the pool. It outlives the actors that sit in it, one after the other."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "fencepost.harness.actors.process_main"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
            bufsize=0,
            start_new_session=True,  # Ctrl-C goes to the runner, which ends its actors itself
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._stdin = self._process.stdin
        self._stdout_fd = self._process.stdout.fileno()
        self._poller = select.poll()
        self._poller.register(self._stdout_fd, select.POLLIN)
        self._buffer = b""

    @property
    def pid(self) -> int:
        return self._process.pid

    def send(self, message: dict[str, Any]) -> None:
        try:
            self._stdin.write(encode(message))
        except BrokenPipeError as error:
            raise ActorFailed(f"its process {self.pid} is gone (exit {self._process.wait()})") from error

    def receive(self, timeout_s: float) -> dict[str, Any] | None:
        """The next message, or None if no whole line has come within `timeout_s`."""
        deadline = time.monotonic() + timeout_s
        while b"\n" not in self._buffer:
            left_ms = max(0.0, (deadline - time.monotonic()) * 1000)
            if not self._poller.poll(left_ms):
                return None
            chunk = os.read(self._stdout_fd, 65536)
            if not chunk:
                raise ActorFailed(f"its process {self.pid} ended (exit {self._process.wait()})")
            self._buffer += chunk
        line, self._buffer = self._buffer.split(b"\n", 1)
        try:
            return decode(line)
        except ProtocolError as error:
            raise ActorFailed(f"its process {self.pid} said what is {error}") from error

    def kill(self) -> None:
        self._process.kill()

    def dismiss(self) -> None:
        """Let it go; it ends by itself once it has read that nothing more comes."""
        with contextlib.suppress(OSError):
            self._stdin.close()

    def end(self) -> None:
        self.dismiss()
        try:
            self._process.wait(CLOSE_DEADLINE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()


class ProcessPool:
    """Processes wait here between actors: starting an interpreter costs more than a whole race."""

    def __init__(self) -> None:
        self._idle: list[ActorProcess] = []
        self._all: list[ActorProcess] = []

    def take(self) -> ActorProcess:
        if self._idle:
            return self._idle.pop()
        process = ActorProcess()
        self._all.append(process)
        return process

    def give_back(self, process: ActorProcess) -> None:
        self._idle.append(process)

    def discard(self, process: ActorProcess) -> None:
        self._all.remove(process)
        process.end()

    def close(self) -> None:
        for process in self._all:
            process.dismiss()  # all at once: an interpreter takes its time to leave
        for process in self._all:
            process.end()
        self._all.clear()
        self._idle.clear()


class ProcessActor(Actor):
    def __init__(self, pool: ProcessPool, seat: Seat) -> None:
        super().__init__(seat)
        self._under_way = False
        self._heard: dict[str, Any] | None = None  # an answer that came when only checkpoints were asked for
        self._pool = pool
        self._process = pool.take()
        try:
            opened = self._ask({"open": seat_to_json(seat)}, OPEN_DEADLINE_S, "open its worker")
        except ActorFailed:
            pool.discard(self._process)
            raise
        if "opened" not in opened:
            pool.give_back(self._process)
        if "usage_error" in opened:
            raise UsageError(opened["usage_error"])
        if "opened" not in opened:
            raise ActorFailed(f"{seat.actor} could not open its worker: {_told(opened)}")

    @property
    def pid(self) -> int:
        return self._process.pid

    def submit(self, request: Request) -> None:
        self._operation = request.operation
        self._under_way = True
        self._send({"perform": request_to_json(request)}, request.operation)

    def poll(self, timeout_s: float) -> Reply | None:
        message = self._next(timeout_s, self._operation)
        if message is None:
            return None
        self._under_way = False
        if "reply" not in message:
            raise ActorFailed(f"{self.seat.actor}: {_told(message)}")
        try:
            return reply_from_json(message["reply"])
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise ActorFailed(
                f"{self.seat.actor}: {self._operation} got an answer the protocol does not know: {message}"
            ) from error

    def take_passed(self) -> list[str]:
        if self._under_way:
            # The server says that it is parked or blocked; what it passed before lies in the pipe by now.
            self._heard = self._next(0.0, self._operation)
        return super().take_passed()

    def close(self) -> None:
        try:
            closed = self._ask({"close": True}, CLOSE_DEADLINE_S, "close its worker")
        except ActorFailed:
            self._pool.discard(self._process)
            raise
        self._pool.give_back(self._process)
        if "closed" not in closed:
            raise ActorFailed(f"{self.seat.actor}: {_told(closed)}")

    def abandon(self) -> None:
        self._process.kill()
        self._pool.discard(self._process)

    def _ask(self, message: dict[str, Any], deadline_s: float, what: str) -> dict[str, Any]:
        self._send(message, what)
        answer = self._next(deadline_s, what)
        if answer is None:
            self._process.kill()
            raise ActorFailed(f"{self.seat.actor} did not {what} within {deadline_s:.0f} s")
        return answer

    def _send(self, message: dict[str, Any], what: str) -> None:
        try:
            self._process.send(message)
        except ActorFailed as error:
            raise ActorFailed(f"{self.seat.actor}: {what}: {error}") from error

    def _next(self, timeout_s: float, what: str) -> dict[str, Any] | None:
        """The next message that is not a passed checkpoint; those are noted on the way."""
        if self._heard is not None:
            heard, self._heard = self._heard, None
            return heard
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                message = self._process.receive(max(0.0, deadline - time.monotonic()))
            except ActorFailed as error:
                raise ActorFailed(f"{self.seat.actor}: {what}: {error}") from error
            if message is None or "passed" not in message:
                return message
            self._passed.append(message["passed"])


def _told(message: dict[str, Any]) -> str:
    return str(message.get("failed", f"an answer the protocol does not know: {message}"))
