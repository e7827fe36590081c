"""Every twin is caught, by the invariant it names; a queue without a fault is not."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from fencepost.harness.adapter import Twin
from fencepost.harness.invariants import INVARIANTS
from fencepost.harness.lab import Lab, LabOptions
from fencepost.harness.scenario import Variant, choose, installed_scenarios
from fencepost.harness.twin_hunt import hunt_all, variants_of
from fencepost.harness.twins import (
    EXPECTATION,
    Catch,
    SuiteReport,
    TwinReport,
    TwinSuite,
    catches_nothing,
    hunt,
    load_suites,
    matrix,
    spread,
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
    assert catches_nothing(one[0]) == []


def test_the_matrix_says_which_scenario_leads_for_which_twin() -> None:
    alone, first, second = variants_of(["two_claims_at_once", "heartbeat_extends", "lease_race"])[:3]
    names = [variant.scenario.name for variant in (alone, first, second)]
    assert len(set(names)) == 3

    def caught_by(number: int, *variants: Variant) -> TwinReport:
        catches = [Catch(variant, Verdict.FAIL, (TWINS[number].breaks,), 1) for variant in variants]
        return TwinReport(TWINS[number], catches)

    twins = [caught_by(0, alone), caught_by(1, first, second)]
    told = matrix(SuiteReport(TwinSuite("reference", TWINS[:2]), [alone, first, second], twins, []))
    assert f"the only scenario that catches a twin:\n  {names[0]}: {TWINS[0].name}\n" in told
    assert f"which others catch too:\n  {names[1]}: {TWINS[1].name}\n" in told
    assert f"how many catch that:\n  {names[2]}: {TWINS[1].name}, 2\n" in told
    assert "scenarios that catch nothing: none" in told


def test_spreading_loses_and_doubles_nothing() -> None:
    variants = variants_of([])
    assert sorted(v.name for v in spread(variants)) == sorted(v.name for v in variants)
    without_faults = {scenario.name for scenario in installed_scenarios() if not scenario.has_faults}
    first = [v.scenario.name for v in spread(variants)[: len(without_faults)]]
    assert sorted(first) == sorted(without_faults)


def test_scenarios_have_names_of_their_own() -> None:
    names = [scenario.name for scenario in choose(installed_scenarios(), [])]
    assert len(names) == len(set(names))


def _reference() -> object:
    from fencepost.harness.loading import load_queue

    return load_queue("reference").queue
