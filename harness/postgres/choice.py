"""`--pg`: which provider's server is tested, checked before anything is started."""

from __future__ import annotations

from typing import Protocol

from fencepost.harness.clock.preload import ClockPreload
from fencepost.harness.docker_engine import require_docker
from fencepost.harness.errors import UsageError
from fencepost.harness.postgres.binaries import PostgresBinaries, find_binaries
from fencepost.harness.postgres.connection_string import without_password
from fencepost.harness.postgres.container import ContainerServers
from fencepost.harness.postgres.embedded import EmbeddedServers
from fencepost.harness.postgres.embedded_server import EmbeddedServer
from fencepost.harness.postgres.named_server import NamedServers, try_out
from fencepost.harness.postgres.provider import ServerUnderTest

EMBEDDED, DOCKER, DSN = "embedded", "docker", "dsn"
PROVIDER_HELP = (
    "embedded (default), embedded:MAJOR, embedded:BINDIR, docker, docker:IMAGE or dsn:postgresql://…"
)


class ServersOfRun(Protocol):
    """The server under test and the control server, which is always an embedded one. Closed with the run."""

    @property
    def test(self) -> ServerUnderTest: ...

    @property
    def control(self) -> EmbeddedServer: ...

    def close(self) -> None: ...


class ProviderChoice:
    """What `--pg` was given, understood but not tried yet."""

    def __init__(self, given: str) -> None:
        self.name, colon, self._detail = given.partition(":")
        known = self.name in (EMBEDDED, DOCKER, DSN)
        if not known or (colon and not self._detail) or (self.name == DSN and not self._detail):
            raise UsageError(
                f"--pg {without_password(given)}: give embedded, embedded:MAJOR (as embedded:16) or "
                "embedded:BINDIR, docker or docker:IMAGE, or dsn:postgresql://USER@HOST:PORT/DATABASE."
            )

    @property
    def moves_its_clock(self) -> bool:
        return self.name == EMBEDDED

    def check(self) -> None:
        """Everything that can be known to be missing before a server is started. Raises UsageError."""
        self._binaries()
        if self.name == DOCKER:
            require_docker()
        elif self.name == DSN:
            try_out(self._detail)

    def try_out(self) -> str:
        """What a named server is and allows. Raises UsageError if it cannot be used."""
        return try_out(self._detail)

    def start(self, *, preload: ClockPreload | None, core: int | None) -> ServersOfRun:
        match self.name:
            case "docker":
                return ContainerServers.start(
                    self._detail or None, control_binaries=self._binaries(), core=core
                )
            case "dsn":
                return NamedServers.start(self._detail, control_binaries=self._binaries(), core=core)
            case _:
                return EmbeddedServers.start(binaries=self._binaries(), preload=preload, core=core)

    def _binaries(self) -> PostgresBinaries:
        """Of the embedded servers; the control server is one whoever provides the one under test."""
        return find_binaries(self._detail if self.name == EMBEDDED and self._detail else None)
