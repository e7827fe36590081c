"""The verdict of a run in one sentence, and the step a reader should see first."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from fencepost.harness.trace import Trace
from fencepost.reports.words import refusal_meaning

MOST_TELLING = ("fence", "ledger_once", "single_holder", "token_monotone", "heartbeat_honoured")
"""Where one step broke several invariants, the first of these says best what happened."""

WRITES = frozenset({"complete", "fail", "heartbeat"})
TERMINAL = frozenset({"succeeded", "failed", "cancelled"})


def lateness(step: Mapping[str, Any], before: Mapping[str, Any]) -> str | None:
    """How late an answered write came: `stale` (another token is current), `expired`, or None for in time."""
    if step.get("operation", "").removesuffix("_batch") not in WRITES or "reply" not in step:
        return None
    rows = {job["job"]: job for job in before["jobs"]}
    found = None
    for claim in step.get("claims", ()):
        row = rows.get(claim["job"])
        if row is None:
            continue
        if claim.get("token") is not None and row.get("token") not in (None, claim["token"]):
            return "stale"
        if claim.get("token") is None and row.get("holder") not in (
            None,
            step.get("worker_name", step["actor"]),
        ):
            return "stale"
        until_us = row.get("lease_until_us", claim.get("lease_until_us"))
        if until_us is not None and until_us <= before["at_us"] and row["state"] not in TERMINAL:
            found = "expired"
    return found


def late_writes(trace: Trace) -> list[tuple[Mapping[str, Any], str]]:
    before: Mapping[str, Any] = trace.header["first_observation"]
    found = []
    for step in trace.steps:
        late = lateness(step, before)
        if late is not None and not step.get("drain"):
            found.append((step, late))
        before = step["after"]
    return found


def headline(trace: Trace) -> str:
    end = trace.end
    match end["verdict"]:
        case "fail":
            return _failure(end)
        case "inconclusive":
            missing = end["reasons"][0] if end["reasons"] else "no reason was recorded"
            return f"Nothing broke, and nothing is proven: {missing}"
    return _survived(trace)


def _failure(end: Mapping[str, Any]) -> str:
    if not end["violations"]:
        return str(end["reasons"][0]) if end["reasons"] else "it failed, and no reason was recorded"
    first = most_telling(end["violations"])
    return f"{first['invariant']} broken at step {first['step']}: {first['message']}"


def most_telling(violations: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    first_step = min(violation["step"] for violation in violations)
    there = {violation["invariant"]: violation for violation in violations if violation["step"] == first_step}
    return next((there[name] for name in MOST_TELLING if name in there), next(iter(there.values())))


def _survived(trace: Trace) -> str:
    refused = [(step, late) for step, late in late_writes(trace) if step["reply"]["outcome"] == "refused"]
    if refused:
        step, _ = refused[-1]
        claim = step["claims"][0] if len(step["claims"]) == 1 else None
        return (
            f"{step['actor']}'s late {step['operation']} was refused: {refusal_meaning(claim, step['reply'])}"
        )
    seen = [witness["sentence"] for witness in trace.end["witnesses"] if witness["seen"]]
    if seen:
        return f"The race happened, and every invariant held: {seen[-1]}"
    return "Every invariant held"


def opening_step(trace: Trace) -> int | None:
    """The first failing step; where nothing broke, the late write or fault the race is about; None without steps."""
    broken = [violation["step"] for violation in trace.end["violations"]]
    if broken:
        return int(min(broken))
    for reason in trace.end["reasons"]:
        unmet = re.match(r"step (\d+):", reason) or re.search(r" at step (\d+)", reason)
        if unmet and 1 <= int(unmet[1]) <= len(trace.steps):
            return int(unmet[1])
    late = late_writes(trace)
    if late:
        return int(late[-1][0]["n"])
    faults = [step["n"] for step in trace.steps if step["kind"] == "fault"]
    if faults:
        return int(faults[0])
    own = [step["n"] for step in trace.steps if not step.get("drain") and step["kind"] in ("call", "freed")]
    return int(own[-1]) if own else (1 if trace.steps else None)
