"""`@explore` in pytest: what it says, keeps, skips and leaves behind."""

from __future__ import annotations

import shlex
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from fencepost.harness.explore.order_text import fits
from fencepost.harness.explore.program import parse
from fencepost.harness.schedule import parse_schedule
from fencepost.tests.test_explore_real import pytest_on

ROOT = Path(__file__).resolve().parent.parent
TWINS = "fencepost.queue_impl.twins"
HEAD = """
import pytest
from fencepost.harness.explore.marked import explore
"""
TWO = (
    HEAD
    + """
@explore("A:claim B:claim")
def test_two_claims(result):
    pass

@explore("A:claim,complete")
def test_one_worker(result):
    pass
"""
)


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "test_marked.py"
    path.write_text(text)
    return path


def test_a_failure_leaves_a_trace_and_is_in_the_report(tmp_path: Path) -> None:
    path = written(tmp_path, TWO)
    options = (f"--queue={TWINS}:claim_without_lock", "--junitxml=report.xml", "--trace-dir=traces")
    done = pytest_on(path, *options, "--clock=expire")
    assert done.returncode == 1 and "1 failed, 1 passed" in done.stdout, done.stdout
    (trace,) = (tmp_path / "traces").glob("explore-claim_without_lock-single_holder-*.failing.jsonl")
    assert f"trace:   {trace.relative_to(tmp_path)}" in done.stdout
    assert "fencepost: report of 1 runs: file://" in done.stdout
    (page,) = (tmp_path / "traces" / "report").glob("*.html")
    assert page.name == f"{trace.stem}.html"
    properties = {
        each.get("name"): each.get("value") or ""
        for each in ET.parse(tmp_path / "report.xml").iter("property")
    }
    assert properties["fencepost_trace"] == str(trace.relative_to(tmp_path))
    words = shlex.split(properties["fencepost_replay"])
    assert words[0] == "pytest" and "--clock=expire" in words
    again = pytest_on(path, *words[2:], "--trace-dir=again")
    assert again.returncode == 1 and "single_holder broken" in again.stdout, again.stdout
    assert "1 failed, 1 deselected" in again.stdout
    assert list((tmp_path / "again").glob("explore-test_two_claims-replayed.jsonl"))


@pytest.mark.parametrize(
    ("marked", "said"),
    [
        ('@explore("A:claim,compelte")', "@explore: ops, column 9: 'compelte' is no operation"),
        (
            '@explore("A:claim", faults="expire,earthquake")',
            "@explore: faults, column 8: 'earthquake' is no fault",
        ),
        (
            '@explore("A:claim", strategy="reduce")',
            "strategy is one of exhaustive, reduced, pct, random, not",
        ),
        ('@explore("A:claim", budget=0)', "budget is a whole number from 1 on, not 0"),
        ('@explore("A:claim", enqueue=-1)', "enqueue is a whole number from 0 on, not -1"),
        ('@explore("A:claim", seed="7")', "seed is a whole number, not '7'"),
        ('@explore("P:claim")', "P enqueues the jobs that are there at the start; take another name"),
        ("@explore", "@explore is given its operations"),
    ],
)
def test_a_wrong_argument_is_one_sentence_with_its_line(marked: str, said: str, tmp_path: Path) -> None:
    path = written(tmp_path, f"{HEAD}\n{marked}\ndef test_it(result):\n    pass\n")
    done = pytest_on(path)
    assert done.returncode == 2, done.stdout
    assert "test_marked.py:5: @explore" in done.stdout and said in done.stdout, done.stdout
    assert "Traceback" not in done.stdout and "harness/explore" not in done.stdout


def test_marks_are_kept_on_both_sides(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        HEAD
        + """
@pytest.mark.skip(reason="above")
@explore("A:claim")
def test_above(result):
    pass

@explore("A:claim")
@pytest.mark.skipif("HEAD", reason="below")
def test_below(result):
    pass

@pytest.mark.slow
@explore("A:claim")
def test_slow(result):
    assert False, "its body is run"

HEAD = True
""",
    )
    done = pytest_on(path, "-rs")
    assert "above" in done.stdout and "below" in done.stdout and "its body is run" in done.stdout
    assert "1 failed, 2 skipped" in done.stdout, done.stdout
    chosen = pytest_on(path, "-m", "not slow and exploration")
    assert "2 skipped, 1 deselected" in chosen.stdout, chosen.stdout


def test_what_the_queue_lacks_is_named_and_skipped(tmp_path: Path) -> None:
    path = written(tmp_path, f'{HEAD}\n@explore("A:claim C:cancel")\ndef test_it(result):\n    pass\n')
    done = pytest_on(path, "--queue=procrastinate", "-rs")
    assert done.returncode == 0 and "1 skipped" in done.stdout, done.stdout
    assert "C is to cancel, and the queue lacks CANCEL" in done.stdout


@pytest.mark.parametrize(
    ("schedule", "said"),
    [
        ("P:enqueue | A:claim | R:reap", "this is no order of any exploration that was collected"),
        ("P:enqueue | A:clam(", "--replay: "),
    ],
)
def test_a_schedule_that_fits_nothing_is_one_sentence(schedule: str, said: str, tmp_path: Path) -> None:
    path = written(tmp_path, TWO)
    for workers in ((), ("-n", "2")):
        done = pytest_on(path, "--replay", schedule, *workers)
        assert done.returncode in (3, 4), done.stdout
        lines = [line for line in (done.stdout + done.stderr).splitlines() if said in line]
        assert lines, done.stdout + done.stderr
        assert "passed" not in done.stdout and "Traceback" not in done.stdout + done.stderr


@pytest.mark.parametrize(
    ("schedule", "fit"),
    [
        ("P:enqueue | A:claim@* | A> | A> | B:claim@* | A>", True),
        ("P:enqueue | B:claim", True),
        ("P:enqueue | A:complete | A:claim", False),
        ("P:enqueue | P:enqueue | A:claim", False),
        ("P:enqueue | C:claim", False),
        ("P:enqueue | A:claim | clock+61s | A:complete~lose_reply#2", True),
        ("P:enqueue | A:claim~lose_reply#1 | A:complete~lose_reply#2", False),
        ("P:enqueue | A:claim | crash", False),
    ],
)
def test_which_schedules_fit_a_program(schedule: str, fit: bool) -> None:
    program = parse("A:claim,complete B:claim", "expire,lose-reply")
    assert fits(program, parse_schedule(schedule)) is fit


@pytest.mark.parametrize(
    ("twin", "test"),
    [
        ("claim_without_lock", "test_two_claims_of_one_job"),
        ("cancel_without_row_lock", "test_a_cancel_while_a_worker_completes"),
        ("no_guard", "test_two_workers_and_a_lease_that_ends"),
    ],
)
def test_the_examples_in_scenarios_fail_on_a_twin(twin: str, test: str, tmp_path: Path) -> None:
    path = ROOT / "scenarios" / "test_orders.py"
    done = pytest_on(path, f"--queue={TWINS}:{twin}", "-k", test, f"--trace-dir={tmp_path}")
    assert done.returncode == 1 and "1 failed" in done.stdout, done.stdout
