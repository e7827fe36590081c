"""The structured log of a run: what happened to leases, in order, read off its trace."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from fencepost.harness.trace.format import Trace

Event = dict[str, Any]

SETTLING = frozenset({"complete", "fail", "heartbeat"})


def events(trace: Trace) -> Iterator[Event]:
    """One object per event, `event` first. The run's own drain is not part of the story."""
    before: Mapping[str, Any] = trace.header["first_observation"]
    for step in trace.steps:
        if not step.get("drain"):
            yield from _of_step(step, before)
        before = step["after"]


def _of_step(step: Mapping[str, Any], before: Mapping[str, Any]) -> Iterator[Event]:
    match step["kind"]:
        case "call" | "freed" if "reply" in step:
            yield from _of_reply(step)
        case "clock":
            yield from _of_expiry(step, before)
        case "exit":
            yield {
                "event": "worker_exit",
                "worker": step["actor"],
                "reason": step["detail"]["reason"],
            }


def _of_reply(step: Mapping[str, Any]) -> Iterator[Event]:
    worker, reply = step["actor"], step["reply"]
    for claim in reply.get("claims", ()):
        lease = {"job_id": claim["job"], "worker": worker, "token": claim["token"]}
        yield {"event": "lease_acquired", **lease}
        yield {"event": "execution_started", **lease}
    if step["operation"] in SETTLING and reply["outcome"] == "refused":
        for claim in step["claims"]:
            yield {
                "event": "stale_write_blocked",
                "job_id": claim["job"],
                "worker": worker,
                "stale_token": claim["token"],
                "current_token": reply.get("current_token"),
                "reason": reply.get("reason"),
            }


def _of_expiry(step: Mapping[str, Any], before: Mapping[str, Any]) -> Iterator[Event]:
    after = {job["job"]: job for job in step["after"]["jobs"]}
    for job in before["jobs"]:
        until_us = job.get("lease_until_us")
        if until_us is None or until_us <= before["at_us"]:
            continue
        now = after.get(job["job"], {})
        if now.get("lease_until_us", 0) <= step["after"]["at_us"]:
            yield {
                "event": "lease_expired",
                "job_id": job["job"],
                "worker": job.get("holder"),
                "token": job.get("token"),
                "how": step["clock"]["how"],
            }
