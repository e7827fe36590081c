"""Process actors: a warm pool of processes that speak JSON Lines on stdin and stdout."""

from __future__ import annotations

import contextlib
import math
import os
import select
import subprocess
import sys
import time
from typing import Any

from fencepost.harness.actors import signals
from fencepost.harness.actors.base import Actor, ActorFailed, ActorGone, ActorStopped
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
from fencepost.harness.adapter import Outcome
from fencepost.harness.clock.preload import require_preload
from fencepost.harness.clock.server_clock import OffsetFile
from fencepost.harness.errors import FencepostError, UsageError
from fencepost.harness.history import Reply

OPEN_DEADLINE_S = 60.0
CLOSE_DEADLINE_S = 10.0
KILL_DEADLINE_S = 10.0

KILLED = "killed"
"""The reason of an answer that will never come. What it asked for may or may not have happened."""

SKEW_TOLERANCE_S = 1.0
"""The machine's own clock may be set between two readings. A small skew must not hide in it: see `_check_skew`."""


class ActorProcess:
    """One process of the pool. It outlives the actors that sit in it, one after the other."""

    def __init__(self, clock_skew_s: float = 0.0) -> None:
        self.clock_skew_s = clock_skew_s
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        self._clock: OffsetFile | None = None
        if clock_skew_s:
            preload = require_preload("an actor's own clock cannot be skewed here")
            self._clock = _clock_off_by(clock_skew_s)
            environment |= preload.environment(self._clock.path)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "fencepost.harness.actors.process_main"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
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

    @property
    def stdout_fd(self) -> int:
        return self._stdout_fd

    @property
    def is_stopped(self) -> bool:
        return signals.is_stopped(self.pid)

    @property
    def is_fit(self) -> bool:
        """Whether another actor may sit in it: it is there, and it moves."""
        return self._process.poll() is None and not self.is_stopped

    def stop(self) -> None:
        self._require_alive()
        signals.stop(self.pid)

    def cont(self) -> None:
        self._require_alive()
        signals.resume(self.pid)

    def kill(self) -> None:
        """SIGKILL, which a stopped process takes as well. Returns when it is dead and its parent knows."""
        self._process.kill()
        try:
            self._process.wait(KILL_DEADLINE_S)
        except subprocess.TimeoutExpired:
            states = signals.thread_states(self.pid)
            raise ActorFailed(
                f"its process {self.pid} is still there {KILL_DEADLINE_S:g} s after SIGKILL, in states {states}"
            ) from None

    def _require_alive(self) -> None:
        code = self._process.poll()
        if code is not None:
            raise ActorFailed(f"its process {self.pid} ended (exit {code})")

    def dismiss(self) -> None:
        """Let it go; it ends by itself once it has read that nothing more comes. One that is stopped reads nothing."""
        if self.is_stopped:
            self._process.kill()
        with contextlib.suppress(OSError):
            self._stdin.close()

    def end(self) -> None:
        self.dismiss()
        try:
            self._process.wait(CLOSE_DEADLINE_S)
        except subprocess.TimeoutExpired:
            self.kill()
        assert self._process.stdout is not None
        self._process.stdout.close()
        if self._clock is not None:
            self._clock.close()


def _clock_off_by(skew_s: float) -> OffsetFile:
    if not math.isfinite(skew_s):
        raise UsageError(f"a clock is skewed by a finite number of seconds, not by {skew_s!r}")
    clock = OffsetFile.in_memory()
    try:
        clock.set_us(round(skew_s * 1e6))
    except UsageError:
        clock.close()
        raise
    return clock


