"""A short queue that keeps its promises, and adapters of it that tell little: of leases, or of what is over."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg.types.json import Json as AsJson

from fencepost.harness.adapter import (
    ActorSeat,
    Answer,
    Capability,
    Claim,
    ConnectionCache,
    JobId,
    JobState,
    JobView,
    Json,
    LedgerEntry,
    Observation,
)

SCHEMA = """
CREATE TABLE IF NOT EXISTS tasks (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, payload jsonb, done boolean NOT NULL DEFAULT false,
    token bigint NOT NULL DEFAULT 0, owner text, leased_until timestamptz);
CREATE TABLE IF NOT EXISTS completions (task bigint NOT NULL, token bigint NOT NULL, worker text NOT NULL)
"""
CLAIM = """
UPDATE tasks SET token = token + 1, owner = %s, leased_until = clock_timestamp() + %s * interval '1 s'
WHERE id = (SELECT id FROM tasks WHERE NOT done AND (leased_until IS NULL OR leased_until <= clock_timestamp())
            ORDER BY id FOR UPDATE SKIP LOCKED LIMIT 1)
RETURNING id, token, (extract(epoch FROM leased_until) * 1e6)::bigint
"""
EXTEND = """
UPDATE tasks SET leased_until = greatest(leased_until, clock_timestamp() + %s * interval '1 s') WHERE id = %s
"""
JUDGE = "SELECT token, owner, NOT done AND leased_until > clock_timestamp() FROM tasks WHERE id = %s"
REAP = """
UPDATE tasks SET owner = NULL, leased_until = NULL
WHERE id IN (SELECT id FROM tasks WHERE NOT done AND leased_until <= clock_timestamp() FOR UPDATE SKIP LOCKED)
  AND leased_until <= clock_timestamp()
"""
OBSERVE = """
SELECT (extract(epoch FROM clock_timestamp()) * 1e6)::bigint,
    (SELECT coalesce(json_agg(json_build_array(id,
        CASE WHEN done THEN 'succeeded' WHEN leased_until IS NULL THEN 'ready' ELSE 'leased' END,
        token, owner, (extract(epoch FROM leased_until) * 1e6)::bigint) ORDER BY id), '[]') FROM tasks),
    (SELECT coalesce(json_agg(json_build_array(task, token, worker)), '[]') FROM completions)
