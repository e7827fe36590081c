"""Known failures: what is new, what is known, what is gone; and a bad file as one sentence."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from fencepost.harness.classify import Class, Classification, Finding
from fencepost.harness.commands.run_tally import Tally
from fencepost.harness.errors import UsageError
from fencepost.harness.history import Violation
from fencepost.harness.known import (
    BAD_CLASSES,
    FINDINGS,
    Baseline,
    KnownFailure,
    Ran,
    parse_known,
    read_known,
    what_failed,
    what_held,
)
from fencepost.harness.known_names import Nameable, is_defined_in
from fencepost.harness.loading import load_queue
from fencepost.harness.machine_example import NAME
from fencepost.harness.scenario import installed_scenarios
from fencepost.harness.verdict import InvariantCount, Judgement, RunFacts, Unmet, Verdict
from fencepost.tests.fix_commands import run_fencepost
from fencepost.tests.fix_scenarios import installed

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
            invariants={"fence": InvariantCount(3, 1), "not_before": InvariantCount(0, 0)},
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


def test_what_held_is_what_a_passing_run_was_judged_by() -> None:
    assert what_held(*facts(verdict=Verdict.PASS)) == {"fence", "expectation"}
    assert what_held(*facts(kind=Class.REFUSED, verdict=Verdict.PASS)) == {
        "fence",
        "expectation",
        *BAD_CLASSES,
    }
    for verdict in (Verdict.FAIL, Verdict.INCONCLUSIVE):
        assert what_held(*facts(unmet=True, verdict=verdict)) == frozenset()


MINE, ELSEWHERE = frozenset({"mine"}), frozenset({"elsewhere"})


def test_a_known_failure_is_explained_and_a_new_one_is_not() -> None:
    baseline = parse_known(TWO, "known.toml")
    (entry,) = baseline.explain("late_fail[last_attempt]", MINE, ["fence"])
    assert entry.reason == "fixed in the next release"
    assert baseline.explain("late_fail[last_attempt]", MINE, ["fence", "ledger_once"]) == ()
    assert baseline.explain("late_fail[attempts_left]", MINE, ["fence"]) == ()
    assert baseline.explain("lease_race", MINE, ["fence"]) == ()


def test_an_entry_may_name_a_queue_and_all_variants() -> None:
    baseline = parse_known(TWO, "known.toml")
    assert baseline.explain("late_fail[attempts_left]", ELSEWHERE, ["corrupted"])
    assert baseline.explain("late_fail[attempts_left]", MINE, ["corrupted"]) == ()


@pytest.mark.parametrize(
    "name",
    ["procrastinate", "fencepost.adapters.procrastinate:ProcrastinateAdapter"],
    ids=["short_name", "module"],
)
def test_a_queue_goes_by_its_own_name_its_short_name_and_its_path(name: str) -> None:
    pytest.importorskip("procrastinate")
    assert {"procrastinate", "fencepost.adapters.procrastinate:ProcrastinateAdapter"} <= load_queue(
        name
    ).names
    assert "pgqueuer" not in load_queue(name).names


def test_an_adapter_has_a_name_that_is_not_its_short_name() -> None:
    twin = load_queue("fencepost.queue_impl.twins:no_guard")
    assert twin.names == {"no_guard", "fencepost.queue_impl.twins:no_guard"}


def test_a_passing_run_is_not_known() -> None:
    assert parse_known(TWO, "known.toml").explain("late_fail[last_attempt]", MINE, []) == ()


ALL = frozenset({"late_fail[attempts_left]", "late_fail[last_attempt]"})


def clean(variant: str, *held: str) -> Ran:
    return Ran(variant, ALL, MINE, frozenset(held or {"fence"}))


def failed(variant: str) -> Ran:
    return Ran(variant, ALL, MINE)


def impossible(variant: str) -> Ran:
    return Ran(variant, ALL, MINE, impossible=True)


LEFT, LAST = sorted(ALL)


@pytest.mark.parametrize(
    ("runs", "gone"),
    [
        ([], False),
        ([clean(LEFT)], False),
        ([clean(LEFT), clean(LAST)], True),
        ([clean(LEFT), clean(LEFT)], False),
        ([clean(LEFT), failed(LAST)], False),
        ([clean(LEFT), clean(LAST), failed(LAST)], False),
        ([clean(LEFT), impossible(LAST)], True),
        ([impossible(LEFT), impossible(LAST)], False),
        ([clean(LEFT), clean(LAST, "ledger_once")], False),
    ],
    ids=[
        "nothing_ran",
        "one_variant_did_not_run",
        "all_ran",
        "one_ran_twice",
        "one_failed",
        "one_run_of_many_failed",
        "the_other_cannot_run_here",
        "none_can_run_here",
        "it_was_not_judged_by_that",
    ],
)
def test_gone_is_what_every_variant_ran_without(runs: list[Ran], gone: bool) -> None:
    baseline = Baseline((KnownFailure("late_fail", "fence", "known"),))
    for ran in runs:
        baseline.note(Ran.from_json(ran.as_json()))  # as it comes from an xdist worker
    assert bool(baseline.gone) is gone


def test_an_entry_with_brackets_covers_one_variant_and_one_with_a_queue_that_queue() -> None:
    baseline = Baseline(
        (
            KnownFailure(LAST, "fence", "known"),
            KnownFailure(LAST, "fence", "known", queue="elsewhere"),
        )
    )
    baseline.note(clean(LEFT))
    assert baseline.gone == ()
    baseline.note(clean(LAST))
    assert baseline.gone == baseline.known[:1]


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
        (
            "[[known]]\nscenario = 'a'\ninvariant = 'fence'\nreason = 'c'\n" * 2,
            "entry 2: a is there twice",
        ),
        (
            "[[known]]\nscenario = 'a'\ninvariant = 'fense'\nreason = 'c'",
            "entry 1: no failure goes by the name 'fense'; the nearest is 'fence'.",
        ),
        (
            "[[known]]\nscenario = 'a'\ninvariant = 'xyz'\nreason = 'c'",
            f"entry 1: no failure goes by the name 'xyz'; there are {', '.join(FINDINGS)}.",
        ),
        (
            "[[known]]\nscenario = 'a'\ninvariant = 'inconclusive'\nreason = 'c'",
            "entry 1: 'inconclusive' is no failure, and only failures can be known.",
        ),
        (
            "[[known]]\nscenario = 'a'\ninvariant = 'refused'\nreason = 'c'",
            "entry 1: 'refused' is no failure, and only failures can be known.",
        ),
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


# -- what an entry can name -----------------------------------------------------------------------------------


def entry(scenario: str, invariant: str = "fence") -> str:
    return f"[[known]]\nscenario = '{scenario}'\ninvariant = '{invariant}'\nreason = 'so it is'\n"


@pytest.fixture(scope="module")
def nameable() -> Nameable:
    there = Nameable()
    there.add_installed()
    there.add_exploration("test_two_claims")
    return there


@pytest.mark.parametrize(
    ("scenario", "invariant"),
    [
        *((name, finding) for name in ("late_fail", LAST, NAME) for finding in ("fence", "expectation")),
        ("fail_while_b_runs", "corrupted"),
        ("fail_while_b_runs[five_attempts]", "accepted"),
        (f"{NAME}[1]", "one_place"),
        ("test_two_claims", "single_holder"),
    ],
)
def test_what_can_be_met_can_be_named(
    nameable: Nameable, tmp_path: Path, scenario: str, invariant: str
) -> None:
    nameable.check(parse_known(entry(scenario, invariant), "known.toml").known, tmp_path)


@pytest.mark.parametrize(
    ("scenario", "invariant", "told"),
    [
        ("late_fial", "fence", "there is no scenario 'late_fial'; the nearest is 'late_fail'."),
        ("late_fial[a]", "fence", "there is no scenario 'late_fial'; the nearest is 'late_fail'."),
        ("invariant", "fence", "there is no scenario 'invariant'; the nearest is 'invariants'."),
        (
            "xyz",
            "fence",
            "there is no scenario 'xyz'; `fencepost list` shows every scenario.",
        ),
        (
            "late_fail[last_atempt]",
            "fence",
            "there is no variant 'late_fail[last_atempt]'; the nearest is 'late_fail[last_attempt]'.",
        ),
        (
            "lease_race[",
            "fence",
            "there is no variant 'lease_race['; the nearest is 'lease_race'.",
        ),
        (
            "late_fail",
            "corrupted",
            "'late_fail' cannot fail by 'corrupted', only by ledger_unique, ledger_once, fence, ",
        ),
        (NAME, "accepted", f"'{NAME}' cannot fail by 'accepted', only by "),
        ("test_two_claims", "expectation", "'test_two_claims' cannot fail by 'expectation', only by "),
    ],
)
def test_what_can_never_be_met_is_one_sentence(
    nameable: Nameable, tmp_path: Path, scenario: str, invariant: str, told: str
) -> None:
    known = parse_known(entry("late_fail") + entry(scenario, invariant), "known.toml").known
    with pytest.raises(UsageError) as error:
        nameable.check(known, tmp_path)
    assert str(error.value).startswith(f"--known known.toml, entry 2: {told}")
    assert str(error.value).endswith(".") and "\n" not in str(error.value)


def test_scenarios_of_the_project_that_were_not_collected_are_looked_for_in_its_files(tmp_path: Path) -> None:
    def write(path: str, text: str) -> None:
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)

    mine = "from fencepost.harness.scenario import scenario\n@scenario()\ndef {}(race):\n    pass\n"
    write("tests/test_mine.py", mine.format("mine"))
    write("tests/test_other.py", "def unrelated():\n    pass\n")
    write("env/pyvenv.cfg", "")
    write("env/lib/test_theirs.py", mine.format("theirs"))
    write(".hidden/test_hidden.py", mine.format("hidden"))
    (tmp_path / "gone.py").symlink_to("nowhere.py")
    found = {
        name for name in ("mine", "min", "unrelated", "theirs", "hidden") if is_defined_in(tmp_path, name)
    }
    assert found == {"mine"}


def test_every_installed_scenario_can_be_named(nameable: Nameable) -> None:
    assert nameable.variants.keys() == {s.name for s in installed_scenarios()} | {NAME, "test_two_claims"}


# -- in pytest ------------------------------------------------------------------------------------------------

SCENARIOS = '''
from fencepost.harness.adapter import Capability
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

@scenario(witnesses=[found_nothing("B")], each={"time": ("first", "second")})
def whole(race, time):
    """Nothing is wrong here."""
    job = race.enqueue()
    a, b = race.workers("A", "B")
    claim = a.claim(job)
    b.finds_nothing()
    a.complete(claim).accepted()

@scenario(requires={Capability.DEFERRED_RECLAIM}, witnesses=[found_nothing("B")])
def not_here(race):
    """Never run on this queue."""
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
    result.assert_outcomes(failed=1, passed=2, skipped=1)
    assert result.ret == pytest.ExitCode.TESTS_FAILED


def test_a_known_failure_does_not_fail_the_run_and_says_why(project: pytest.Pytester) -> None:
    project.makefile(".toml", known=KNOWN)
    result = project.runpytest_subprocess("-ra", "--known", "known.toml", "test_of_mine.py")
    result.assert_outcomes(xfailed=1, passed=2, skipped=1)
    assert result.ret == pytest.ExitCode.OK
    result.stdout.fnmatch_lines(["XFAIL*broken*known: expectation (a promise we do not make)*"])
    result.stdout.no_fnmatch_line("gone: *")


def test_a_known_failure_that_is_gone_is_said_and_fails_nothing(project: pytest.Pytester) -> None:
    project.makefile(".toml", known=KNOWN + GONE)
    result = project.runpytest_subprocess("-n", "1", "--known", "known.toml", "test_of_mine.py")
    assert result.ret == pytest.ExitCode.OK
    result.stdout.fnmatch_lines(["gone: whole: fence (was wrong last week)"])
    result.stdout.no_fnmatch_line("gone: broken*")


@pytest.mark.parametrize("workers", [[], ["-n", "2"]], ids=["alone", "two_workers"])
def test_what_did_not_run_in_all_its_variants_is_not_gone(
    project: pytest.Pytester, workers: list[str]
) -> None:
    """With two workers, each runs one of the variants and knows nothing of the other's."""
    project.makefile(".toml", known=GONE + entry("not_here"))
    some = project.runpytest_subprocess("--known", "known.toml", "-k", "first or not_here", *workers)
    some.assert_outcomes(passed=1, skipped=1)
    some.stdout.no_fnmatch_line("*gone:*")
    both = project.runpytest_subprocess("--known", "known.toml", "-k", "whole", *workers)
    both.assert_outcomes(passed=2)
    both.stdout.fnmatch_lines(["gone: whole: fence (was wrong last week)"])
    both.stdout.no_fnmatch_line("gone: not_here*")


