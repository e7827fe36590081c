"""A uniform walk: at every point each possible move is equally likely. Orders are not: those behind few choices win."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from fencepost.harness.explore.executor import Choice, StepResult
from fencepost.harness.explore.replay import Pick
from fencepost.harness.explore.sampled import Sampled


@dataclass(frozen=True, slots=True)
class Uniform:
    def pick(self, chance: Random) -> Pick:
        def pick(steps: Sequence[StepResult], enabled: tuple[Choice, ...]) -> Choice:
            return enabled[chance.randrange(len(enabled))]

        return pick


class RandomWalk(Sampled):
    name = "random"

    def sampler(self) -> Uniform:
        return Uniform()

    def basis(self) -> str:
        return (
            f"random: {self.tally.runs:,} runs, {len(self.tally.distinct):,} different orders, no guarantee"
        )
