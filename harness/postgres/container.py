"""The server under test in a container of its own: made, reached on loopback, crashed by signals, removed."""

from __future__ import annotations

import atexit
import contextlib
import io
import os
import secrets
import tarfile
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

import psycopg
from psycopg import sql
from psycopg.conninfo import make_conninfo

from fencepost.harness import docker_engine
from fencepost.harness.errors import StepDeadline, UsageError
from fencepost.harness.postgres import backends
from fencepost.harness.postgres.binaries import OLDEST_MAJOR, PostgresBinaries
from fencepost.harness.postgres.embedded import EmbeddedControl
from fencepost.harness.postgres.embedded_server import EmbeddedServer
from fencepost.harness.postgres.patience import connect_patiently, refuses_for_now
from fencepost.harness.postgres.ports import free_port
from fencepost.harness.postgres.provider import (
    FAULT_DEADLINE_S,
    CannotInject,
    FaultDidNotHappen,
    ServerFault,
    require_stop,
)
from fencepost.harness.postgres.settings import LOOPBACK, SUPERUSER, UNDER_TEST, container_settings

if TYPE_CHECKING:
    from docker import DockerClient
    from docker.models.containers import Container

INSIDE_PORT = 5432
START_DEADLINE_S = 120.0  # the first start of an image includes its initdb
_PORT_ATTEMPTS = 5
_POLL_S = 0.01
# To the container's first process, which is the postmaster. When that one is killed the kernel kills all others.
_SIGNALS = {
    ServerFault.CRASH: "SIGQUIT",
    ServerFault.KILL_POSTMASTER: "SIGKILL",
    ServerFault.KILL_ALL: "SIGKILL",
    ServerFault.FAST_RESTART: "SIGINT",
}
_SAYS_WHILE_STOPPING = {
    ServerFault.CRASH: "received immediate shutdown request",
    ServerFault.FAST_RESTART: "database system is shut down",
}
_RECOVERED = "automatic recovery in progress"
_WAS_SHUT_DOWN = "database system was shut down at"
_REINITIALISED = "all server processes terminated; reinitializing"
_READY = "database system is ready to accept connections"
_STARTING_UP = "the database system is starting up"

# As in crashable.py, but held by a file that is not empty: one can be put into a container whether it runs or
# not, while nobody outside can hold the end of a pipe that lies in it.
_HOLD = "fencepost.hold"
_HELD = "fencepost: recovery is held"
_HOLD_COMMAND = f"test -s {_HOLD} && echo {_HELD} >&2; while test -s {_HOLD}; do sleep 0.02; done; exit 1"
_LOOK_FOR_ARCHIVED_LOG = "recovery.signal"


