"""Known failures: what is new, what is known, what is gone; and a bad file as one sentence."""

from __future__ import annotations

from pathlib import Path

import pytest

from fencepost.harness.classify import Class, Classification, Finding
from fencepost.harness.errors import UsageError
from fencepost.harness.history import Violation
from fencepost.harness.known import Baseline, KnownFailure, parse_known, read_known, what_failed
from fencepost.harness.verdict import Judgement, RunFacts, Unmet, Verdict

pytest_plugins = ["pytester"]

TWO = """
[[known]]
scenario = "late_fail[last_attempt]"
invariant = "fence"
reason = "fixed in the next release"

[[known]]
scenario = "late_fail"
invariant = "corrupted"
reason = "upstream issue 12"
queue = "elsewhere"
"""


def facts(
    *violated: str, kind: Class | None = None, unmet: bool = False, verdict: Verdict = Verdict.FAIL
) -> tuple[RunFacts, Judgement]:
    finding = Finding(kind, 3, "1", "it counted") if kind is not None else None
    return (
        RunFacts(
            steps=3,
            declared_actors=(),
            actors_that_ran=frozenset(),
            holds=(),
            faults=(),
            witnesses=(),
            invariants={},
            violations=tuple(Violation(name, "1", 3, "broken") for name in violated),
            unmet=(Unmet(3, "not so"),) if unmet else (),
            obstacles=(),
            drained=True,
            classification=None if kind is None or finding is None else Classification(kind, (finding,)),
        ),
        Judgement(verdict, ()),
    )


def test_what_failed_names_invariants_classes_and_expectations() -> None:
    assert what_failed(*facts("fence", "ledger_once", "fence")) == ("fence", "ledger_once")
    assert what_failed(*facts("fence", kind=Class.CORRUPTED)) == ("fence", "corrupted")
    assert what_failed(*facts(kind=Class.ACCEPTED)) == ("accepted",)
    assert what_failed(*facts(unmet=True, kind=Class.REFUSED)) == ("expectation",)


def test_a_run_that_proved_nothing_has_no_findings() -> None:
    assert what_failed(*facts("fence", unmet=True, verdict=Verdict.INCONCLUSIVE)) == ()


def test_a_known_failure_is_explained_and_a_new_one_is_not() -> None:
    baseline = parse_known(TWO, "known.toml")
    (entry,) = baseline.explain("late_fail[last_attempt]", "mine", ["fence"])
    assert entry.reason == "fixed in the next release"
    assert baseline.explain("late_fail[last_attempt]", "mine", ["fence", "ledger_once"]) == ()
    assert baseline.explain("late_fail[attempts_left]", "mine", ["fence"]) == ()
    assert baseline.explain("lease_race", "mine", ["fence"]) == ()


def test_an_entry_may_name_a_queue_and_all_variants() -> None:
    baseline = parse_known(TWO, "known.toml")
    assert baseline.explain("late_fail[attempts_left]", "elsewhere", ["corrupted"])
    assert baseline.explain("late_fail[attempts_left]", "mine", ["corrupted"]) == ()


def test_a_passing_run_is_not_known() -> None:
    assert parse_known(TWO, "known.toml").explain("late_fail[last_attempt]", "mine", []) == ()


def test_gone_is_what_was_run_and_never_seen() -> None:
    baseline = parse_known(TWO, "known.toml")
    assert baseline.gone == ()
    baseline.note("late_fail[last_attempt]", "mine", [])
    assert [entry.invariant for entry in baseline.gone] == ["fence"]
    baseline.note("late_fail[last_attempt]", "mine", ["fence"])
    assert baseline.gone == ()


