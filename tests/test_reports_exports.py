"""Perfetto, Markdown and the index: what leaves a trace by another door than the page."""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path
from typing import Any

import pytest

from fencepost.harness.errors import UsageError
from fencepost.harness.trace import Trace, write_trace
from fencepost.reports import html, markdown, perfetto
from fencepost.reports.markdown import RESERVE_BYTES, SUMMARY_LIMIT_BYTES, append_to_summary, blocks, within
from fencepost.reports.sources import Suite, read_suite
from fencepost.reports.suite import PageLinks, comparisons, suite_model
from fencepost.tests.report_traces import Story, broken, everything, hostile, long, survived

# What the Trace Event Format documents: the fields every event of a phase has, and those it may have.
REQUIRED = {
    "X": {"name", "cat", "ph", "ts", "dur", "pid", "tid"},
    "i": {"name", "cat", "ph", "ts", "pid", "tid", "s"},
    "M": {"name", "ph", "pid", "args"},
    "s": {"name", "cat", "ph", "ts", "pid", "tid", "id"},
    "f": {"name", "cat", "ph", "ts", "pid", "tid", "id"},
}
ALLOWED = {"X": {"args"}, "i": {"args"}, "M": {"ts", "tid", "cat"}, "s": {"args"}, "f": {"args", "bp"}}
METADATA = {
    "process_name": {"name": str},
    "process_sort_index": {"sort_index": int},
    "thread_name": {"name": str},
    "thread_sort_index": {"sort_index": int},
}


def validate(exported: dict[str, Any]) -> None:
    assert set(exported) <= {
        "traceEvents",
        "displayTimeUnit",
        "otherData",
        "systemTraceEvents",
        "stackFrames",
    }
    assert exported["displayTimeUnit"] in ("ms", "ns")
    named = set()
    for event in exported["traceEvents"]:
        phase = event["ph"]
        assert REQUIRED[phase] <= set(event) <= REQUIRED[phase] | ALLOWED[phase], event
        assert isinstance(event["name"], str)
        assert event["name"]
        assert all(isinstance(event[name], int) for name in ("pid", "tid", "ts") if name in event)
        assert isinstance(event.get("args", {}), dict)
        if phase == "M":
            ((key, kind),) = METADATA[event["name"]].items()
            assert isinstance(event["args"][key], kind)
            named.add((event["name"], event["pid"], event["tid"]))
            continue
        assert event["ts"] >= 0
        assert phase != "X" or event["dur"] >= 0
        assert phase != "i" or event["s"] in ("g", "p", "t")
        assert ("process_name", event["pid"], 0) in named
        assert ("thread_name", event["pid"], event["tid"]) in named
    flows = [event for event in exported["traceEvents"] if event["ph"] in "sf"]
    assert {event["id"] for event in flows if event["ph"] == "s"} == {
        event["id"] for event in flows if event["ph"] == "f"
    }


def overlapping(exported: dict[str, Any]) -> list[tuple[Any, Any]]:
    lanes: dict[tuple[int, int], list[dict[str, Any]]] = {}
    for event in exported["traceEvents"]:
        if event["ph"] == "X":
            lanes.setdefault((event["pid"], event["tid"]), []).append(event)
    found = []
    for events in lanes.values():
        events.sort(key=lambda event: (event["ts"], event["ts"] + event["dur"]))
        found += [
            (one, other) for one, other in itertools.pairwise(events) if one["ts"] + one["dur"] > other["ts"]
        ]
    return found


def rewound() -> Trace:
    story = Story()
    story.enqueue()
    claim = story.claim("A")
    story.advance(60)
    story.advance(-40)
    story.heartbeat("A", claim)
    return story.trace()


def two_holders() -> Trace:
    """A queue that hands out a job twice at once."""
    story = Story()
    story.enqueue("1")
    story.enqueue("2")
    story.claim("A", "1")
    story.claim("B", "2")
    story.claim("C", "1")
    return story.trace()


TRACES = [survived(), broken(), everything(), hostile(), long(200), rewound(), two_holders(), Story().trace()]


@pytest.mark.parametrize("trace", TRACES, ids=lambda trace: str(trace.header["scenario"]["name"])[:12])
def test_the_perfetto_export_has_the_documented_fields_and_no_overlaps(trace: Trace) -> None:
    exported = json.loads(perfetto.as_text(trace))
    validate(exported)
    assert overlapping(exported) == []


