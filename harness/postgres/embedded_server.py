"""One embedded PostgreSQL server: started, reached and ended."""

from __future__ import annotations

import contextlib
import secrets
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
from psycopg import sql

from fencepost.harness.clock.preload import CLOCK_FILE_VARIABLE, ClockPreload
from fencepost.harness.clock.server_clock import ClockDidNotMove, OffsetFile, ServerClock, read_server_us
from fencepost.harness.errors import StepDeadline, UsageError
from fencepost.harness.postgres import keeper
from fencepost.harness.postgres.binaries import PostgresBinaries
from fencepost.harness.postgres.connection_string import conninfo
from fencepost.harness.postgres.keeper_client import KeeperClient, KeeperIsGone
from fencepost.harness.postgres.os_user import ServerUser, our_name
from fencepost.harness.postgres.ports import free_port
from fencepost.harness.postgres.server_environment import server_environment
from fencepost.harness.postgres.settings import (
    LOOPBACK,
    SUPERUSER,
    ServerRole,
    configuration,
    host_based_authentication,
    peer_map,
)

START_DEADLINE_S = 60.0
_CONNECT_DEADLINE_S = 30
_POLL_S = 0.002
# Why a start fails that may succeed a moment later: somebody who is about to leave still holds something.
_PASSING_OBSTACLES = (
    "Address already in use",
    "is still in use",  # the shared memory of a killed postmaster's children
    'lock file "postmaster.pid" already exists',
)
_AHEAD_S = 3600.0
"""Of every worker's clock, from the start: a queue that mixes the two goes wrong in its first run already."""


