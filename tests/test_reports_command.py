"""`fencepost report`, and what the pytest plugin says about reports."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from urllib.parse import unquote, urlparse

import pytest

from fencepost.harness.cli import main
from fencepost.harness.trace import read_trace, write_trace
from fencepost.tests.report_traces import broken, survived

pytest_plugins = ["pytester"]

TWIN = "fencepost.queue_impl.twins:guard_without_row_lock"
DEADLINE_S = 180


@pytest.fixture
def traces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)
    folder = tmp_path / ".fencepost/traces"
    folder.mkdir(parents=True)
    write_trace(survived(), folder / "good.jsonl")
    write_trace(broken(), folder / "bad.jsonl")
    return folder


def test_a_report_of_what_the_last_run_left(traces: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report"]) == 0
    assert capsys.readouterr().out == "report: .fencepost/report/index.html\n"
    assert Path(".fencepost/report/runs/bad.html").is_file()


def test_one_trace_is_one_file(traces: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(traces / "bad.jsonl"), "-o", "bad.html"]) == 0
    assert capsys.readouterr().out == "report: bad.html\n"
    text = Path("bad.html").read_text()
    assert not re.findall(r"""(?:src|href)=["'](?!#|data:)""", text), "it stands alone"


def test_two_traces_beside_each_other(traces: Path) -> None:
    arguments = ["--compare", str(traces / "good.jsonl"), "-o", "both.html"]
    assert main(["report", str(traces / "bad.jsonl"), *arguments]) == 0
    assert "The first 5 steps are the same. Then broken_twin" in Path("both.html").read_text()


def test_the_other_formats(traces: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(traces), "--format", "perfetto", "-o", "events"]) == 0
    assert sorted(path.name for path in Path("events").iterdir()) == [
        "bad.perfetto.json",
        "good.perfetto.json",
    ]
    capsys.readouterr()
    assert main(["report", str(traces), "--format", "markdown"]) == 0
    assert capsys.readouterr().out.startswith("## Fencepost: 1 pass, 1 fail\n")


def test_open_opens_the_page(traces: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    assert main(["report", str(traces / "bad.jsonl"), "-o", "bad.html", "--open"]) == 0
    assert opened == [Path("bad.html").resolve().as_uri()]


def test_a_torn_trace_is_told_and_costs_the_exit_code(
    traces: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (traces / "torn.jsonl").write_text((traces / "good.jsonl").read_text()[:-50])
    assert main(["report"]) == 2
    told = capsys.readouterr()
    assert told.out == "report: .fencepost/report/index.html\n"
    assert re.fullmatch(r"fencepost: .*torn\.jsonl, line \d+: not JSON .*\n", told.err)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ("report nowhere.jsonl", "nowhere.jsonl: cannot be read"),
        ("report empty", "empty: no trace"),
        ("report --format pdf", r"--format pdf: no such format \(html, markdown, perfetto\)"),
        ("report --format markdown --open", "--open: --format markdown writes no page"),
        ("report --compare .fencepost/traces/good.jsonl", "a suite compares by itself"),
        ("report .fencepost/traces/bad.jsonl -o empty", "-o empty: cannot be written"),
        ("report --format perfetto -o all.json", "2 traces go into a folder"),
    ],
)
def test_wrong_use_is_one_sentence(
    traces: Path, capsys: pytest.CaptureFixture[str], arguments: str, told: str
) -> None:
    Path("empty").mkdir()
    assert main(arguments.split()) == 2
    err = capsys.readouterr().err
    assert re.search(told, err), err
    assert err.count("\n") == 1


def test_a_failed_pytest_run_leaves_one_report_of_every_worker(pytester: pytest.Pytester) -> None:
    """On a broken twin, with two workers: the link, the merged pages, and the properties in junit.xml."""
    pytester.makepyfile("from fencepost.scenarios.test_lease_race import held_between_guard_and_commit")
    result = pytester.runpytest_subprocess(
        *("-p", "no:cacheprovider", "-p", "no:hypothesispytest", "-q", "-n", "2", "--junitxml", "junit.xml"),
        *("--queue", TWIN, "--trace-dir", "kept"),
        timeout=DEADLINE_S,
    )
    result.assert_outcomes(passed=1, failed=3)
    (link,) = re.findall(r"fencepost: report of 4 runs: (file://\S+)", result.stdout.str())
    index = Path(unquote(urlparse(link).path))
    assert index == pytester.path / "kept/report/index.html"
    assert "3 of 4 runs failed" in index.read_text()
    pages = sorted(path.stem for path in (index.parent / "runs").iterdir())
    assert pages == sorted(path.stem for path in (pytester.path / "kept").glob("*.jsonl"))

    case = next(
        case
        for case in ElementTree.parse(pytester.path / "junit.xml").iter("testcase")
        if case.get("name") == "held_between_guard_and_commit[after_guard]"
    )
    properties = {found.get("name"): found.get("value", "") for found in case.iter("property")}
    trace = read_trace(pytester.path / properties["fencepost_trace"])
    assert properties["fencepost_replay"] == trace.header["replay"]
    assert f"--queue={TWIN}" in properties["fencepost_replay"]
    assert "held_between_guard_and_commit[after_guard]" in properties["fencepost_replay"]
    assert trace.header["queue"]["twin"]["of"] == "reference"
    source = trace.header["scenario"]["source"]
    assert source["file"] == "test_lease_race.py"
    lines = source["text"].splitlines()
    for step in trace.steps:
        if "line" in step:
            number = int(step["line"].rpartition(":")[2]) - source["first_line"]
            assert lines[number].strip(), "every step's line is in the text the trace carries"
    assert "def held_between_guard_and_commit" in source["text"]


def test_a_run_that_passes_says_nothing_about_reports(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("from fencepost.scenarios.test_lease_race import late_complete_nobody_reclaimed")
    result = pytester.runpytest_subprocess(
        *("-p", "no:cacheprovider", "-p", "no:hypothesispytest", "-q", "--trace-dir", "kept"),
        timeout=DEADLINE_S,
    )
    result.assert_outcomes(passed=1)
    assert "report" not in result.stdout.str()
    assert not (pytester.path / "kept/report").exists()
