"""A step in words: what was let go, what came back, what the rows did. Pure functions over a trace's lines."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

Line = Mapping[str, Any]

FAULTS_OF_THE_SERVER = {
    "restart": "the server is restarted",
    "fast_restart": "the server is restarted in order",
    "crash": "the server crashes",
    "kill_postmaster": "the postmaster is killed",
    "kill_all": "every process of the server is killed",
}
FAULTS_OF_AN_ACTOR = {
    "kill_backend": "{who} backend is killed",
    "terminate": "{who} backend is told to end",
    "terminate_backend": "{who} backend is told to end",
    "pause": "{who} network is paused",
    "resume": "{who} network is let go on",
    "cut": "{who} network is cut",
    "cut_mid_message": "{who} network is cut in the middle of a message",
    "half_open": "{who} network dies without a word",
    "mend": "{who} network is mended",
    "delay": "{who} network is slowed down",
    "arrive": "what was delayed on {who} network arrives",
    "lose_reply": "{who} next answer gets lost",
    "lose_request": "{who} next request gets lost",
    "kill": "{who} process is killed",
    "stop": "{who} process is stopped",
    "cont": "{who} process goes on",
    "continue": "{who} process goes on",
    "skew": "{who} own clock is skewed",
}

MEANING_OF_REASONS = {
    "token_mismatch": "another token is current",
    "lease_expired": "its lease had expired",
    "not_leased": "nobody holds the job any more",
    "terminal": "the job had ended",
}


def seconds(us: float) -> str:
    """A duration as a person would say it."""
    magnitude = abs(us)
    if magnitude >= 120_000_000:
        minutes, rest = divmod(round(us / 1_000_000), 60)
        return f"{minutes} min {rest} s" if rest else f"{minutes} min"
    if magnitude >= 1_000_000:
        return f"{us / 1_000_000:.3f} s"
    return f"{us / 1_000:.3f} ms"


def since_start(us: int) -> str:
    """A moment of database time, counted from the run's first observation."""
    return f"{us / 1_000_000:+.6f} s"


def value_text(value: Any) -> str:
    """Any value of a trace on one line. Text from the queue is shown as it is, never interpreted."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False)


def token_text(token: Any) -> str:
    return "no token" if token is None else f"token {token}"


def job_and_token(claim: Line) -> str:
    if claim.get("token") is None:
        return f"job {claim['job']}"
    return f"job {claim['job']}, token {claim['token']}"


def what(step: Line) -> str:
    """What was let go in this step."""
    match step["kind"]:
        case "clock":
            return _clock(step)
        case "exit":
            return "leaves the race"
        case "end":
            return "end of the run"
        case "fault":
            return fault(step)
    told = str(step["operation"])
    under = "; ".join(job_and_token(claim) for claim in step.get("claims", ()))
    if under:
        told += f" ({under})"
    if step["kind"] == "freed":
        return f"… {told}, freed"
    return told if step.get("started", True) else f"… {told} goes on"


def _clock(step: Line) -> str:
    move = step["clock"]
    past = step.get("detail", {}).get("past_lease_of")
    of = f" past the lease of job {past}" if past is not None else ""
    match move["how"]:
        case "expire":
            return (
                f"the lease of job {past} is rewritten as expired"
                if past
                else "a lease is rewritten as expired"
            )
        case "wait":
            return f"the run waits {move['moved_s']:.1f} s{of}"
    return f"clock {move['moved_s']:+.1f} s{of}"


def fault(step: Line) -> str:
    name = str(step["fault"])
    if name in FAULTS_OF_THE_SERVER and "actor" not in step:
        return FAULTS_OF_THE_SERVER[name]
    who = f"{step['actor']}'s" if "actor" in step else "the"
    told = FAULTS_OF_AN_ACTOR.get(
        name, name.replace("_", " ") + (f" of {step['actor']}" if "actor" in step else "")
    )
    return told.format(who=who)


def answer(step: Line) -> str:
    """What came back, or where the call stands still."""
    if step["kind"] == "exit":
        return str(step.get("detail", {}).get("reason", ""))
    match step.get("status"):
        case None:
            return ""
        case "parked":
            return held(str(step["checkpoint"]))
        case "blocked":
            return f"waits for a lock of {' and '.join(step.get('blocked_by', ())) or 'another'}"
        case "cut_off":
            return "waits for its network"
    return reply_text(step["operation"], step["reply"])


def held(place: str) -> str:
    """A checkpoint has a name; a statement held at the gate says itself whether before or after."""
    return f"held {place}" if place.startswith(("before ", "after ")) else f"held at {place}"


def expired(before: Line, after: Line) -> list[str]:
    """Leases that were live before and are past after it, with nobody having touched the job."""
    rows = {job["job"]: job for job in before["jobs"]}
    told = []
    for job in after["jobs"]:
        old = rows.get(job["job"], {})
        was_until, is_until = old.get("lease_until_us"), job.get("lease_until_us")
        if (
            job["state"] != "leased"
            or was_until is None
            or is_until is None
            or old.get("token") != job.get("token")
        ):
            continue
        if was_until > before["at_us"] and is_until <= after["at_us"]:
            told.append(f"{job.get('holder', 'its holder')}'s lease of job {job['job']} is past now")
    return told


def reply_text(operation: str, reply: Line) -> str:
    if reply["outcome"] != "accepted":
        return f"{reply['outcome']}: {refusal_text(reply)}"
    if operation in ("claim", "claim_batch"):
        return "; ".join(job_and_token(claim) for claim in reply.get("claims", ())) or "nothing there"
    if "job" in reply:
        return f"job {reply['job']}"
    if "count" in reply:
        return f"{reply['count']} recovered"
    if "items" in reply:
        return ", ".join(reply_text(operation, item) for item in reply["items"])
    return "accepted before" if reply.get("repeated") else "accepted"


def refusal_text(reply: Line) -> str:
    return str(reply.get("reason") or reply.get("error") or "no reason given")


def refusal_meaning(claim: Line | None, reply: Line) -> str:
    """Why a write was refused, with both tokens where they differ."""
    current = reply.get("current_token")
    if claim is not None and current is not None and claim.get("token") not in (None, current):
        return f"token {claim['token']}, current {current}"
    reason = refusal_text(reply)
    return MEANING_OF_REASONS.get(reason, reason)


def and_more(items: Sequence[str], shown: int) -> str:
    """The first few, and how many more there are."""
    told = ", ".join(items[:shown])
    return f"{told} and {len(items) - shown} more" if len(items) > shown else told
