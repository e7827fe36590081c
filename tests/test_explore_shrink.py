"""A failing order gets small, and the nearest one that holds stands beside it."""

from __future__ import annotations

import pytest

from fencepost.harness.errors import UsageError
from fencepost.harness.explore.executor import Execution, Schedule, choice
from fencepost.harness.explore.exhaustive import Exhaustive
from fencepost.harness.explore.nearest import adjacent_swaps, nearest
from fencepost.harness.explore.program import Program
from fencepost.harness.explore.random_walk import RandomWalk
from fencepost.harness.explore.replay import (
    CannotFollow,
    Difference,
    Nondeterminism,
    Run,
    nearly,
    replay,
    run,
)
from fencepost.harness.explore.result import side_by_side
from fencepost.harness.explore.scale import Here
from fencepost.harness.explore.search import explore
from fencepost.harness.explore.shrink import _pieces, _size, shrink
from fencepost.tests.fix_toy_executor import ToyExecutor, lost_update, toy

EXECUTOR = ToyExecutor(lost_update)
LARGE = toy(
    "A:read-z,read-x,clock,write-x,read-y B:read-y,write-y,write-x,write-z C:write-z,read-x D:scan",
    expire=2,
    crash=1,
)


def order(text: str) -> Schedule:
    return tuple(choice(word) for word in text.split())


def failing_orders(program: Program, count: int) -> list[Schedule]:
    result = explore(program, RandomWalk(400, 3), Here(EXECUTOR, program))
    return [failure.schedule for failure in result.tally.failures[-count:]]


def test_it_gets_as_small_as_the_bug_is() -> None:
    for failing in failing_orders(LARGE, 5):
        small = shrink(EXECUTOR, LARGE, failing)
        assert small.minimal
        assert str(small.program) == "A:read-x,write-x B:write-x (no jobs)"
        assert small.schedule == order("A B A")


def test_it_is_1_minimal() -> None:
    """Taking away any one piece of the result makes it hold."""
    (failing,) = failing_orders(LARGE, 1)
    small = shrink(EXECUTOR, LARGE, failing)
    pieces = list(_pieces(small.program, small.run.steps))
    assert pieces
    for piece in pieces:
        done = run(EXECUTOR.open(piece.program), nearly(piece.schedule))
        assert done.outcome is not None
        smaller = _size(piece.program, done) < _size(small.program, small.run)
        assert not (done.outcome.failed and smaller), piece


def test_a_fault_stays_only_if_it_is_needed() -> None:
    program = toy("A:clock,write-x B:read-y", expire=2)
    fails = toy("A:clock,write-x B:read-y", expire=2)
    small = shrink(EXECUTOR, fails, order("expire A A B expire"), fails=lambda end: "t1" in str(end.state))
    assert str(small.program) == "A:clock,write-x [expire] (no jobs)"
    assert small.schedule == order("expire A A")
    assert program == fails


def test_an_order_that_holds_cannot_be_shrunk() -> None:
    with pytest.raises(UsageError, match="does not fail"):
        shrink(EXECUTOR, toy("A:read-x,write-x B:write-x"), order("A A B"))


def test_a_spent_budget_is_said() -> None:
    (failing,) = failing_orders(LARGE, 1)
    small = shrink(EXECUTOR, LARGE, failing, budget=1)
    assert not small.minimal
    assert small.run.outcome is not None
    assert small.run.outcome.failed


def test_where_no_smaller_order_fails_again_the_order_itself_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    def something_else(execution: Execution, found: Run) -> Run:
        raise Nondeterminism(Difference(found.schedule, "ends like this", "ends like that"))

    monkeypatch.setattr("fencepost.harness.explore.shrink._verified", something_else)
    (failing,) = failing_orders(LARGE, 1)
    small = shrink(EXECUTOR, LARGE, failing)
    assert small.schedule == failing and small.program == LARGE
    assert not small.minimal and "a smaller order did not fail again" in small.ended_by


def test_an_order_that_cannot_be_followed_is_an_error() -> None:
    with pytest.raises(CannotFollow, match=r"step 3 of B\*2 is B, and only A can move there|step 2 of B\*2"):
        replay(EXECUTOR.open(toy("A:read-x B:write-x")), order("B B"))


def test_the_nearest_order_that_holds() -> None:
    program = toy("A:read-x,read-z,write-x B:read-z,write-x C:write-y,read-y")
    failing = order("C A B A B A C")
    found = nearest(EXECUTOR.open(program), failing)
    assert found is not None
    assert found.failing.outcome is not None
    assert found.failing.outcome.failed
    assert found.other.outcome is not None
    assert not found.other.outcome.failed
    (turn,) = found.turns
    assert {turn.first.statement, turn.then.statement if turn.then else ""} <= {"read-x", "write-x"}


def test_no_order_is_nearer() -> None:
    """Compared with all orders: none that holds needs fewer swaps of neighbouring steps between dependent steps."""
    program = toy("A:read-x,write-x B:write-x C:read-y")
    every = explore(program, Exhaustive(1_000), Here(EXECUTOR, program))
    holds = [order_ for outcome, order_ in every.tally.examples.items() if not outcome.failed]
    failing = order("A B A C")
    found = nearest(EXECUTOR.open(program), failing)
    assert found is not None
    assert found.swaps <= min(adjacent_swaps(failing, other) for other in holds)


def test_both_beside_each_other() -> None:
    program = toy("A:read-x,write-x B:write-x")
    found = nearest(EXECUTOR.open(program), order("A B A"))
    assert found is not None
    assert side_by_side(found.failing.steps, found.other.steps) == [
        "  (1 step alike)",
        "2. B: write-x write-x [answered] → wrote x | 2. A: write-x write-x [answered] → wrote x",
        "3. A: write-x write-x [answered] → wrote x | 3. B: write-x write-x [answered] → wrote x",
    ]


def test_where_nothing_holds_there_is_no_nearest() -> None:
    always = ToyExecutor(_always)
    assert nearest(always.open(toy("A:read-x B:write-x")), order("A B")) is None


def _always(rows: dict[str, str], answers: tuple[str, ...]) -> tuple[str, ...]:
    return ("always",)
