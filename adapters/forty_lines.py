"""A whole queue and its adapter, to start from: docs/adapters.md walks through it."""

import psycopg
from psycopg.types.json import Json

from fencepost.harness.adapter import Answer, Capability, Claim, JobState, JobView, Observation

SCHEMA = """CREATE TABLE IF NOT EXISTS tasks (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, payload jsonb,
    done boolean NOT NULL DEFAULT false, token bigint NOT NULL DEFAULT 0, owner text, leased_until timestamptz)"""
CLAIM = """UPDATE tasks SET token = token + 1, owner = %s, leased_until = clock_timestamp() + %s * interval '1 s'
    WHERE id = (SELECT id FROM tasks WHERE NOT done AND (leased_until IS NULL OR leased_until <= clock_timestamp())
                ORDER BY id FOR UPDATE SKIP LOCKED LIMIT 1) RETURNING id, token"""
LOCK = "SELECT FROM tasks WHERE id = %s FOR UPDATE"
JUDGE = "SELECT token, NOT done AND leased_until > clock_timestamp() FROM tasks WHERE id = %s"
OBSERVE = """SELECT (extract(epoch FROM clock_timestamp()) * 1e6)::bigint, coalesce(json_agg(json_build_array(id,
    CASE WHEN done THEN 'succeeded' WHEN leased_until IS NULL THEN 'ready' ELSE 'leased' END,
    token, owner, (extract(epoch FROM leased_until) * 1e6)::bigint) ORDER BY id), '[]') FROM tasks"""


class Worker:
    def __init__(self, name, dsn):
        self.name, self.db = name, psycopg.connect(dsn, autocommit=True)

    def enqueue(self, payload):
        row = self.db.execute(
            "INSERT INTO tasks (payload) VALUES (%s) RETURNING id", (Json(payload),)
        ).fetchone()
        return str(row[0])

    def claim(self, ttl_s):
        with self.db.transaction():
            row = self.db.execute(CLAIM, (self.name, ttl_s)).fetchone()
        return Claim(str(row[0]), token=row[1]) if row else None

    def complete(self, claim, result=None):
        return self._settle(
            claim, "UPDATE tasks SET done = true, owner = NULL, leased_until = NULL WHERE id = %s"
        )

    def fail(self, claim, error):
        return self._settle(claim, "UPDATE tasks SET owner = NULL, leased_until = NULL WHERE id = %s")

    def _settle(self, claim, update):
        with self.db.transaction():
            self.db.execute(LOCK, (claim.job,))
            token, live = self.db.execute(JUDGE, (claim.job,)).fetchone()
            if token != claim.token or not live:
                reason = "token_mismatch" if token != claim.token else "lease_expired"
                return Answer.refused(reason, current_token=token)
            self.db.execute(update, (claim.job,))
            return Answer.accepted()

    def close(self):
        self.db.close()


class FortyLines:
    name = "forty_lines"
    capabilities = frozenset({Capability.FENCING, Capability.CONSECUTIVE_TOKENS, Capability.CLOCK})

    def install(self, dsn):
        with psycopg.connect(dsn) as db:
            db.execute(SCHEMA)

    def worker(self, actor, dsn):
        return Worker(actor.worker_name, dsn)

    def observe(self, dsn):
        with psycopg.connect(dsn) as db:
            at_us, rows = db.execute(OBSERVE).fetchone()
        jobs = (JobView(str(i), JobState(s), token=t, holder=o, lease_until_us=u) for i, s, t, o, u in rows)
        return Observation(at_us, tuple(jobs))

    def reset(self, dsn):
        with psycopg.connect(dsn) as db:
            db.execute("DELETE FROM tasks")
