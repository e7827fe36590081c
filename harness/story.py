"""A run told as text: the steps as a table, the verdict and what it rests on."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from fencepost.harness.trace.format import Trace
from fencepost.harness.trace.redact import redacted_text

WIDTH = 110
ALL_ROWS_AT_MOST = 6


def render(item: RenderableType, width: int = WIDTH) -> str:
    """Plain text, for failure output and logs: no colours, no terminal."""
    console = Console(file=io.StringIO(), width=width, color_system=None, legacy_windows=False)
    console.print(item)
    assert isinstance(console.file, io.StringIO)
    return "\n".join(line.rstrip() for line in console.file.getvalue().splitlines())


def steps_table(trace: Trace, last: int | None = None) -> Table:
    """The last steps, one row each: who did what, what came back, what the rows showed then."""
    steps = trace.steps[-last:] if last is not None else trace.steps
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("step", "who", "what", "answer", "rows after it"):
        table.add_column(name, justify="right" if name == "step" else "left", overflow="fold")
    befores = [trace.header["first_observation"], *(step["after"] for step in trace.steps)]
    for before, step in zip(befores[len(trace.steps) - len(steps) :], steps, strict=False):
        broken = step.get("violated")
        table.add_row(
            str(step["n"]),
            "drain" if step.get("drain") and "actor" not in step else step.get("actor", "·"),
            Text(_what(step)),
            Text(_answer(step) + (f"  ← breaks {', '.join(broken)}" if broken else "")),
            Text(_rows(step["after"], before)),
        )
    return table


def _what(step: Mapping[str, Any]) -> str:
    match step["kind"]:
        case "clock":
            moved = step["clock"]["moved_s"]
            return f"{step['clock']['how']} {moved:+.1f} s" if moved else str(step["clock"]["how"])
        case "exit":
            return "exit"
        case "end":
            return "end of the run"
        case "fault":
            return str(step["fault"])
    going_on = "" if step["started"] else ("… freed: " if step["kind"] == "freed" else "… ")
    under = ", ".join(f"job {claim['job']} under token {claim['token']}" for claim in step["claims"])
    return f"{going_on}{step['operation']}{f' ({under})' if under else ''}"


def _answer(step: Mapping[str, Any]) -> str:
    if step["kind"] == "exit":
        return str(step["detail"]["reason"])
    if "status" not in step:
        return ""
    if step["status"] == "parked":
        return f"held at {step['checkpoint']}"
    if step["status"] == "blocked":
        return f"blocked by {', '.join(step['blocked_by'])}"
    return tell_reply(step["operation"], step["reply"])


def tell_reply(operation: str, reply: Mapping[str, Any]) -> str:
    if reply["outcome"] != "accepted":
        return f"{reply['outcome']}: {reply.get('reason') or reply.get('error')}"
    if operation in ("claim", "claim_batch"):
        claims = ", ".join(f"job {c['job']}, token {c['token']}" for c in reply.get("claims", ()))
        return claims or "nothing there"
    if "job" in reply:
        return f"job {reply['job']}"
    if "count" in reply:
        return f"{reply['count']} recovered"
    if "items" in reply:
        return ", ".join(tell_reply(operation, item) for item in reply["items"])
    return "accepted before" if reply.get("repeated") else "accepted"


def _rows(observation: Mapping[str, Any], before: Mapping[str, Any]) -> str:
    """Of few jobs every row; of many only those the step changed."""
    ledger: dict[str, list[Any]] = {}
    for entry in observation["ledger"]:
        ledger.setdefault(entry["job"], []).append(entry["token"])
    parts = []
    shown = observation["jobs"]
    if len(shown) > ALL_ROWS_AT_MOST:
        earlier = {job["job"]: job for job in before["jobs"]}
        shown = [job for job in shown if earlier.get(job["job"]) != job]
    for job in shown:
        text = f"{job['job']}: {job['state']}"
        if job.get("token"):
            text += f", token {job['token']}"
        if job.get("holder"):
            past = job.get("lease_until_us", 0) <= observation["at_us"]
            text += f", {job['holder']}'s lease {'is past' if past else 'is live'}"
        if job["job"] in ledger:
            text += f", ledger {ledger[job['job']]}"
        parts.append(text)
    left_out = len(observation["jobs"]) - len(shown)
    return "; ".join([*parts, *([f"{left_out} more as before"] if left_out else [])])


def reasons_text(reasons: Sequence[str]) -> str:
    return "\n".join(f"  - {reason}" for reason in reasons)


def failure_text(trace: Trace, replay: str, trace_path: str | None, last_steps: int = 12) -> str:
    """What a failed or inconclusive run shows: verdict, reasons, last steps, how to replay it."""
    scenario, end = trace.header["scenario"], trace.end
    lines = [
        f"{scenario['name']} on queue '{trace.header['queue']['name']}': {end['verdict']}",
        f"  {scenario['sentence']}",
        "",
        reasons_text(end["reasons"]),
        "",
        render(steps_table(trace, last_steps)),
        "",
        f"replay:  {replay}",
    ]
    if "control" in end:
        lines.append(f"control: {end['control']['verdict']}, the same schedule without its fault")
    if trace_path is not None:
        lines.append(f"trace:   {trace_path}")
    return redacted_text("\n".join(lines))
