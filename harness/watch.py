"""The runner's own session on the server under test: who waits for whom, and what everybody is doing."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import psycopg

from fencepost.harness.errors import StepDeadline
from fencepost.harness.history import Lock

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

_SESSIONS = """
SELECT pid, state, wait_event_type = 'Lock', (extract(epoch FROM query_start) * 1000000)::bigint
FROM pg_stat_activity
WHERE datname = current_database() AND application_name = %s
"""

_STILL_THERE = """
SELECT pid FROM pg_stat_activity
WHERE pid = ANY(%s) AND wait_event_type IS DISTINCT FROM 'Lock'
"""

# Not every session's lock on itself, nor those on indexes and catalogs: they tell nothing about who waits for whom.
_LOCKS = """
SELECT application_name, locktype, c.relname, mode, granted
FROM pg_locks l JOIN pg_stat_activity a USING (pid)
LEFT JOIN pg_class c ON c.oid = l.relation AND l.database = a.datid
WHERE datname = current_database() AND application_name LIKE 'fencepost:%'
  AND locktype <> 'virtualxid'
  AND (l.relation IS NULL OR (c.relkind IN ('r', 'p') AND c.relnamespace <> 'pg_catalog'::regnamespace))
ORDER BY application_name, NOT granted, locktype, c.relname, mode
"""

_END = """
SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
WHERE datname = current_database() AND application_name = ANY(%s)
"""


_POLL_S = 0.001


@dataclass(frozen=True, slots=True)
class SessionFacts:
    """One backend of an actor, as `pg_stat_activity` shows it."""

    pid: int
    state: str | None
    waits_for_lock: bool
    query_start_us: int | None

    @property
    def waits_for_its_client(self) -> bool:
        return self.state is not None and self.state.startswith("idle")


def actor_application_name(actor: str) -> str:
    return f"{ACTOR_PREFIX}{actor}"


class ServerWatch:
    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._orphans: frozenset[int] = frozenset()
        self._connection = self._connect()

    def _connect(self) -> psycopg.Connection[Any]:
        return psycopg.connect(
            self._dsn, autocommit=True, application_name="fencepost-runner", prepare_threshold=0
        )

    def reconnect(self) -> None:
        """After the server was restarted."""
        self._orphans = frozenset()
        self._connection.close()
        self._connection = self._connect()

    @property
    def has_orphans(self) -> bool:
        return bool(self._orphans)

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
        for name, pid, blocking_pids in rows:
            if pid in self._orphans:
                continue  # what waits there is nobody's call any more
            blockers = frozenset(actor_of[pid] for pid in blocking_pids or () if pid in actor_of)
            if blockers:
                waits[name.removeprefix(ACTOR_PREFIX)] = blockers
        return waits

    def locks(self) -> tuple[Lock, ...]:
        """What actors hold and wait for, for a person who looks at a blocked step."""
        rows = self._connection.execute(_LOCKS).fetchall()
        return tuple(
            Lock(name.removeprefix(ACTOR_PREFIX), kind, relation, mode, granted)
            for name, kind, relation, mode, granted in rows
        )

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

    def sessions(self, actor: str) -> tuple[SessionFacts, ...]:
        """An actor's backends, without those that have lost their client."""
        rows = self._connection.execute(_SESSIONS, (actor_application_name(actor),)).fetchall()
        facts = (SessionFacts(pid, state, bool(lock), start_us) for pid, state, lock, start_us in rows)
        return tuple(session for session in facts if session.pid not in self._orphans)

    def orphan(self, pids: Collection[int], deadline_s: float) -> None:
        """These backends have lost their client: wait until each is gone, or can go on only when others do."""
        # A backend whose client is gone ends when it notices; one that waits for a lock notices after that. Until
        # then it may still commit what it has: so it counts in every later step, too.
        self._orphans |= frozenset(pids)
        if not self._orphans:
            return
        deadline = time.monotonic() + deadline_s
        while self._moving(self._orphans):
            if time.monotonic() > deadline:
                raise StepDeadline(
                    f"waited {deadline_s:g} s for the server to end the backends "
                    f"{sorted(self._moving(self._orphans))} whose client is gone; the server: {self.describe()}"
                )
            time.sleep(_POLL_S)
        rows = self._connection.execute(
            "SELECT pid FROM pg_stat_activity WHERE pid = ANY(%s)", (list(self._orphans),)
        ).fetchall()
        self._orphans = frozenset(pid for (pid,) in rows)

    def _moving(self, pids: Collection[int]) -> list[int]:
        return [pid for (pid,) in self._connection.execute(_STILL_THERE, (list(pids),)).fetchall()]

    def end_backends(self, actors: Collection[str]) -> None:
        self._connection.execute(_END, ([actor_application_name(actor) for actor in actors],))

    def close(self) -> None:
        self._connection.close()