def test_an_entry_with_variants_is_gone_only_when_all_that_ran_are_clean() -> None:
    baseline = Baseline((KnownFailure("late_fail", "fence", "known"),))
    baseline.note("late_fail[attempts_left]", "mine", [])
    baseline.note("late_fail[last_attempt]", "mine", ["fence"])
    assert baseline.gone == ()


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[[known", "not TOML"),
        ("known = 3", "write each known failure as a [[known]] table"),
        ("[known]\nscenario = 'a'", "write each known failure as a [[known]] table"),
        ("[[failures]]\nscenario = 'a'", "only [[known]] tables belong there, found 'failures'"),
        ("[[known]]\nscenario = 'a'\ninvariant = 'b'", "entry 1: it lacks 'reason'"),
        (
            "[[known]]\nscenario = 'a'\ninvariant = 'b'\nreason = ' '",
            "entry 1: 'reason' must be a text, it is ' '",
        ),
        (
            "[[known]]\nscenario = 'a'\ninvariant = 1\nreason = 'c'",
            "entry 1: 'invariant' must be a text, it is 1",
        ),
        (
            "[[known]]\nscenario = 'a'\ninvariant = 'b'\nreason = 'c'\nsince = 'd'",
            "entry 1: there is no field 'since'",
        ),
        ("[[known]]\nscenario = 'a'\ninvariant = 'b'\nreason = 'c'\n" * 2, "entry 2: a is there twice"),
    ],
)
def test_a_bad_file_is_one_sentence(text: str, told: str) -> None:
    with pytest.raises(UsageError) as error:
        parse_known(text, "known.toml")
    assert told in str(error.value)
    assert str(error.value).startswith("--known known.toml")
    assert "\n" not in str(error.value)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"cannot be read \(No such file or directory\)"):
        read_known(tmp_path / "known.toml")


SCENARIOS = '''
from fencepost.harness.scenario import scenario
from fencepost.harness.witness import found_nothing

@scenario(witnesses=[found_nothing("B")])
def broken(race):
    """An expectation that never holds."""
    job = race.enqueue()
    a, b = race.workers("A", "B")
    a.claim(job)
    b.finds_nothing()
    race.expect(job, state="succeeded")

@scenario(witnesses=[found_nothing("B")])
def whole(race):
    """Nothing is wrong here."""
    job = race.enqueue()
    a, b = race.workers("A", "B")
    claim = a.claim(job)
    b.finds_nothing()
    a.complete(claim).accepted()
'''

KNOWN = """
[[known]]
scenario = "broken"
invariant = "expectation"
reason = "a promise we do not make"
"""

GONE = """
[[known]]
scenario = "whole"
invariant = "fence"
reason = "was wrong last week"
"""


@pytest.fixture
def project(pytester: pytest.Pytester) -> pytest.Pytester:
    pytester.makepyfile(test_of_mine=SCENARIOS)
    return pytester


def test_without_a_baseline_a_failure_fails(project: pytest.Pytester) -> None:
    result = project.runpytest_subprocess("-p", "no:cacheprovider", "test_of_mine.py")
    result.assert_outcomes(failed=1, passed=1)
    assert result.ret == pytest.ExitCode.TESTS_FAILED


def test_a_known_failure_does_not_fail_the_run_and_says_why(project: pytest.Pytester) -> None:
    project.makefile(".toml", known=KNOWN)
    result = project.runpytest_subprocess("-ra", "--known", "known.toml", "test_of_mine.py")
    result.assert_outcomes(xfailed=1, passed=1)
    assert result.ret == pytest.ExitCode.OK
    result.stdout.fnmatch_lines(["XFAIL*broken*known: expectation (a promise we do not make)*"])
    result.stdout.no_fnmatch_line("gone: *")


def test_a_known_failure_that_is_gone_is_said_and_fails_nothing(project: pytest.Pytester) -> None:
    project.makefile(".toml", known=KNOWN + GONE)
    result = project.runpytest_subprocess("-n", "1", "--known", "known.toml", "test_of_mine.py")
    assert result.ret == pytest.ExitCode.OK
    result.stdout.fnmatch_lines(["gone: whole: fence (was wrong last week)"])


def test_a_bad_file_stops_pytest_with_its_sentence(project: pytest.Pytester) -> None:
    project.makefile(".toml", known="[[known]]\nscenario = 'broken'\n")
    result = project.runpytest_subprocess("--known", "known.toml", "test_of_mine.py")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: --known known.toml, entry 1: it lacks 'invariant'."])
