"""What every provider's crashes are tried with: acknowledged rows, an open transaction, a session that watches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest

from fencepost.harness.postgres.provider import ServerFault, ServerUnderTest

ACKNOWLEDGED = 80

WHOLE_SERVER = [
    ServerFault.CRASH,
    ServerFault.KILL_POSTMASTER,
    ServerFault.KILL_ALL,
    ServerFault.KILL_BACKEND,
    ServerFault.FAST_RESTART,
    ServerFault.REFUSE_CONNECTIONS,
]
"""The faults after which no session is left."""


def inject(server: ServerUnderTest, fault: ServerFault, victim: int) -> None:
    """The fault, with the server accepting connections again afterwards."""
    if fault in (ServerFault.KILL_BACKEND, ServerFault.TERMINATE_BACKEND):
        getattr(server, fault)(victim)
    else:
        getattr(server, fault)()
    if fault is ServerFault.REFUSE_CONNECTIONS:
        server.accept_connections()


@contextmanager
def session(server: ServerUnderTest, database: str) -> Iterator[psycopg.Connection[Any]]:
    connection = psycopg.connect(server.dsn(database), autocommit=True)
    try:
        yield connection
    finally:
        connection.close()


def count(server: ServerUnderTest, database: str) -> tuple[int, int]:
    """Acknowledged and unacknowledged rows."""
    with session(server, database) as connection:
        row = connection.execute(
            "SELECT count(*) FILTER (WHERE n < %(n)s), count(*) FILTER (WHERE n >= %(n)s) FROM kept",
            {"n": ACKNOWLEDGED},
        ).fetchone()
    assert row is not None
    return row[0], row[1]


def committed_stays_uncommitted_goes(
    server: ServerUnderTest, database: str, fault: Callable[[int], None]
) -> None:
    """Eighty rows committed one by one, one more written and not committed, then the fault."""
    with session(server, database) as victim, session(server, database) as writer:
        writer.execute("DROP TABLE IF EXISTS kept")
        writer.execute("CREATE TABLE kept (n int PRIMARY KEY)")
        for n in range(ACKNOWLEDGED):
            writer.execute("INSERT INTO kept VALUES (%s)", (n,))
        writer.execute("BEGIN")
        writer.execute("INSERT INTO kept VALUES (%s)", (ACKNOWLEDGED,))
        fault(victim.info.backend_pid)
        with pytest.raises(psycopg.OperationalError):
            writer.execute("COMMIT")
        with pytest.raises(psycopg.OperationalError):
            victim.execute("SELECT 1")
    assert count(server, database) == (ACKNOWLEDGED, 0)
