"""Probabilistic concurrency testing (Burckhardt, Kothari, Musuvathi, Nagarakatte, 2010).

Every thread gets a random priority; the highest that can move does. At d-1 random steps the thread that has just
moved drops below all. A bug that needs d ordering constraints among n threads and k steps is met by one run with a
probability of at least 1/(n·k^(d-1)).

Faults that are variants of a step are drawn on top: their number evenly between none and the most the program allows,
each at a step drawn evenly. The bound printed is the one for a bug that needs none of them, so it is divided by the
number of these possibilities.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from fencepost.harness.explore.executor import Choice, Execution, StepResult
from fencepost.harness.explore.replay import Pick, run
from fencepost.harness.explore.sampled import Sampled
from fencepost.harness.explore.strategy import Answer, Task


@dataclass(frozen=True, slots=True)
class Priorities:
    """`threads` is all that can ever move; `steps` the length change points are drawn from."""

    threads: tuple[str, ...]
    steps: int
    depth: int
    most_faults: int

    def pick(self, chance: Random) -> Pick:
        order = list(self.threads)
        chance.shuffle(order)
        priority = {thread: self.depth + place for place, thread in enumerate(order)}
        # Drawn independently, as the bound's proof has it: two may fall on one step.
        changes: dict[int, list[int]] = {}
        for lower in range(1, self.depth):
            changes.setdefault(chance.randint(1, self.steps), []).append(lower)
        faults = {chance.randint(1, self.steps) for _ in range(chance.randint(0, self.most_faults))}

        def pick(steps: Sequence[StepResult], enabled: tuple[Choice, ...]) -> Choice:
            at = len(steps) + 1

            def highest() -> str:
                return max((choice.thread for choice in enabled), key=lambda thread: priority.get(thread, 0))

            for lower in changes.get(at, ()):
                priority[highest()] = lower
            moves = [choice for choice in enabled if choice.thread == highest()]
            wrong = [choice for choice in moves if choice.variant]
            if at in faults and wrong:
                return wrong[chance.randrange(len(wrong))]
            return min(moves, key=lambda choice: (bool(choice.variant), choice))

        return pick


@dataclass(frozen=True, slots=True)
class Probe:
    """One run for each thread going first and nobody moving without need: who there is, and how long runs are."""

    def perform(self, execution: Execution) -> Answer:
        answer = Answer()
        threads: set[str] = set()
        first: list[str] = [""]
        done: set[str] = set()
        longest = 0
        while first:
            leader = first.pop()
            seen = run(execution, _led_by(leader))
            longest = max(longest, len(seen.steps))
            threads |= {choice.thread for enabled in seen.enabled for choice in enabled}
            done.add(leader)
            first = sorted(threads - done, reverse=True)
        answer.more = (tuple(sorted(threads)), longest)
        return answer


def _led_by(leader: str) -> Pick:
    def pick(steps: Sequence[StepResult], enabled: tuple[Choice, ...]) -> Choice:
        return min(enabled, key=lambda choice: (choice.thread != leader, bool(choice.variant), choice))

    return pick


class Pct(Sampled):
    name = "pct"

    def __init__(self, budget: int, seed: int, depth: int, most_faults: int = 0) -> None:
        super().__init__(budget, seed)
        self.depth = depth
        self.most_faults = most_faults
        self._probed: tuple[tuple[str, ...], int] | None = None

    def batch(self) -> Sequence[Task]:
        return [Probe()] if self._probed is None else super().batch()

    def absorb(self, task: Task, answer: Answer) -> None:
        if isinstance(task, Probe):
            assert isinstance(answer.more, tuple)
            self._probed = answer.more
            return
        super().absorb(task, answer)

    def sampler(self) -> Priorities:
        assert self._probed is not None, "the probe is the first batch"
        threads, steps = self._probed
        return Priorities(threads, max(steps, 1), self.depth, self.most_faults)

    @property
    def bound(self) -> float:
        """The least probability with which one run meets a bug of this depth that needs no variant fault."""
        assert self._probed is not None
        threads, steps = self._probed
        orders: int = max(len(threads), 1) * max(steps, 1) ** (self.depth - 1)
        return 1 / ((self.most_faults + 1) * orders)

    def basis(self) -> str:
        if self._probed is None:
            return "pct: nothing was run"
        runs = self.tally.runs
        threads, steps = self._probed
        at_all = 1 - (1 - self.bound) ** runs
        words = (
            f"pct: {runs:,} runs, bug depth {self.depth}, probability bound {self.bound:.3g} a run "
            f"({len(threads)} threads, {steps} steps), {at_all:.3g} in all"
        )
        if self.tally.longest > steps:
            words += f"; runs were up to {self.tally.longest} steps long, so the bound holds for the first {steps} only"
        return words