def test_the_check_for_overlaps_can_fail() -> None:
    exported = perfetto.perfetto(survived())
    first = next(event for event in exported["traceEvents"] if event["ph"] == "X")
    exported["traceEvents"].append({**first, "ts": first["ts"], "dur": first["dur"] + 1})
    assert overlapping(exported)


def test_lanes_are_tracks() -> None:
    exported = perfetto.perfetto(everything())
    names = [event["args"]["name"] for event in exported["traceEvents"] if event["name"] == "thread_name"]
    assert names == [
        *("clock and faults", "P (producer)", "A (worker)", "B (worker)", "C (worker)"),
        *("rows that changed", "lease of job 1"),
    ]
    slices = [event["name"] for event in exported["traceEvents"] if event["ph"] == "X"]
    assert "held at after_guard" in slices
    assert "the server crashes" in slices
    assert "A, token 1" in slices


# -- Markdown ----------------------------------------------------------------------------------------------


def suite_of(*traces: Trace) -> Suite:
    return Suite({Path(f"{place}.jsonl"): trace for place, trace in enumerate(traces)})


def test_the_summary_names_what_failed_first() -> None:
    text = within(blocks(suite_of(survived(), broken())), None)
    assert text.startswith("## Fencepost: 1 pass, 1 fail\n")
    row = "| fail | told_by_hand | broken_twin | fence broken at step 6: A wrote to the ledger under token 1 while 2"
    assert row in text
    assert "| broken_twin | fence | told_by_hand (step 6) |" in text
    assert text.count("<details>") == text.count("</details>") == 1
    assert "Replay: <code>fencepost run told_by_hand --queue made:broken_twin</code>" in text


def test_hostile_text_is_text_in_markdown_too() -> None:
    text = within(blocks(suite_of(hostile())), None)
    assert "<img" not in text
    assert "<svg" not in text
    assert set(re.findall(r"</?(\w+)", text)) == {"details", "summary", "code"}
    for line in text.splitlines():
        if line.startswith("| 1 |"):
            assert len(re.findall(r"(?<!\\)\|", line)) == 6


def test_the_job_summary_stays_within_its_limit_and_says_what_is_left_out(tmp_path: Path) -> None:
    summary = tmp_path / "summary.md"
    summary.write_text("x" * (SUMMARY_LIMIT_BYTES - 6_000))
    append_to_summary(suite_of(*[broken(f"scenario_{n}") for n in range(60)]), summary)
    assert SUMMARY_LIMIT_BYTES - 3_000 < summary.stat().st_size <= SUMMARY_LIMIT_BYTES
    tail = summary.read_text()[-200:]
    assert re.search(r"\n\d+ more parts of this summary are left out", tail)
    assert summary.read_text().count("<details>") == summary.read_text().count("</details>")


def test_a_full_job_summary_is_left_as_it_is(tmp_path: Path) -> None:
    summary = tmp_path / "summary.md"
    summary.write_text("x" * (SUMMARY_LIMIT_BYTES - RESERVE_BYTES))
    append_to_summary(suite_of(broken()), summary)
    assert summary.stat().st_size == SUMMARY_LIMIT_BYTES - RESERVE_BYTES


