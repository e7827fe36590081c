"""The pytest plugin, in test suites of its own: what it runs, what it says, what it leaves alone."""

from __future__ import annotations

import os
import re
import shlex
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from fencepost.harness.trace import read_trace
from fencepost.tests.fix_commands import private_tmp, runs_in

pytest_plugins = ["pytester"]

DEADLINE_S = 180
SNAPSHOTS = Path(__file__).resolve().parent / "snapshots"
TWIN = "fencepost.queue_impl.twins:guard_without_row_lock"

UNUSED = ("-p", "no:cacheprovider", "-p", "no:hypothesispytest")
"""Other plugins, left out because importing one of them takes longer than most of these runs."""

HEADER = """
from fencepost.harness.adapter import Capability
from fencepost.harness.race import Race
from fencepost.harness.scenario import scenario
from fencepost.harness.witness import lease_expired, reclaimed
"""

TAKES_OVER = (
    HEADER
    + '''
@scenario(witnesses=[lease_expired, reclaimed])
def b_takes_over(race: Race) -> None:
    """A stalls, B takes its job."""
    job = race.enqueue()
    a, b = race.workers("A", "B")
    race.clock.advance_past(a.claim(job))
    b.complete(b.claim(job)).accepted()
'''
)


@pytest.fixture
def idle_tmp(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A temporary directory in which no server may be started."""
    with private_tmp() as tmp:
        monkeypatch.setenv("TMPDIR", str(tmp))
        monkeypatch.setattr(tempfile, "tempdir", None)
        yield tmp
        assert runs_in(tmp) == []


def run(pytester: pytest.Pytester, *arguments: str) -> pytest.RunResult:
    result = pytester.runpytest_subprocess(*UNUSED, *arguments, timeout=DEADLINE_S)
    assert "INTERNALERROR" not in result.stdout.str() + result.stderr.str()
    return result


def section_of(result: pytest.RunResult, item: str) -> str:
    """What pytest shows under the heading of a failed item."""
    lines = result.outlines
    start = next(n for n, line in enumerate(lines) if re.fullmatch(rf"_+ {re.escape(item)} _+", line))
    end = next(
        n for n in range(start + 1, len(lines)) if re.match(r"(_+ .* _+|=+ .* =+|fencepost: .*)$", lines[n])
    )
    return "\n".join(lines[start + 1 : end]) + "\n"


# -- somebody else's suite ---------------------------------------------------------------------------------


def test_a_suite_without_scenarios_is_left_alone(pytester: pytest.Pytester, idle_tmp: Path) -> None:
    pytester.makepyfile(
        """
        import os, pytest, sys

        def test_nothing_of_the_harness_has_started():
            assert not [name for name in os.listdir(os.environ["TMPDIR"]) if name.startswith("fencepost")]

        @pytest.mark.parametrize("cores", [os.cpu_count()])
        def test_no_process_is_pinned(cores):
            assert len(os.sched_getaffinity(0)) == CORES

        def test_that_fails():
            assert 1 == 2

        @pytest.mark.skip(reason="not today")
        def test_that_is_skipped():
            raise AssertionError

        class TestOfAClass:
            def test_inside(self, tmp_path):
                assert tmp_path.exists()
        """.replace("CORES", str(len(os.sched_getaffinity(0))))
    )
    shown = []
    for without in ([], ["-p", "no:fencepost"]):
        result = run(pytester, "-q", "-ra", "--strict-markers", *without)
        result.assert_outcomes(passed=3, failed=1, skipped=1)
        assert result.ret == pytest.ExitCode.TESTS_FAILED
        shown.append([re.sub(r"\d+\.\d+s", "TIME", line) for line in result.outlines])
        assert result.errlines == []
    assert shown[0] == shown[1]
    assert not list(idle_tmp.glob("fencepost-*"))
    assert not (pytester.path / ".fencepost").exists()


def test_the_markers_are_registered(pytester: pytest.Pytester) -> None:
    shown = pytester.runpytest_inprocess(*UNUSED, "--markers").stdout.str()
    assert "@pytest.mark.scenario: a race replayed by fencepost" in shown
    assert "@pytest.mark.family(name): the family a scenario belongs to" in shown


# -- scenarios in it ---------------------------------------------------------------------------------------


def test_scenarios_run_next_to_ordinary_tests(pytester: pytest.Pytester) -> None:
    """One run with a scenario of every end there is."""
    pytester.makepyfile(
        test_mine=TAKES_OVER
        + '''
def test_ordinary():
    pass


class TestOfAClass:
    def test_inside(self):
        pass


@scenario(witnesses=[lease_expired], each={"who": ("A", "B")})
def expires(race: Race, who: str) -> None:
    """Somebody's lease expires."""
    job = race.enqueue()
    worker = race.worker(who)
    race.clock.advance_past(worker.claim(job))


@scenario(requires={Capability.DEFERRED_RECLAIM}, witnesses=[reclaimed])
def needs_what_is_not_there(race: Race) -> None:
    """Never run on this queue."""
    raise AssertionError("it was run")


@scenario(witnesses=[lease_expired, reclaimed])
def the_clock_is_not_moved(race: Race) -> None:
    """A stalls, and B comes too early."""
    job = race.enqueue()
    a, b = race.workers("A", "B")
    a.claim(job)
    b.finds_nothing()


@scenario(witnesses=[reclaimed])
def nothing_happens(race: Race) -> None:
    """Nobody does anything."""


@scenario(witnesses=[reclaimed])
def raises(race: Race) -> None:
    """It has a bug of its own."""
    race.enqueue()
    {}["missing"]
''',
        # The same name as another file's scenario, and another race.
        test_other=TAKES_OVER.replace("b.complete(b.claim(job)).accepted()", "b.claim(job)"),
    )
    result = run(pytester, "-v", "-rs", "--strict-markers", "--trace-dir", "kept")
    result.assert_outcomes(passed=6, failed=3, skipped=1)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    shown = result.stdout.str()
    for line in (
        "test_mine.py::b_takes_over PASSED",
        "test_mine.py::test_ordinary PASSED",
        "test_mine.py::TestOfAClass::test_inside PASSED",
        "test_mine.py::expires[A] PASSED",
        "test_mine.py::expires[B] PASSED",
        "test_mine.py::needs_what_is_not_there SKIPPED",
        "test_other.py::b_takes_over PASSED",
    ):
        assert line in shown
    assert "queue 'reference' lacks DEFERRED_RECLAIM" in shown
    assert "traces disagree" not in shown

    too_early = section_of(result, "the_clock_is_not_moved")
    assert "the_clock_is_not_moved on queue 'reference': inconclusive" in too_early
    assert "  - not witnessed: a live lease expired when the clock was moved" in too_early
    assert "  - not witnessed: a second claim of one job, in the journal of executions" in too_early
    assert (
        re.search(r"^ +4  B +claim +nothing there", too_early, re.MULTILINE) or "nothing there" in too_early
    )

    nothing = section_of(result, "nothing_happens")
    assert "nothing_happens on queue 'reference': inconclusive" in nothing
    assert "  - no step was run" in nothing

    broken = section_of(result, "raises")
    assert "raises on queue 'reference': inconclusive" in broken
    assert "  - the scenario raised KeyError: 'missing'" in broken

    kept = {path.name: read_trace(path).end["verdict"] for path in (pytester.path / "kept").glob("*.jsonl")}
    assert kept == {
        "mine-b_takes_over.jsonl": "pass",
        "mine-expires-A.jsonl": "pass",
        "mine-expires-B.jsonl": "pass",
        "mine-the_clock_is_not_moved.jsonl": "inconclusive",
        "mine-nothing_happens.jsonl": "inconclusive",
        "mine-raises.jsonl": "inconclusive",
        "other-b_takes_over.jsonl": "pass",
    }


def test_a_failure_shows_itself_and_how_to_replay_it(pytester: pytest.Pytester) -> None:
    """From a directory below pytest's root, as the replay command has to work where it was shown."""
    pytester.makeini("[pytest]")
    below = pytester.mkdir("below")
    (below / "test_mine.py").write_text(
        "from fencepost.scenarios.test_lease_race import held_between_guard_and_commit\n"
    )
    os.chdir(below)
    item = "held_between_guard_and_commit[after_guard]"
    result = run(pytester, f"test_mine.py::{item}", "--queue", TWIN)
    result.assert_outcomes(failed=1)
    shown = section_of(result, item)
    compare_with_snapshot("held_between_guard_and_commit.txt", shown)

    told = dict(re.findall(r"^(replay|trace): +(.*)$", shown, re.MULTILINE))
    trace = read_trace(Path(told["trace"]))
    assert trace.end["verdict"] == "fail"
    assert {violation["invariant"] for violation in trace.end["violations"]} >= {"fence"}

    command, *arguments = shlex.split(told["replay"])
    assert command == "pytest"
    again = run(pytester, *arguments)
    again.assert_outcomes(failed=1)
    assert without_times(section_of(again, item)) == without_times(shown)


def without_times(text: str) -> str:
    """How far the clock was moved depends on how long the step before it took."""
    return re.sub(r"clock \+\d+\.\d s", "clock +60.0 s", text)


def compare_with_snapshot(name: str, text: str) -> None:
    """Failure text is a product. FENCEPOST_WRITE_SNAPSHOTS=1 takes what is shown now as right."""
    path = SNAPSHOTS / name
    if os.environ.get("FENCEPOST_WRITE_SNAPSHOTS") == "1":
        path.write_text(without_times(text))
    assert without_times(text) == path.read_text()


def test_a_queue_that_cannot_be_installed_is_tried_once(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        uninstallable="""
        from fencepost.queue_impl.reference.adapter import ReferenceAdapter

        class Queue(ReferenceAdapter):
            def install(self, dsn):
                with open("tried", "a") as tried:
                    tried.write("once ")
                raise RuntimeError("no room")
        """,
        test_mine=TAKES_OVER + TAKES_OVER.replace("b_takes_over", "b_takes_over_again"),
    )
    result = run(pytester, "-q", "--queue", "uninstallable:Queue")
    result.assert_outcomes(failed=2)
    told = "Queue 'reference' could not be installed: install() of queue 'reference' raised RuntimeError: no room."
    for item in ("b_takes_over", "b_takes_over_again"):
        assert section_of(result, item) == f"{told}\n"
    assert (pytester.path / "tried").read_text() == "once "


# -- repeats -----------------------------------------------------------------------------------------------

NEVER_THE_SAME = (
    TAKES_OVER
    + '''
RUNS = []


@scenario(witnesses=[lease_expired])
def never_the_same(race: Race) -> None:
    """Every run has a step more than the one before."""
    job = race.enqueue()
    worker = race.worker("A")
    race.clock.advance_past(worker.claim(job))
    RUNS.append(job)
    for _ in RUNS:
        race.enqueue()
'''
)


def test_repeats_are_items_of_their_own_and_their_traces_agree(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_mine=TAKES_OVER + "\ndef test_ordinary(): pass\n")
    result = run(pytester, "-v", "--repeat", "3", "--trace-dir", "kept")
    result.assert_outcomes(passed=4)
    for number in (1, 2, 3):
        assert f"test_mine.py::b_takes_over#{number} PASSED" in result.stdout.str()
    result.stdout.re_match_lines(
        [
            r"=+ canonical traces =+",
            r"[0-9a-f]{16}      3 runs  test_mine\.py::b_takes_over$",
            r"fencepost: 3 passing runs of 1 scenarios, one canonical trace each",
        ]
    )
    assert len(list((pytester.path / "kept").iterdir())) == 3


@pytest.mark.parametrize("workers", [[], ["-n", "2"]], ids=["alone", "two_workers"])
def test_runs_that_differ_fail_the_session_though_each_passes(
    pytester: pytest.Pytester, workers: list[str]
) -> None:
    pytester.makepyfile(test_mine=NEVER_THE_SAME)
    result = run(pytester, "-q", "--repeat", "3", *workers)
    result.assert_outcomes(passed=6)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.re_match_lines(
        [
            r"=+ scenarios whose traces disagree =+",
            r"test_mine\.py::never_the_same: [0-9a-f]{12} \(\d runs\), [0-9a-f]{12} \(\d runs\)",
        ]
    )
    assert "test_mine.py::b_takes_over: " not in result.stdout.str()


# -- selecting ---------------------------------------------------------------------------------------------


def test_collecting_starts_no_server(pytester: pytest.Pytester, idle_tmp: Path) -> None:
    pytester.makepyfile(
        test_mine="from fencepost.scenarios.test_lease_race import late_fail, lease_race\ndef test_ordinary(): pass\n"
    )

    def collected(*arguments: str) -> set[str]:
        result = pytester.runpytest_inprocess(*UNUSED, "--co", "-q", *arguments)
        return {line.partition("::")[2] for line in result.outlines if "::" in line}

    scenarios = {"late_fail[attempts_left]", "late_fail[last_attempt]", "lease_race"}
    assert collected() == {*scenarios, "test_ordinary"}
    assert collected("-k", "lease_race") == scenarios, "the family's name selects all of it"
    assert collected("-k", "late_fail and last_attempt") == {"late_fail[last_attempt]"}
    assert collected("-m", "scenario") == scenarios
    assert collected("-m", "not scenario") == {"test_ordinary"}
    assert collected("-m", "family", "--strict-markers") == scenarios
    assert collected("--repeat", "2", "-k", "late_fail and last") == {
        "late_fail[last_attempt]#1",
        "late_fail[last_attempt]#2",
    }
    assert collected("--actors", "fiber") == {*scenarios, "test_ordinary"}, (
        "nothing is run that could need them"
    )


# -- wrong use ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ("--actors fiber", r"--actors fiber: give one of thread, process\."),
        (
            "--pg oracle",
            r"--pg oracle: give embedded, embedded:MAJOR \(as embedded:16\) or embedded:BINDIR, docker or .*\.",
        ),
        (
            "--pg embedded:99",
            r"PostgreSQL 99 was not found \(found: .*\): install it, or name its bin directory in .*",
        ),
        ("--clock sundial", r"--clock sundial: give one of auto, clock, expire, wait\."),
        ("--queue nope", r"--queue nope: give MODULE:NAME or one of the known queues \(.*\)\."),
        ("--queue no.such:q", r"--queue no\.such:q: cannot import no\.such \(No module named 'no'\)\."),
        (
            "--trace-dir test_mine.py/below",
            r"--trace-dir test_mine.py/below: cannot write there \(Not a dir.*",
        ),
        ("--repeat 0", r"--repeat 0: give a whole number from 1 on\."),
        ("--repeat many", r"--repeat many: give a whole number from 1 on\."),
    ],
)
def test_wrong_use_is_one_sentence(
    pytester: pytest.Pytester, idle_tmp: Path, arguments: str, told: str
) -> None:
    pytester.makepyfile(test_mine=TAKES_OVER)
    result = pytester.runpytest_inprocess(*UNUSED, "-q", *arguments.split())
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    (line,) = [line for line in result.outlines + result.errlines if line.startswith("ERROR: ")]
    assert re.fullmatch(told, line.removeprefix("ERROR: "))
    shown = result.stdout.str() + result.stderr.str()
    assert "INTERNALERROR" not in shown
    assert "Traceback" not in shown


@pytest.mark.parametrize("arguments", ["--actors fiber", "--queue no.such:q"])
def test_wrong_use_is_one_sentence_under_xdist_too(
    pytester: pytest.Pytester, idle_tmp: Path, arguments: str
) -> None:
    pytester.makepyfile(test_mine=TAKES_OVER + "\ndef test_ordinary(): pass\n")
    result = run(pytester, "-q", "-n", "2", *arguments.split())
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    (line,) = [line for line in result.outlines + result.errlines if line.startswith("ERROR: ")]
    assert line.startswith(f"ERROR: {arguments}: ")
    shown = result.stdout.str() + result.stderr.str()
    assert "Traceback" not in shown
    assert "crashed" not in shown
