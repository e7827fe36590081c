"""An explored order as the text `fencepost replay` takes."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Sequence

from fencepost.harness.explore.executor import Status, StepResult
from fencepost.harness.explore.program import ENQUEUE_OTHER, Program
from fencepost.harness.explore.real import ARGUMENTS, CRASH, EXPIRE, KEY, LOSE_REPLY, LOSE_REQUEST, RESTART
from fencepost.harness.explore.stage import PRODUCER
from fencepost.harness.schedule import ActorFault, ClockBy, ClockPast, GoOn, ServerFault, Start
from fencepost.harness.schedule import Schedule as WrittenSchedule

_FAULT_WORDS = {LOSE_REPLY: "lose_reply", LOSE_REQUEST: "lose_request"}
_FAULT_OF = {word: fault for fault, word in _FAULT_WORDS.items()}

_FREED = re.compile(r"([A-Z]\w*): ")


def replay_text(program: Program, steps: Sequence[StepResult], *, keys: bool = True) -> str:
    """`keys`: whether the queue takes idempotency keys, under which the program's own jobs are enqueued then."""
    words = [f"{PRODUCER}:enqueue"] * program.jobs
    operations = {actor.name: actor.operations for actor in program.actors}
    armed = _faults_at(steps)
    started: set[tuple[str, int]] = set()
    claims: list[str] = []  # who got them, in the order of the answers
    for step in steps:
        thread = step.choice.thread
        if thread == EXPIRE:
            words += [step.said] if step.said else []
            continue
        if thread == RESTART:
            words.append("crash")
            claims += _claimed(step)
            continue
        if step.choice.variant == CRASH:
            # Who has done nothing yet has no connection that could end.
            words += [f"{thread}:cut"] if any(name == thread for name, _ in started) else []
            continue
        blocked = "!" if step.status is Status.BLOCKED else ""
        if (thread, step.place) not in started:
            started.add((thread, step.place))
            faults = "".join(armed.get((thread, step.place), ()))
            asked = operations[thread][step.place]
            words.append(f"{thread}:{step.operation}{_arguments(asked, keys, thread, claims)}@*{faults}")
        if step.statement:
            words.append(f"{thread}>{blocked}")
        claims += _claimed(step)
    return " | ".join(words)


def fits(program: Program, schedule: WrittenSchedule) -> bool:
    """Whether it is an order of the program, or of one that is left when pieces of it are taken away."""
    left = {actor.name: list(actor.operations) for actor in program.actors}
    struck: Counter[str] = Counter()
    jobs = 0
    for step in schedule:
        match step:
            case Start(actor=actor) if actor == PRODUCER and step.operation == "enqueue":
                jobs += 1
            case Start(actor=actor):
                asked = ENQUEUE_OTHER if "payload" in step.arguments else step.operation
                if asked not in left.get(actor, ()):
                    return False
                del left[actor][: left[actor].index(asked) + 1]
                struck.update(_FAULT_OF.get(fault.name, fault.name) for fault in step.faults)
            case GoOn(actor=actor):
                if actor not in left:
                    return False
            case ActorFault(name="cut"):
                struck[CRASH] += 1
            case ServerFault(name="crash"):
                struck[RESTART] += 1
            case ClockBy() | ClockPast():
                struck[EXPIRE] = 1  # once past every lease, however many there are
            case _:
                return False
    allowed = {fault.name: fault.times for fault in program.faults}
    return jobs <= program.jobs and all(times <= allowed.get(name, 0) for name, times in struck.items())


def _claimed(step: StepResult) -> list[str]:
    """Who was answered with a claim in this step: who moved, then those it set free."""
    answers = [(_FREED.match(answer), answer) for answer in step.said.split("; ")]
    return [
        freed[1] if freed else step.choice.thread for freed, answer in answers if " under token " in answer
    ]


def _arguments(operation: str, keys: bool, thread: str, claims: Sequence[str]) -> str:
    if operation == "complete_batch":
        return f"(#{max(number for number, owner in enumerate(claims, 1) if owner == thread)})"
    if operation == "cancel":
        return "(j1)"
    if operation == ENQUEUE_OTHER:
        return f'(key="{KEY}", payload={json.dumps(ARGUMENTS[ENQUEUE_OTHER]["payload"])})'
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
