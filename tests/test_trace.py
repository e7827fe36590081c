"""Trace files: what is written is read back, and nothing else is taken for a trace."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fencepost.harness.bench import Run
from fencepost.harness.events import events
from fencepost.harness.lab import Lab, LabOptions
from fencepost.harness.loading import load_queue
from fencepost.harness.scenario import choose, installed_scenarios
from fencepost.harness.trace import Trace, TraceError, canonical, canonical_hash, read_trace, write_trace
from fencepost.harness.trace.format import parse_trace


@pytest.fixture(scope="module")
def run() -> Iterator[Run]:
    (scenario,) = [s for s in choose(installed_scenarios(), ["lease_race"]) if s.name == "lease_race"]
    with Lab(LabOptions()) as lab:
        yield lab.run(load_queue("reference"), next(scenario.variants()))


@pytest.fixture
def written(run: Run, tmp_path: Path) -> Path:
    path = tmp_path / "race.jsonl"
    write_trace(run.trace, path)
    return path


def test_what_is_written_is_read_back(run: Run, written: Path) -> None:
    trace = read_trace(written)
    assert trace.steps == tuple({"type": "step", **step} for step in run.trace.steps)
    assert canonical_hash(trace) == canonical_hash(run.trace)
    assert [path.name for path in written.parent.iterdir()] == ["race.jsonl"]


def test_every_step_has_actor_operation_answer_time_and_rows(run: Run) -> None:
    calls = [step for step in run.trace.steps if step["kind"] == "call"]
    assert [(step["actor"], step["operation"]) for step in calls] == [
        ("P", "enqueue"),
        ("A", "claim"),
        ("B", "claim"),
        ("B", "complete"),
        ("A", "complete"),
    ]
    assert all(step["reply"]["outcome"] in ("accepted", "refused") for step in calls)
    assert all(step["after"]["at_us"] > 0 for step in run.trace.steps)
    assert all(step["line"].startswith("test_lease_race.py:") for step in calls)
    assert run.trace.end["verdict"] == "pass"


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (lambda lines: [], "empty"),
        (lambda lines: ["hello"], "line 1: not JSON"),
        (lambda lines: ["[]"], "line 1: not a JSON object"),
        (lambda lines: lines[1:], "line 1: not a trace header"),
        (
            lambda lines: [_changed(lines[0], fencepost_trace=2), *lines[1:]],
            "this fencepost reads format 1",
        ),
        (lambda lines: [_without(lines[0], "queue"), *lines[1:]], "the header line lacks queue"),
        (lambda lines: lines[:-1], "the end line is missing"),
        (lambda lines: [*lines[:2], lines[2][:40], *lines[3:]], "line 3: not JSON"),
        (lambda lines: [lines[0], *lines[2:]], "line 2: step 2 where step 1 should be"),
        (
            lambda lines: [*lines[:2], _without(lines[2], "after"), *lines[3:]],
            "line 3: the step line lacks after",
        ),
        (lambda lines: [*lines[:-1], _without(lines[-1], "verdict")], "the end line lacks verdict"),
        (
            lambda lines: [*lines[:2], lines[-1], *lines[2:]],
            "line 3: a step line should be here, found 'end'",
        ),
    ],
)
def test_a_corrupt_trace_is_named(written: Path, damage: Callable[[list[str]], list[str]], told: str) -> None:
    written.write_text("".join(line + "\n" for line in damage(written.read_text().splitlines())))
    with pytest.raises(TraceError) as raised:
        read_trace(written)
    assert told in str(raised.value)
    assert str(written) in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_missing_or_binary_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="cannot be read"):
        read_trace(tmp_path / "none.jsonl")
    (tmp_path / "binary.jsonl").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(TraceError, match="not UTF-8"):
        read_trace(tmp_path / "binary.jsonl")


def test_times_ids_and_surroundings_are_not_canonical(run: Run) -> None:
    moved = _rewritten(run.trace, _other_surroundings)
    assert canonical(moved) == canonical(run.trace)


@pytest.mark.parametrize(
    "change",
    [
        lambda trace: trace["steps"][4]["reply"].update(outcome="refused"),
        lambda trace: trace["steps"][4].update(actor="C"),
        lambda trace: trace["steps"][2]["clock"].update(how="expire"),
        lambda trace: trace["steps"][3]["after"]["jobs"][0].update(state="ready"),
        lambda trace: trace["steps"][-1]["after"]["ledger"].clear(),
        lambda trace: trace["steps"].pop(5),
        lambda trace: trace["end"].update(verdict="inconclusive"),
        lambda trace: trace["end"]["journal"].pop(),
        lambda trace: trace["end"]["invariants"]["fence"].update(exercised=0),
    ],
)
def test_what_happened_is_canonical(run: Run, change: Callable[[dict[str, Any]], object]) -> None:
    assert canonical(_rewritten(run.trace, change)) != canonical(run.trace)


def test_the_event_log_is_the_story_of_the_leases(run: Run) -> None:
    told = [{key: value for key, value in event.items() if key != "job_id"} for event in events(run.trace)]
    assert told == [
        {"event": "lease_acquired", "worker": "A", "token": 1},
        {"event": "execution_started", "worker": "A", "token": 1},
        {"event": "lease_expired", "worker": "A", "token": 1, "how": "clock"},
        {"event": "lease_acquired", "worker": "B", "token": 2},
        {"event": "execution_started", "worker": "B", "token": 2},
        {"event": "worker_exit", "worker": "B", "reason": "success"},
        {
            "event": "stale_write_blocked",
            "worker": "A",
            "stale_token": 1,
            "current_token": 2,
            "reason": "token_mismatch",
        },
        {"event": "worker_exit", "worker": "A", "reason": "stale"},
    ]


def _rewritten(trace: Trace, change: Callable[[dict[str, Any]], object]) -> Trace:
    parts = copy.deepcopy({"header": dict(trace.header), "steps": list(trace.steps), "end": dict(trace.end)})
    change(parts)
    return Trace(parts["header"], tuple(parts["steps"]), parts["end"])


def _other_surroundings(trace: dict[str, Any]) -> None:
    """As if recorded a day later, by processes, on another version, with other ids and tokens."""
    trace["header"]["server"]["version"] = "16.1"
    trace["header"]["actors"] = "process"
    trace["end"]["elapsed_ms"] = 1234.5

    def shift(value: Any) -> Any:
        if isinstance(value, dict):
            return {
                key: _shifted(key, item) if _is_plain(item) else shift(item) for key, item in value.items()
            }
        return [shift(item) for item in value] if isinstance(value, list) else value

    for part in ("header", "steps", "end"):
        trace[part] = shift(trace[part])


def _is_plain(value: Any) -> bool:
    return not isinstance(value, dict | list)


def _shifted(key: str, value: Any) -> Any:
    if value is None:
        return None
    if key.endswith("_us"):
        return value + 86_400_000_000
    if key in ("job", "past_lease_of"):
        return f"9{value}"
    if key in ("token", "current_token"):
        return value + 100
    return value


def _changed(line: str, **fields: Any) -> str:
    return json.dumps({**json.loads(line), **fields})


def _without(line: str, field: str) -> str:
    return json.dumps({key: value for key, value in json.loads(line).items() if key != field})


def test_a_torn_write_is_never_seen(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "missing-directory" / "race.jsonl"
    with pytest.raises(TraceError, match="choose another --trace-dir"):
        write_trace(run.trace, path)


def test_the_parser_takes_only_whole_lines() -> None:
    with pytest.raises(TraceError, match="line 1: not JSON"):
        parse_trace("{")