class ContainerServer:
    """One container, from its making on. It keeps its port, its password and its data across faults."""

    provider: Final = "docker"
    can: Final = frozenset(ServerFault)
    clock_offset: Final = None

    def __init__(self, client: DockerClient, image: str) -> None:
        docker_engine.require_image(client, image)
        self._client = client
        self._image = image
        self._password = secrets.token_hex(16)
        self._stopped_by: ServerFault | None = None
        self._log_read_from = 0  # where the log of the latest start begins
        self._held = False
        self.port, self._container = self._run()
        try:
            self.version = self._await_first_start()
            self._data_dir = self._inside("printenv", "PGDATA").strip()
        except BaseException:
            self.close()
            raise

    @property
    def tcp_address(self) -> tuple[str, int]:
        return LOOPBACK, self.port

    def dsn(self, database: str = "postgres", *, application_name: str | None = None) -> str:
        return make_conninfo(
            "",
            host=LOOPBACK,
            port=self.port,
            user=SUPERUSER,
            password=self._password,
            dbname=database,
            application_name=application_name,
        )

    tcp_dsn = dsn

    def create_database(self, name: str) -> None:
        with self._admin() as connection:
            connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))

    def drop_database(self, name: str) -> None:
        """Ends the sessions in it as well. Not being there is no error."""
        with self._admin() as connection:
            connection.execute(
                sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name))
            )

    def refusal(self, fault: ServerFault) -> CannotInject | None:
        return None

    def log(self) -> str:
        return bytes(self._container.logs()).decode(errors="replace")

    def close(self) -> None:
        docker_engine.remove(self._container)

    # -- faults -------------------------------------------------------------------------------------------

    def stop_now(self, how: ServerFault = ServerFault.CRASH) -> None:
        require_stop(how)
        if self._state() != "running":
            raise FaultDidNotHappen(f"the container is {self._state()}, so {how} cannot stop it")
        log_from = len(self.log())
        self._container.kill(_SIGNALS[how])
        self._await(lambda: self._state() == "exited", f"to end after {how}")
        said = _SAYS_WHILE_STOPPING.get(how)
        if said is not None:
            self._await_log(log_from, said, f"to say that it was stopped by {how}")
        self._stopped_by = how
        self._let_go()

    def start(self) -> None:
        if self._state() == "running":
            raise FaultDidNotHappen("the container runs already: it was to be started after a stop")
        self._start()
        self._await_ready()

    def crash(self) -> None:
        self.stop_now(ServerFault.CRASH)
        self.start()

    def kill_postmaster(self) -> None:
        self.stop_now(ServerFault.KILL_POSTMASTER)
        self.start()

    def kill_all(self) -> None:
        self.stop_now(ServerFault.KILL_ALL)
        self.start()

    def fast_restart(self) -> None:
        self.stop_now(ServerFault.FAST_RESTART)
        self.start()

    def kill_backend(self, pid: int) -> None:
        with self._admin() as connection:
            backends.require_client_backend(connection, pid)
        log_from = len(self.log())
        self._inside("sh", "-c", f"kill -KILL {int(pid)}")
        self._await_log(log_from, _REINITIALISED, f"to end its other backends after {pid} was killed")
        self._await_log(log_from, _READY, f"to recover after its backend {pid} was killed")
        connect_patiently(self.dsn()).close()

    def terminate_backend(self, pid: int) -> None:
        with self._admin() as connection:
            backends.terminate_backend(connection, pid)

    def refuse_connections(self) -> None:
        self.stop_now(ServerFault.CRASH)
        self._put(**{_HOLD: b"hold\n", _LOOK_FOR_ARCHIVED_LOG: b""})
        self._held = True
        self._start()
        self._await_log(self._log_read_from, _HELD, "to wait in recovery")
        self._await_refusal()

    def accept_connections(self) -> None:
        if not self._held:
            raise FaultDidNotHappen("the container is not held: `refuse_connections` comes first")
        self._let_go()
        self._await_ready()

    # -- the container ------------------------------------------------------------------------------------

    def _run(self) -> tuple[int, Container]:
        """Makes and starts it on a free port of loopback, which somebody may take just before us."""
        from docker.errors import APIError

        for _ in range(_PORT_ATTEMPTS):
            port = free_port()
            container: Container = self._client.containers.create(
                self._image,
                command=["postgres", *_as_arguments(self._settings(port))],
                environment={"POSTGRES_PASSWORD": self._password},
                labels=docker_engine.labels(),
                **self._network(port),
            )
            try:
                container.start()
            except APIError as problem:
                docker_engine.remove(container)
                if "port is already allocated" not in str(problem) and "in use" not in str(problem):
                    raise UsageError(
                        f"--pg docker: a container of {self._image} could not be started: "
                        f"{' '.join(str(problem).split())}."
                    ) from problem
            else:
                return port, container
        raise UsageError(
            f"--pg docker: {_PORT_ATTEMPTS} ports in a row were taken before a container could listen on them: "
            f"end what opens so many ports on {LOOPBACK} and start again."
        )

    def _network(self, port: int) -> dict[str, Any]:
        if docker_engine.uses_host_network(self._client):
            return {"network_mode": "host"}
        return {"ports": {f"{INSIDE_PORT}/tcp": (LOOPBACK, port)}}

    def _settings(self, port: int) -> dict[str, str]:
        settings = {
            **container_settings(UNDER_TEST),
            "restore_command": _HOLD_COMMAND,  # asked only by a start that finds recovery.signal
            "hot_standby": "off",  # with it a held server would call itself ready while it still recovers
        }
        if docker_engine.uses_host_network(self._client):
            return {**settings, "listen_addresses": LOOPBACK, "port": str(port)}
        return {
            **settings,
            "listen_addresses": "*",
        }  # inside; outside the engine maps one port of loopback to it

    def _await_first_start(self) -> str:
        """Until the image has made its data directory and accepts connections over TCP. Its version."""
        deadline = time.monotonic() + START_DEADLINE_S
        while True:
            try:
                connection = connect_patiently(self.dsn(), deadline_s=1.0)
            except (StepDeadline, psycopg.OperationalError) as problem:
                if self._state() != "running" or time.monotonic() >= deadline:
                    raise UsageError(
                        f"--pg docker: a container of {self._image} does not accept connections "
                        f"({' '.join(str(problem).split())}); the end of its log tells why:\n{self._log_tail()}"
                    ) from None
                continue
            with contextlib.closing(connection):
                if connection.info.server_version // 10000 < OLDEST_MAJOR:
                    raise UsageError(
                        f"--pg docker: {self._image} holds PostgreSQL "
                        f"{connection.info.parameter_status('server_version')}, which is too old: name an image "
                        f"of {OLDEST_MAJOR} or newer."
                    )
                return connection.info.parameter_status("server_version") or str(
                    connection.info.server_version
                )

    def _start(self) -> None:
        self._log_read_from = len(self.log())
        self._container.start()

    def _await_ready(self) -> None:
        self._await_log(self._log_read_from, _READY, "to accept connections")
        connect_patiently(self.dsn()).close()
        wanted = _WAS_SHUT_DOWN if self._stopped_by is ServerFault.FAST_RESTART else _RECOVERED
        said = self.log()[self._log_read_from :]
        if wanted not in said:
            raise FaultDidNotHappen(
                f"the container was started after {self._stopped_by} and its log does not say '{wanted}':\n{said}"
            )

    def _let_go(self) -> None:
        """Of a hold nothing stays that could hold this start or the next one."""
        if self._held:
            self._put(**{_HOLD: b""})
            self._held = False

    def _put(self, **files: bytes) -> None:
        """Into the data directory, whether the container runs or not; open to the server, whoever it runs as."""
        archive = io.BytesIO()
        with tarfile.open(fileobj=archive, mode="w") as tar:
            for name, content in files.items():
                entry = tarfile.TarInfo(name)
                entry.size, entry.mode = len(content), 0o666
                tar.addfile(entry, io.BytesIO(content))
        self._container.put_archive(self._data_dir, archive.getvalue())

    def _inside(self, *command: str) -> str:
        code, output = self._container.exec_run(list(command))
        said = b"".join([output] if isinstance(output, bytes) else output).decode(errors="replace")
        if code != 0:
            raise FaultDidNotHappen(
                f"`{' '.join(command)}` in the container ended with {code}: {said.strip()}"
            )
        return said

    def _state(self) -> str:
        self._container.reload()
        return str(self._container.status)

    @contextlib.contextmanager
    def _admin(self) -> Iterator[psycopg.Connection[Any]]:
        with contextlib.closing(
            connect_patiently(self.dsn(application_name="fencepost-admin"), autocommit=True)
        ) as connection:
            yield connection

    # -- waiting ------------------------------------------------------------------------------------------

    def _await_log(self, log_from: int, said: str, what: str) -> None:
        self._await(lambda: said in self.log()[log_from:], f"{what} (its log is to say '{said}')")

    def _await(self, true: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + FAULT_DEADLINE_S
        while not true():
            if time.monotonic() >= deadline:
                raise FaultDidNotHappen(
                    f"waited {FAULT_DEADLINE_S:g} s for the container {what}; it is {self._state()}; "
                    f"the end of its log:\n{self._log_tail()}"
                )
            time.sleep(_POLL_S)

    def _await_refusal(self) -> None:
        deadline = time.monotonic() + FAULT_DEADLINE_S
        answered = "nothing"
        while time.monotonic() < deadline:
            try:
                psycopg.connect(self.dsn(), connect_timeout=5).close()
            except psycopg.OperationalError as problem:
                answered = str(problem).strip()
                if _STARTING_UP in answered:
                    return
                if not refuses_for_now(problem):
                    break
            else:
                answered = "by accepting it"
                break
            time.sleep(_POLL_S)
        raise FaultDidNotHappen(f"the container was to refuse a connection and answered: {answered}")

    def _log_tail(self, lines: int = 20) -> str:
        return "\n".join(self.log().splitlines()[-lines:])


class ContainerServers:
    """The server under test in its container, and an embedded control server beside it."""

    def __init__(self, test: ContainerServer, control: EmbeddedControl, client: DockerClient) -> None:
        self.test = test
        self._control = control
        self._client = client
        self._started_by = os.getpid()
        atexit.register(self.close)

    @classmethod
    def start(
        cls,
        image: str | None = None,
        *,
        control_binaries: PostgresBinaries | None = None,
        core: int | None = None,
    ) -> ContainerServers:
        with contextlib.ExitStack() as undo:
            client = docker_engine.connect()
            undo.callback(client.close)
            docker_engine.remove_leftovers(client)
            test = ContainerServer(client, image or docker_engine.POSTGRES_IMAGE)
            undo.callback(test.close)
            control = EmbeddedControl.start(binaries=control_binaries, core=core)
            undo.pop_all()
        return cls(test, control, client)

    @property
    def control(self) -> EmbeddedServer:
        return self._control.server

    def close(self) -> None:
        """Closing twice does nothing the second time; a forked copy of the harness closes nothing."""
        if os.getpid() != self._started_by:
            return
        atexit.unregister(self.close)
        with contextlib.ExitStack() as stack:
            stack.callback(self._control.close)
            stack.callback(self._client.close)
            stack.callback(self.test.close)


def _as_arguments(settings: dict[str, str]) -> list[str]:
    return [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
