"""The embedded servers of one run: the one under test and the control server, started and ended together."""

from __future__ import annotations

import atexit
import contextlib
import os
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from fencepost.harness.clock.preload import ClockPreload
from fencepost.harness.errors import UsageError
from fencepost.harness.postgres.binaries import PostgresBinaries, find_binaries
from fencepost.harness.postgres.crashable import CrashableServer
from fencepost.harness.postgres.embedded_server import START_DEADLINE_S, EmbeddedServer
from fencepost.harness.postgres.keeper_client import KeeperClient
from fencepost.harness.postgres.os_user import ServerUser, server_user
from fencepost.harness.postgres.reachable import reachable_binaries
from fencepost.harness.postgres.run_directory import new_run_directory
from fencepost.harness.postgres.settings import CONTROL, LOOPBACK, UNDER_TEST, ServerRole
from fencepost.harness.postgres.template import data_template

_PORT_ATTEMPTS = 5

__all__ = ["EmbeddedControl", "EmbeddedServer", "EmbeddedServers"]


class _KeptServers:
    """Servers of one keeper: ended with this object, with this process, or with the keeper's standard input."""

    def __init__(self, keeper_client: KeeperClient) -> None:
        self._keeper = keeper_client
        self._started_by = os.getpid()
        atexit.register(self.close)

    def close(self) -> None:
        """Ends the servers and removes all their files. Closing twice does nothing the second time."""
        if os.getpid() != self._started_by:
            return  # a forked copy of the harness does not own them
        atexit.unregister(self.close)
        self._keeper.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class EmbeddedServers(_KeptServers):
    """The two servers of one run: the one under test, and the control server no fault ever touches."""

    def __init__(self, test: CrashableServer, control: EmbeddedServer, keeper_client: KeeperClient) -> None:
        self.test = test
        self.control = control
        super().__init__(keeper_client)

    @classmethod
    def start(
        cls,
        *,
        binaries: PostgresBinaries | None = None,
        preload: ClockPreload | None = None,
        core: int | None = None,
        deadline_s: float = START_DEADLINE_S,
    ) -> EmbeddedServers:
        """Starts both at once. With `core`, they and their keeper run on that processor core only."""
        place = _Place.make(binaries, core, deadline_s)
        test = CrashableServer(UNDER_TEST, *place.of(UNDER_TEST), preload)
        control = EmbeddedServer(CONTROL, *place.of(CONTROL), None)
        servers = cls(test, control, place.keeper_client)
        with _closed_if_it_fails(servers):
            _bring_up([test, control], place)
        return servers

    def close(self) -> None:
        super().close()
        if self.test.clock_offset is not None and os.getpid() == self._started_by:
            self.test.clock_offset.close()


class EmbeddedControl(_KeptServers):
    """The control server alone, beside a server under test that somebody else provides."""

    def __init__(self, server: EmbeddedServer, keeper_client: KeeperClient) -> None:
        self.server = server
        super().__init__(keeper_client)

    @classmethod
    def start(
        cls,
        *,
        binaries: PostgresBinaries | None = None,
        core: int | None = None,
        deadline_s: float = START_DEADLINE_S,
    ) -> EmbeddedControl:
        place = _Place.make(binaries, core, deadline_s)
        control = cls(EmbeddedServer(CONTROL, *place.of(CONTROL), None), place.keeper_client)
        with _closed_if_it_fails(control):
            _bring_up([control.server], place)
        return control


@dataclass(frozen=True)
class _Place:
    """Where the servers of one run are started: all that can be had before the first of them is."""

    binaries: PostgresBinaries
    user: ServerUser
    template: Path
    run_dir: Path
    keeper_client: KeeperClient
    deadline: float

    @classmethod
    def make(cls, binaries: PostgresBinaries | None, core: int | None, deadline_s: float) -> _Place:
        deadline = time.monotonic() + deadline_s
        _check_core(core)
        user = server_user()
        binaries = reachable_binaries(binaries or find_binaries(), user)
        template = data_template(binaries, user, deadline_s)
        run_dir, lock_fd = new_run_directory()
        try:
            keeper_client = KeeperClient(run_dir, lock_fd, user, core)
        finally:
            os.close(lock_fd)
        return cls(binaries, user, template, run_dir, keeper_client, deadline)

    def of(self, role: ServerRole) -> tuple[PostgresBinaries, ServerUser, KeeperClient, Path]:
        return self.binaries, self.user, self.keeper_client, self.run_dir / role.name


@contextlib.contextmanager
def _closed_if_it_fails(servers: _KeptServers) -> Iterator[None]:
    try:
        yield
    except BaseException:  # a Ctrl-C in here must not leave servers behind either
        servers.close()
        raise


def _bring_up(servers: Sequence[EmbeddedServer], place: _Place) -> None:
    template, deadline = place.template, place.deadline
    with contextlib.ExitStack() as copies_end:
        copies = [copies_end.enter_context(_ended(server.prepare(template))) for server in servers]
        for server, copy in zip(servers, copies, strict=True):
            _await_copy(copy, template, deadline)
            server.configure()
            server.launch()
    for server in servers:
        for _ in range(_PORT_ATTEMPTS):
            if server.await_ready(deadline):
                break
            server.configure()
            server.launch()
        else:
            raise UsageError(
                f"{_PORT_ATTEMPTS} ports in a row were taken before the {server.name} server could listen on "
                f"them: end what opens so many ports on {LOOPBACK} and start again"
            )
        server.open_up()


@contextlib.contextmanager
def _ended(copy: subprocess.Popen[bytes]) -> Iterator[subprocess.Popen[bytes]]:
    """Whatever happens inside, the copy no longer writes into the run's directory afterwards."""
    with copy:
        try:
            yield copy
        finally:
            copy.kill()  # does nothing to one that has ended


def _await_copy(copy: subprocess.Popen[bytes], template: Path, deadline: float) -> None:
    try:
        _, said = copy.communicate(timeout=max(0.0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        raise UsageError(f"copying {template} took longer than allowed: allow more time") from None
    if copy.returncode != 0:
        raise UsageError(
            f"{template} could not be copied, so make room or set TMPDIR to another place; "
            f"cp said: {said.decode(errors='replace').strip()}"
        )


def _check_core(core: int | None) -> None:
    if core is None:
        return
    if not hasattr(os, "sched_getaffinity"):
        raise UsageError("this system cannot bind processes to a core, so leave the core out")
    allowed = os.sched_getaffinity(0)
    if core not in allowed:
        raise UsageError(
            f"core {core} is not among those this process may use: choose one of {sorted(allowed)}"
        )
