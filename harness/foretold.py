"""A run played step by step with the model beside it: what the state machine does, and replays of what it found.

After every step the invariants are asked and the model compares; at the end what is left is drained, and the answers
must have an explanation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from fencepost.harness import history
from fencepost.harness.bench import Bench, Run
from fencepost.harness.errors import FencepostError, UsageError
from fencepost.harness.known import EXPECTATION, what_failed
from fencepost.harness.lease_time import CannotMoveTime
from fencepost.harness.model import Model
from fencepost.harness.outcomes import explain, groups
from fencepost.harness.race import NotEstablished
from fencepost.harness.replay import Player
from fencepost.harness.runner import InvariantBroken, Runner
from fencepost.harness.scenario import Variant
from fencepost.harness.schedule import Step
from fencepost.harness.verdict import Unmet


class ForetoldRun:
    def __init__(
        self, bench: Bench, variant: Variant, path_of: Callable[[str], str | None] = lambda _: None
    ) -> None:
        self.opened = bench.begin(variant)
        self.player = Player(self.opened.race, path_of=path_of)
        self.model = Model(bench.capabilities)
        self.unmet: list[Unmet] = []
        self.obstacles: list[str] = []
        self._bench = bench
        self._judged = 0

    def take(self, step: Step) -> bool:
        """Whether the run can go on. A step that is not to be had here is passed over."""
        try:
            self.player.play(step)
        except InvariantBroken:
            return False
        except (NotEstablished, CannotMoveTime):
            pass  # what was recorded of it is looked at all the same
        except UsageError:
            raise
        except FencepostError as error:
            self.obstacles.append(str(error))
            return False
        self._compare()
        return True

    def _compare(self) -> None:
        steps = self.opened.runner.steps
        self.unmet += _complaints(self.model, steps[self._judged :])
        self._judged = len(steps)

    def end(self) -> Run:
        self.opened.runner.forget_what_never_came()
        return self._bench.finish(
            self.opened, self.unmet, self.obstacles, look_back=_unexplained(self._bench)
        )

    def abandon(self) -> None:
        """Whoever is held goes, and nothing is concluded."""
        self._bench.abandon(self.opened)


def run_foretold(bench: Bench, variant: Variant) -> Run:
    """A scenario or a replay, judged by the model as well."""
    return bench.run(
        variant,
        compare=lambda runner: _complaints(Model(bench.capabilities), runner.steps),
        look_back=_unexplained(bench),
    )


def _complaints(model: Model, steps: Sequence[history.Step]) -> list[Unmet]:
    return [Unmet(group[0].number, message) for group in groups(steps) for message in model.judge(group)]


def _unexplained(bench: Bench) -> Callable[[Runner], list[Unmet]]:
    def look_back(runner: Runner) -> list[Unmet]:
        problem = explain(runner.steps, bench.capabilities)
        return [] if problem is None else [Unmet(len(runner.steps), str(problem))]

    return look_back


def names_of(run: Run) -> tuple[str, ...]:
    """What a run found, by name. What the model says counts also where nothing else could be concluded."""
    names = what_failed(run.facts, run.judgement)
    return (*names, EXPECTATION) if run.facts.unmet and EXPECTATION not in names else names
