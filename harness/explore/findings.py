"""What is made of a failing order: the shortest that fails alike, the nearest that holds, whole traces of both."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fencepost.harness.adapter import Capability
from fencepost.harness.bench import Run as FullRun
from fencepost.harness.errors import FencepostError
from fencepost.harness.explore.executor import Outcome, Schedule, choice, schedule_text
from fencepost.harness.explore.nearest import Nearest, nearest
from fencepost.harness.explore.order_text import replay_text
from fencepost.harness.explore.program import Program, parse
from fencepost.harness.explore.real import FAULTS, QueueExecutor, stage_of
from fencepost.harness.explore.replay import CannotFollow, Run, nearly, replay, run
from fencepost.harness.explore.shrink import Shrunk, shrink
from fencepost.harness.known import BAD_CLASSES, what_failed
from fencepost.harness.loading import load_queue
from fencepost.harness.replay import replay_of
from fencepost.harness.schedule import parse_schedule
from fencepost.harness.trace.format import Trace, file_name, write_trace


@dataclass(frozen=True, slots=True)
class Finding:
    """True once everything was run again: `failing` and `passing` are whole runs with every observation.

    What the search saw is a finding whatever became of it since; `problems` says what did not come out as it should.
    """

    shrunk: Shrunk
    broken: tuple[str, ...]
    text: str
    failing: FullRun
    near: Nearest | None = None
    near_text: str | None = None
    passing: FullRun | None = None
    problems: tuple[str, ...] = ()
    failed_again: bool = True  # where it was run a second time in the same way

    @property
    def replays(self) -> bool:
        """Whether the whole run broke something that the search had seen broken."""
        return bool(set(what_failed(self.failing.facts, self.failing.judgement)) & set(self.broken))

    @property
    def messages(self) -> tuple[str, ...]:
        """What was broken, in words, and by which write."""
        facts = self.failing.facts
        late = facts.classification.findings if facts.classification is not None else ()
        bad = (late_write.message for late_write in late if late_write.kind.value in BAD_CLASSES)
        return (*(violation.message for violation in facts.violations), *bad)

    @property
    def interrupted(self) -> bool:
        return self.shrunk.interrupted


def find(
    executor: QueueExecutor, program: Program, schedule: Schedule, outcome: Outcome, *, shrinking: bool = True
) -> Finding:
    """Shrink a failing order until it breaks one of the same invariants with as little as possible."""

    def fails_alike(other: Outcome | None) -> bool:
        return other is not None and bool(set(other.broken) & set(outcome.broken))

    first, problems = _again(executor, program, schedule)
    if not fails_alike(first.outcome):
        seen = ", ".join(first.outcome.broken if first.outcome is not None else ()) or "nothing"
        problems.append(f"the order broke {', '.join(outcome.broken)}; run again it broke {seen}")
        shrunk = Shrunk(program, first, False, 1, "it did not fail again")
        text, failing = whole_run(executor, program, first, FAILING)
        return Finding(shrunk, outcome.broken, text, failing, problems=tuple(problems), failed_again=False)
    shrunk = Shrunk(program, first, False, 1, "it was not shrunk", interrupted=True)
    if shrinking:
        try:
            shrunk = shrink(executor, program, schedule, fails=fails_alike)
        except FencepostError as error:
            shrunk = Shrunk(program, first, False, 1, f"it cannot be shrunk: {error}")
    text, failing = whole_run(executor, shrunk.program, shrunk.run, FAILING)
    finding = Finding(shrunk, _broken(shrunk.run), text, failing, problems=tuple(problems))
    if not finding.replays and shrunk.run is not first:
        text, failing = whole_run(executor, program, first, FAILING)
        original = Shrunk(program, first, False, shrunk.runs, "the smaller order does not fail by its text")
        kept = replace(finding, shrunk=original, broken=_broken(first), text=text, failing=failing)
        finding = kept if kept.replays else finding
    return finding if finding.interrupted else _with_the_nearest(executor, finding)


FAILING = "explored: the failing order"
PASSING = "explored: the nearest order that holds"


def _broken(done: Run) -> tuple[str, ...]:
    assert done.outcome is not None
    return done.outcome.broken


def _again(executor: QueueExecutor, program: Program, schedule: Schedule) -> tuple[Run, list[str]]:
    """The same order, as far as it can still be followed."""
    execution = executor.open(program)
    try:
        return replay(execution, schedule), []
    except CannotFollow as error:
        return run(execution, nearly(schedule)), [f"the order could not be followed again: {error}"]
    finally:
        execution.close()


def _with_the_nearest(executor: QueueExecutor, finding: Finding) -> Finding:
    shrunk = finding.shrunk
    try:
        execution = executor.open(shrunk.program)
        try:
            near = nearest(execution, shrunk.schedule)
        finally:
            execution.close()
        if near is None:
            return finding
        near_text, passing = whole_run(executor, shrunk.program, near.other, PASSING)
    except FencepostError as error:
        problem = f"the nearest order that holds was not found: {error}"
        return replace(finding, problems=(*finding.problems, problem))
    except KeyboardInterrupt:
        stopped = replace(shrunk, interrupted=True)
        problem = "the search for the nearest order that holds was interrupted"
        return replace(finding, shrunk=stopped, problems=(*finding.problems, problem))
    return replace(finding, near=near, near_text=near_text, passing=passing)


def write_traces(finding: Finding, directory: Path, replay_command: Callable[[str], str]) -> list[Path]:
    """Of one finding always by the same names, which no other has."""
    queue = finding.failing.trace.header["queue"]
    which = hashlib.blake2b(f"{queue['path']} {finding.text}".encode(), digest_size=4).hexdigest()
    stem = f"explore-{file_name(queue['name'])}-{finding.broken[0]}-{which}"
    written = []
    for end, text, done in (
        ("failing", finding.text, finding.failing),
        ("nearest-passing", finding.near_text, finding.passing),
    ):
        if text is not None and done is not None:
            header = {"replay": replay_command(text), **done.trace.header}
            written.append(directory / f"{stem}.{end}.jsonl")
            write_trace(replace(done.trace, header=header), written[-1])
    return written


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
