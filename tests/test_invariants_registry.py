"""What holds of all invariants, whatever they say."""

from __future__ import annotations

import re

import pytest

from fencepost.harness.adapter import Capability
from fencepost.harness.errors import UsageError
from fencepost.harness.invariants import INVARIANTS, Invariant, applicable, by_name
from fencepost.tests import (
    test_invariants_fencing,
    test_invariants_jobs,
    test_invariants_leases,
    test_invariants_ledger,
)
from fencepost.tests.histories import ALL_CAPABILITIES, Cases, History, every_violation

CASES: tuple[Cases, ...] = (
    test_invariants_fencing.CASES,
    test_invariants_jobs.CASES,
    test_invariants_leases.CASES,
    test_invariants_ledger.CASES,
)
NAMES = [invariant.name for invariant in INVARIANTS]


def test_names_are_unique_and_in_snake_case() -> None:
    assert len(set(NAMES)) == len(NAMES) == 15
    assert all(re.fullmatch(r"[a-z]+(_[a-z]+)*", name) for name in NAMES)


@pytest.mark.parametrize("invariant", INVARIANTS, ids=NAMES)
def test_has_a_sentence(invariant: type[Invariant]) -> None:
    assert re.fullmatch(r"[A-Z].*[a-z]\.", invariant.sentence)


@pytest.mark.parametrize("name", NAMES)
def test_has_a_history_that_breaks_it_and_one_that_keeps_it(name: str) -> None:
    broken = set().union(*(cases.covered()[0] for cases in CASES))
    kept = set().union(*(cases.covered()[1] for cases in CASES))
    assert name in broken
    assert name in kept


def test_no_history_is_about_an_invariant_that_does_not_exist() -> None:
    for cases in CASES:
        broken, kept = cases.covered()
        assert broken | kept <= set(NAMES)


def test_applicable_makes_fresh_instances_in_a_stable_order() -> None:
    first, second = applicable(ALL_CAPABILITIES), applicable(ALL_CAPABILITIES)
    assert [invariant.name for invariant in first] == NAMES
    assert not {id(invariant) for invariant in first} & {id(invariant) for invariant in second}


def test_applicable_leaves_out_what_the_queue_cannot_be_judged_by() -> None:
    names = {invariant.name for invariant in applicable(frozenset({Capability.LEDGER}))}
    assert {"ledger_unique", "ledger_once", "single_holder", "converges"} <= names
    assert not names & {"fence", "token_monotone", "heartbeat_honoured", "requeued_once", "idempotent_submit"}


def test_applicable_takes_names() -> None:
    chosen = applicable(ALL_CAPABILITIES, only=["one_place", "fence"])
    assert [invariant.name for invariant in chosen] == ["fence", "one_place"]
    assert applicable(frozenset(), only=["fence"]) == []


def test_an_unknown_name_gets_the_known_ones() -> None:
    with pytest.raises(UsageError, match=r"no invariant 'fense'; there are: ledger_unique, .*one_place"):
        by_name("fense")
    with pytest.raises(UsageError, match="fense"):
        applicable(ALL_CAPABILITIES, only=["fense"])


@pytest.mark.parametrize("name", NAMES)
def test_by_name(name: str) -> None:
    assert by_name(name).name == name


def test_nothing_is_evaluated_on_an_empty_observation() -> None:
    history = History()
    history.advance(1)
    history.fault("fast_restart")
    history.end()
    for invariant in applicable(ALL_CAPABILITIES):
        for step in history.steps:
            assert invariant.judge(step) is None
        assert (invariant.evaluated, invariant.exercised) == (0, 0)


def test_every_step_with_jobs_is_evaluated() -> None:
    history = History()
    history.advance(1)
    history.enqueue()
    history.complete("A", history.claim("A"))
    history.end()
    for invariant in applicable(ALL_CAPABILITIES):
        for step in history.steps:
            invariant.judge(step)
        assert invariant.evaluated == 4


@pytest.mark.parametrize("name", [name for cases in CASES for name in cases.bad])
def test_verdicts_are_the_same_each_time(name: str) -> None:
    build = next(cases.bad[name].build for cases in CASES if name in cases.bad)
    assert every_violation(build()) == every_violation(build())
