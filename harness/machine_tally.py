"""What all examples of one test of the state machine did together: a machine that did nothing found nothing."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from fencepost.harness.adapter import OPERATION_NEEDS
from fencepost.harness.bench import Bench, OpenRun, Run
from fencepost.harness.history import CallStatus, Step
from fencepost.harness.model import Model
from fencepost.harness.postgres.provider import ServerFault

EXAMPLES_THAT_SHOW_ALL = 200
"""In so many examples every operation comes up, and every kind of fault; in a few, one may not."""
EXAMPLES_THAT_SHOW_DEATHS = 500
"""They are rare."""


@dataclass(slots=True)
class Tally:
    examples: int = 0
    repeated: int = 0
    """Those that went as another had gone, and were not played again."""
    otherwise: int = 0
    """Those that went another way than the same had before: something they hang on is not in the runner's hands."""
    steps: int = 0
    answered: int = 0
    in_flight: int = 0
    """Calls that were held on their way while somebody else acted."""
    unknown: int = 0
    predictions: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    """Those that struck, by kind."""
    evaluated: Counter[str] = field(default_factory=Counter)
    operations: Counter[str] = field(default_factory=Counter)
    known: Counter[str] = field(default_factory=Counter)
    """Findings that are no news."""
    found_at: int | None = None
    """The example that first showed it."""

    def missing(self, bench: Bench) -> list[str]:
        """What had to happen in some example and did not."""
        lacking = []
        if not self.answered:
            lacking.append("no operation was answered")
        if not self.in_flight:
            lacking.append("no operation was held on its way while another acted")
        lacking += [
            f"invariant {name} was never evaluated" for name, count in self.evaluated.items() if not count
        ]
        if self.examples < EXAMPLES_THAT_SHOW_ALL:
            return lacking
        lacking += [
            f"no {operation} was answered"
            for operation in ("enqueue", "claim", "complete", "fail", "heartbeat", "reap", "cancel")
            if OPERATION_NEEDS[operation] in (None, *bench.capabilities) and not self.operations[operation]
        ]
        if not self.faults["cut"] + self.faults["terminate_backend"]:
            lacking.append("no connection was cut")
        if not self.faults["lose reply"]:
            lacking.append("no answer was lost")
        if self.examples >= EXAMPLES_THAT_SHOW_DEATHS:
            if not self.faults["kill"]:
                lacking.append("no worker was killed")
            if ServerFault.CRASH in bench.server_faults and not self.faults["crash"]:
                lacking.append("the server never crashed")
        return lacking

    def __str__(self) -> str:
        struck = ", ".join(f"{count} {name}" for name, count in sorted(self.faults.items()))
        otherwise = f", {self.otherwise} otherwise than before" if self.otherwise else ""
        return (
            f"{self.examples} examples ({self.repeated} more went the same ways{otherwise}), "
            f"{self.steps} steps, {self.answered} operations answered, "
            f"{self.in_flight} of them in flight while others acted, {self.unknown} with their answer lost, "
            f"{self.faults.total()} faults ({struck or 'none'}), {self.predictions} answers foretold"
        )

    def take(self, run: Run, opened: OpenRun, model: Model) -> None:
        steps = opened.runner.steps
        self.steps += len(steps)
        self.predictions += model.predictions
        held_since: dict[int, int] = {}
        for index, step in enumerate(steps):
            if step.fault is not None:
                self.faults[step.fault] += 1
            if step.call is None:
                continue
            number = step.call.number
            if number in held_since and any(
                s.call is not None for s in steps[held_since[number] + 1 : index]
            ):
                self.in_flight += 1
            held_since.pop(number, None)
            if step.status is CallStatus.PARKED:
                held_since[number] = index
            if step.reply is not None:
                self.answered += 1
                self.operations[step.call.operation] += 1
                self.unknown += step.reply.outcome.value == "unknown"
                self.faults.update(_kinds(step))
        for name, count in run.facts.invariants.items():
            self.evaluated[name] += count.evaluated


def _kinds(step: Step) -> list[str]:
    """The faults at statements of a call that has ended: it keeps those that fired. "/^COMMIT/: lose reply"."""
    assert step.call is not None
    return [rule.rpartition(": ")[2] for rule in step.call.faults]