def test_a_queue_is_known_by_what_was_given_as_queue(project: pytest.Pytester) -> None:
    path = "fencepost.queue_impl.reference.adapter:reference"
    project.makefile(".toml", known=f'{KNOWN}queue = "{path}"\n')
    result = project.runpytest_subprocess("--known", "known.toml", "--queue", "reference", "-k", "broken")
    result.assert_outcomes(xfailed=1)


def test_a_bad_file_stops_pytest_with_its_sentence(project: pytest.Pytester) -> None:
    project.makefile(".toml", known="[[known]]\nscenario = 'broken'\n")
    result = project.runpytest_subprocess("--known", "known.toml", "test_of_mine.py")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: --known known.toml, entry 1: it lacks 'invariant'."])


@pytest.mark.parametrize("workers", [[], ["-n", "2"]], ids=["alone", "two_workers"])
def test_a_scenario_that_there_is_not_stops_pytest_with_one_sentence(
    project: pytest.Pytester, workers: list[str]
) -> None:
    project.makefile(".toml", known=KNOWN + entry("brokn"))
    result = project.runpytest_subprocess("--known", "known.toml", "test_of_mine.py", *workers)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    told = [line for line in result.outlines + result.errlines if line.startswith("ERROR: ")]
    assert told == [
        "ERROR: --known known.toml, entry 2: there is no scenario 'brokn'; the nearest is 'broken'."
    ]
    assert "Traceback" not in result.stdout.str() + result.stderr.str()


