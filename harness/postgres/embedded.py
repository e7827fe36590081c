"""Embedded PostgreSQL servers: the pair of one run, started, reached, crashed and ended."""

from __future__ import annotations

import atexit
import contextlib
import os
import secrets
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

import psycopg
from psycopg import sql
from psycopg.conninfo import make_conninfo

from fencepost.harness.clock.preload import CLOCK_FILE_VARIABLE, ClockPreload
from fencepost.harness.clock.server_clock import ClockDidNotMove, OffsetFile, ServerClock, read_server_us
from fencepost.harness.errors import StepDeadline, UsageError
from fencepost.harness.postgres import keeper
from fencepost.harness.postgres.binaries import PostgresBinaries, find_binaries
from fencepost.harness.postgres.keeper_client import KeeperClient, KeeperIsGone
from fencepost.harness.postgres.os_user import ServerUser, our_name, server_user
from fencepost.harness.postgres.ports import free_port
from fencepost.harness.postgres.reachable import reachable_binaries
from fencepost.harness.postgres.run_directory import new_run_directory
from fencepost.harness.postgres.server_environment import server_environment
from fencepost.harness.postgres.settings import (
    CONTROL,
    LOOPBACK,
    SUPERUSER,
    UNDER_TEST,
    ServerRole,
    configuration,
    host_based_authentication,
    peer_map,
)
from fencepost.harness.postgres.template import data_template

START_DEADLINE_S = 60.0
_CONNECT_DEADLINE_S = 30
_POLL_S = 0.002
_PORT_ATTEMPTS = 5
_PORT_TAKEN = "Address already in use"
_CLOCK_CHECK_S = 1.0


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
        self._user = user
        self._keeper = keeper_client
        self._preload = preload
        self._password = secrets.token_hex(16)
        self._log_read_from = 0  # where the log of the latest start begins

    def dsn(self, database: str = "postgres", *, application_name: str | None = None) -> str:
        """Over the unix socket, as the superuser, without a password: the operating system vouches for us."""
        return make_conninfo(
            "",
            host=str(self.socket_dir),
            port=self.port,
            user=SUPERUSER,
            dbname=database,
            application_name=application_name,
        )

    def tcp_dsn(self, database: str = "postgres", *, application_name: str | None = None) -> str:
        """Over loopback with this run's password: for proxies and for clients without unix sockets."""
        return make_conninfo(
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

    def stop(self) -> None:
        """Immediate shutdown; `restart` starts it again. Stopping what is not running does nothing."""
        if self.pid:
            with contextlib.suppress(KeeperIsGone):  # it ends its servers before it goes
                self._keeper.ask("stop", name=self.name)

    def crash(self) -> None:
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
        deadline = time.monotonic() + deadline_s
        self.launch()
        while not self.await_ready(deadline):
            self.launch()  # the port may be held a little longer by somebody who is about to leave

    def prepare(self, template: Path) -> subprocess.Popen[bytes]:
        """Starts copying the template; the server can be configured once that has ended."""
        directory = self.data_dir.parent
        directory.mkdir(0o711)
        directory.chmod(0o711 if not self._user.is_us else 0o700)
        self.socket_dir.mkdir(0o700)
        self._user.own(self.socket_dir)
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
        self._write("pg_ident.conf", peer_map(our_name(), self._user.name))

    def launch(self) -> None:
        environment = server_environment()
        if self._preload is not None and self.clock_offset is not None:
            environment["LD_PRELOAD"] = str(self._preload.library)
            environment[CLOCK_FILE_VARIABLE] = str(self.clock_offset.path)
        self._log_read_from = self.log_path.stat().st_size if self.log_path.exists() else 0
        answer = self._keeper.ask(
            "start",
            name=self.name,
            argv=[str(self._binaries.bindir / "postgres"), "-D", str(self.data_dir)],
            env=environment,
            data_dir=str(self.data_dir),
            log=str(self.log_path),
        )
        self.pid = int(answer["pid"])

    def await_ready(self, deadline: float) -> bool:
        """True once it accepts connections; False if it ended because its port was taken."""
        while time.monotonic() < deadline:
            if self._says_ready():
                return True
            exit_code = self._keeper.ask("status", name=self.name)["exit"]
            if exit_code is not None:
                if _PORT_TAKEN in self._log_of_this_start():
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
                    ServerClock(self.clock_offset, lambda: read_server_us(connection)).advance(_CLOCK_CHECK_S)
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

    def _log_of_this_start(self) -> str:
        with self.log_path.open("rb") as log:
            log.seek(self._log_read_from)
            return log.read().decode(errors="replace")

    def _write(self, name: str, content: str) -> None:
        path = self.data_dir / name
        path.write_text(content)
        path.chmod(0o600)
        self._user.own(path)

    @contextlib.contextmanager
    def _admin(self) -> Iterator[psycopg.Connection[tuple[object, ...]]]:
        connection = psycopg.connect(
            self.dsn(application_name="fencepost-admin"), autocommit=True, connect_timeout=_CONNECT_DEADLINE_S
        )
        try:
            yield connection
        finally:
            connection.close()


class EmbeddedServers:
    """The two servers of one run: the one under test, and the control server no fault ever touches."""

    def __init__(self, test: EmbeddedServer, control: EmbeddedServer, keeper_client: KeeperClient) -> None:
        self.test = test
        self.control = control
        self._keeper = keeper_client
        self._started_by = os.getpid()
        atexit.register(self.close)

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
        test = EmbeddedServer(UNDER_TEST, binaries, user, keeper_client, run_dir / "test", preload)
        control = EmbeddedServer(CONTROL, binaries, user, keeper_client, run_dir / "control", None)
        servers = cls(test, control, keeper_client)
        try:
            _bring_up([test, control], template, deadline)
        except BaseException:  # a Ctrl-C in here must not leave servers behind either
            servers.close()
            raise
        return servers

    def close(self) -> None:
        """Ends both servers and removes all their files. Closing twice does nothing the second time."""
        if os.getpid() != self._started_by:
            return  # a forked copy of the harness does not own them
        atexit.unregister(self.close)
        self._keeper.close()
        if self.test.clock_offset is not None:
            self.test.clock_offset.close()

    def __enter__(self) -> EmbeddedServers:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _bring_up(servers: list[EmbeddedServer], template: Path, deadline: float) -> None:
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
