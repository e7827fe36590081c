"""Drives a strategy: batch after batch to the workers, answers back in order, until it is done."""

from __future__ import annotations

from collections.abc import Callable

from fencepost.harness.explore.evidence import what_never_happened, what_to_know
from fencepost.harness.explore.program import Program
from fencepost.harness.explore.result import Result
from fencepost.harness.explore.scale import Workers
from fencepost.harness.explore.strategy import Strategy
from fencepost.harness.explore.tally import Tally

Progress = Callable[[Tally], None]


def explore(
    program: Program,
    strategy: Strategy,
    workers: Workers,
    *,
    stop_at_first: bool = False,
    progress: Progress | None = None,
) -> Result:
    """Stops at the end of the search, of its budget, after the batch with the first failure if asked to, and after a
    batch in which an order did not replay."""
    while batch := strategy.batch():
        for task, answer in zip(batch, workers.run(batch), strict=True):
            strategy.absorb(task, answer)
            if progress is not None:
                progress(strategy.tally)
        if stop_at_first and strategy.tally.failed:
            break
    return result_of(program, strategy)


def result_of(program: Program, strategy: Strategy) -> Result:
    """What the search has come to by now."""
    tally = strategy.tally
    return Result(
        str(program),
        strategy.name,
        strategy.basis(),
        strategy.complete,
        tally,
        never=what_never_happened(program, tally.evidence) if tally.runs else ("no order was run",),
        notes=what_to_know(program, tally.evidence),
    )
