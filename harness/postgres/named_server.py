"""A server the user names by a connection string: we work only in databases made by us or given to us empty."""

from __future__ import annotations

import atexit
import contextlib
import os
import secrets
from typing import Any, Final, NoReturn

import psycopg
from psycopg import sql

from fencepost.harness.errors import UsageError
from fencepost.harness.postgres import backends, given_database
from fencepost.harness.postgres.binaries import OLDEST_MAJOR, PostgresBinaries
from fencepost.harness.postgres.connection_string import read_connection_string, with_parts
from fencepost.harness.postgres.embedded import EmbeddedControl
from fencepost.harness.postgres.embedded_server import EmbeddedServer
from fencepost.harness.postgres.provider import CannotInject, ServerFault

CONNECT_DEADLINE_S = 10
_PREFIX = "fencepost_"
_MARK = "made by fencepost, which drops it when its run is over"
_LONGEST_NAME = 63
_NOT_OURS = (
    "a server that is only named to us is not ours to stop; use --pg embedded (or --pg docker) for this fault"
)

_MAY_CREATE = "SELECT rolcreatedb OR rolsuper FROM pg_roles WHERE rolname = current_user"

# A living run has a session in each of its databases, so one without any is left from a dead run.
_LEFTOVERS = """
SELECT datname FROM pg_database d
WHERE starts_with(datname, %s) AND datdba = current_user::regrole
  AND shobj_description(d.oid, 'pg_database') = %s
  AND NOT EXISTS (SELECT FROM pg_stat_activity a WHERE a.datname = d.datname)
"""


def try_out(given: str) -> str:
    """What the server is and allows, if it is reachable, new enough, and has a place to work in.

    Raises UsageError otherwise.
    """
    parts = read_connection_string(given)
    with contextlib.closing(_connect(parts)) as connection:
        place = (
            "the role may create databases"
            if _require_place(connection, parts)
            else f"works in the one empty database {connection.info.dbname}"
        )
        version = connection.info.parameter_status("server_version")
    return f"PostgreSQL {version}, {place}; no crash and no clock there"


class NamedServer:
    """Connected to from its making on. Its databases are dropped, or emptied, by `close`."""

    provider: Final = "dsn"
    can: Final = frozenset({ServerFault.TERMINATE_BACKEND})
    clock_offset: Final = None

    def __init__(self, given: str) -> None:
        parts = read_connection_string(given)
        self._session = _connect(parts)
        self._makes_databases = _require_place(self._session, parts)
        info = self._session.info
        self.version = info.parameter_status("server_version") or str(info.server_version)
        # Of several hosts, the one that answered: all of a run must reach the same server.
        self._parts = {**parts, "host": info.host, "port": str(info.port), "user": info.user}
        self._run = secrets.token_hex(6)
        self._places: dict[str, str] = {}  # real names by the names we were asked for
        self._guards: dict[
            str, psycopg.Connection[Any]
        ] = {}  # a session in each: it shows that this run lives
        if self._makes_databases:
            self._drop_leftovers()

    @property
    def tcp_address(self) -> tuple[str, int]:
        host = self._parts["host"]
        if host.startswith(("/", "@")):
            raise UsageError(
                f"--pg dsn: the server is reached over the unix socket in {host}, where no proxy can stand in "
                "between: name its host and port."
            )
        return host, int(self._parts["port"])

    def dsn(self, database: str, *, application_name: str | None = None) -> str:
        return with_parts(self._parts, dbname=self._place(database), application_name=application_name)

    def tcp_dsn(self, database: str, *, application_name: str | None = None) -> str:
        host, port = self.tcp_address
        dsn = self.dsn(database, application_name=application_name)
        return with_parts(read_connection_string(dsn), host=host, port=port)

    def create_database(self, name: str) -> None:
        if not self._makes_databases:
            self._take_given_database(name)
            return
        place = f"{_PREFIX}{self._run}_{name}"[:_LONGEST_NAME]
        identifier = sql.Identifier(place)
        try:
            # template0: whatever somebody keeps in template1 is not part of an empty database.
            self._session.execute(sql.SQL("CREATE DATABASE {} TEMPLATE template0").format(identifier))
        except psycopg.Error as problem:
            raise UsageError(
                f"--pg dsn: the role {self._session.info.user} could not create a database: "
                f"{_one_line(problem)}."
            ) from problem
        self._places[name] = place
        # Marked only once it is guarded: another run drops what is marked and has no session in it.
        self._guards[name] = _connect({**self._parts, "dbname": place})
        self._session.execute(sql.SQL("COMMENT ON DATABASE {} IS {}").format(identifier, sql.Literal(_MARK)))

    def drop_database(self, name: str) -> None:
        """Ends the sessions in it as well. Not being there is no error."""
        place = self._places.pop(name, None)
        if place is None:
            return
        guard = self._guards.pop(name)
        if not self._makes_databases:
            given_database.give_back(guard)
        guard.close()
        if self._makes_databases:
            self._session.execute(
                sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(place))
            )

    def close(self) -> None:
        with contextlib.ExitStack() as stack:
            stack.callback(self._session.close)
            for name in list(self._places):
                stack.callback(self.drop_database, name)

    def terminate_backend(self, pid: int) -> None:
        backends.terminate_backend(self._session, pid)

    def stop_now(self, how: ServerFault = ServerFault.CRASH) -> None:
        self._cannot(how)

    def start(self) -> None:
        self._cannot(ServerFault.CRASH)

    def crash(self) -> None:
        self._cannot(ServerFault.CRASH)

    def kill_postmaster(self) -> None:
        self._cannot(ServerFault.KILL_POSTMASTER)

    def kill_all(self) -> None:
        self._cannot(ServerFault.KILL_ALL)

    def kill_backend(self, pid: int) -> None:
        self._cannot(ServerFault.KILL_BACKEND)

    def fast_restart(self) -> None:
        self._cannot(ServerFault.FAST_RESTART)

    def refuse_connections(self) -> None:
        self._cannot(ServerFault.REFUSE_CONNECTIONS)

    def accept_connections(self) -> None:
        self._cannot(ServerFault.REFUSE_CONNECTIONS)

    def refusal(self, fault: ServerFault) -> CannotInject | None:
        return None if fault in self.can else CannotInject(self.provider, fault, _NOT_OURS)

    def _cannot(self, fault: ServerFault) -> NoReturn:
        raise CannotInject(self.provider, fault, _NOT_OURS)

    def _place(self, database: str) -> str:
        if database not in self._places:
            raise ValueError(f"{database} was not created here; there are {sorted(self._places)}")
        return self._places[database]

    def _take_given_database(self, name: str) -> None:
        place = self._session.info.dbname
        if self._places:
            raise UsageError(
                f"--pg dsn: a second queue needs a second database, the role {self._session.info.user} may "
                f"not create any, and {place} is in use: grant it CREATEDB."
            )
        guard = _connect(self._parts)
        try:
            given_database.take(guard)
        except BaseException:
            guard.close()
            raise
        self._places[name], self._guards[name] = place, guard

    def _drop_leftovers(self) -> None:
        for (name,) in self._session.execute(_LEFTOVERS, (_PREFIX, _MARK)).fetchall():
            # Without FORCE, and not caring: somebody may have come back to it, or another start dropped it.
            with contextlib.suppress(psycopg.errors.ObjectInUse, psycopg.errors.InvalidCatalogName):
                self._session.execute(sql.SQL("DROP DATABASE {}").format(sql.Identifier(name)))