def test_what_this_run_does_not_collect_may_be_in_the_file(project: pytest.Pytester) -> None:
    """Deselected, in another file of the project, installed, or found by the state machine."""
    elsewhere = SCENARIOS.replace("broken", "broken_elsewhere").replace("whole", "whole_elsewhere")
    project.makepyfile(test_elsewhere=elsewhere)
    names = ["whole_elsewhere", "late_fail[last_attempt]", NAME, "whole[second]"]
    project.makefile(".toml", known=KNOWN + "".join(map(entry, names)))
    result = project.runpytest_subprocess("--known", "known.toml", "test_of_mine.py", "-k", "broken")
    result.assert_outcomes(xfailed=1)
    assert result.ret == pytest.ExitCode.OK


def test_a_file_that_cannot_be_collected_is_what_is_said(project: pytest.Pytester) -> None:
    """And not that what it would have held is not there."""
    project.makepyfile(test_raises="1 / 0\n")
    project.makefile(".toml", known=entry("made_by_a_program"))
    result = project.runpytest_subprocess("--known", "known.toml")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*ZeroDivisionError*"])
    assert "made_by_a_program" not in result.stdout.str() + result.stderr.str()


def test_a_known_failure_of_the_search_is_gone_when_all_its_parts_are_through(
    pytester: pytest.Pytester,
) -> None:
    pytester.makepyfile(
        """
        import pytest

        @pytest.mark.invariants
        @pytest.mark.parametrize("part", [1, 2])
        def test_search(look_for_violations, part):
            looked = look_for_violations(part)
            assert looked.found is None and looked.proved_nothing is None
        """
    )
    pytester.makefile(".toml", known=entry(NAME, "one_place"))
    search = ("--known", "known.toml", "--hypothesis-seed", "1")
    part = pytester.runpytest_subprocess(*search, "-k", "1")
    part.assert_outcomes(passed=1, deselected=1)
    part.stdout.no_fnmatch_line("gone:*")
    whole = pytester.runpytest_subprocess(*search, "-n", "2")
    whole.assert_outcomes(passed=2)
    whole.stdout.fnmatch_lines([f"gone: {NAME}: one_place (so it is)"])


