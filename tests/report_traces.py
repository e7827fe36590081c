"""Traces made by hand, for tests and figures of reports: no server had a part in them."""

from __future__ import annotations

from typing import Any

from fencepost.harness.trace import Trace

START_US = 1_800_000_000_000_000
TTL_US = 60_000_000
INVARIANTS = ("ledger_once", "fence", "token_monotone", "single_holder", "no_lost_job", "requeued_once")


class Rows:
    """Jobs and ledger as a queue would have them; `seen()` is the observation of this moment."""

    def __init__(self) -> None:
        self.now_us = START_US
        self.jobs: dict[str, dict[str, Any]] = {}
        self.ledger: list[dict[str, Any]] = []

    def seen(self) -> dict[str, Any]:
        self.now_us += 1_500
        jobs = [dict(job) for job in self.jobs.values()]
        return {"at_us": self.now_us, "jobs": jobs, "ledger": [dict(entry) for entry in self.ledger]}


class Story:
    """Writes a trace step by step. Each method is one step of one call that answers at once."""

    def __init__(self, name: str = "told_by_hand", queue: str = "reference") -> None:
        self.rows = Rows()
        self.steps: list[dict[str, Any]] = []
        self.header: dict[str, Any] = {
            "fencepost_trace": 1,
            "tool": "fencepost 0.1.0",
            "scenario": {"name": name, "family": "made", "sentence": "A race told by hand.", "chosen": {}},
            "queue": {"name": queue, "path": f"made:{queue}", "capabilities": ["FENCING", "LEDGER"]},
            "server": {"provider": "embedded", "version": "18.4"},
            "actors": "thread",
            "clock": "clock",
            "first_observation": self.rows.seen(),
        }
        self._calls = 0

    def step(self, kind: str, **fields: Any) -> dict[str, Any]:
        made = {"n": len(self.steps) + 1, "kind": kind, **fields}
        made.setdefault("exercised", ["no_lost_job"])
        made["after"] = self.rows.seen()
        self.steps.append(made)
        return made

    def call(self, actor: str, operation: str, reply: dict[str, Any], **fields: Any) -> dict[str, Any]:
        self._calls += 1
        return self.step(
            "call",
            **{
                "actor": actor,
                "call": self._calls,
                "operation": operation,
                "arguments": {},
                "claims": [],
                "started": True,
                "status": "answered",
                "passed": [],
                "reply": reply,
                **fields,
            },
        )

    def enqueue(self, job: str = "1", payload: Any = None) -> dict[str, Any]:
        self.rows.jobs[job] = {
            "job": job,
            "state": "ready",
            "token": 0,
            "attempts": 0,
            "payload": payload or {},
        }
        return self.call(
            "P", "enqueue", {"outcome": "accepted", "job": job}, arguments={"payload": payload or {}}
        )

    def claim(self, actor: str, job: str = "1") -> dict[str, Any]:
        row = self.rows.jobs[job]
        row |= {
            "state": "leased",
            "token": row["token"] + 1,
            "attempts": row["attempts"] + 1,
            "holder": actor,
            "lease_until_us": self.rows.now_us + TTL_US,
        }
        claim = {"job": job, "token": row["token"], "lease_until_us": row["lease_until_us"]}
        self.call(actor, "claim", {"outcome": "accepted", "claims": [claim]}, arguments={"ttl_s": 60.0})
        return claim

    def heartbeat(self, actor: str, claim: dict[str, Any]) -> dict[str, Any]:
        self.rows.jobs[claim["job"]]["lease_until_us"] = self.rows.now_us + TTL_US
        return self.call(actor, "heartbeat", {"outcome": "accepted"}, claims=[claim])

    def advance(self, seconds: float, job: str | None = None) -> dict[str, Any]:
        self.rows.now_us += round(seconds * 1_000_000)
        detail = {"past_lease_of": job} if job else {"seconds": seconds}
        return self.step("clock", clock={"how": "clock", "moved_s": seconds}, detail=detail)

    def complete(self, actor: str, claim: dict[str, Any], **fields: Any) -> dict[str, Any]:
        """Accepted, whatever the rows say."""
        row = self.rows.jobs[claim["job"]]
        row["state"] = "succeeded"
        row.pop("holder", None)
        row.pop("lease_until_us", None)
        self.rows.ledger.append({"job": claim["job"], "token": claim["token"], "worker": actor})
        return self.call(actor, "complete", {"outcome": "accepted"}, claims=[claim], **fields)

    def refuse(self, actor: str, claim: dict[str, Any]) -> dict[str, Any]:
        current = self.rows.jobs[claim["job"]]["token"]
        reply = {"outcome": "refused", "reason": "token_mismatch", "current_token": current}
        return self.call(actor, "complete", reply, claims=[claim])

    def trace(self, verdict: str = "pass", **end: Any) -> Trace:
        broken = end.get("violations", ())
        return Trace(
            self.header,
            tuple(self.steps),
            {
                "verdict": verdict,
                "reasons": [
                    f"{v['invariant']} broken at step {v['step']}: {v['message']} (job {v['job']})"
                    for v in broken
                ],
                "violations": [],
                "invariants": {
                    name: {
                        "evaluated": len(self.steps),
                        "exercised": sum(name in step["exercised"] for step in self.steps),
                    }
                    for name in INVARIANTS
                },
                "witnesses": [{"sentence": "a live lease expired when the clock was moved", "seen": True}],
                "journal": [],
                "elapsed_ms": 12.5,
                **end,
            },
        )