def test_the_job_summary_is_appended_to_where_there_is_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    trace, summary = tmp_path / "one.jsonl", tmp_path / "summary.md"
    write_trace(broken(), trace)
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)
    markdown.write([trace])
    assert not summary.exists()
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    summary.write_text("what another step said\n")
    markdown.write([trace])
    told = capsys.readouterr().out
    assert summary.read_text() == "what another step said\n" + told[len(told) // 2 :]


# -- the suite ---------------------------------------------------------------------------------------------


def test_a_folder_becomes_an_index_and_a_page_per_trace(tmp_path: Path) -> None:
    for place, trace in enumerate([survived(), broken(), survived("another")]):
        write_trace(trace, tmp_path / f"{place}.jsonl")
    written = html.write([tmp_path], output=tmp_path / "report")
    assert written.path == tmp_path / "report/index.html"
    assert sorted(path.name for path in (tmp_path / "report/runs").iterdir()) == [
        "0.html",
        "1.html",
        "2.html",
    ]
    text = written.path.read_text()
    assert "All 2 runs passed" in text
    assert "1 of 1 twins were caught by what they break; their 1 runs" in text
    assert 'href="runs/1.html#step-6"' in text
    assert "Beside reference" in (tmp_path / "report/runs/1.html").read_text()
    assert "Beside" not in (tmp_path / "report/runs/0.html").read_text()


def test_an_index_named_by_its_file_gets_its_pages_beside_it(tmp_path: Path) -> None:
    for place in range(2):
        write_trace(survived(), tmp_path / f"{place}.jsonl")
    written = html.write([tmp_path / "0.jsonl", tmp_path / "1.jsonl"], output=tmp_path / "report.html")
    assert written.path == tmp_path / "report.html"
    assert 'href="report_files/0.html"' in (tmp_path / "report.html").read_text()
    assert 'href="../report.html"' in (tmp_path / "report_files/1.html").read_text()


def test_traces_of_one_name_in_several_folders_get_a_page_each() -> None:
    links = PageLinks([Path("a/race.jsonl"), Path("b/race.jsonl"), Path("c/RACE.jsonl")], "runs")
    assert [links.file_of(Path(f"{folder}.jsonl")) for folder in ("a/race", "b/race", "c/RACE")] == [
        *("race.html", "race~2.html", "RACE~3.html")
    ]


def test_a_trace_that_was_cut_off_is_named_and_the_others_are_shown(tmp_path: Path) -> None:
    write_trace(survived(), tmp_path / "good.jsonl")
    (tmp_path / "torn.jsonl").write_text((tmp_path / "good.jsonl").read_text()[:-100])
    written = html.write([tmp_path], output=tmp_path / "report")
    assert len(written.unreadable) == 1
    assert "torn.jsonl" in written.unreadable[0]
    assert written.path is not None
    assert "1 file could not be read and is not counted" in written.path.read_text()


def test_the_index_has_totals_matrix_twins_adapters_and_environment() -> None:
    control = survived()
    control.header["scenario"]["part"] = "control"  # type: ignore[index]
    suite = suite_of(survived(), broken(), control)
    model = suite_model(suite, PageLinks(list(suite.traces), "runs"))
    assert (model["totals"]["pass"], model["totals"]["fail"]) == (1, 0)
    assert (model["uncounted"], model["controls"]) == (1, 1)
    assert [run["verdict"] for run in model["runs"]] == ["fail", "pass", "pass"]
    by_queue = {
        row["queue"]: dict(zip(model["invariants"], row["cells"], strict=True)) for row in model["matrix"]
    }
    assert by_queue["broken_twin"]["fence"] == {
        "kind": "broken",
        "text": "✘",
        "step": 6,
        "link": "runs/1.html#step-6",
    }
    assert by_queue["reference"]["fence"]["kind"] == "held"
    assert by_queue["reference"]["single_holder"]["kind"] == "idle"
    (twin,) = model["twins"]
    assert twin["caught"] == [{"name": "told_by_hand", "step": 6, "link": "runs/1.html#step-6"}]
    assert [row["name"] for row in model["adapters"]] == ["reference"]
    assert dict(model["environment"])["PostgreSQL"] == "18.4 (embedded)"


def test_a_twin_that_was_not_caught_by_what_it_names_is_not_called_caught() -> None:
    trace = broken()
    trace.header["queue"]["twin"]["breaks"] = "requeued_once"  # type: ignore[index]
    suite = suite_of(trace)
    (twin,) = suite_model(suite, PageLinks(list(suite.traces), "runs"))["twins"]
    assert twin["caught"] == []


def test_only_a_passing_run_of_the_same_scenario_is_compared_with() -> None:
    suite = suite_of(broken("one"), survived("another"), broken("one"), survived("one"))
    assert {str(path): str(other) for path, (other, _) in comparisons(suite).items()} == {
        "0.jsonl": "3.jsonl",
        "2.jsonl": "3.jsonl",
    }


def test_a_typical_page_is_small(tmp_path: Path) -> None:
    assert len(html.run_page(broken()).encode()) < 300_000
    assert len(html.run_page(everything()).encode()) < 300_000


def test_what_is_not_there_is_said_in_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no trace"):
        read_suite([tmp_path])
    with pytest.raises(UsageError, match=r"none\.jsonl: cannot be read"):
        read_suite([tmp_path / "none.jsonl"])
    write_trace(survived(), tmp_path / "a.jsonl")
    with pytest.raises(UsageError, match="a suite compares by itself"):
        html.write([tmp_path], compare_with=tmp_path / "a.jsonl")
    for other in (perfetto, markdown):
        with pytest.raises(UsageError, match="only --format html"):
            other.write([tmp_path], compare_with=tmp_path / "a.jsonl")
