"""`@explore(...)`: a test of many orders. Collected by the pytest plugin as one item."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from fencepost.harness.explore.program import Program, parse
from fencepost.harness.explore.real import FAULTS
from fencepost.harness.explore.result import Result

Body = Callable[[Result], None]
DEFAULT_BUDGET = 5_000


@dataclass(frozen=True, slots=True)
class Exploration:
    """What is explored; `body` is given the result of a search in which nothing failed, for what more it asks."""

    program: Program
    strategy: str
    budget: int
    seed: int
    body: Body

    @property
    def sentence(self) -> str:
        return (self.body.__doc__ or str(self.program)).strip().partition("\n")[0]


def explore(
    ops: str,
    *,
    faults: str = "",
    enqueue: int = 1,
    strategy: str = "reduced",
    budget: int = DEFAULT_BUDGET,
    seed: int = 0,
) -> Callable[[Body], Exploration]:
    """
    @explore("A:claim,complete B:claim,complete", faults="expire")
    def test_two_workers(result):
        '''Whatever the order, one of two workers completes the job.'''
    """
    program = parse(ops, faults, jobs=enqueue, known_faults=FAULTS)

    def make(body: Body) -> Exploration:
        return Exploration(program, strategy, budget, seed, body)

    return make
