"""The control server's two services: barriers (advisory locks) and the journal of effects.

They live on a server of their own that no fault and no clock move touches: advisory locks die with their
server, so barriers on the server under test would open at a crash.
"""

from __future__ import annotations

from typing import Any

import psycopg

from fencepost.harness.adapter import JobId
from fencepost.harness.history import Execution

BARRIER_DEADLINE_S = 300
"""An actor held longer than this is given up by the control server: the run that held it is gone or stuck."""

RAISE_DEADLINE_S = 10
"""A new barrier's key is nobody's, so raising it waits for nothing; a wait here is a bug and must end."""

_JOURNAL = """
CREATE UNLOGGED TABLE IF NOT EXISTS journal (
    seq bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    race bigint NOT NULL,
    actor text NOT NULL,
    job text NOT NULL,
    token bigint
)
"""


class BarrierAbandoned(Exception):
    """The barrier's deadline passed while an actor waited at it."""


class ControlSession:
    """An actor's side: waits at barriers, writes the journal."""

    def __init__(self, dsn: str, *, application_name: str) -> None:
        self._connection: psycopg.Connection[Any] = psycopg.connect(
            dsn,
            autocommit=True,
            application_name=application_name,
            options=f"-c lock_timeout={BARRIER_DEADLINE_S * 1000}",
            prepare_threshold=0,
        )

    def wait_at_barrier(self, key: int) -> None:
        """Returns when the runner opens the barrier. Shared, so that several actors may wait at one."""
        try:
            self._connection.execute("SELECT pg_advisory_lock_shared(%s)", (key,))
        except psycopg.errors.LockNotAvailable as error:
            raise BarrierAbandoned(f"held for more than {BARRIER_DEADLINE_S} s") from error
        self._connection.execute("SELECT pg_advisory_unlock_shared(%s)", (key,))

    def record_execution(self, race: int, actor: str, job: JobId, token: int | None) -> None:
        self._connection.execute(
            "INSERT INTO journal (race, actor, job, token) VALUES (%s, %s, %s, %s)", (race, actor, job, token)
        )

    def close(self) -> None:
        self._connection.close()


class Control:
    """The runner's side: owns the barriers, sees who is parked, reads the journal.

    One per control server: barrier keys and race numbers are counted here, and two counters would mix them up.
    """

    def __init__(self, dsn: str) -> None:
        self._connection: psycopg.Connection[Any] = psycopg.connect(
            dsn,
            autocommit=True,
            application_name="fencepost-runner",
            options=f"-c lock_timeout={RAISE_DEADLINE_S * 1000}",
            prepare_threshold=0,
        )
        self._connection.execute(_JOURNAL)
        self._last_key = 0
        self._last_race = 0

    def next_race(self) -> int:
        self._last_race += 1
        return self._last_race

    def raise_barrier(self) -> int:
        self._last_key += 1
        self._connection.execute("SELECT pg_advisory_lock(%s)", (self._last_key,))
        return self._last_key

    def open_barrier(self, key: int) -> None:
        self._connection.execute("SELECT pg_advisory_unlock(%s)", (key,))

    def open_all_barriers(self) -> None:
        self._connection.execute("SELECT pg_advisory_unlock_all()")

    def is_parked(self, key: int) -> bool:
        """Whether somebody waits at this barrier now: a row of pg_locks, not a guess."""
        row = self._connection.execute(
            "SELECT EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
            " AND classid = %s AND objid = %s AND objsubid = 1)",
            (key >> 32, key & 0xFFFFFFFF),
        ).fetchone()
        return bool(row and row[0])

    def executions(self, race: int) -> tuple[Execution, ...]:
        rows = self._connection.execute(
            "SELECT seq, actor, job, token FROM journal WHERE race = %s ORDER BY seq", (race,)
        ).fetchall()
        return tuple(
            Execution(index, actor, job, token) for index, (_, actor, job, token) in enumerate(rows, 1)
        )

    def close(self) -> None:
        self._connection.close()