EXPLORED = """
from fencepost.harness.explore.marked import explore

@explore("A:claim B:claim")
def test_two_claims(result):
    'One job, two claims: one of them gets it.'

@explore("A:claim")
def test_one_claim(result):
    'One job, one claim.'
"""


def test_a_known_failure_of_an_exploration(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_orders=EXPLORED)
    queue = "fencepost.queue_impl.twins:claim_without_lock"
    pytester.makefile(".toml", known=entry("test_two_claims", "single_holder") + entry("test_one_claim"))
    pytester.makefile(".toml", other=entry("test_two_claims", "ledger_once"))
    known = pytester.runpytest_subprocess("-ra", "--known", "known.toml", "--queue", queue)
    known.assert_outcomes(xfailed=1, passed=1)
    known.stdout.fnmatch_lines(
        ["gone: test_one_claim: fence (so it is)", "XFAIL*test_two_claims*known: single_holder (so it is)*"]
    )
    known.stdout.no_fnmatch_line("gone: test_two_claims*")
    new = pytester.runpytest_subprocess("--known", "other.toml", "--queue", queue)
    new.assert_outcomes(failed=1, passed=1)
    assert "breaks single_holder" in new.stdout.str()
    new.stdout.no_fnmatch_line("gone:*")
    gone = pytester.runpytest_subprocess("--known", "known.toml")
    gone.assert_outcomes(passed=2)
    gone.stdout.fnmatch_lines(["gone: test_two_claims: single_holder (so it is)"])


def test_explorations_alone_are_reason_enough_to_look_at_the_names(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_orders=EXPLORED)
    pytester.makefile(".toml", known=entry("test_two_claim", "single_holder"))
    result = pytester.runpytest_subprocess("--known", "known.toml")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    (told,) = [line for line in result.outlines + result.errlines if line.startswith("ERROR: ")]
    assert told.endswith("there is no scenario 'test_two_claim'; the nearest is 'test_two_claims'.")


