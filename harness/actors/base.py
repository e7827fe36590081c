"""What the runner sees of an actor, thread or process."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque

from fencepost.harness.actors.messages import Request, Seat
from fencepost.harness.errors import FencepostError
from fencepost.harness.history import Reply


class ActorFailed(FencepostError):
    """The actor or its adapter broke in a way that is no answer of the queue."""


class NotAProcess(FencepostError):
    """Only a process can be killed, stopped, or given a clock of its own; a thread shares all that with the runner."""


class ActorGone(FencepostError):
    """It was killed: nothing more can be asked of it, and a new one must be seated in its place."""


class ActorStopped(FencepostError):
    """It is stopped: it hears nothing until it is continued."""


class Actor(ABC):
    """One participant with its own worker. At most one request is under way at a time."""

    def __init__(self, seat: Seat) -> None:
        self.seat = seat
        self._passed: deque[str] = deque()

    @abstractmethod
    def submit(self, request: Request) -> None:
        """Let it go. Returns at once."""

    @abstractmethod
    def poll(self, timeout_s: float) -> Reply | None:
        """Its answer if it comes within `timeout_s`, else None. Raises ActorFailed."""

    @property
    @abstractmethod
    def answer_fd(self) -> int:
        """Can be read when there may be something for `poll`: for whoever waits for several things at once."""

    def take_passed(self) -> list[str]:
        """Checkpoints passed since the last look. Complete whenever the actor is parked, blocked or done."""
        if not self._passed:
            return []
        passed = list(self._passed)
        self._passed.clear()
        return passed

    @abstractmethod
    def close(self) -> None:
        """Close its worker. Only for an actor without a request under way."""

    @abstractmethod
    def abandon(self) -> None:
        """Let go of an actor that is stuck: its backends have been ended, its answer is no longer wanted."""

    # -- faults that hit the participant itself -----------------------------------------------------------

    @property
    def is_gone(self) -> bool:
        """It was killed. `close` and `abandon` have nothing left to do then."""
        return False

    @property
    def is_stopped(self) -> bool:
        """Every thread of it stands still, by what the kernel says at this moment."""
        return False

    def kill(self) -> None:
        """End it at once, wherever it is; returns when it is dead.

        The next `poll` answers for the request under way: UNKNOWN, `killed`. What it said before it died still
        counts. Its sessions on the servers end when the servers find out: at once where they wait for it, and
        only after the wait where they wait for a lock or at a barrier.
        """
        raise NotAProcess(self._only_a_process("killed"))

    def stop(self) -> None:
        """Freeze it with all its threads, wherever it is; returns when it stands still."""
        raise NotAProcess(self._only_a_process("stopped"))

    def cont(self) -> None:
        """Let a stopped one go on from where it stood; returns when it is no longer stopped."""
        raise NotAProcess(self._only_a_process("continued"))

    def _only_a_process(self, what: str) -> str:
        return (
            f"{self.seat.actor} is a thread and cannot be {what}: seat it as a process, "
            "or run with --actors process"
        )
