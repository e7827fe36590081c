"""What a strategy is: it hands out tasks that are pure functions of themselves, and takes in what came of them.

A batch does not depend on how many workers there are, and answers are taken in in task order: the same seed gives
the same set of orders on one core and on a cluster.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from fencepost.harness.explore.executor import Execution
from fencepost.harness.explore.tally import Tally


@dataclass(slots=True)
class Answer:
    """What a task came to; `more` is what its strategy needs to go on."""

    tally: Tally = field(default_factory=Tally)
    more: object = None


class Task(Protocol):
    """Picklable; depends on nothing but itself and the program."""

    def perform(self, execution: Execution) -> Answer: ...


class Strategy(Protocol):
    name: str

    def batch(self) -> Sequence[Task]:
        """The next tasks; none: it is done, or its budget is spent."""
        ...

    def absorb(self, task: Task, answer: Answer) -> None:
        """Called once for each task of the batch, in its order."""
        ...

    @property
    def tally(self) -> Tally: ...

    @property
    def complete(self) -> bool:
        """Whether nothing is left that the strategy would have had to try."""
        ...

    def basis(self) -> str:
        """What the result rests on, in words."""
        ...
