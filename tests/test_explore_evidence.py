"""A search in which nothing happened proves nothing, and says what never did."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from fencepost.harness.cli import main
from fencepost.harness.explore.program import parse
from fencepost.harness.explore.random_walk import RandomWalk
from fencepost.harness.explore.real import QueueExecutor, close_stages
from fencepost.harness.explore.result import Result
from fencepost.harness.explore.scale import Here
from fencepost.harness.explore.search import explore
from fencepost.harness.explore.strategies import make_strategy
from fencepost.harness.lab import LabOptions
from fencepost.tests.fix_toy_executor import ToyExecutor, toy

REFERENCE = "fencepost.queue_impl.reference.adapter:reference"
QUEUES = "fencepost.tests.fix_queues"
SEED_WITHOUT_A_CRASH = 1


@pytest.fixture(autouse=True, scope="module")
def _no_stage_is_left() -> Iterator[None]:
    yield
    close_stages()


def searched(ops: str, faults: str = "", queue: str = REFERENCE, jobs: int = 1) -> Result:
    program = parse(ops, faults, jobs=jobs)
    here = Here(QueueExecutor(queue, LabOptions()), program)
    try:
        return explore(program, make_strategy("reduced", program, budget=500), here)
    finally:
        here.close()


@pytest.mark.parametrize(
    ("ops", "faults", "never"),
    [
        (
            "A:complete",
            "",
            (
                "A's complete was begun in no order: A never had a claim",
                "no operation changed a row in any order",
            ),
        ),
        ("A:claim,complete B:heartbeat", "", ("B's heartbeat was begun in no order: B never had a claim",)),
        ("R:reap", "", ("no operation changed a row in any order",)),
        ("A:enqueue", "expire", ("expire was asked for, and in no order was a lease held when it struck",)),
        (
            "A:heartbeat",
            "lose-reply",
            (
                "lose-reply was asked for and struck in no order",
                "A's heartbeat was begun in no order: A never had a claim",
                "no operation changed a row in any order",
            ),
        ),
    ],
)
def test_what_never_happened_is_said(ops: str, faults: str, never: tuple[str, ...]) -> None:
    result = searched(ops, faults)
    assert result.never == never
    assert result.complete and not result.tally.failed and not result.conclusive
    assert [f"  inconclusive: {reason}" for reason in never] == [
        line for line in result.lines() if "inconclusive" in line
    ]


@pytest.mark.parametrize(
    ("queue", "never"),
    [
        ("claims_nothing", "no claim got a job in any order"),
        ("refuses_claims", "no claim got a job in any order (maintenance)"),
        ("raises_in_claim", "A's claim ended with an error in every order (RuntimeError)"),
    ],
)
def test_claims_that_get_nothing_prove_nothing(queue: str, never: str) -> None:
    result = searched("A:claim", queue=f"{QUEUES}:{queue}")
    assert never in result.never
    assert not result.conclusive


@pytest.mark.parametrize(
    ("ops", "faults", "jobs", "notes"),
    [
        ("A:claim,complete", "expire", 1, ()),
        ("A:claim B:claim", "crash", 1, ()),
        ("A:claim,heartbeat B:claim", "", 2, ("no race: in no order did two actors act on one job",)),
        ("A:claim,complete,heartbeat", "", 1, ("A's heartbeat was refused in every order (terminal)",)),
        ("A:claim,claim", "", 1, ("A's claim got no job in any order",)),
    ],
)
def test_what_did_happen_is_not_missed(ops: str, faults: str, jobs: int, notes: tuple[str, ...]) -> None:
    result = searched(ops, faults, jobs=jobs)
    assert result.conclusive, result.lines()
    assert result.notes == notes


def test_operations_of_one_step_each_are_said_to_be_that() -> None:
    result = searched("A:claim B:claim", queue="pgqueuer")
    assert result.notes == ("no operation was under way while another actor moved: each was one step",)


def test_evidence_of_any_executor_and_any_strategy() -> None:
    """Where nobody tells of answers and rows, what can move and what struck is judged all the same."""
    program = toy("A:read-x B:write-x", crash=1)
    assert explore(program, RandomWalk(200, 1), Here(ToyExecutor(), program)).conclusive
    unstruck = explore(program, RandomWalk(1, SEED_WITHOUT_A_CRASH), Here(ToyExecutor(), program))
    assert unstruck.never == ("crash was asked for and struck in no order",)
    assert not unstruck.conclusive


def test_no_order_at_all_is_no_result() -> None:
    program = toy("A:read-x")
    result = explore(program, RandomWalk(0, 1), Here(ToyExecutor(), program))
    assert result.never == ("no order was run",)
    assert not result.conclusive


def test_the_command_says_it_in_text_and_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["explore", "--ops", "A:complete", "--trace-dir", str(tmp_path)]
    sentence = "A's complete was begun in no order: A never had a claim"
    assert main(command) == 3
    assert f"inconclusive: {sentence}\n" in capsys.readouterr().out
    assert main([*command, "--json"]) == 3
    told = json.loads(capsys.readouterr().out)
    assert sentence in told["missing"] and not told["conclusive"]
