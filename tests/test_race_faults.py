"""Faults in scenarios: none passes without its fault, both engines leave one trace, statements are steps."""

from __future__ import annotations

import inspect
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fencepost.harness.bench import Bench, Run
from fencepost.harness.errors import UsageError
from fencepost.harness.lab import Lab, LabOptions
from fencepost.harness.loading import LoadedQueue, load_queue
from fencepost.harness.race_faults import Striker
from fencepost.harness.scenario import Scenario, Variant, choose, installed_scenarios
from fencepost.harness.trace import canonical
from fencepost.harness.verdict import Verdict
from fencepost.tests import fix_scenarios
from fencepost.tests.fix_network import toxiproxy_or_skip

FAMILIES = ("restart", "crash", "network", "commit", "errors")
WITH_FAULTS = [s for s in choose(installed_scenarios(), FAMILIES) if s.family not in ("commit",)]
LEASE_RACES = [v for s in choose(installed_scenarios(), ["lease_race"]) for v in s.variants()]
NETWORK = [v for s in choose(installed_scenarios(), ["network"]) for v in s.variants()]


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with Lab(LabOptions()) as lab:
        yield lab


@pytest.fixture(scope="module")
def bench(lab: Lab) -> Bench:
    return lab.bench(load_queue("reference"))


@pytest.fixture(scope="module")
def reference() -> LoadedQueue:
    return load_queue("reference")


def fault_lines(run: Run) -> list[str]:
    steps = [step for step in run.trace.steps if step["kind"] == "fault" and not step.get("drain")]
    return list(dict.fromkeys(step["line"] for step in steps))


@pytest.mark.parametrize(
    "scenario",
    [s for s in WITH_FAULTS if "struck(" in inspect.getsource(inspect.getmodule(s.body))],  # type: ignore[arg-type]
    ids=lambda s: f"{s.family}-{s.name}",
)
def test_no_scenario_passes_without_one_of_its_faults(
    bench: Bench, scenario: Scenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Line by line: a fault that can be left out unnoticed proves nothing, or lacks a witness."""
    strike = Striker.strike
    muted: list[str | None] = []

    def strike_unless_muted(striker: Striker, *arguments: Any, **options: Any) -> None:
        if striker._line() not in muted:
            strike(striker, *arguments, **options)

    monkeypatch.setattr(Striker, "strike", strike_unless_muted)
    variant = next(scenario.variants())
    untouched = bench.run(variant)
    assert untouched.judgement.verdict is Verdict.PASS, untouched.judgement
    for line in fault_lines(untouched):
        muted[:] = [line]
        assert bench.run(variant).judgement.verdict is not Verdict.PASS, f"{variant.name} without {line}"
        muted.clear()


def test_both_engines_leave_one_canonical_trace(lab: Lab, reference: LoadedQueue) -> None:
    toxiproxy_or_skip()
    with Lab(LabOptions(network="toxiproxy")) as toxic:
        for variant in NETWORK:
            by_gate, by_toxiproxy = lab.run(reference, variant), toxic.run(reference, variant)
            assert by_gate.judgement.verdict is by_toxiproxy.judgement.verdict is Verdict.PASS, variant.name
            assert canonical(by_gate.trace) == canonical(by_toxiproxy.trace), variant.name
            assert by_gate.trace.header["network"] == "gate"
            assert by_toxiproxy.trace.header["network"] == "toxiproxy"


def test_a_fault_at_a_statement_that_never_came_is_inconclusive_and_lists_those_that_did(
    bench: Bench,
) -> None:
    judgement = bench.run(Variant(fix_scenarios.waits_for_a_statement_that_never_comes)).judgement
    assert judgement.verdict is Verdict.INCONCLUSIVE
    told = " | ".join(judgement.reasons)
    assert "/^TRUNCATE/: lose reply of A's complete was armed and never fired" in told
    assert "1 BEGIN" in told and "6 COMMIT" in told


def test_a_hold_at_a_statement_that_never_came_is_inconclusive(bench: Bench) -> None:
    judgement = bench.run(Variant(fix_scenarios.is_held_at_a_statement_that_never_comes)).judgement
    assert judgement.verdict is Verdict.INCONCLUSIVE
    assert "A was to be held in complete at before /^TRUNCATE/ and never came there" in judgement.reasons


@pytest.mark.parametrize(("place", "answer"), [("before", "pending"), ("after", "COMMIT")])
def test_an_actor_parked_at_the_gate_stays_there_while_the_server_crashes(
    bench: Bench, place: str, answer: str
) -> None:
    run = bench.run(Variant(fix_scenarios.crashes_at_the_commit, {"place": place}))
    assert run.judgement.verdict is Verdict.PASS, run.judgement
    (parked,) = [step for step in run.trace.steps if step.get("status") == "parked"]
    assert parked["checkpoint"] == f"{place} statement 6 (COMMIT)"
    assert parked["statements"][-1]["answer"] == answer


@pytest.fixture(scope="module")
def by_statement() -> Iterator[Lab]:
    with Lab(LabOptions(step="statement")) as lab:
        yield lab


@pytest.mark.parametrize("variant", LEASE_RACES, ids=lambda v: v.name)
def test_every_statement_of_the_lease_races_is_a_step(
    by_statement: Lab, reference: LoadedQueue, variant: Variant
) -> None:
    run, again = by_statement.run(reference, variant), by_statement.run(reference, variant)
    assert run.judgement.verdict is Verdict.PASS, run.judgement
    assert canonical(run.trace) == canonical(again.trace)
    assert run.trace.header["step"] == "statement"


def test_a_complete_has_as_many_steps_as_statements(by_statement: Lab, reference: LoadedQueue) -> None:
    run = by_statement.run(reference, LEASE_RACES[0])
    completing = [s for s in run.trace.steps if s.get("operation") == "complete" and s["actor"] == "B"]
    places = [step.get("checkpoint") for step in completing]
    assert [place and place.split(" (")[0] for place in places] == [
        *(f"before statement {number}" for number in range(1, 7)),
        None,
    ]


def test_stepping_by_statement_needs_the_gate() -> None:
    with pytest.raises(UsageError, match="--step statement needs every statement to pass the gate"):
        LabOptions(step="statement", network="toxiproxy")


def test_an_interrupted_run_leaves_nothing_behind(reference: LoadedQueue) -> None:
    with Lab(LabOptions()) as lab:
        before_it = _children()
        with pytest.raises(KeyboardInterrupt):
            lab.run(reference, Variant(fix_scenarios.interrupted_with_faults_in_force))
        assert lab.run(reference, LEASE_RACES[0]).judgement.verdict is Verdict.PASS
        assert _stopped(_children() - before_it) == set()
    assert _children() - before_it == set()


def _children() -> set[int]:
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text()
    return {int(pid) for pid in children.split()}


def _stopped(pids: set[int]) -> set[int]:
    states = {pid: Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] for pid in pids}
    return {pid for pid, state in states.items() if state == "T"}