def survived(name: str = "told_by_hand", queue: str = "reference") -> Trace:
    story = Story(name, queue)
    story.enqueue()
    stale = story.claim("A")
    story.advance(60, "1")
    fresh = story.claim("B")
    story.complete("B", fresh)
    story.refuse("A", stale)["exercised"] = ["fence", "no_lost_job"]
    return story.trace()


def broken(name: str = "told_by_hand", queue: str = "broken_twin") -> Trace:
    story = Story(name, queue)
    story.header["queue"]["twin"] = {"of": "reference", "sentence": "No guard.", "breaks": "fence"}
    story.enqueue()
    stale = story.claim("A")
    story.advance(60, "1")
    fresh = story.claim("B")
    story.complete("B", fresh)
    late = story.complete("A", stale, violated=["ledger_once", "fence"], exercised=["ledger_once", "fence"])
    message = "A wrote to the ledger under token 1 while 2 was current"
    return story.trace(
        "fail",
        violations=[
            {"invariant": "ledger_once", "job": "1", "step": late["n"], "message": "it has 2 ledger entries"},
            {"invariant": "fence", "job": "1", "step": late["n"], "message": message},
        ],
    )


def everything() -> Trace:
    """Every kind of step, status and optional field the format has."""
    story = Story("everything")
    story.header |= {
        "network": "gate",
        "step": "statement",
        "schedule": "A.claim clock+60 B.claim",
        "replay": "fencepost replay 'A.claim clock+60 B.claim'",
        "seed": 42,
    }
    story.header["scenario"]["source"] = {
        "file": "test_made.py",
        "first_line": 10,
        "text": "def everything(race):\n    job = race.enqueue()\n    a.claim(job)\n",
    }
    story.enqueue(payload={"order": 7})["line"] = "test_made.py:11"
    stale = story.claim("A")
    story.steps[-1] |= {
        "line": "test_made.py:12",
        "statements": [
            {
                "n": 1,
                "sql": "SELECT id FROM jobs WHERE state = $1 FOR UPDATE SKIP LOCKED",
                "parameters": ["ready", None],
                "answer": "SELECT 1",
                "pid": 4711,
            },
            {"n": 2, "sql": "COMMIT", "parameters": [], "answer": "lost", "pid": None},
        ],
    }
    held = {"claims": [stale], "status": "parked", "checkpoint": "after_guard"}
    parked = story.call("A", "complete", {}, **held)
    del parked["reply"]
    waiting = story.call("B", "claim", {}, status="blocked", blocked_by=["A"])
    del waiting["reply"]
    waiting["locks"] = [
        {"actor": "A", "relation": "job", "mode": "RowShareLock", "granted": True},
        {"actor": "B", "type": "transactionid", "mode": "ShareLock", "granted": False},
    ]
    story.step("fault", fault="pause", actor="C", detail={"seconds": 5})
    cut = story.call("C", "heartbeat", {}, claims=[stale], status="cut_off")
    del cut["reply"]
    story.step("fault", fault="crash", detail={"how": "SIGKILL"})
    story.advance(60, "1")
    story.rows.jobs["1"] |= {"state": "succeeded"}
    story.rows.jobs["1"].pop("holder")
    story.rows.ledger.append({"job": "1", "token": 1, "worker": "A"})
    on = story.call("A", "complete", {"outcome": "accepted"}, claims=[stale], started=False)
    on["call"] = parked["call"]
    freed = story.call("B", "claim", {"outcome": "accepted"}, started=False)
    freed |= {"call": waiting["call"], "kind": "freed"}
    story.call("B", "reap", {"outcome": "accepted", "count": 0})
    story.call(
        "B", "claim", {"outcome": "unknown", "error": "08006", "message": "server closed the connection"}
    )
    story.call("B", "fail", {"outcome": "refused", "error": "40001", "message": "could not serialize"})
    story.step("exit", actor="B", detail={"reason": "success"})
    story.step("end", drain=True)
    return story.trace()


