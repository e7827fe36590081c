"""Chrome trace events (JSON), as Perfetto and chrome://tracing read them: lanes as tracks, database time as time.

Times are microseconds since the run's first observation. No two events of one track overlap: what an actor waits for
follows what it did, and a job's row names one lease at a time.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fencepost.harness.errors import UsageError
from fencepost.harness.trace import Trace
from fencepost.reports.model import run_model
from fencepost.reports.sources import Suite, Written, put, read_suite
from fencepost.reports.words import held

Event = dict[str, Any]

DEFAULT_OUTPUT = Path(".fencepost/report")
FAULTS, ACTORS, DATABASE = 1, 2, 3
WAITS = {"parked": "held", "blocked": "waits for a lock", "cut_off": "waits for its network"}


def write(traces: Sequence[Path], *, output: Path | None = None, compare_with: Path | None = None) -> Written:
    """A file per trace: one trace goes to `output`, several into the folder of that name."""
    if compare_with is not None:
        raise UsageError("--compare: only --format html puts two traces beside each other.")
    suite = read_suite(traces)
    if len(suite.traces) == 1:
        ((path, trace),) = suite.traces.items()
        target = output or DEFAULT_OUTPUT / f"{path.stem}.perfetto.json"
        return Written(put(target, as_text(trace)), tuple(suite.unreadable))
    return Written(_write_folder(suite, output or DEFAULT_OUTPUT), tuple(suite.unreadable))


def _write_folder(suite: Suite, folder: Path) -> Path:
    if folder.suffix == ".json":
        raise UsageError(f"-o {folder}: {len(suite.traces)} traces go into a folder; name one without .json.")
    for path, trace in suite.traces.items():
        put(folder / f"{path.stem}.perfetto.json", as_text(trace))
    return folder


def as_text(trace: Trace) -> str:
    return json.dumps(perfetto(trace), separators=(",", ":"))


def perfetto(trace: Trace) -> dict[str, Any]:
    run = run_model(trace)
    return {
        "traceEvents": [*_names(run), *_actor_events(run), *_fault_events(run), *_database_events(run)],
        "displayTimeUnit": "ms",
        "otherData": {
            "scenario": run["name"],
            "verdict": run["verdict"],
            "headline": run["headline"],
            "replay": run["replay"],
            **dict(run["facts"]),
        },
    }


def _tracks(run: Mapping[str, Any]) -> dict[str, int]:
    """Thread ids of the jobs' lease tracks; 1 is the track of changed rows."""
    return {job: place for place, job in enumerate(dict.fromkeys(lease["job"] for lease in run["leases"]), 2)}


def _thread_of(run: Mapping[str, Any]) -> dict[str, int]:
    return {actor["name"]: place for place, actor in enumerate(run["actors"], 1)}


def _names(run: Mapping[str, Any]) -> Iterator[Event]:
    for pid, name in ((FAULTS, "clock and faults"), (ACTORS, "actors"), (DATABASE, "database")):
        yield _meta("process_name", pid, 0, name=name)
        yield _meta("process_sort_index", pid, 0, sort_index=pid)
    yield from _thread(FAULTS, 1, "clock and faults")
    for actor in run["actors"]:
        yield from _thread(ACTORS, _thread_of(run)[actor["name"]], f"{actor['name']} ({actor['role']})")
    yield from _thread(DATABASE, 1, "rows that changed")
    for job, tid in _tracks(run).items():
        yield from _thread(DATABASE, tid, f"lease of job {job}")


def _thread(pid: int, tid: int, name: str) -> Iterator[Event]:
    yield _meta("thread_name", pid, tid, name=name)
    yield _meta("thread_sort_index", pid, tid, sort_index=tid)


def _meta(kind: str, pid: int, tid: int, **args: Any) -> Event:
    return {"ph": "M", "name": kind, "pid": pid, "tid": tid, "ts": 0, "args": args}


def _slice(pid: int, tid: int, name: str, category: str, from_us: int, to_us: int, **args: Any) -> Event:
    told = {key: value for key, value in args.items() if value not in (None, "", [])}
    return {
        "ph": "X",
        "name": name,
        "cat": category,
        "pid": pid,
        "tid": tid,
        "ts": from_us,
        "dur": to_us - from_us,
        "args": told,
    }


