"""Every twin is caught, by the invariant it names; a queue without a fault is not."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from fencepost.harness.adapter import Twin
from fencepost.harness.invariants import INVARIANTS
from fencepost.harness.lab import Lab, LabOptions
from fencepost.harness.scenario import Variant, choose, installed_scenarios
from fencepost.harness.twin_hunt import hunt_all
from fencepost.harness.twin_pages import markdown, matrix, table
from fencepost.harness.twins import (
    EXPECTATION,
    SWARM,
    Asked,
    Catch,
    SuiteReport,
    TwinReport,
    TwinSuite,
    catches_nothing,
    hunt,
    is_as_it_should_be,
    left_out_of,
    load_suites,
    spread,
    suites_of,
    variants_of,
)
from fencepost.harness.verdict import Verdict

CATCHES = Path(__file__).resolve().parent.parent / "docs/what-it-catches.md"
WRITTEN = {
    twin: (scenario, int(step))
    for twin, scenario, step in re.findall(
        r"^\| `(\w+)` \| .*? \| \w+ \| `(\w+)`.*? \| (\d+) \|", CATCHES.read_text(), re.MULTILINE
    )
}
"""Per twin, the first scenario that catches it, and where."""

TWINS = [twin for suite in load_suites() for twin in suite.twins]


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with Lab(LabOptions()) as lab:
        yield lab


@pytest.mark.parametrize("twin", TWINS, ids=lambda twin: twin.name)
def test_the_twin_is_caught_by_the_invariant_it_names(lab: Lab, twin: Twin) -> None:
    """By the scenario and at the step docs/what-it-catches.md says: `fencepost twins` tries all the others too."""
    assert twin.name in WRITTEN, "run `make docs`"
    scenario, step = WRITTEN[twin.name]
    report = hunt(lab, twin, variants_of([scenario]), thorough=False)
    assert report.caught, [(catch.variant.name, catch.broke) for catch in report.catches]
    assert report.named_catches[0].step == step, "run `make docs`"


def test_twins_say_what_they_are() -> None:
    names = [twin.name for twin in TWINS]
    assert len(names) == len(set(names))
    known = {invariant.name for invariant in INVARIANTS} | {EXPECTATION}
    for twin in TWINS:
        assert twin.sentence.endswith("."), twin.name
        assert twin.breaks in known, twin.name
        assert twin.queue.name == twin.name
        assert twin.path.endswith(f":{twin.name}")


def test_a_twin_that_breaks_nothing_survives(lab: Lab) -> None:
    harmless = replace(TWINS[0], queue=_reference(), path="fencepost.queue_impl.reference.adapter:reference")
    report = hunt(lab, harmless, variants_of(["lease_race"]), thorough=True)
    assert not report.caught
    assert report.catches == []


def test_a_twin_caught_by_another_invariant_than_it_names_is_not_caught(lab: Lab) -> None:
    (no_guard,) = [twin for twin in TWINS if twin.name == "no_guard"]
    report = hunt(lab, replace(no_guard, breaks="converges"), variants_of(["lease_race"]), thorough=True)
    assert report.catches
    assert not report.caught


def test_any_number_of_processes_finds_the_same() -> None:
    names = ["held_between_guard_and_commit"]
    some = ["no_guard", "guard_without_row_lock", "claim_without_lock"]
    one, two = (hunt_all(LabOptions(), names, jobs=jobs, thorough=True, only=some) for jobs in (1, 2))
    assert [entry.twin.name for entry in one[0].twins] == some
    assert [matrix(report) for report in one] == [matrix(report) for report in two]
    assert not one[0].all_caught, "one scenario does not catch the twins of all"
    assert "SURVIVED" in one[0].summary()
    assert not is_as_it_should_be(one), "the twins were named, so each must be caught"
    assert catches_nothing(one[0]) == []


def test_scenarios_named_alone_are_tried_on_every_twin_and_judged_by_what_they_catch() -> None:
    names = ["late_complete_while_b_runs", "late_fail"]
    (report,) = hunt_all(LabOptions(), names, jobs=1, thorough=False)
    caught = {entry.twin.name: entry for entry in report.twins if entry.caught}
    both = {catch.variant.scenario.name for catch in caught["no_guard"].named_catches}
    assert both == set(names), "each is tried, though one would do to catch the twin"
    assert is_as_it_should_be([report])
    for_others = [twin.name for twin in TWINS if twin.name not in caught]
    assert 0 < len(caught) < len(for_others)
    assert f"; not for these scenarios: {', '.join(for_others)};" in report.summary()
    assert "SURVIVED" not in report.summary()
    assert table(report).row_count == len(caught)
    assert set(re.findall(r"^\| `(\w+)` \|", markdown(report), re.MULTILINE)) == caught.keys()


def named(caught_by: dict[str, list[str]], names: tuple[str, ...], **other: object) -> SuiteReport:
    """Of the first twins: by twin, which of the named scenarios caught it."""
    variants = variants_of(names)
    first = {variant.scenario.name: variant for variant in reversed(variants)}
    twins = [twin for twin in TWINS if twin.name in caught_by]
    entries = [
        TwinReport(
            twin, [Catch(first[name], Verdict.FAIL, (twin.breaks,), 1) for name in caught_by[twin.name]]
        )
        for twin in twins
    ]
    report = SuiteReport(TwinSuite("reference", tuple(twins)), variants, entries, [], asked=Asked(names))
    return replace(report, **other)


HEARTBEAT = "heartbeat_extends"
PAIR = ("late_fail", HEARTBEAT)


@pytest.mark.parametrize(
    ("report", "right"),
    [
        (
            named(
                {"no_guard": ["late_fail"], "heartbeat_without_effect": [HEARTBEAT], "delay_ignored": []},
                PAIR,
            ),
            True,
        ),
        (named({"no_guard": ["late_fail", HEARTBEAT], "delay_ignored": []}, PAIR), True),
        (named({"no_guard": ["late_fail"], "delay_ignored": []}, PAIR), False),
        (named({"no_guard": [], "delay_ignored": []}, PAIR), False),
        (named({"no_guard": ["late_fail"]}, PAIR, not_run=[HEARTBEAT]), True),
        (
            named({"no_guard": []}, PAIR, not_run=[v.name for v in variants_of(PAIR)]),
            False,
        ),
        (
            named(
                {"no_guard": ["late_fail", HEARTBEAT]},
                PAIR,
                unclean=[Catch(variants_of(PAIR)[0], Verdict.INCONCLUSIVE, (), 1)],
            ),
            False,
        ),
        (named({}, PAIR), False),
        (named({"no_guard": ["late_fail"]}, PAIR, asked=Asked(PAIR, ("no_guard",))), True),
        (named({"no_guard": []}, PAIR, asked=Asked(PAIR, ("no_guard",))), False),
        (named({"no_guard": ["late_fail"], "delay_ignored": []}, PAIR, asked=Asked()), False),
    ],
    ids=[
        "each_catches_one",
        "both_catch_the_same",
        "one_catches_none",
        "none_catches_any",
        "one_cannot_run_here",
        "none_can_run_here",
        "the_queue_is_not_clean",
        "there_are_no_twins",
        "the_twin_named_is_caught",
        "the_twin_named_survives",
        "of_all_one_survives",
    ],
)
def test_when_a_hunt_succeeds(report: SuiteReport, right: bool) -> None:
    assert is_as_it_should_be([report]) is right


def test_a_scenario_that_catches_none_of_one_queues_twins_may_catch_another_queues() -> None:
    some = named({"no_guard": ["late_fail"]}, PAIR)
    others = named({"heartbeat_without_effect": [HEARTBEAT]}, PAIR)
    assert is_as_it_should_be([some, others])
    assert not is_as_it_should_be([some, some])
    assert "CATCH NO TWIN: heartbeat_extends" in some.summary()


def test_nothing_hunted_is_no_success() -> None:
    assert not is_as_it_should_be([])


def test_only_the_twins_named_are_hunted() -> None:
    (suite,) = suites_of(["no_guard", "delay_ignored"])
    assert [twin.name for twin in suite.twins] == ["no_guard", "delay_ignored"]
    assert suites_of([]) == load_suites()


def test_what_is_not_hunted_with_is_said_with_its_reason() -> None:
    left_out = left_out_of([])
    assert left_out.keys() == {s.name for s in installed_scenarios() if s.family == SWARM}
    assert left_out and left_out_of(["lease_race"]) == {} == left_out_of([SWARM])
    assert {v.scenario.name for v in variants_of([])}.isdisjoint(left_out)
    assert {v.scenario.name for v in variants_of([SWARM])} == left_out.keys()
    assert named({"no_guard": []}, PAIR).left_out == {}
    report = named({"no_guard": ["late_fail"]}, PAIR, asked=Asked())
    for name, why in left_out.items():
        assert f"\nnot hunted with: {name} ({why}; name it to do so)\n" in matrix(report)
        assert f"\nNot hunted with: `{name}` ({why}).\n" in markdown(report)


def test_what_was_not_run_neither_passed_nor_caught_nothing() -> None:
    report = named({"no_guard": ["late_fail"]}, PAIR, not_run=[HEARTBEAT])
    assert re.search(r"^heartbeat_extends +-$", matrix(report), re.MULTILINE)
    assert catches_nothing(report) == []


def test_the_matrix_says_which_scenario_leads_for_which_twin() -> None:
    alone, first, second = variants_of(["two_claims_at_once", "heartbeat_extends", "lease_race"])[:3]
    names = [variant.scenario.name for variant in (alone, first, second)]
    assert len(set(names)) == 3

    def caught_by(number: int, *variants: Variant) -> TwinReport:
        catches = [Catch(variant, Verdict.FAIL, (TWINS[number].breaks,), 1) for variant in variants]
        return TwinReport(TWINS[number], catches)

    twins = [caught_by(0, alone), caught_by(1, first, second)]
    report = SuiteReport(TwinSuite("reference", tuple(TWINS[:2])), [alone, first, second], twins, [])
    told = matrix(report)
    assert f"the only scenario that catches a twin:\n  {names[0]}: {TWINS[0].name}\n" in told
    assert f"which others catch too:\n  {names[1]}: {TWINS[1].name}\n" in told
    assert f"how many catch that:\n  {names[2]}: {TWINS[1].name}, 2\n" in told
    assert "scenarios that catch nothing: none" in told
    page = markdown(report)
    assert "\nScenarios that catch no twin: none.\n" in page
    heading = "## Scenarios that catch only what another has caught before\n"
    assert page.partition(heading)[2].endswith(f"\n\n- `{names[2]}`: `{TWINS[1].name}`, 2")
    without = replace(report, variants=[alone, first], twins=[twins[0], caught_by(1, first)])
    assert markdown(without).partition(heading)[2].endswith("\n\nThere are none.")


def test_spreading_loses_and_doubles_nothing() -> None:
    variants = variants_of([])
    assert sorted(v.name for v in spread(variants)) == sorted(v.name for v in variants)


def test_the_first_of_every_scenario_comes_early_and_what_is_slow_late() -> None:
    slow = {s.name for s in installed_scenarios() if s.processes or s.server_faults}
    order = [variant.scenario.name for variant in spread(variants_of([]))]
    quick = {scenario.name for scenario in installed_scenarios()} - slow
    assert set(order[: len(quick)]) == quick
    assert not slow & set(order[: -sum(name in slow for name in order)])


def test_scenarios_with_processes_of_their_own_say_so() -> None:
    for scenario in installed_scenarios():
        seated = re.search(r"process=True|clock_skew_s=", inspect.getsource(scenario.body))
        assert scenario.processes == bool(seated), scenario.name


def test_scenarios_have_names_of_their_own() -> None:
    names = [scenario.name for scenario in choose(installed_scenarios(), [])]
    assert len(names) == len(set(names))


def _reference() -> object:
    from fencepost.harness.loading import load_queue

    return load_queue("reference").queue