class NamedServers:
    """The named server under test, and an embedded control server beside it."""

    def __init__(self, test: NamedServer, control: EmbeddedControl) -> None:
        self.test = test
        self._control = control
        self._started_by = os.getpid()
        atexit.register(self.close)

    @classmethod
    def start(
        cls, given: str, *, control_binaries: PostgresBinaries | None = None, core: int | None = None
    ) -> NamedServers:
        test = NamedServer(given)
        try:
            control = EmbeddedControl.start(binaries=control_binaries, core=core)
        except BaseException:
            test.close()
            raise
        return cls(test, control)

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
            stack.callback(self.test.close)


def _connect(parts: dict[str, str]) -> psycopg.Connection[Any]:
    wanted = {
        "connect_timeout": str(CONNECT_DEADLINE_S),
        "dbname": "postgres",
        **parts,
        "application_name": "fencepost-admin",
    }
    try:
        connection = psycopg.connect(with_parts(wanted), autocommit=True)
    except psycopg.Error as problem:
        raise UsageError(
            f"--pg dsn: the server cannot be reached: {_one_line(problem)}; check host, port, user, password "
            "and database of the connection string."
        ) from None  # the traceback would show the parts
    connection.execute(
        "SET idle_session_timeout = 0" if connection.info.server_version >= 140000 else "SELECT 1"
    )
    return connection


def _require_place(connection: psycopg.Connection[Any], parts: dict[str, str]) -> bool:
    """Whether databases can be made here; if not, the named one must be empty. Raises UsageError."""
    if connection.info.server_version // 10000 < OLDEST_MAJOR:
        raise UsageError(
            f"--pg dsn: the server is PostgreSQL {connection.info.parameter_status('server_version')}, which is "
            f"too old: name one from {OLDEST_MAJOR} on."
        )
    row = connection.execute(_MAY_CREATE).fetchone()
    if row and row[0]:
        return True
    if "dbname" not in parts:
        raise UsageError(
            f"--pg dsn: the role {connection.info.user} may not create databases: grant it CREATEDB, or name an "
            "empty database in the connection string."
        )
    given_database.require_empty(connection)
    return False


def _one_line(problem: psycopg.Error) -> str:
    return " ".join(str(problem).split()).rstrip(".?")