def _instant(pid: int, tid: int, name: str, category: str, at_us: int, scope: str, **args: Any) -> Event:
    return {
        "ph": "i",
        "name": name,
        "cat": category,
        "pid": pid,
        "tid": tid,
        "ts": at_us,
        "s": scope,
        "args": args,
    }


def _before(run: Mapping[str, Any], number: int) -> int:
    return int(run["steps"][number - 2]["at"]) if number > 1 else 0


def _actor_events(run: Mapping[str, Any]) -> Iterator[Event]:
    steps, threads = run["steps"], _thread_of(run)
    end_us = steps[-1]["at"] if steps else 0
    for call in run["calls"]:
        tid = threads[call["actor"]]
        for place, (number, status, checkpoint) in enumerate(call["parts"]):
            step = steps[number - 1]
            name = call["operation"] if place == 0 else f"… {call['operation']}"
            yield _slice(
                ACTORS, tid, name, step["look"], _before(run, number), step["at"], **_step_args(step)
            )
            if status in WAITS:
                following = call["parts"][place + 1 :]
                until_us = _before(run, following[0][0]) if following else end_us
                words = held(checkpoint) if checkpoint else WAITS[status]
                yield _slice(ACTORS, tid, words, "wait", step["at"], max(until_us, step["at"]), step=number)
    for place, (number, holder, blocked, _) in enumerate(run["arrows"], 1):
        at_us = steps[number - 1]["at"]
        flow = {"name": "lock", "cat": "lock", "id": place, "pid": ACTORS, "ts": at_us, "args": {}}
        yield {"ph": "s", "tid": threads[holder], **flow}
        yield {"ph": "f", "bp": "e", "tid": threads[blocked], **flow}
    for step in steps:
        if step["kind"] == "exit" and "actor" in step:
            yield _instant(
                ACTORS, threads[step["actor"]], "leaves", "exit", step["at"], "t", reason=step["answer"]
            )


def _step_args(step: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "step": step["n"],
        "what": step["what"],
        "answer": step["answer"],
        "line": step.get("line"),
        "changes": step.get("changes"),
        "statements": [statement["sql"] for statement in step.get("statements", ())],
    }


def _fault_events(run: Mapping[str, Any]) -> Iterator[Event]:
    for step in run["steps"]:
        if step["kind"] in ("clock", "fault"):
            yield _slice(
                *(FAULTS, 1, step["what"], step["kind"], _before(run, step["n"]), step["at"]),
                step=step["n"],
                actor=step.get("actor"),
                line=step.get("line"),
                **{f"detail.{name}": value for name, value in step.get("detail", ())},
            )
        for broken in step.get("broken", ()):
            name = f"{broken['invariant']} broken"
            yield _instant(
                FAULTS, 1, name, "broken", step["at"], "g", step=step["n"], message=broken["message"]
            )


def _database_events(run: Mapping[str, Any]) -> Iterator[Event]:
    steps, tracks = run["steps"], _tracks(run)
    end_us = steps[-1]["at"] if steps else 0
    for step in steps:
        for words in step.get("changes", ()):
            yield _instant(DATABASE, 1, words, "rows", step["at"], "t", step=step["n"])
    for lease in run["leases"]:
        tid = tracks[lease["job"]]
        token = "" if lease["token"] is None else f", token {lease['token']}"
        ended_us = lease["ended"] if lease["ended"] is not None else end_us
        yield _slice(
            *(DATABASE, tid, f"{lease['holder'] or '?'}{token}", "lease", lease["from"], ended_us),
            job=lease["job"],
            until_us=lease["until"],
            renewals=len(lease["renewals"]),
            ended=lease["how"],
        )
        for number, at_us, until_us, _ in lease["renewals"]:
            yield _instant(DATABASE, tid, "renewed", "lease", at_us, "t", step=number, until_us=until_us)
        if lease["until"] is not None and lease["until"] <= ended_us:
            yield _instant(DATABASE, tid, "expires", "lease", lease["until"], "t")
