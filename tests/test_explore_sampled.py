"""The seeded strategies: same seed, same orders; and PCT keeps its bound."""

from __future__ import annotations

import pytest

from fencepost.harness.explore.pct import Pct
from fencepost.harness.explore.program import Program
from fencepost.harness.explore.random_walk import RandomWalk
from fencepost.harness.explore.result import Result
from fencepost.harness.explore.scale import Here
from fencepost.harness.explore.search import explore
from fencepost.harness.explore.strategy import Strategy
from fencepost.tests.fix_toy_executor import (
    FickleExecutor,
    ToyExecutor,
    lost_update,
    there_and_back,
    toy,
)

RUNS = 1_000
PADDING = "clock,clock,clock"
DEPTH_2 = toy(f"A:{PADDING},read-x,write-x,{PADDING} B:{PADDING},write-x,{PADDING} C:{PADDING}")
DEPTH_3 = toy("A:write-x,write-x,read-y,write-q B:read-x,write-y,read-q,write-w")


def ran(strategy: Strategy, program: Program, executor: ToyExecutor | FickleExecutor) -> Result:
    return explore(program, strategy, Here(executor, program))


@pytest.mark.parametrize(
    ("program", "executor", "depth"),
    [(DEPTH_2, ToyExecutor(lost_update), 2), (DEPTH_3, ToyExecutor(there_and_back), 3)],
)
def test_pct_keeps_its_bound(program: Program, executor: ToyExecutor, depth: int) -> None:
    strategy = Pct(RUNS, seed=7, depth=depth)
    result = ran(strategy, program, executor)
    assert result.tally.runs == RUNS
    # The bound is a worst case over all bugs of that depth; the seed is fixed, so this is no gamble.
    assert result.tally.failed / RUNS >= strategy.bound
    # One constraint less and the planted bug is out of reach: it has that depth.
    shallow = ran(Pct(RUNS, seed=7, depth=depth - 1), program, executor)
    assert shallow.tally.failed == 0


def test_pct_says_what_it_rests_on() -> None:
    result = ran(Pct(100, seed=1, depth=3), DEPTH_2, ToyExecutor(lost_update))
    threads, steps = 3, 18
    bound = 1 / (threads * steps**2)
    assert result.basis == (
        f"pct: 100 runs, bug depth 3, probability bound {bound:.3g} a run (3 threads, 18 steps), "
        f"{1 - (1 - bound) ** 100:.3g} in all"
    )


def test_pct_draws_variant_faults_too() -> None:
    program = toy("A:write-x,write-y B:read-x", crash=1)
    result = ran(Pct(300, seed=1, depth=1, most_faults=1), program, ToyExecutor())
    crashed = [order for order in result.tally.examples.values() if any(c.variant for c in order)]
    plain = [order for order in result.tally.examples.values() if not any(c.variant for c in order)]
    assert crashed
    assert plain


@pytest.mark.parametrize("make", [lambda seed: Pct(300, seed, 3), lambda seed: RandomWalk(300, seed)])
def test_the_seed_decides(make: object) -> None:
    assert callable(make)
    one, same, other = (ran(make(seed), DEPTH_2, ToyExecutor()) for seed in (1, 1, 2))
    assert one.tally.fingerprint == same.tally.fingerprint
    assert one.tally.fingerprint != other.tally.fingerprint


def test_a_larger_budget_begins_with_the_same_runs() -> None:
    small, large = RandomWalk(100, 5), RandomWalk(400, 5)
    few, many = (ran(strategy, DEPTH_2, ToyExecutor()) for strategy in (small, large))
    assert few.tally.distinct <= many.tally.distinct


def test_random_says_that_it_promises_nothing() -> None:
    result = ran(RandomWalk(50, 1), toy("A:read-x B:write-x"), ToyExecutor())
    assert result.basis == "random: 50 runs, 2 different orders, no guarantee"


def test_a_sample_that_does_not_repeat_is_reported() -> None:
    result = ran(RandomWalk(50, 1), toy("A:read-x B:write-x"), FickleExecutor(at=41))
    assert len(result.differences) == 1
    assert not result.conclusive
