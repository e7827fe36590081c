"""The program of a process actor: reads requests from stdin, performs them, writes answers to stdout."""

from __future__ import annotations

import ctypes
import os
import select
import signal
import sys
import threading
import time
from typing import Any

from fencepost.harness.actors.body import ActorBody, AdapterFault
from fencepost.harness.actors.messages import (
    ProtocolError,
    decode,
    encode,
    reply_to_json,
    request_from_json,
    seat_from_json,
)
from fencepost.harness.adapter import Queue
from fencepost.harness.errors import UsageError
from fencepost.harness.loading import load_queue

LEAVE_GRACE_S = 2.0
"""For an operation under way when the runner leaves; the servers it could wait for are ended at that moment."""

PR_SET_PDEATHSIG = 1


class ActorProgram:
    def __init__(self, protocol_fd: int) -> None:
        self._protocol_fd = protocol_fd
        self._queues: dict[str, Queue] = {}
        self._body: ActorBody | None = None

    def say(self, message: dict[str, Any]) -> None:
        # One write per line: the runner must find a passed checkpoint in the pipe once the server says
        # that this actor is blocked.
        os.write(self._protocol_fd, encode(message))

    def handle(self, message: dict[str, Any]) -> None:
        if "open" in message:
            self._open(message["open"])
        elif "perform" in message:
            self._perform(message["perform"])
        elif "close" in message:
            self._close()
        else:
            self.say({"failed": f"unknown message {sorted(message)}"})

    def _open(self, data: dict[str, Any]) -> None:
        try:
            seat = seat_from_json(data)
            if seat.queue_path not in self._queues:
                self._queues[seat.queue_path] = load_queue(seat.queue_path).queue
            self._body = ActorBody(
                self._queues[seat.queue_path], seat, lambda name: self.say({"passed": name})
            )
        except UsageError as error:
            self.say({"usage_error": str(error)})
        except Exception as error:  # noqa: BLE001 - told to the runner, which raises it
            self.say({"failed": f"{type(error).__name__}: {error}"})
        else:
            self.say({"opened": True} | (own_clocks() if seat.clock_skew_s else {}))

    def _perform(self, data: dict[str, Any]) -> None:
        if self._body is None:
            self.say({"failed": "perform came before open"})
            return
        try:
            reply = self._body.perform(request_from_json(data))
            answer = encode({"reply": reply_to_json(reply)})
        except AdapterFault as error:
            self.say({"failed": str(error)})
        except Exception as error:  # noqa: BLE001 - told to the runner, which raises it
            self.say({"failed": f"{data.get('operation')} broke: {type(error).__name__}: {error}"})
        else:
            os.write(self._protocol_fd, answer)

    def _close(self) -> None:
        body, self._body = self._body, None
        try:
            if body is not None:
                body.close()
        except Exception as error:  # noqa: BLE001 - told to the runner, which raises it
            self.say({"failed": f"close raised {type(error).__name__}: {error}"})
        else:
            self.say({"closed": True})


def own_clocks() -> dict[str, int]:
    """Said by whose clock is to be off: a preload that did nothing must not go unseen.

    The monotonic clock is the same for every process of a machine and no preload of ours moves it, so the runner
    can tell this time of day from its own exactly, however long the answer takes.
    """
    return {"now_us": time.time_ns() // 1000, "monotonic_us": time.monotonic_ns() // 1000}


def die_with_the_runner() -> None:
    """A stopped process does not see its stdin end; the kernel's signal reaches it all the same.

    It comes when the *thread* that started this process ends, so a lab belongs to a thread that outlives it.
    """
    prctl = getattr(ctypes.CDLL(None, use_errno=True), "prctl", None)
    if prctl is not None:
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def leave_with_the_runner(left: threading.Event) -> None:
    """Ends this process once nobody can write to stdin any more, also in the middle of an operation."""
    hang_up = select.poll()
    hang_up.register(0, 0)  # no event but the one that is always told: POLLHUP
    hang_up.poll()
    if not left.wait(LEAVE_GRACE_S):
        os._exit(1)


def main() -> None:
    # The protocol keeps stdout for itself: what a queue prints goes to stderr instead of breaking a line.
    protocol_fd = os.dup(1)
    os.dup2(2, 1)
    die_with_the_runner()
    left = threading.Event()
    threading.Thread(target=leave_with_the_runner, args=(left,), daemon=True).start()
    program = ActorProgram(protocol_fd)
    try:
        for line in sys.stdin.buffer:
            try:
                message = decode(line)
            except ProtocolError as error:
                program.say({"failed": str(error)})
            else:
                program.handle(message)
    except BrokenPipeError:
        pass  # the runner left in the middle of an operation
    finally:
        left.set()


if __name__ == "__main__":
    main()
