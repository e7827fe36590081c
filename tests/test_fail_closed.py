"""A scenario whose race is taken out of it must not pass: the clock move, or the second worker's claim."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import FunctionType
from typing import Any

import pytest

from fencepost.harness.bench import Bench, Run
from fencepost.harness.lab import Lab, LabOptions
from fencepost.harness.loading import load_queue
from fencepost.harness.race import Race, RaceClock
from fencepost.harness.scenario import Scenario, Variant, choose, installed_scenarios
from fencepost.harness.verdict import Verdict
from fencepost.harness.witness import was_held

LEASE_RACES = choose(installed_scenarios(), ["lease_race"])


@pytest.fixture(scope="module")
def bench() -> Iterator[Bench]:
    with Lab(LabOptions()) as lab:
        yield lab.bench(load_queue("reference"))


def without(variant: Variant, unwanted: Callable[[ast.stmt], bool]) -> Variant:
    """The scenario with every statement taken out that `unwanted` names, and those that use what it set."""
    scenario = variant.scenario
    tree = ast.parse(textwrap.dedent(inspect.getsource(scenario.body)))
    function = tree.body[0]
    assert isinstance(function, ast.FunctionDef)
    function.decorator_list = []
    count = len(list(ast.walk(function)))
    lost: set[str] = set()
    function.body = _kept(function.body, unwanted, lost)
    assert len(list(ast.walk(function))) < count, "nothing was taken out"
    namespace = dict(scenario.body.__globals__)
    exec(compile(ast.fix_missing_locations(tree), scenario.file, "exec"), namespace)
    body = namespace[scenario.body.__name__]
    assert isinstance(body, FunctionType)
    return Variant(Scenario(**{**vars(scenario), "body": body}), variant.chosen)


def _kept(body: list[ast.stmt], unwanted: Callable[[ast.stmt], bool], lost: set[str]) -> list[ast.stmt]:
    kept: list[ast.stmt] = []
    for statement in body:
        uses = {node.id for node in ast.walk(statement) if isinstance(node, ast.Name)}
        if unwanted(statement) or uses & lost:
            if isinstance(statement, ast.Assign):
                lost |= {
                    node.id
                    for target in statement.targets
                    for node in ast.walk(target)
                    if isinstance(node, ast.Name)
                }
            continue
        kept.append(statement)
    return kept or [ast.Pass()]


def moves_the_clock(statement: ast.stmt) -> bool:
    return "race.clock." in ast.unparse(statement)


def is_second_claim(statement: ast.stmt) -> bool:
    text = ast.unparse(statement)
    return text.startswith(("fresh = ", "reclaim = ")) and ("claim(" in text or "'claim'" in text)


def find(name: str) -> Variant:
    (scenario,) = [scenario for scenario in LEASE_RACES if scenario.name == name]
    return next(scenario.variants())


def inconclusive(run: Run) -> str:
    assert run.judgement.verdict is Verdict.INCONCLUSIVE, run.judgement
    assert run.judgement.reasons
    return " | ".join(run.judgement.reasons)


def test_the_untouched_race_passes(bench: Bench) -> None:
    assert bench.run(find("lease_race")).judgement.verdict is Verdict.PASS


def test_without_the_clock_move_it_is_inconclusive_and_says_why(bench: Bench) -> None:
    told = inconclusive(bench.run(without(find("lease_race"), moves_the_clock)))
    assert "B's claim found nothing to claim" in told
    assert "not witnessed: a live lease expired when the clock was moved" in told


def test_without_the_second_claim_it_is_inconclusive_and_says_why(bench: Bench) -> None:
    told = inconclusive(bench.run(without(find("lease_race"), is_second_claim)))
    assert "not witnessed: a second claim of one job" in told


def each_value_once(scenario: Scenario) -> list[Variant]:
    """As few variants as show every value of every parameter."""
    kept: list[Variant] = []
    shown: set[tuple[str, str]] = set()
    for variant in scenario.variants():
        if not variant.chosen or not shown.issuperset(variant.chosen.items()):
            kept.append(variant)
            shown |= set(variant.chosen.items())
    return kept


def clock_lines(run: Run) -> list[str]:
    steps = [step for step in run.trace.steps if step["kind"] == "clock" and not step.get("drain")]
    return list(dict.fromkeys(step["line"] for step in steps))


@pytest.mark.parametrize(
    "scenario",
    [
        s
        for s in installed_scenarios()
        if not s.classified and s.family != "swarm" and "clock." in inspect.getsource(s.body)
    ],
    ids=lambda s: f"{s.family}-{s.name}",
)
def test_no_scenario_passes_without_one_of_its_clock_moves(
    bench: Bench, scenario: Scenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Line by line: a move that can be left out unnoticed proves nothing, or lacks a witness."""
    move = RaceClock._move
    muted: list[str] = []

    def move_unless_muted(clock: RaceClock, *arguments: Any) -> None:
        if clock._race.scenario_line() not in muted:
            move(clock, *arguments)

    monkeypatch.setattr(RaceClock, "_move", move_unless_muted)
    for variant in each_value_once(scenario):
        untouched = bench.run(variant)
        assert untouched.judgement.verdict is Verdict.PASS, untouched.judgement
        for line in clock_lines(untouched):
            muted[:] = [line]
            assert bench.run(variant).judgement.verdict is not Verdict.PASS, f"{variant.name} without {line}"
            muted.clear()


