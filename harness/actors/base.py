"""What the runner sees of an actor, thread or process."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque

from fencepost.harness.actors.messages import Request, Seat
from fencepost.harness.errors import FencepostError
from fencepost.harness.history import Reply


class ActorFailed(FencepostError):
    """The actor or its adapter broke in a way that is no answer of the queue."""


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

    def take_passed(self) -> list[str]:
        """Checkpoints passed since the last look. Complete whenever the actor is parked, blocked or done."""
        passed = list(self._passed)
        self._passed.clear()
        return passed

    @abstractmethod
    def close(self) -> None:
        """Close its worker. Only for an actor without a request under way."""

    @abstractmethod
    def abandon(self) -> None:
        """Let go of an actor that is stuck: its backends have been ended, its answer is no longer wanted."""
