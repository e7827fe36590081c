"""Single backends of a server, as the server itself tells of them."""

from __future__ import annotations

from typing import Any

import psycopg

from fencepost.harness.postgres.provider import FAULT_DEADLINE_S, FaultDidNotHappen

_KIND = "SELECT backend_type, application_name FROM pg_stat_activity WHERE pid = %s"


def require_client_backend(connection: psycopg.Connection[Any], pid: int) -> None:
    """A fault on one backend is for a client's: without its checkpointer a server does something else."""
    row = connection.execute(_KIND, (pid,)).fetchone()
    if row is None:
        raise FaultDidNotHappen(f"the server has no backend with process id {pid}: its session is over")
    if row[0] not in (None, "client backend"):
        raise FaultDidNotHappen(f"process {pid} is the server's {row[0]}, not a client's backend")
    if pid == connection.info.backend_pid:
        raise FaultDidNotHappen(f"process {pid} is the session that was to inject the fault")


def terminate_backend(connection: psycopg.Connection[Any], pid: int) -> None:
    """`pg_terminate_backend`, and waits until the backend has left."""
    require_client_backend(connection, pid)
    row = connection.execute(
        "SELECT pg_terminate_backend(%s, %s)", (pid, round(FAULT_DEADLINE_S * 1000))
    ).fetchone()
    if row is None or row[0] is not True:
        raise FaultDidNotHappen(
            f"backend {pid} was told to end and is still there after {FAULT_DEADLINE_S:g} s"
        )
