"""A Markdown summary: for a person in a terminal or a pull request, and for GitHub's job summary."""

from __future__ import annotations

import html
import os
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from fencepost.harness.errors import UsageError
from fencepost.harness.trace import Trace
from fencepost.reports.model import replay_command, run_model
from fencepost.reports.sources import Suite, Written, put, read_suite
from fencepost.reports.suite import PageLinks, is_control, run_row, totals, twins_table

SUMMARY_VARIABLE = "GITHUB_STEP_SUMMARY"
SUMMARY_LIMIT_BYTES = 1024 * 1024
"""GitHub takes no more of one step; what is larger it refuses as a whole."""

RESERVE_BYTES = 400
"""Kept for the sentence that says what was left out."""


def write(traces: Sequence[Path], *, output: Path | None = None, compare_with: Path | None = None) -> Written:
    """To `output`, else to standard output; and to GitHub's job summary where a job has one."""
    if compare_with is not None:
        raise UsageError("--compare: only --format html puts two traces beside each other.")
    suite = read_suite(traces)
    text = within(blocks(suite), None)
    summary = os.environ.get(SUMMARY_VARIABLE)
    if summary:
        append_to_summary(suite, Path(summary))
    if output is None:
        sys.stdout.write(text)
        return Written(None, tuple(suite.unreadable))
    return Written(put(output, text), tuple(suite.unreadable))


def append_to_summary(suite: Suite, path: Path) -> None:
    try:
        already = path.stat().st_size if path.exists() else 0
        text = within(blocks(suite), SUMMARY_LIMIT_BYTES - already)
        with path.open("a", encoding="utf-8", errors="replace") as file:
            file.write(text)
    except OSError as error:
        raise UsageError(f"{SUMMARY_VARIABLE}={path}: cannot be appended to ({error.strerror}).") from error


def within(parts: Iterator[str], limit_bytes: int | None) -> str:
    """As many whole blocks as fit, and a sentence for those that do not."""
    kept: list[str] = []
    room = None if limit_bytes is None else limit_bytes - RESERVE_BYTES
    left_out = 0
    for part in parts:
        size = len(part.encode("utf-8", errors="replace"))
        if room is not None and (left_out or size > room):
            left_out += 1
            continue
        kept.append(part)
        if room is not None:
            room -= size
    if left_out and limit_bytes is not None and limit_bytes > RESERVE_BYTES:
        kept.append(
            f"\n{left_out} more parts of this summary are left out: it would be larger than GitHub takes.\n"
        )
    return "".join(kept)


def blocks(suite: Suite) -> Iterator[str]:
    """Most important first. A block is never cut in two."""
    traces = [trace for trace in suite.traces.values() if not is_control(trace)]
    count = totals(traces)
    told = ", ".join(f"{count[name]} {name}" for name in ("pass", "fail", "inconclusive") if count[name])
    yield f"## Fencepost: {told or 'no runs'}\n\n"
    yield f"Scenarios: {count['scenarios']}, queues: {count['queues']}, steps: {count['steps']}.\n\n"
    for sentence in suite.unreadable:
        yield f"- not read: {escaped(sentence)}\n"
    bad = [(path, trace) for path, trace in suite.traces.items() if trace.end["verdict"] != "pass"]
    if bad:
        yield "\n| verdict | scenario | queue | what happened |\n|---|---|---|---|\n"
        for path, trace in bad:
            row = run_row(trace, "", path)
            cells = [row["verdict"], row["name"], row["queue"], row["told"]]
            yield f"| {' | '.join(escaped(cell) for cell in cells)} |\n"
    yield from _twins(suite)
    for trace in traces if len(traces) == 1 else [trace for _, trace in bad]:
        yield _details(trace)


def _twins(suite: Suite) -> Iterator[str]:
    twins = {path: trace for path, trace in suite.traces.items() if "twin" in trace.header["queue"]}
    if not twins:
        return
    yield "\n| twin | breaks | caught by |\n|---|---|---|\n"
    for row in twins_table(twins, PageLinks(list(twins), "")):
        caught = ", ".join(f"{catch['name']} (step {catch['step']})" for catch in row["caught"][:3])
        yield f"| {escaped(row['name'])} | {escaped(row['breaks'])} | {escaped(caught or 'not in these runs')} |\n"


def _details(trace: Trace) -> str:
    run = run_model(trace)
    summary = " ".join(f"{run['name']} on {run['queue']}: {run['headline']}".split())
    lines = [
        f"\n<details><summary>{html.escape(summary)}</summary>\n",
        f"\n{escaped(run['sentence'])}\n",
        "| step | who | what | answer | rows |",
        "|---:|---|---|---|---|",
        *(_step_row(run, step) for step in _telling_steps(run)),
        "",
        f"Replay: <code>{escaped(replay_command(trace.header))}</code>",
        "\n</details>\n",
    ]
    return "\n".join(lines)


MOST_STEPS = 60


def _telling_steps(run: dict[str, Any]) -> list[dict[str, Any]]:
    """All of a short run; of a long one those before and at the step it is about."""
    steps: list[dict[str, Any]] = run["steps"]
    if len(steps) <= MOST_STEPS:
        return steps
    last = max(run["opens_at"] or len(steps), MOST_STEPS)
    return steps[last - MOST_STEPS : last]


def _step_row(run: dict[str, Any], step: dict[str, Any]) -> str:
    broken = [run["invariants"][place]["name"] for place in step.get("violated", ())]
    answer = step["answer"] + (f" — breaks {', '.join(broken)}" if broken else "")
    cells = [step.get("actor", ""), step["what"], answer, "; ".join(step.get("changes", ()))]
    return f"| {step['n']} | {' | '.join(escaped(cell) for cell in cells)} |"


_SPECIAL = re.compile(r"([\\`*\[\]|~])")


def escaped(text: object) -> str:
    """Text of a queue as text: no HTML, no links, no mentions, no new table cells."""
    flat = " ".join(str(text).split())
    flat = flat.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace("@", "&#64;")
    return _SPECIAL.sub(r"\\\1", flat)
