"""A queue whose rows and tokens go by other names in every run: made up by the server, or counted on for ever."""

from __future__ import annotations

from typing import Any

import psycopg

from fencepost.adapters import forty_lines
from fencepost.harness.adapter import ActorSeat, Capability, ConnectionCache, JobState, JobView, Observation
from fencepost.queue_impl.reference.adapter import ReferenceAdapter

SCHEMA = """
CREATE SEQUENCE IF NOT EXISTS token INCREMENT 7;
CREATE TABLE IF NOT EXISTS tasks (id uuid PRIMARY KEY DEFAULT gen_random_uuid(), payload jsonb,
    done boolean NOT NULL DEFAULT false, token bigint NOT NULL DEFAULT 0, owner text, leased_until timestamptz)
"""
TAKE_TOKEN = "SELECT nextval('token')"
CLAIM = forty_lines.CLAIM.replace("token = token + 1", "token = %s")


class NamelessWorker(forty_lines.Worker):
    def claim(self, ttl_s: float) -> Any:
        token = self.db.execute(TAKE_TOKEN).fetchone()[0]
        with self.db.transaction():
            row = self.db.execute(CLAIM.encode(), (token, self.name, ttl_s)).fetchone()
        return forty_lines.Claim(str(row[0]), token=row[1]) if row else None


class Nameless:
    name = "nameless"
    capabilities = frozenset({Capability.FENCING, Capability.CLOCK})

    def __init__(self) -> None:
        self._connections = ConnectionCache()

    def install(self, dsn: str) -> None:
        with psycopg.connect(dsn) as db:
            db.execute(SCHEMA.encode())

    def worker(self, actor: ActorSeat, dsn: str) -> NamelessWorker:
        return NamelessWorker(actor.worker_name, dsn)

    def observe(self, dsn: str) -> Observation:
        row = self._connections.get(dsn).execute(forty_lines.OBSERVE.encode()).fetchone()
        assert row is not None
        at_us, rows = row
        return Observation(
            at_us,
            tuple(JobView(j, JobState(s), token=t, holder=o, lease_until_us=u) for j, s, t, o, u in rows),
        )

    def reset(self, dsn: str) -> None:
        self._connections.get(dsn).execute("DELETE FROM tasks")

    def close(self) -> None:
        self._connections.close()


class ForgetsAtFirst(ReferenceAdapter):
    """Loses sight of the jobs of its first few orders, and of none later: nothing it broke breaks again."""

    def __init__(self, orders: int) -> None:
        super().__init__(f"forgets_{orders}")
        self._left = orders + 1

    def reset(self, dsn: str) -> None:
        self._left -= 1
        super().reset(dsn)

    def observe(self, dsn: str) -> Observation:
        seen = super().observe(dsn)
        leased = any(view.state is JobState.LEASED for view in seen.jobs)
        return Observation(seen.at_us) if self._left > 0 and leased else seen


forgets_one = ForgetsAtFirst(1)
forgets_three = ForgetsAtFirst(3)