# -- in `fencepost run` -----------------------------------------------------------------------------------------

TWIN = "fencepost.queue_impl.twins:no_guard"


def test_run_fails_for_new_failures_only(tmp_path: Path) -> None:
    """late_fail breaks `fence` on this twin in both of its variants, heartbeat_extends passes."""
    known = tmp_path / "known.toml"
    run = ("run", "late_fail", "heartbeat_extends", "--queue", TWIN, "--known", "known.toml")

    known.write_text(entry("late_fail") + entry("heartbeat_extends", "not_before"))
    done = run_fencepost(*run, cwd=tmp_path)
    assert (done.code, done.err) == (0, "")
    assert done.out.count("│ known ") == 2
    assert "late_fail[last_attempt]: known\n  - fence (so it is)\n" in done.out
    assert "\ngone: heartbeat_extends: not_before (so it is)\n" in done.out
    assert "\n1 pass, 2 known; traces in" in done.out

    done = run_fencepost(*run, "--json", cwd=tmp_path)
    told = json.loads(done.out)
    assert (done.code, told["exit_code"]) == (0, 0)
    assert told["counts"] == {"pass": 1, "fail": 0, "inconclusive": 0, "known": 2, "skipped": 0}
    scenarios = {each["name"]: each for each in told["scenarios"]}
    assert {name: each["verdict"] for name, each in scenarios.items()} == {
        LEFT: "known",
        LAST: "known",
        "heartbeat_extends": "pass",
    }
    assert "fence broken at step 5" in scenarios[LAST]["reasons"][0]
    as_it_stands = {"scenario": "late_fail", "invariant": "fence", "reason": "so it is", "queue": None}
    assert scenarios[LAST]["known"] == [as_it_stands]
    assert [gone["scenario"] for gone in told["gone"]] == ["heartbeat_extends"]

    known.write_text(entry(LAST))
    done = run_fencepost(*run, "--json", cwd=tmp_path)
    told = json.loads(done.out)
    assert (done.code, told["exit_code"], told["gone"]) == (1, 1, [])
    assert told["counts"] == {"pass": 1, "fail": 1, "inconclusive": 0, "known": 1, "skipped": 0}


@pytest.mark.parametrize(
    ("verdicts", "traces", "new", "word"),
    [
        ({Verdict.FAIL: 2}, "aa", 0, "known"),
        ({Verdict.FAIL: 2}, "aa", 1, "fail"),
        ({Verdict.FAIL: 1, Verdict.INCONCLUSIVE: 1}, "aa", 0, "inconclusive"),
        ({Verdict.FAIL: 2}, "ab", 0, "inconclusive"),
    ],
)
def test_only_failures_that_are_all_known_and_alike_are_known(
    verdicts: dict[Verdict, int], traces: str, new: int, word: str
) -> None:
    tally = Tally(
        installed("late_fail"), verdicts=Counter(verdicts), hashes=Counter(traces), new_failures=new
    )
    assert tally.word == word


def test_run_with_nothing_but_known_failures_succeeds(tmp_path: Path) -> None:
    (tmp_path / "known.toml").write_text(entry("late_fail") + f'queue = "{TWIN}"\n')
    run = ("run", "late_fail", "--known", "known.toml", "--queue")
    assert run_fencepost(*run, TWIN, "--repeat", "2", cwd=tmp_path).code == 0
    other = "fencepost.queue_impl.twins:fence_by_worker_name"
    assert "gone" not in run_fencepost(*run, other, cwd=tmp_path).out


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (entry("late_fial"), "entry 1: there is no scenario 'late_fial'; the nearest is 'late_fail'."),
        (
            entry("late_fail", "fense"),
            "entry 1: no failure goes by the name 'fense'; the nearest is 'fence'.",
        ),
        ("[[known", "not TOML (Expected ']]' at the end of an array declaration (at end of document))."),
        (None, "cannot be read (No such file or directory)."),
    ],
)
def test_run_refuses_a_wrong_file_in_one_sentence(tmp_path: Path, content: str | None, told: str) -> None:
    if content is not None:
        (tmp_path / "known.toml").write_text(content)
    done = run_fencepost("run", "late_fail", "--known", "known.toml", cwd=tmp_path)
    assert (done.code, done.out) == (2, "")
    separator = ", " if told.startswith("entry") else ": "
    assert done.err == f"fencepost: --known known.toml{separator}{told}\n"
