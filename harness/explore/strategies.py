"""The strategies by name."""

from __future__ import annotations

from typing import Final

from fencepost.harness.errors import UsageError
from fencepost.harness.explore.exhaustive import Exhaustive
from fencepost.harness.explore.pct import Pct
from fencepost.harness.explore.program import Program
from fencepost.harness.explore.random_walk import RandomWalk
from fencepost.harness.explore.real import STRIKE_BY_THEMSELVES
from fencepost.harness.explore.reduced import Reduced
from fencepost.harness.explore.strategy import Strategy

STRATEGIES: Final = ("exhaustive", "reduced", "pct", "random")
DEFAULT_DEPTH: Final = 3
MOST_DEPTH: Final = 64
"""Of pct. With every constraint more its bound is divided by the steps of a run: long before this it is nothing."""


def make_strategy(
    name: str, program: Program, *, budget: int, seed: int = 0, depth: int = DEFAULT_DEPTH
) -> Strategy:
    match name:
        case "exhaustive":
            return Exhaustive(budget)
        case "reduced":
            return Reduced(budget, program.faults)
        case "pct":
            if not 1 <= depth <= MOST_DEPTH:
                raise UsageError(f"--depth {depth}: give a whole number from 1 to {MOST_DEPTH}.")
            at_steps = sum(fault.times for fault in program.faults if fault.name not in STRIKE_BY_THEMSELVES)
            return Pct(budget, seed, depth, at_steps)
        case "random":
            return RandomWalk(budget, seed)
    raise UsageError(f"--strategy {name}: give one of {', '.join(STRATEGIES)}.")