"""


@dataclass(frozen=True)
class Tells:
    """What the adapter tells. What it does not tell the queue knows all the same, and goes by it."""

    tokens: bool = True
    holder: bool = True
    end_in_claim: bool = True
    end_in_rows: bool = True
    finished: bool = True  # or the row is deleted on completion
    ledger: bool = False


class SmallWorker:
    def __init__(self, tells: Tells, name: str, dsn: str, *, judges: bool) -> None:
        self._judges = judges
        self._tells, self._name = tells, name
        self._db = psycopg.connect(dsn, autocommit=True)

    def enqueue(self, payload: Json) -> JobId:
        row = self._db.execute(
            "INSERT INTO tasks (payload) VALUES (%s) RETURNING id", (AsJson(payload),)
        ).fetchone()
        assert row is not None
        return str(row[0])

    def claim(self, ttl_s: float) -> Claim | None:
        with self._db.transaction():
            row = self._db.execute(CLAIM, (self._name, ttl_s)).fetchone()
        if row is None:
            return None
        job, token, until_us = row
        told = token if self._tells.tokens else None
        return Claim(str(job), told, until_us if self._tells.end_in_claim else None)

    def heartbeat(self, claim: Claim, ttl_s: float) -> Answer:
        return self._write(claim, EXTEND, (ttl_s, claim.job))

    def complete(self, claim: Claim, result: Json = None) -> Answer:
        over = (
            "UPDATE tasks SET done = true, owner = NULL, leased_until = NULL WHERE id = %s"
            if self._tells.finished
            else "DELETE FROM tasks WHERE id = %s"
        )
        return self._write(claim, over, (claim.job,), completes=True)

    def fail(self, claim: Claim, error: str) -> Answer:
        return self._write(
            claim, "UPDATE tasks SET owner = NULL, leased_until = NULL WHERE id = %s", (claim.job,)
        )

    def _write(
        self, claim: Claim, update: str, values: tuple[Any, ...], *, completes: bool = False
    ) -> Answer:
        """Without tokens the holder's name has to do: it is another's once somebody else has the job."""
        with self._db.transaction():
            self._db.execute("SELECT FROM tasks WHERE id = %s FOR UPDATE", (claim.job,))
            row = self._db.execute(JUDGE, (claim.job,)).fetchone()
            if row is None:
                return Answer.refused("unknown_job")
            token, owner, live = row
            if self._judges and ((token != claim.token) if self._tells.tokens else (owner != self._name)):
                return Answer.refused("token_mismatch")
            if self._judges and not live:
                return Answer.refused("not_leased" if owner is None else "lease_expired")
            self._db.execute(update.encode(), values)
            if completes and self._tells.ledger:
                self._db.execute(
                    "INSERT INTO completions VALUES (%s, %s, %s)", (claim.job, token, self._name)
                )
        return Answer.accepted()

    def reap(self) -> int:
        with self._db.transaction():
            return self._db.execute(REAP).rowcount

    def close(self) -> None:
        self._db.close()


class SmallQueue:
    def __init__(self, name: str, tells: Tells, *, judges: bool = True) -> None:
        self.name = name
        self._tells = tells
        self._judges = judges
        self._connections = ConnectionCache()
        more = {Capability.FENCING, Capability.CONSECUTIVE_TOKENS} if tells.tokens else set()
        more |= {Capability.LEDGER} if tells.ledger else set()
        self.capabilities = frozenset({Capability.CLOCK, Capability.HEARTBEAT, Capability.REAPER} | more)

    def install(self, dsn: str) -> None:
        with psycopg.connect(dsn) as db:
            db.execute(SCHEMA)

    def worker(self, actor: ActorSeat, dsn: str) -> SmallWorker:
        return SmallWorker(self._tells, actor.worker_name, dsn, judges=self._judges)

    def observe(self, dsn: str) -> Observation:
        row = self._connections.get(dsn).execute(OBSERVE).fetchone()
        assert row is not None
        at_us, jobs, ledger = row
        entries = (
            LedgerEntry(str(job), token if self._tells.tokens else None, by) for job, token, by in ledger
        )
        return Observation(at_us, tuple(self._view(*job) for job in jobs), tuple(entries))

    def _view(self, job: int, state: str, token: int, owner: str | None, until_us: int | None) -> JobView:
        tells = self._tells
        return JobView(
            str(job),
            JobState(state),
            token=token if tells.tokens else None,
            holder=owner if tells.holder else None,
            lease_until_us=until_us if tells.end_in_rows else None,
        )

    def reset(self, dsn: str) -> None:
        self._connections.get(dsn).execute("DELETE FROM completions")
        self._connections.get(dsn).execute("DELETE FROM tasks")

    def close(self) -> None:
        self._connections.close()


tells_all = SmallQueue("tells_all", Tells(ledger=True))
end_in_claim = SmallQueue("end_in_claim", Tells(end_in_rows=False))
end_in_claim_no_holder = SmallQueue("end_in_claim_no_holder", Tells(end_in_rows=False, holder=False))
id_only = SmallQueue("id_only", Tells(tokens=False, holder=False, end_in_claim=False))
id_and_end = SmallQueue("id_and_end", Tells(tokens=False, holder=False, end_in_rows=False))
deletes = SmallQueue("deletes", Tells(finished=False))
deletes_with_ledger = SmallQueue("deletes_with_ledger", Tells(finished=False, ledger=True))
tells_least = SmallQueue("tells_least", Tells(tokens=False, holder=False, end_in_rows=False, finished=False))