def is_late_answer(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and ".refused(" in ast.unparse(statement)


@pytest.mark.parametrize(
    "scenario",
    [s for s in LEASE_RACES if ".refused(" in inspect.getsource(s.body)],
    ids=lambda s: s.name,
)
def test_no_lease_race_passes_where_the_stale_worker_never_comes_back(
    bench: Bench, scenario: Scenario
) -> None:
    for variant in scenario.variants():
        if scenario.name == "two_stale_workers_return":
            told = inconclusive(bench.run(without(variant, lambda s: isinstance(s, ast.For))))
        elif "start(" in inspect.getsource(scenario.body):
            # Its late write is under way when the scenario ends: it is the drain that lets it go on.
            told = inconclusive(bench.run(without(variant, gets_going)))
        else:
            told = inconclusive(bench.run(without(variant, is_late_answer)))
        assert "not witnessed" in told


def gets_going(statement: ast.stmt) -> bool:
    text = ast.unparse(statement)
    return "'complete'" in text or ".go_on()" in text


@pytest.mark.parametrize(
    "scenario", [s for s in LEASE_RACES if "fresh = " in inspect.getsource(s.body)], ids=lambda s: s.name
)
def test_no_reclaim_passes_without_the_second_claim(bench: Bench, scenario: Scenario) -> None:
    if not any("second claim" in witness.sentence for witness in scenario.witnesses):
        return  # its race is over before anybody claims again
    for variant in scenario.variants():
        inconclusive(bench.run(without(variant, is_second_claim)))


def test_the_drain_is_no_witness(bench: Bench) -> None:
    """The drain claims the abandoned job as well; that must not count as the reclaim of the race."""
    run = bench.run(
        without(find("lease_race"), lambda s: "b." in ast.unparse(s) or "a.complete" in ast.unparse(s))
    )
    told = inconclusive(run)
    assert any(entry["actor"] == "Z" for entry in run.trace.end["journal"])
    assert "not witnessed: a second claim of one job" in told


def test_what_the_drain_lets_go_on_is_no_witness(bench: Bench) -> None:
    told = inconclusive(
        bench.run(without(find("long_transaction_with_frozen_now"), lambda s: "late.go_on" in ast.unparse(s)))
    )
    assert "not witnessed: A's complete was answered" in told


def test_each_of_several_holds_must_be_reached(bench: Bench) -> None:
    def body(race: Race) -> None:
        job = race.enqueue()
        a = race.worker("A")
        held = a.start("complete", a.claim(job), hold_at=("after_guard", "after_nothing")).is_held()
        held.finish().result().accepted()

    scenario = replace(find("lease_race").scenario, body=body, witnesses=(was_held("A", "complete"),))
    told = inconclusive(bench.run(Variant(scenario)))
    assert told == "A was to be held in complete at after_nothing and never came there"


def test_sources_have_no_sleep_but_in_polling_loops() -> None:
    root = Path(__file__).resolve().parent.parent
    assert [path for path in root.glob("scenarios/**/*.py") if "sleep(" in path.read_text()] == []
    for path in root.glob("harness/**/*.py"):
        for function in ast.walk(ast.parse(path.read_text())):
            if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef) and "sleep(" in ast.unparse(
                function
            ):
                text = ast.unparse(function)
                loops = [n for n in ast.walk(function) if isinstance(n, ast.While | ast.For)]
                assert any("sleep(" in ast.unparse(loop) for loop in loops), f"{path}: a sleep outside a loop"
                assert "deadline" in text, f"{path}: {function.name} sleeps without a deadline"
