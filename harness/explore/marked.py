"""`@explore(...)`: a test of many orders. Collected by the pytest plugin as one item."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from fencepost.harness.errors import UsageError
from fencepost.harness.explore.program import Program, parse
from fencepost.harness.explore.real import FAULTS, TAKEN
from fencepost.harness.explore.result import Result
from fencepost.harness.explore.strategies import STRATEGIES

Body = Callable[[Result], None]
DEFAULT_BUDGET = 5_000
EXPLORATION: Final = "fencepost_exploration"
"""Where a marked function holds it: it stays a function, so that marks above and below @explore are its own."""


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
) -> Callable[[Body], Body]:
    """
    @explore("A:claim,complete B:claim,complete", faults="expire")
    def test_two_workers(result):
        '''Whatever the order, one of two workers completes the job.'''
    """
    if not isinstance(ops, str):
        raise UsageError('@explore is given its operations, as in @explore("A:claim,complete B:claim")')
    for name, value, least in (("enqueue", enqueue, 0), ("budget", budget, 1)):
        if type(value) is not int or value < least:
            raise UsageError(f"@explore: {name} is a whole number from {least} on, not {value!r}")
    if type(seed) is not int:
        raise UsageError(f"@explore: seed is a whole number, not {seed!r}")
    if not isinstance(faults, str):
        raise UsageError(f'@explore: faults is a text, as "expire,crash*2", not {faults!r}')
    if strategy not in STRATEGIES:
        raise UsageError(f"@explore: strategy is one of {', '.join(STRATEGIES)}, not {strategy!r}")
    program = parse(
        ops, faults, jobs=enqueue, known_faults=FAULTS, called=("@explore: ops", "@explore: faults")
    )
    for actor in program.actors:
        if actor.name in TAKEN:
            raise UsageError(f"@explore: ops: {actor.name} {TAKEN[actor.name]}; take another name")

    def make(body: Body) -> Body:
        if not inspect.isfunction(body) or len(inspect.signature(body).parameters) != 1:
            raise UsageError("@explore marks a function of one parameter, which is given the result")
        setattr(body, EXPLORATION, Exploration(program, strategy, budget, seed, body))
        return body

    return make


def exploration_of(obj: Any) -> Exploration | None:
    """What @explore has made of a function."""
    found = getattr(obj, EXPLORATION, None) if inspect.isfunction(obj) else None
    return found if isinstance(found, Exploration) else None
