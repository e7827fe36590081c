"""The runner's own session on the server under test: who waits for whom, and what everybody is doing."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import psycopg

ACTOR_PREFIX = "fencepost:"
"""Actors' sessions carry their name in `application_name`, so the server itself says whose a backend is."""

_WAITS = """
SELECT application_name, pid,
       CASE WHEN wait_event_type = 'Lock' THEN pg_blocking_pids(pid) END
FROM pg_stat_activity
WHERE datname = current_database() AND application_name LIKE 'fencepost:%'
"""

_ACTIVITY = """
SELECT application_name, pid, state, wait_event_type, wait_event, left(query, 120),
       pg_blocking_pids(pid)
FROM pg_stat_activity
WHERE datname = current_database() AND application_name LIKE 'fencepost:%'
ORDER BY application_name, pid
"""

_END = """
SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
WHERE datname = current_database() AND application_name = ANY(%s)
"""


def actor_application_name(actor: str) -> str:
    return f"{ACTOR_PREFIX}{actor}"


class ServerWatch:
    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._connection = self._connect()

    def _connect(self) -> psycopg.Connection[Any]:
        return psycopg.connect(
            self._dsn, autocommit=True, application_name="fencepost-runner", prepare_threshold=0
        )

    def reconnect(self) -> None:
        """After the server was restarted."""
        self._connection.close()
        self._connection = self._connect()

    def now_us(self) -> int:
        row = self._connection.execute(
            "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint"
        ).fetchone()
        assert row is not None
        return int(row[0])

    def waits(self) -> Mapping[str, frozenset[str]]:
        """Each actor that waits for a lock, with the actors that hold it. Other sessions do not count."""
        rows = self._connection.execute(_WAITS).fetchall()
        actor_of = {pid: name.removeprefix(ACTOR_PREFIX) for name, pid, _ in rows}
        waits: dict[str, frozenset[str]] = {}
        for name, _, blocking_pids in rows:
            blockers = frozenset(actor_of[pid] for pid in blocking_pids or () if pid in actor_of)
            if blockers:
                waits[name.removeprefix(ACTOR_PREFIX)] = blockers
        return waits

    def describe(self) -> str:
        """What `pg_stat_activity` says of every actor, for the message of a deadline."""
        rows = self._connection.execute(_ACTIVITY).fetchall()
        if not rows:
            return "the server has no session of any actor"
        return "; ".join(
            f"{name.removeprefix(ACTOR_PREFIX)} (pid {pid}): {state or 'no state'}"
            + (f", waits on {wait_type}/{wait}" if wait_type else "")
            + (f", blocked by pids {blockers}" if blockers else "")
            + f", query: {query!r}"
            for name, pid, state, wait_type, wait, query, blockers in rows
        )

    def end_backends(self, actors: Collection[str]) -> None:
        self._connection.execute(_END, ([actor_application_name(actor) for actor in actors],))

    def close(self) -> None:
        self._connection.close()
