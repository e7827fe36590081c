"""Thread actors: the default, because they are fast."""

from __future__ import annotations

import os
import queue
import select
import threading
from typing import TypeAlias

from fencepost.harness.actors.base import Actor, ActorFailed, NotAProcess
from fencepost.harness.actors.body import ActorBody, AdapterFault
from fencepost.harness.actors.messages import Request, Seat
from fencepost.harness.adapter import Queue
from fencepost.harness.errors import UsageError
from fencepost.harness.history import Reply

OPEN_DEADLINE_S = 60.0
CLOSE_DEADLINE_S = 10.0
ABANDON_GRACE_S = 2.0
"""For a worker whose backends have just been ended to find out. One that waits for anything else stays behind."""

_Outcome: TypeAlias = Reply | BaseException


class Outbox:
    """Holds at most one outcome: an actor has at most one request under way.

    Not a SimpleQueue: where its deadline passes between two looks of its own, `get(timeout=…)` waits without
    any deadline. With timeouts as short as a poll's, a busy machine does that within seconds (CPython 3.11).
    """

    def __init__(self) -> None:
        self._outcome: _Outcome | None = None
        self._empty = threading.Lock()
        self._empty.acquire()
        self.fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def put(self, outcome: _Outcome | None) -> None:
        self._outcome = outcome
        self._empty.release()
        os.eventfd_write(self.fd, 1)

    @property
    def is_empty(self) -> bool:
        return self._empty.locked()

    def get(self, timeout_s: float) -> _Outcome | None:
        """Raises queue.Empty if nothing comes within `timeout_s`. Afterwards `fd` cannot be read."""
        if not self._empty.acquire(timeout=max(0.0, timeout_s)):
            raise queue.Empty
        try:
            os.eventfd_read(self.fd)
        except BlockingIOError:
            # Taken before it was announced, which is the next thing `put` does.
            select.select([self.fd], [], [], CLOSE_DEADLINE_S)
            os.eventfd_read(self.fd)
        return self._outcome

    def close(self) -> None:
        """By the thread that puts, when it ends: nobody else knows when it will not put any more."""
        os.close(self.fd)


class ThreadActor(Actor):
    def __init__(self, queue_under_test: Queue, seat: Seat) -> None:
        super().__init__(seat)
        if seat.clock_skew_s:
            raise NotAProcess(self._only_a_process("given a clock of its own"))
        self._inbox: queue.SimpleQueue[Request | None] = queue.SimpleQueue()
        self._outbox = Outbox()
        self._operation = ""
        self._close_failure: BaseException | None = None
        self._thread = threading.Thread(
            target=self._live, args=(queue_under_test,), name=f"fencepost:{seat.actor}", daemon=True
        )
        self._thread.start()
        try:
            failure = self._outbox.get(OPEN_DEADLINE_S)
        except queue.Empty:
            raise ActorFailed(
                f"{seat.actor} did not open its worker within {OPEN_DEADLINE_S:.0f} s"
            ) from None
        if isinstance(failure, UsageError):
            raise failure
        if isinstance(failure, BaseException):
            raise ActorFailed(
                f"{seat.actor} could not open its worker: {type(failure).__name__}: {failure}"
            ) from failure

    def _live(self, queue_under_test: Queue) -> None:
        try:
            body = ActorBody(queue_under_test, self.seat, self._passed.append)
        except BaseException as error:  # noqa: BLE001 - handed to the runner, which raises it
            self._outbox.put(error)
            return
        self._outbox.put(None)
        while (request := self._inbox.get()) is not None:
            try:
                self._outbox.put(body.perform(request))
            except BaseException as error:  # noqa: BLE001 - handed to the runner, which raises it
                self._outbox.put(error)
        try:
            body.close()
        except BaseException as error:  # noqa: BLE001 - as above
            self._close_failure = error
        self._outbox.close()

    @property
    def answer_fd(self) -> int:
        return self._outbox.fd

    def submit(self, request: Request) -> None:
        self._operation = request.operation
        self._inbox.put(request)

    def poll(self, timeout_s: float) -> Reply | None:
        if timeout_s <= 0.0 and self._outbox.is_empty:
            return None
        try:
            outcome = self._outbox.get(timeout_s)
        except queue.Empty:
            return None
        if isinstance(outcome, AdapterFault):
            raise ActorFailed(f"{self.seat.actor}: {outcome}") from outcome
        if isinstance(outcome, BaseException):
            raise ActorFailed(
                f"{self.seat.actor}: {self._operation} broke: {type(outcome).__name__}: {outcome}"
            ) from outcome
        return outcome

    def close(self) -> None:
        self._inbox.put(None)
        self._thread.join(CLOSE_DEADLINE_S)
        if self._thread.is_alive():
            raise ActorFailed(f"{self.seat.actor} did not close its worker within {CLOSE_DEADLINE_S:.0f} s")
        if self._close_failure is not None:
            raise ActorFailed(
                f"{self.seat.actor}: close raised {type(self._close_failure).__name__}: {self._close_failure}"
            )

    def abandon(self) -> None:
        # Its backends are gone, so whatever it waits for ends in an error and it reaches the None.
        self._inbox.put(None)
        self._thread.join(ABANDON_GRACE_S)
