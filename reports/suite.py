"""What the index of a suite shows, as data."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fencepost.harness.trace import Trace
from fencepost.reports.compare import Comparison, nearest
from fencepost.reports.model import HOW_TIME_MOVED
from fencepost.reports.sources import Suite
from fencepost.reports.verdict_words import headline, opening_step

Json = dict[str, Any]

VERDICTS = ("pass", "fail", "inconclusive")
WORST_FIRST = {"fail": 0, "inconclusive": 1, "pass": 2}
MOST_CANDIDATES = 12
"""Passing runs a failing one is compared with to find the nearest."""


class PageLinks:
    """A file name for the page of every trace: readable, and never the same twice."""

    def __init__(self, paths: Sequence[Path], folder: str) -> None:
        self.folder = folder
        self._files: dict[Path, str] = {}
        taken: set[str] = set()
        for path in paths:
            stem = re.sub(r"[^A-Za-z0-9_.-]+", "-", path.stem).strip("-.") or "run"
            name, count = stem, 1
            while name.lower() in taken:
                count += 1
                name = f"{stem}~{count}"
            taken.add(name.lower())
            self._files[path] = f"{name}.html"

    def file_of(self, path: Path) -> str:
        return self._files[path]

    def link_to(self, path: Path, step: int | None = None) -> str:
        return f"{self.folder}/{self._files[path]}{f'#step-{step}' if step is not None else ''}"


def is_control(trace: Trace) -> bool:
    return bool(trace.header["scenario"].get("part") == "control")


def comparisons(suite: Suite) -> dict[Path, tuple[Path, Comparison]]:
    """For every run that did not pass, the nearest passing run of the same scenario: on another queue, or
    under another schedule."""
    passing: dict[str, list[Path]] = {}
    for path, trace in suite.traces.items():
        if trace.end["verdict"] == "pass" and not is_control(trace):
            passing.setdefault(trace.header["scenario"]["name"], []).append(path)
    found = {}
    for path, trace in suite.traces.items():
        if trace.end["verdict"] == "pass" or is_control(trace):
            continue
        candidates = passing.get(trace.header["scenario"]["name"], [])[:MOST_CANDIDATES]
        best = nearest(trace, [suite.traces[candidate] for candidate in candidates])
        if best is not None:
            found[path] = (candidates[best[0]], best[1])
    return found


def suite_model(suite: Suite, links: PageLinks) -> Json:
    traces = {path: trace for path, trace in suite.traces.items() if not is_control(trace)}
    controls = {path: trace for path, trace in suite.traces.items() if is_control(trace)}
    runs = [run_row(trace, links.link_to(path), path) for path, trace in suite.traces.items()]
    runs.sort(key=lambda run: (run["control"], run["order"], run["twin"]))
    invariants = list(dict.fromkeys(name for trace in traces.values() for name in trace.end["invariants"]))
    twins = {path: trace for path, trace in traces.items() if "twin" in trace.header["queue"]}
    # Runs on twins are there to fail. They count as runs only where there are no others.
    judged = {path: trace for path, trace in traces.items() if path not in twins} or traces
    return {
        "totals": totals(list(judged.values())),
        "uncounted": len(traces) - len(judged),
        "controls": len(controls),
        "runs": runs,
        "queues": sorted({run["queue"] for run in runs}),
        "invariants": invariants,
        "matrix": [
            _matrix_row(trace, links.link_to(path), invariants)
            for path, trace in sorted(traces.items(), key=lambda item: _matrix_order(item[1]))
        ],
        "twins": twins_table(twins, links),
        "adapters": adapters_table(
            [trace for trace in traces.values() if "twin" not in trace.header["queue"]]
        ),
        "environment": environment(list(suite.traces.values())),
        "unreadable": list(suite.unreadable),
    }


def totals(traces: Sequence[Trace]) -> Json:
    counts = Counter(str(trace.end["verdict"]) for trace in traces)
    return {
        "runs": len(traces),
        **{verdict: counts[verdict] for verdict in VERDICTS},
        "scenarios": len({trace.header["scenario"]["name"].partition("[")[0] for trace in traces}),
        "queues": len({trace.header["queue"]["name"] for trace in traces}),
        "steps": sum(len(trace.steps) for trace in traces),
        "seconds": sum(trace.end.get("elapsed_ms", 0) for trace in traces) / 1000,
    }


def run_row(trace: Trace, link: str, path: Path) -> Json:
    step = opening_step(trace) if trace.end["verdict"] != "pass" else None
    return {
        "name": trace.header["scenario"]["name"],
        "family": trace.header["scenario"].get("family", ""),
        "queue": trace.header["queue"]["name"],
        "verdict": trace.end["verdict"],
        "order": WORST_FIRST.get(trace.end["verdict"], 0),
        "told": headline(trace),
        "class": trace.end.get("class"),
        "control": is_control(trace),
        "twin": "twin" in trace.header["queue"],
        "steps": len(trace.steps),
        "ms": trace.end.get("elapsed_ms"),
        "link": link + (f"#step-{step}" if step is not None else ""),
        "file": path.name,
    }


def _matrix_order(trace: Trace) -> tuple[str, str]:
    return trace.header["scenario"]["name"], trace.header["queue"]["name"]


def _matrix_row(trace: Trace, link: str, invariants: Sequence[str]) -> Json:
    broken = {violation["invariant"]: violation["step"] for violation in reversed(trace.end["violations"])}
    cells = []
    for name in invariants:
        count = trace.end["invariants"].get(name)
        if name in broken:
            cells.append(
                {"kind": "broken", "text": "✘", "link": f"{link}#step-{broken[name]}", "step": broken[name]}
            )
        elif count is None:
            cells.append({"kind": "none", "text": ""})
        elif count["exercised"]:
            cells.append({"kind": "held", "text": str(count["exercised"])})
        else:
            cells.append({"kind": "idle", "text": "·"})
    return {
        "name": trace.header["scenario"]["name"],
        "queue": trace.header["queue"]["name"],
        "verdict": trace.end["verdict"],
        "link": link,
        "cells": cells,
    }


def twins_table(traces: Mapping[Path, Trace], links: PageLinks) -> list[Json]:
    """A twin is caught where a run of it breaks what it names."""
    by_name: dict[str, dict[Path, Trace]] = {}
    for path, trace in traces.items():
        by_name.setdefault(trace.header["queue"]["name"], {})[path] = trace
    rows = []
    for name, own in by_name.items():
        twin = next(iter(own.values())).header["queue"]["twin"]
        caught = [
            {"name": trace.header["scenario"]["name"], "step": step, "link": links.link_to(path, step)}
            for path, trace in own.items()
            if (step := caught_at(trace, twin["breaks"])) is not None
        ]
        rows.append(
            {
                "name": name,
                "of": twin["of"],
                "sentence": twin["sentence"],
                "breaks": twin["breaks"],
                "caught": caught,
                "runs": len(own),
            }
        )
    return rows


def caught_at(trace: Trace, breaks: str) -> int | None:
    steps = [violation["step"] for violation in trace.end["violations"] if violation["invariant"] == breaks]
    if steps:
        return int(min(steps))
    unmet = breaks == "expectation" and trace.end["verdict"] == "fail" and not trace.end["violations"]
    return opening_step(trace) if unmet else None


def adapters_table(traces: Sequence[Trace]) -> list[Json]:
    rows: dict[str, Json] = {}
    for trace in traces:
        queue = trace.header["queue"]
        row = rows.setdefault(
            queue["name"],
            {
                "name": queue["name"],
                "path": queue["path"],
                "capabilities": list(queue.get("capabilities", ())),
                "verdicts": Counter(),
                "classes": Counter(),
                "runs": 0,
            },
        )
        row["runs"] += 1
        row["verdicts"][trace.end["verdict"]] += 1
        if "class" in trace.end:
            row["classes"][trace.end["class"]] += 1
    return list(rows.values())


def environment(traces: Sequence[Trace]) -> list[tuple[str, str]]:
    headers = [trace.header for trace in traces]
    known = [
        ("written by", {str(header.get("tool", "unknown")) for header in headers}),
        (
            "PostgreSQL",
            {f"{header['server']['version']} ({header['server']['provider']})" for header in headers},
        ),
        ("actors", {str(header["actors"]) for header in headers}),
        ("leases expire", {HOW_TIME_MOVED.get(header["clock"], str(header["clock"])) for header in headers}),
        ("network", {str(header["network"]) for header in headers if "network" in header}),
        ("one step is", {f"one {header['step']}" for header in headers if "step" in header}),
        ("seed", {str(header["seed"]) for header in headers if "seed" in header}),
    ]
    return [(name, ", ".join(sorted(values))) for name, values in known if values]
