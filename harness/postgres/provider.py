"""The server under test, whoever provides it: how it is reached, and which faults it can be given.

A fault returns only after it was seen to have happened; one that was not seen raises `FaultDidNotHappen`. What
a provider cannot do it does not pretend: it raises `CannotInject`, which names the provider and the fault.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Protocol

from fencepost.harness.clock.server_clock import OffsetFile
from fencepost.harness.errors import FencepostError

FAULT_DEADLINE_S = 60.0
"""For a server to go down, to come up again, or to end one backend: far more than any of these takes."""


class ServerFault(StrEnum):
    """What can be done to a server. The values stand in traces and messages."""

    CRASH = "crash"
    """Immediate shutdown: no checkpoint is written, and the next start recovers from the log."""
    KILL_POSTMASTER = "kill_postmaster"
    """SIGKILL of the postmaster; its children notice and leave on their own."""
    KILL_ALL = "kill_all"
    """SIGKILL of every process at once, as the kernel would when memory is short."""
    KILL_BACKEND = "kill_backend"
    """SIGKILL of one backend: the postmaster ends all others and recovers, without ending itself."""
    FAST_RESTART = "fast_restart"
    """An orderly shutdown that ends all sessions (57P01), and a start without recovery."""
    TERMINATE_BACKEND = "terminate_backend"
    """`pg_terminate_backend`: one session ends (57P01), nobody else notices."""
    REFUSE_CONNECTIONS = "refuse_connections"
    """A crashed server that is up but not ready: it answers "the database system is starting up" (57P03)."""


STOPS = frozenset(
    {ServerFault.CRASH, ServerFault.KILL_POSTMASTER, ServerFault.KILL_ALL, ServerFault.FAST_RESTART}
)
"""The faults that take the whole server down, so that something can happen before it is started again."""


class CannotInject(FencepostError):
    """This provider has no way to do this to its server. Not a failure of the queue: a scenario is skipped."""

    def __init__(self, provider: str, fault: ServerFault, reason: str) -> None:
        self.provider = provider
        self.fault = fault
        super().__init__(f"--pg {provider} cannot inject {fault}: {reason}")


class FaultDidNotHappen(FencepostError):
    """A fault was injected and the server does not show it: nothing can be concluded from what follows."""


class ServerUnderTest(Protocol):
    """One PostgreSQL server whose databases the harness made. The control server is never one of these."""

    @property
    def provider(self) -> str:
        """embedded, docker or dsn."""

    @property
    def version(self) -> str: ...

    @property
    def can(self) -> frozenset[ServerFault]: ...

    def refusal(self, fault: ServerFault) -> CannotInject | None:
        """Why this fault cannot be had here; None for those in `can`."""

    @property
    def clock_offset(self) -> OffsetFile | None:
        """Where its clock is moved; None where it cannot be."""

    @property
    def tcp_address(self) -> tuple[str, int]:
        """Host and port, the same after every fault: where a proxy sends what it is given."""

    def dsn(self, database: str, *, application_name: str | None = None) -> str:
        """The shortest way to it."""

    def tcp_dsn(self, database: str, *, application_name: str | None = None) -> str:
        """Over `tcp_address`: replace host and port in it to go through a proxy."""

    def create_database(self, name: str) -> None: ...

    def drop_database(self, name: str) -> None: ...

    def stop_now(self, how: ServerFault = ServerFault.CRASH) -> None:
        """Takes it down in one of the ways of `STOPS` and leaves it down, until `start`."""

    def start(self) -> None:
        """Starts what was stopped, and returns once it accepts connections."""

    def crash(self) -> None: ...

    def kill_postmaster(self) -> None: ...

    def kill_all(self) -> None: ...

    def kill_backend(self, pid: int) -> None: ...

    def fast_restart(self) -> None: ...

    def terminate_backend(self, pid: int) -> None: ...

    def refuse_connections(self) -> None:
        """Crashes it and starts it again, held in recovery: it answers 57P03 until `accept_connections`."""

    def accept_connections(self) -> None:
        """Lets recovery go on, and returns once connections are accepted."""


def require_stop(how: ServerFault) -> None:
    if how not in STOPS:
        raise ValueError(f"{how} does not stop a server: give one of {', '.join(sorted(STOPS))}")