class ProcessPool:
    """Processes wait here between actors: starting an interpreter costs more than a whole race."""

    def __init__(self) -> None:
        self._idle: dict[
            float, list[ActorProcess]
        ] = {}  # by skew: a clock is given to a process at its start
        self._all: list[ActorProcess] = []

    def take(self, clock_skew_s: float = 0.0) -> ActorProcess:
        idle = self._idle.get(clock_skew_s, [])
        while idle:
            process = idle.pop()
            if process.is_fit:
                return process
            self.discard(process)
        process = ActorProcess(clock_skew_s)
        self._all.append(process)
        return process

    def give_back(self, process: ActorProcess) -> None:
        if process.is_fit:
            self._idle.setdefault(process.clock_skew_s, []).append(process)
        else:
            self.discard(process)

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
        self._gone = False
        self._has_left = False  # then another actor may sit in its process
        self._stopped = (
            False  # by us: whether it is, the kernel says, but not at the cost of a look per request
        )
        self._heard: dict[str, Any] | None = None  # an answer that came when only checkpoints were asked for
        self._pool = pool
        self._process = pool.take(seat.clock_skew_s)
        try:
            opened = self._ask({"open": seat_to_json(seat)}, OPEN_DEADLINE_S, "open its worker")
            if "opened" in opened and seat.clock_skew_s:
                self._check_skew(opened)
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

    @property
    def is_gone(self) -> bool:
        return self._gone

    @property
    def is_stopped(self) -> bool:
        return not self._gone and not self._has_left and self._process.is_stopped

    def kill(self) -> None:
        self._require_there("kill")
        self._process.kill()
        self._gone = True
        if self._under_way and self._heard is None:
            with contextlib.suppress(ActorFailed):  # which tells no more than that it is gone
                self._heard = self._next(0.0, self._operation)
        self._pool.discard(self._process)

    def stop(self) -> None:
        self._require_there("stop")
        if self.is_stopped:
            raise ActorStopped(f"{self.seat.actor} is stopped already")
        self._process.stop()
        self._stopped = True

    def cont(self) -> None:
        self._require_there("continue")
        if not self.is_stopped:
            raise FencepostError(f"{self.seat.actor} is not stopped, so it cannot be continued")
        self._process.cont()
        self._stopped = False

    def _require_there(self, what: str) -> None:
        if self._has_left:
            raise ActorGone(f"{self.seat.actor} was closed: there is nobody left to {what}; seat a new one")
        if self._gone:
            raise ActorGone(f"{self.seat.actor} was killed: there is nobody left to {what}; seat a new one")

    @property
    def answer_fd(self) -> int:
        return self._process.stdout_fd

    def submit(self, request: Request) -> None:
        self._require_there(f"ask for {request.operation}")
        if self._stopped:
            raise ActorStopped(
                f"{self.seat.actor} is stopped and would not hear of {request.operation}: continue it first"
            )
        self._operation = request.operation
        self._under_way = True
        self._send({"perform": request_to_json(request)}, request.operation)

    def poll(self, timeout_s: float) -> Reply | None:
        if self._gone and self._heard is None:
            if not self._under_way:
                self._require_there("hear from")
            self._under_way = False
            return Reply(Outcome.UNKNOWN, reason=KILLED)
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
        if self._under_way and not self._gone:
            # The server says that it is parked or blocked; what it passed before lies in the pipe by now.
            self._heard = self._next(0.0, self._operation)
        return super().take_passed()

    def close(self) -> None:
        if self._gone or self._has_left:
            return
        if self._stopped:
            # It cannot close anything, and let go on it would first do what it was stopped from doing.
            self.abandon()
            return
        try:
            closed = self._ask({"close": True}, CLOSE_DEADLINE_S, "close its worker")
        except ActorFailed:
            self._gone = True
            self._pool.discard(self._process)
            raise
        self._has_left = True
        self._pool.give_back(self._process)
        if "closed" not in closed:
            raise ActorFailed(f"{self.seat.actor}: {_told(closed)}")

    def abandon(self) -> None:
        if self._gone or self._has_left:
            return
        self._process.kill()
        self._gone = True
        self._pool.discard(self._process)

    def _check_skew(self, opened: dict[str, Any]) -> None:
        """Both clocks of its process against both of ours: the time of day is off by the skew, and by no less."""
        wanted_s = self.seat.clock_skew_s
        try:
            theirs_us = int(opened["now_us"]) - int(opened["monotonic_us"])
        except (LookupError, TypeError, ValueError):
            raise ActorFailed(
                f"{self.seat.actor} was to have its clock off by {wanted_s:g} s and does not tell its time"
            ) from None
        off_s = (theirs_us - (time.time_ns() - time.monotonic_ns()) // 1000) / 1e6
        if abs(off_s - wanted_s) > min(SKEW_TOLERANCE_S, abs(wanted_s) / 2):
            raise ActorFailed(
                f"{self.seat.actor} was to have its clock off by {wanted_s:g} s, it is off by {off_s:.3f} s: "
                "its process does not read the clock it was given"
            )

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
