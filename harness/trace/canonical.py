"""The canonical form of a trace: what must be byte-identical in every run of the same scenario on the same queue.

Left out: wall and database times, durations, server version, kind of actors, addresses, texts of errors. Kept
instead of times: whether a lease is live or past, whether a job is due. Jobs, tokens and keys are renamed in order of
appearance, since a sequence goes on where the last run left it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from fencepost.harness.trace.format import Trace


def canonical(trace: Trace) -> bytes:
    names = _Names()
    lines: list[Any] = [
        {"scenario": trace.header["scenario"]["name"], "queue": trace.header["queue"]["name"]},
        _observation(trace.header["first_observation"], names),
        *(_step(step, names) for step in trace.steps),
        _end(trace.end, names),
    ]
    return "".join(json.dumps(line, sort_keys=True, separators=(",", ":")) + "\n" for line in lines).encode()


def canonical_hash(trace: Trace) -> str:
    return hashlib.sha256(canonical(trace)).hexdigest()


class _Names:
    def __init__(self) -> None:
        self._jobs: dict[str, str] = {}
        self._tokens: dict[tuple[str | None, int], str] = {}

    def job(self, job: str | None) -> str | None:
        if job is None:
            return None
        return self._jobs.setdefault(job, f"job{len(self._jobs) + 1}")

    def token(self, job: str | None, token: int | None) -> str | None:
        """A token is named by its order among the job's tokens: numbers may come from a shared sequence."""
        if token is None:
            return None
        of_job = sum(1 for known_job, _ in self._tokens if known_job == job)
        return self._tokens.setdefault((job, token), f"token{of_job}")


def _observation(observation: Mapping[str, Any], names: _Names) -> dict[str, Any]:
    at_us = observation["at_us"]
    return {
        "jobs": [_job(job, at_us, names) for job in observation["jobs"]],
        "ledger": [
            {
                "job": names.job(entry["job"]),
                "token": names.token(entry["job"], entry["token"]),
                "worker": entry["worker"],
            }
            for entry in observation["ledger"]
        ],
    }


def _job(job: Mapping[str, Any], at_us: int, names: _Names) -> dict[str, Any]:
    kept = {
        "job": names.job(job["job"]),
        "state": job["state"],
        "token": names.token(job["job"], job.get("token")),
        "requeued_from": names.job(job.get("requeued_from")),
    }
    for name in ("attempts", "max_attempts", "holder", "key", "places"):
        kept[name] = job.get(name)
    if "result" in job:
        kept["result"] = job["result"]
    lease_until_us = job.get("lease_until_us")
    if lease_until_us is not None:
        kept["lease"] = "live" if lease_until_us > at_us else "past"
    return kept


def _step(step: Mapping[str, Any], names: _Names) -> dict[str, Any]:
    kept = {
        name: step[name]
        for name in (
            "n",
            "kind",
            "actor",
            "call",
            "operation",
            "status",
            "checkpoint",
            "blocked_by",
            "passed",
            "worker_name",
            "fault",
            "drain",
            "violated",
        )
        if name in step
    }
    kept["claims"] = [_claim(claim, names) for claim in step.get("claims", ())]
    kept["arguments"] = _arguments(step.get("arguments", {}), names)
    if "reply" in step:
        acted_on = [claim["job"] for claim in step.get("claims", ())]
        kept["reply"] = _reply(step["reply"], acted_on, names)
    if "clock" in step:
        kept["clock"] = step["clock"]["how"]
    if "detail" in step:
        kept["detail"] = _arguments(step["detail"], names)
    kept["after"] = _observation(step["after"], names)
    return kept


def _claim(claim: Mapping[str, Any], names: _Names) -> dict[str, Any]:
    return {"job": names.job(claim["job"]), "token": names.token(claim["job"], claim.get("token"))}


def _arguments(arguments: Mapping[str, Any], names: _Names) -> dict[str, Any]:
    kept = {
        name: names.job(value) if name in ("job", "past_lease_of") else value
        for name, value in arguments.items()
        if name != "url"  # of an outside system, on whichever port was free
    }
    if "past_lease_of" in kept and "token" in kept:
        kept["token"] = names.token(arguments["past_lease_of"], arguments["token"])
    return kept


def _reply(reply: Mapping[str, Any], acted_on: Sequence[str], names: _Names) -> dict[str, Any]:
    job = acted_on[0] if len(acted_on) == 1 else None
    return {
        "outcome": reply["outcome"],
        "reason": reply.get("reason"),
        "error": reply.get("error"),
        "repeated": reply.get("repeated", False),
        "count": reply.get("count"),
        "job": names.job(reply.get("job")),
        "current_token": names.token(job, reply.get("current_token")) if job else None,
        "claims": [_claim(claim, names) for claim in reply.get("claims", ())],
        "items": [
            _reply(item, [acted], names)
            for item, acted in zip(reply.get("items", ()), acted_on, strict=False)
        ],
    }


def _end(end: Mapping[str, Any], names: _Names) -> dict[str, Any]:
    return {
        "verdict": end["verdict"],
        "violations": [
            {"invariant": v["invariant"], "job": names.job(v["job"]), "step": v["step"]}
            for v in end["violations"]
        ],
        "witnesses": end["witnesses"],
        "invariants": end["invariants"],
        "journal": [
            {
                "actor": entry["actor"],
                "job": names.job(entry["job"]),
                "token": names.token(entry["job"], entry["token"]),
            }
            for entry in end["journal"]
        ],
    }