class EmbeddedServer:
    """One server of a run. It keeps its port, its password and its data across crashes and restarts."""

    def __init__(
        self,
        role: ServerRole,
        binaries: PostgresBinaries,
        user: ServerUser,
        keeper_client: KeeperClient,
        directory: Path,
        preload: ClockPreload | None,
    ) -> None:
        self.name = role.name
        self.version = binaries.version
        self.major = binaries.major
        self.data_dir = directory / "data"
        self.socket_dir = directory / "socket"
        self.log_path = directory / "log"
        self.port = 0
        self.pid = 0
        self.clock_offset: OffsetFile | None = None
        self._role = role
        self._binaries = binaries
        self.user = user
        self._keeper = keeper_client
        self._preload = preload
        self._password = secrets.token_hex(16)
        self._log_read_from = 0  # where the log of the latest start begins

    def dsn(self, database: str = "postgres", *, application_name: str | None = None) -> str:
        """Over the unix socket, as the superuser, without a password: the operating system vouches for us."""
        return conninfo(
            "",
            host=str(self.socket_dir),
            port=self.port,
            user=SUPERUSER,
            dbname=database,
            application_name=application_name,
        )

    def tcp_dsn(self, database: str = "postgres", *, application_name: str | None = None) -> str:
        """Over loopback with this run's password: for proxies and for clients without unix sockets."""
        return conninfo(
            "",
            host=LOOPBACK,
            port=self.port,
            user=SUPERUSER,
            password=self._password,
            dbname=database,
            application_name=application_name,
        )

    def create_database(self, name: str) -> None:
        with self._admin() as connection:
            connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))

    def drop_database(self, name: str) -> None:
        """Ends the sessions in it as well. Not being there is no error."""
        with self._admin() as connection:
            connection.execute(
                sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name))
            )

    def alive(self) -> bool:
        if self.pid == 0:
            return False
        try:
            return self._keeper.ask("status", name=self.name)["exit"] is None
        except KeeperIsGone:
            return False

    def log_tail(self, lines: int = 20) -> str:
        try:
            return "\n".join(self.log_path.read_text(errors="replace").splitlines()[-lines:])
        except FileNotFoundError:
            return ""

    def log_size(self) -> int:
        return self.log_path.stat().st_size if self.log_path.exists() else 0

    def log_since(self, log_from: int) -> str:
        """What it has written since `log_size` was `log_from`."""
        with self.log_path.open("rb") as log:
            log.seek(log_from)
            return log.read().decode(errors="replace")

    def log_of_this_start(self) -> str:
        return self.log_since(self._log_read_from)

    def stop(self) -> None:
        """Immediate shutdown; `restart` starts it again. Stopping what is not running does nothing."""
        if self.pid:
            with contextlib.suppress(KeeperIsGone):  # it ends its servers before it goes
                self._keeper.ask("stop", name=self.name)

    def kill_processes(self) -> None:
        """SIGKILL of every process of the server at once, as the kernel or an operator would.

        All at once, because a backend that outlived its postmaster by a moment could still commit and answer.
        """
        if self.pid and not self._keeper.ask("crash", name=self.name)["gone"]:
            raise StepDeadline(
                f"the {self.name} server still had processes {keeper.KILL_DEADLINE_S:g} s after SIGKILL"
            )

    def signal(self, number: int) -> None:
        """To the postmaster alone: SIGSTOP and SIGCONT, SIGINT for a fast shutdown, SIGHUP to reload."""
        self._keeper.ask("signal", name=self.name, signal_number=int(number))

    def restart(self, deadline_s: float = START_DEADLINE_S) -> None:
        """Starts it again on the same data, port and password. A running server is stopped first."""
        self.stop()
        self.start_again(time.monotonic() + deadline_s)

    def start_again(self, deadline: float) -> None:
        """After a stop or a crash. Tried again for as long as somebody who is about to leave is in its way."""
        self.launch()
        while not self.await_ready(deadline):
            self.launch()

    def prepare(self, template: Path) -> subprocess.Popen[bytes]:
        """Starts copying the template; the server can be configured once that has ended."""
        directory = self.data_dir.parent
        directory.mkdir(0o711)
        directory.chmod(0o711 if not self.user.is_us else 0o700)
        self.socket_dir.mkdir(0o700)
        self.user.own(self.socket_dir)
        if self._preload is not None:
            self.clock_offset = OffsetFile.create(directory / "clock")
        # cp: four times faster than shutil for a thousand small files.
        return subprocess.Popen(["cp", "-a", str(template), str(self.data_dir)], stderr=subprocess.PIPE)

    def configure(self) -> None:
        """Picks a port and writes the three files that are all of the server's configuration."""
        self.port = free_port()
        settings = configuration(self._role, major=self.major, port=self.port, socket_dir=self.socket_dir)
        self._write("postgresql.conf", settings)
        self._write("pg_hba.conf", host_based_authentication())
        self._write("pg_ident.conf", peer_map(our_name(), self.user.name))

    def launch(self, *settings: str) -> None:
        """Starts its process, with these settings (`name=value`) for this start alone."""
        environment = server_environment()
        if self._preload is not None and self.clock_offset is not None:
            environment["LD_PRELOAD"] = str(self._preload.library)
            environment[CLOCK_FILE_VARIABLE] = str(self.clock_offset.path)
        self._log_read_from = self.log_size()
        answer = self._keeper.ask(
            "start",
            name=self.name,
            argv=[
                str(self._binaries.bindir / "postgres"),
                "-D",
                str(self.data_dir),
                *(part for setting in settings for part in ("-c", setting)),
            ],
            env=environment,
            data_dir=str(self.data_dir),
            log=str(self.log_path),
        )
        self.pid = int(answer["pid"])

    def await_ready(self, deadline: float) -> bool:
        """True once it accepts connections; False if it ended because somebody was in its way."""
        while time.monotonic() < deadline:
            if self._says_ready():
                return True
            exit_code = self._keeper.ask("status", name=self.name)["exit"]
            if exit_code is not None:
                if any(obstacle in self.log_of_this_start() for obstacle in _PASSING_OBSTACLES):
                    return False
                raise UsageError(
                    f"the {self.name} server (PostgreSQL {self.version}) ended with exit code {exit_code} "
                    f"instead of starting; the end of its log tells why:\n{self.log_tail()}"
                )
            time.sleep(_POLL_S)
        raise UsageError(
            f"the {self.name} server (PostgreSQL {self.version}) was not ready at its deadline, so see "
            f"the end of its log, or allow more time:\n{self.log_tail()}"
        )

    def open_up(self) -> None:
        """Sets this run's password and proves, where there is a preload, that the clock can be moved."""
        with self._admin() as connection:
            connection.execute(
                sql.SQL("ALTER ROLE {} PASSWORD {}").format(
                    sql.Identifier(SUPERUSER), sql.Literal(self._password)
                )
            )
            if self.clock_offset is not None:
                try:
                    ServerClock(self.clock_offset, lambda: read_server_us(connection)).advance(_AHEAD_S)
                except ClockDidNotMove as problem:
                    raise UsageError(
                        f"PostgreSQL in {self._binaries.bindir} does not follow the clock preload, "
                        "so choose another installation or run without moving its clock"
                    ) from problem

    def _says_ready(self) -> bool:
        """As pg_ctl does it: the postmaster writes its state into the eighth line of its lock file."""
        try:
            lines = (self.data_dir / "postmaster.pid").read_text().split("\n")
        except FileNotFoundError:
            return False
        return len(lines) > 7 and lines[0] == str(self.pid) and lines[7].strip() == "ready"

    def _write(self, name: str, content: str) -> None:
        path = self.data_dir / name
        path.write_text(content)
        path.chmod(0o600)
        self.user.own(path)

    @contextlib.contextmanager
    def _admin(self) -> Iterator[psycopg.Connection[tuple[object, ...]]]:
        connection = psycopg.connect(
            self.dsn(application_name="fencepost-admin"), autocommit=True, connect_timeout=_CONNECT_DEADLINE_S
        )
        try:
            yield connection
        finally:
            connection.close()
