"""What an exploration came to, and what that rests on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fencepost.harness.explore.executor import StepResult, schedule_text
from fencepost.harness.explore.replay import Difference
from fencepost.harness.explore.tally import Failure, Tally


@dataclass(frozen=True, slots=True)
class Result:
    """True once the search ended. `complete`: nothing is left that its strategy would have had to try."""

    program: str
    strategy: str
    basis: str
    complete: bool
    tally: Tally
    never: tuple[str, ...] = ()  # what had to happen in some order for this to say something, and did not
    notes: tuple[str, ...] = ()

    @property
    def differences(self) -> list[Difference]:
        return self.tally.differences

    @property
    def shortest(self) -> Failure | None:
        return self.tally.failures[0] if self.tally.failures else None

    @property
    def conclusive(self) -> bool:
        """Whether the search says something: a failure always does, its absence only when nothing was missing."""
        if self.tally.failed:
            return True
        ran = self.tally.runs > self.tally.cut
        return ran and self.complete and not self.differences and not self.missing

    @property
    def missing(self) -> tuple[str, ...]:
        """Why some run proves nothing, or all of them together."""
        return (*self._missing_of_runs, *self.never)

    @property
    def _missing_of_runs(self) -> list[str]:
        return sorted({reason for outcome in self.tally.outcomes for reason in outcome.missing})

    def lines(self) -> list[str]:
        tally = self.tally
        lines = [
            f"{self.program}",
            f"  {self.basis}",
            f"  {count(len(tally.outcomes), 'distinct outcome')}, {count(tally.failed, 'failing run')}",
        ]
        if tally.first_failure is not None:
            lines.append(f"  the first failure was run {tally.first_failure:,}")
        if (shortest := self.shortest) is not None:
            lines.append(f"  shortest failing order: {schedule_text(shortest.schedule)}")
            lines.append(f"  broken: {', '.join(shortest.outcome.broken)}")
        lines += [f"  inconclusive: {reason}" for reason in self._missing_of_runs]
        if not tally.failed:
            lines += [f"  inconclusive: {reason}" for reason in self.never]
            lines += [f"  note: {note}" for note in self.notes]
        for difference in self.differences:
            lines += [f"  nondeterminism: {line}" for line in str(difference).splitlines()]
        return lines


def count(number: int, what: str) -> str:
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}s"


def story(steps: Sequence[StepResult]) -> list[str]:
    """One line a step, numbered."""
    width = len(str(len(steps)))
    return [f"{number:>{width}}. {step}" for number, step in enumerate(steps, 1)]


def side_by_side(one: Sequence[StepResult], other: Sequence[StepResult]) -> list[str]:
    """Two orders beside each other from where they part."""
    same = 0
    while same < min(len(one), len(other)) and one[same] == other[same]:
        same += 1
    left, right = story(one)[same:], story(other)[same:]
    width = max((len(line) for line in left), default=0)
    rows = [f"  ({count(same, 'step')} alike)"] if same else []
    for at in range(max(len(left), len(right))):
        mine = left[at] if at < len(left) else ""
        theirs = right[at] if at < len(right) else ""
        rows.append(f"{mine:<{width}} | {theirs}".rstrip())
    return rows
