"""The verdict is fail-closed: each thing that can be missing makes a run inconclusive, and says so."""

from __future__ import annotations

import ast
from dataclasses import replace
from pathlib import Path

import pytest

from fencepost.harness.history import Violation
from fencepost.harness.verdict import (
    Fault,
    Hold,
    InvariantCount,
    Judgement,
    RunFacts,
    Unmet,
    Verdict,
    WitnessSeen,
    judge,
)

ROOT = Path(__file__).resolve().parent.parent

COMPLETE = RunFacts(
    steps=5,
    declared_actors=("A", "B"),
    actors_that_ran=frozenset({"A", "B"}),
    holds=(Hold("A", "complete", "after_guard", reached=True),),
    faults=(Fault("crash", fired=True),),
    witnesses=(WitnessSeen("a second claim", seen=True),),
    invariants={"fence": InvariantCount(5, 2)},
    violations=(),
    unmet=(),
    obstacles=(),
    drained=True,
)
UNMET = (Unmet(4, "A's complete should be refused, it was accepted"),)
VIOLATION = Violation("fence", "1", 4, "A wrote under token 1 while 2 was current")


def test_everything_there_passes() -> None:
    assert judge(COMPLETE).verdict is Verdict.PASS


@pytest.mark.parametrize(
    ("lacking", "told"),
    [
        ({"steps": 0}, "no step was run"),
        ({"actors_that_ran": frozenset({"A"})}, "B was in the schedule and never ran"),
        (
            {"holds": (Hold("A", "fail", "after_lock", reached=False),)},
            "A was to be held in fail at after_lock",
        ),
        ({"faults": (Fault("crash", fired=False),)}, "crash was armed and never fired"),
        ({"witnesses": ()}, "declares nothing"),
        ({"witnesses": (WitnessSeen("a second claim", seen=False),)}, "not witnessed: a second claim"),
        ({"invariants": {}}, "no invariant applied"),
        ({"invariants": {"fence": InvariantCount(0, 0)}}, "fence was never evaluated"),
        ({"drained": False}, "not brought to its end"),
        ({"obstacles": ("waited 20 s for A in claim",)}, "waited 20 s for A in claim"),
        (
            {"control": Judgement(Verdict.PASS, ())},
            "nothing was tried that the queue would have had to refuse",
        ),
    ],
)
def test_anything_missing_is_inconclusive_and_named(lacking: dict[str, object], told: str) -> None:
    judgement = judge(replace(COMPLETE, **lacking))  # type: ignore[arg-type]
    assert judgement.verdict is Verdict.INCONCLUSIVE
    assert any(told in reason for reason in judgement.reasons)


def test_an_unmet_expectation_fails_where_the_race_happened() -> None:
    judgement = judge(replace(COMPLETE, unmet=UNMET))
    assert judgement.verdict is Verdict.FAIL
    assert judgement.reasons == ("step 4: A's complete should be refused, it was accepted",)


def test_what_stopped_the_run_is_told_and_not_that_later_actors_never_ran() -> None:
    stopped = replace(COMPLETE, obstacles=("waited 20 s for A",), actors_that_ran=frozenset({"A"}))
    assert judge(stopped).reasons == ("waited 20 s for A",)


def test_an_unmet_expectation_does_not_make_later_actors_missing() -> None:
    judgement = judge(replace(COMPLETE, unmet=UNMET, actors_that_ran=frozenset({"A"})))
    assert judgement.verdict is Verdict.FAIL


def test_an_unmet_expectation_without_its_race_proves_nothing() -> None:
    never = (WitnessSeen("a second claim", seen=False),)
    judgement = judge(replace(COMPLETE, unmet=UNMET, witnesses=never))
    assert judgement.verdict is Verdict.INCONCLUSIVE
    assert "not witnessed: a second claim" in judgement.reasons
    assert any("step 4" in reason for reason in judgement.reasons)


def test_a_broken_invariant_fails_whatever_is_missing() -> None:
    judgement = judge(replace(COMPLETE, violations=(VIOLATION,), steps=0, witnesses=(), drained=False))
    assert judgement.verdict is Verdict.FAIL
    assert judgement.reasons == ("fence broken at step 4: A wrote under token 1 while 2 was current (job 1)",)


def test_only_one_function_can_say_pass() -> None:
    """Comparing with `Verdict.PASS` is fine anywhere; making a judgement of it is not."""
    makers = []
    for path in [
        *ROOT.glob("harness/**/*.py"),
        *ROOT.glob("reports/**/*.py"),
        *ROOT.glob("scenarios/**/*.py"),
    ]:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and _names_judgement(node.func) and _says_pass(node):
                makers.append(path.relative_to(ROOT).as_posix())
            if isinstance(node, ast.Call) and _is_name(node.func, "Verdict"):
                makers.append(f"{path.relative_to(ROOT).as_posix()} (from text)")
            # Reports read the word off a trace and cannot judge anything: they may not import the harness's verdict.
            reads_traces = path.is_relative_to(ROOT / "reports")
            if isinstance(node, ast.Constant) and node.value == "pass" and not reads_traces:
                makers.append(f"{path.relative_to(ROOT).as_posix()} (literal)")
    assert makers == ["harness/verdict.py (literal)", "harness/verdict.py"]


def _names_judgement(function: ast.expr) -> bool:
    return _is_name(function, "Judgement") or _is_name(function, "replace")


def _is_name(function: ast.expr, name: str) -> bool:
    return isinstance(function, ast.Name) and function.id == name


def _says_pass(call: ast.Call) -> bool:
    values = [*call.args, *(keyword.value for keyword in call.keywords)]
    return any(isinstance(value, ast.Attribute) and value.attr == "PASS" for value in values)
