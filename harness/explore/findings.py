"""What is made of a failing order: the shortest that fails alike, the nearest that holds, whole traces of both."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from fencepost.harness.adapter import Capability
from fencepost.harness.bench import Run as FullRun
from fencepost.harness.explore.executor import Outcome, Schedule, choice, schedule_text
from fencepost.harness.explore.nearest import Nearest, nearest
from fencepost.harness.explore.order_text import replay_text
from fencepost.harness.explore.program import Program, parse
from fencepost.harness.explore.real import FAULTS, QueueExecutor, stage_of
from fencepost.harness.explore.replay import Run
from fencepost.harness.explore.shrink import Shrunk, shrink
from fencepost.harness.loading import load_queue
from fencepost.harness.replay import replay_of
from fencepost.harness.schedule import parse_schedule
from fencepost.harness.trace.format import Trace


@dataclass(frozen=True, slots=True)
class Finding:
    """True once everything was run again: `failing` and `passing` are whole runs with every observation."""

    shrunk: Shrunk
    text: str
    failing: FullRun
    near: Nearest | None
    near_text: str | None
    passing: FullRun | None

    @property
    def broken(self) -> tuple[str, ...]:
        assert self.shrunk.run.outcome is not None
        return self.shrunk.run.outcome.broken

    @property
    def replays(self) -> bool:
        """Whether the whole run broke an invariant that the search had seen broken."""
        return any(violation.invariant in self.broken for violation in self.failing.facts.violations)


def find(executor: QueueExecutor, program: Program, schedule: Schedule, outcome: Outcome) -> Finding:
    """Shrink a failing order until it breaks one of the same invariants with as little as possible."""

    def fails_alike(other: Outcome) -> bool:
        return bool(set(other.broken) & set(outcome.broken))

    shrunk = shrink(executor, program, schedule, fails=fails_alike)
    execution = executor.open(shrunk.program)
    near = nearest(execution, shrunk.schedule)
    execution.close()
    text, failing = whole_run(executor, shrunk.program, shrunk.run, "explored: the failing order")
    near_text: str | None = None
    passing: FullRun | None = None
    if near is not None:
        near_text, passing = whole_run(
            executor, shrunk.program, near.other, "explored: the nearest order that holds"
        )
    return Finding(shrunk, text, failing, near, near_text, passing)


def whole_run(executor: QueueExecutor, program: Program, run: Run, sentence: str) -> tuple[str, FullRun]:
    """The same order by the runner: every step observed and judged, and in the trace."""
    execution = executor.open(program)
    stage = stage_of(execution)
    keys = Capability.IDEMPOTENCY_KEY in stage.bench.capabilities
    text = replay_text(program, run.steps, keys=keys)
    variant = replay_of(parse_schedule(text), name="explore", sentence=sentence)
    done = stage.lab.run(load_queue(executor.queue_path), variant)
    header = {**done.trace.header, "schedule": text, "explored": _explored(program, run.schedule)}
    return text, replace(done, trace=replace(done.trace, header=header))


def _explored(program: Program, schedule: Schedule) -> dict[str, Any]:
    return {
        "ops": " ".join(f"{actor.name}:{','.join(actor.operations)}" for actor in program.actors),
        "faults": ",".join(f"{fault.name}*{fault.times}" for fault in program.faults),
        "jobs": program.jobs,
        "order": [str(each) for each in schedule],
        "in_short": schedule_text(schedule),
    }


def explored_in(trace: Trace) -> tuple[Program, Schedule] | None:
    """The program and the order of a trace that an exploration wrote; None for any other."""
    told = trace.header.get("explored")
    if told is None:
        return None
    program = parse(told["ops"], told["faults"], jobs=told["jobs"], known_faults=FAULTS)
    return program, tuple(choice(word) for word in told["order"])
