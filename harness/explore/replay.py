"""Runs one order and keeps what was seen; says so when the same beginning is not followed by the same."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final

from fencepost.harness.errors import FencepostError
from fencepost.harness.explore.executor import (
    Choice,
    Execution,
    Outcome,
    Schedule,
    Status,
    StepResult,
    schedule_text,
)

MAX_STEPS: Final = 10_000
"""A run this long has an operation that never ends."""


@dataclass(frozen=True, slots=True)
class Run:
    """One executed order; complete once nothing could move any more. Without an outcome it was cut short."""

    steps: tuple[StepResult, ...]
    enabled: tuple[tuple[Choice, ...], ...]  # before each step, and after the last
    outcome: Outcome | None

    @property
    def schedule(self) -> Schedule:
        return tuple(step.choice for step in self.steps)

    @property
    def blocked(self) -> bool:
        return any(step.status is Status.BLOCKED for step in self.steps)

    @property
    def sights(self) -> tuple[str, ...]:
        return tuple(sight(step, after) for step, after in zip(self.steps, self.enabled[1:], strict=True))


@dataclass(frozen=True, slots=True)
class Difference:
    """The same beginning, and what followed it in one run and in another."""

    schedule: Schedule  # up to and with the step that differed
    expected: str
    seen: str
    foreseen: bool = (
        False  # what was expected was not seen in this very order, but in one that should be alike
    )

    def told(self, was_run: bool) -> Difference:
        return replace(self, foreseen=not was_run)

    def __str__(self) -> str:
        which = "an order like others that were run" if self.foreseen else "the same order"
        return (
            f"{which} gave something else at step {len(self.schedule)} of {schedule_text(self.schedule)}:\n"
            f"  before: {self.expected}\n"
            f"  now:    {self.seen}"
        )


class Nondeterminism(FencepostError):
    """Two runs of one order differed, so nothing that rests on replaying it holds."""

    def __init__(self, difference: Difference) -> None:
        super().__init__(difference)
        self.difference = difference


class CannotFollow(FencepostError):
    """The order asks for a move that is not possible at that point."""


def sight(step: StepResult, after: Sequence[Choice]) -> str:
    """All that a replay must see again, as text."""
    return f"{step}; next: {' '.join(map(str, after)) or 'nobody'}"


Pick = Callable[[Sequence[StepResult], tuple[Choice, ...]], Choice | None]
"""Who moves, given the steps so far and what is enabled; None cuts the run short."""


def run(execution: Execution, pick: Pick, expected: Sequence[str] = ()) -> Run:
    """Execute from a reset. `expected` is what the first steps looked like the last time."""
    execution.reset()
    steps: list[StepResult] = []
    enabled = [execution.enabled()]
    while enabled[-1]:
        chosen = pick(steps, enabled[-1])
        if chosen is None:
            return Run(tuple(steps), tuple(enabled), None)
        if len(steps) == MAX_STEPS:
            raise FencepostError(f"a run did not end within {MAX_STEPS} steps; the last was {steps[-1]}")
        steps.append(execution.take(chosen))
        enabled.append(execution.enabled())
        if len(steps) <= len(expected):
            seen = sight(steps[-1], enabled[-1])
            if seen != expected[len(steps) - 1]:
                order = tuple(step.choice for step in steps)
                raise Nondeterminism(Difference(order, expected[len(steps) - 1], seen))
    return Run(tuple(steps), tuple(enabled), execution.finish())


def stay(steps: Sequence[StepResult], enabled: Sequence[Choice]) -> Choice:
    """Without need nobody else moves: the last thread goes on, else the first that can, without a fault first."""
    return stay_with(steps[-1].choice.thread if steps else None, enabled)


def stay_with(last: str | None, enabled: Sequence[Choice]) -> Choice:
    return min(enabled, key=lambda choice: (choice.thread != last, bool(choice.variant), choice))


def exactly(schedule: Schedule) -> Pick:
    """That very order; afterwards nobody moves that need not."""

    def pick(steps: Sequence[StepResult], enabled: tuple[Choice, ...]) -> Choice:
        if len(steps) >= len(schedule):
            return stay(steps, enabled)
        wanted = schedule[len(steps)]
        if wanted not in enabled:
            raise CannotFollow(
                f"step {len(steps) + 1} of {schedule_text(schedule)} is {wanted}, and only "
                f"{' '.join(map(str, enabled))} can move there"
            )
        return wanted

    return pick


def retraced(schedule: Schedule, at: int, enabled: tuple[Choice, ...]) -> Choice:
    """The next move of an order that was possible before: if it is not now, the runs differ."""
    wanted = schedule[at]
    if wanted not in enabled:
        seen = f"only {' '.join(map(str, enabled))} can move"
        raise Nondeterminism(Difference(schedule[: at + 1], can_move(wanted), seen))
    return wanted


def can_move(choice: Choice) -> str:
    return f"{choice} can move"


def nearly(schedule: Schedule) -> Pick:
    """That order as far as it can be followed: a move that is not possible when its turn comes is left out."""
    left = list(schedule)

    def pick(steps: Sequence[StepResult], enabled: tuple[Choice, ...]) -> Choice:
        while left:
            wanted = left.pop(0)
            if wanted in enabled:
                return wanted
        return stay(steps, enabled)

    return pick


def replay(execution: Execution, schedule: Schedule, expected: Sequence[str] = ()) -> Run:
    """Run exactly this order; an error where it cannot be followed."""
    return run(execution, exactly(schedule), expected)


def switches(schedule: Schedule) -> int:
    """How often another thread moves than the one before."""
    return sum(one.thread != other.thread for one, other in pairwise(schedule))