def long(steps: int, jobs: int = 40) -> Trace:
    """A run of about so many steps: workers take, renew, lose and finish jobs; one late write near its end breaks."""
    story = Story("long_run")
    workers = ["A", "B", "C", "D"]
    job, late = 0, None
    while len(story.steps) < steps - 1:
        job += 1
        name = str(job)
        worker, other = workers[job % 4], workers[(job + 1) % 4]
        story.enqueue(name, {"order": job})
        stale = story.claim(worker, name)
        story.heartbeat(worker, stale)
        if job % 5 == 0:
            story.advance(61, name)
            fresh = story.claim(other, name)
            story.complete(other, fresh)
            story.refuse(worker, stale)["exercised"] = ["fence"]
            late = (worker, stale)
        else:
            story.complete(worker, stale)
        if len(story.rows.jobs) > jobs:  # a queue that deletes what is long done
            gone = next(iter(story.rows.jobs))
            del story.rows.jobs[gone]
            story.rows.ledger = [entry for entry in story.rows.ledger if entry["job"] != gone]
    assert late is not None
    worker, stale = late
    if stale["job"] not in story.rows.jobs:
        story.enqueue(stale["job"])
        story.rows.jobs[stale["job"]]["token"] = 2
    last = story.complete(worker, stale, violated=["fence"], exercised=["fence"])
    message = f"{worker} wrote to the ledger under token 1 while 2 was current"
    return story.trace(
        "fail",
        violations=[{"invariant": "fence", "job": stale["job"], "step": last["n"], "message": message}],
    )


def hostile() -> Trace:
    """Text in every place a queue or an error can put some, in the shapes that break out of pages."""
    bad = "</script><img src=x onerror=\"document.title='owned'\"><svg onload=alert(1)>"
    quoted = "\"><b>{{ 7*7 }}</b>' onmouseover='x' <!-- \u2028 ]]> javascript:alert(1)"
    story = Story(f"hostile[{bad}]", queue=quoted)
    story.header["scenario"]["sentence"] = bad
    story.header["replay"] = f"pytest '{bad}'"
    story.header["schedule"] = quoted
    story.header["scenario"]["source"] = {"file": "x.py", "first_line": 1, "text": f"race({bad!r})\n{quoted}"}
    story.enqueue(payload={"html": bad, "quote": quoted, "lone": "\ud800"})["line"] = "x.py:1"
    claim = story.claim("A")
    story.steps[-1]["statements"] = [
        {"n": 1, "sql": f"SELECT '{bad}'", "parameters": [bad, quoted], "answer": bad, "pid": 1}
    ]
    story.steps[-1]["locks"] = [{"actor": "A", "relation": bad, "mode": quoted, "granted": True}]
    story.call(
        "A",
        "complete",
        {"outcome": "refused", "reason": quoted, "error": bad, "message": bad},
        claims=[claim],
    )
    story.step("fault", fault=bad, actor="A", detail={bad: quoted})
    story.step("exit", actor="A", detail={"reason": bad})
    return story.trace(
        "fail",
        reasons=[bad],
        violations=[{"invariant": "fence", "job": "1", "step": 3, "message": bad}],
        witnesses=[{"sentence": quoted, "seen": False}],
    )
