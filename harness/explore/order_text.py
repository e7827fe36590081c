"""An explored order as the text `fencepost replay` takes."""

from __future__ import annotations

from collections.abc import Sequence

from fencepost.harness.explore.executor import Status, StepResult
from fencepost.harness.explore.program import Program
from fencepost.harness.explore.real import CRASH, EXPIRE, KEY, LOSE_REPLY, LOSE_REQUEST
from fencepost.harness.explore.stage import PRODUCER

_FAULT_WORDS = {LOSE_REPLY: "lose_reply", LOSE_REQUEST: "lose_request"}


def replay_text(program: Program, steps: Sequence[StepResult], *, keys: bool = True) -> str:
    """`keys`: whether the queue takes idempotency keys, under which the program's own jobs are enqueued then."""
    words = [f"{PRODUCER}:enqueue"] * program.jobs
    armed = _faults_at(steps)
    started: set[tuple[str, int]] = set()
    for step in steps:
        thread = step.choice.thread
        if thread == EXPIRE:
            words += [step.said] if step.said else []
            continue
        if step.choice.variant == CRASH:
            # Who has done nothing yet has no connection that could end.
            words += [f"{thread}:cut"] if any(name == thread for name, _ in started) else []
            continue
        blocked = "!" if step.status is Status.BLOCKED else ""
        if (thread, step.place) not in started:
            started.add((thread, step.place))
            faults = "".join(armed.get((thread, step.place), ()))
            words.append(f"{thread}:{step.operation}{_arguments(step.operation, keys)}@*{faults}")
        if step.statement:
            words.append(f"{thread}>{blocked}")
    return " | ".join(words)


def _arguments(operation: str, keys: bool) -> str:
    if operation == "cancel":
        return "(j1)"
    return f'(key="{KEY}")' if operation == "enqueue" and keys else ""


def _faults_at(steps: Sequence[StepResult]) -> dict[tuple[str, int], list[str]]:
    """By operation, what is armed at its statements: each step of an operation is its next statement."""
    number: dict[tuple[str, int], int] = {}
    armed: dict[tuple[str, int], list[str]] = {}
    for step in steps:
        which = (step.choice.thread, step.place)
        number[which] = number.get(which, 0) + 1
        word = _FAULT_WORDS.get(step.choice.variant)
        if word is not None:
            armed.setdefault(which, []).append(f"~{word}#{number[which]}")
    return armed
