"""`fencepost shrink`: make a failing order as small as it gets, whatever found it.

What an exploration found is shrunk as a program and an order of its statements; any other trace by its schedule.
"""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path

from fencepost.harness.commands.explore import replay_command
from fencepost.harness.commands.options import (
    EXIT_FAIL,
    EXIT_INTERRUPTED,
    add_lab_options,
    add_trace_option,
    console_for_text,
    lab_options,
)
from fencepost.harness.errors import UsageError
from fencepost.harness.explore.findings import explored_in, find, write_traces
from fencepost.harness.explore.real import QueueExecutor, close_stages
from fencepost.harness.explore.replay import replay
from fencepost.harness.explore.telling import told
from fencepost.harness.foretold import names_of, run_foretold
from fencepost.harness.lab import Lab
from fencepost.harness.loading import load_queue
from fencepost.harness.machine_example import VARIANT
from fencepost.harness.machine_run import finding_of
from fencepost.harness.pinning import pinned
from fencepost.harness.replay import replay_of
from fencepost.harness.schedule_of import NoSchedule, schedule_of
from fencepost.harness.shrink_schedule import shrink_run
from fencepost.harness.trace.format import Trace, ensure_trace_dir, file_name, read_trace


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser("shrink", help="make the order of a failing trace smaller")
    parser.add_argument("trace", metavar="TRACE.jsonl", type=Path, help="the trace of a run that failed")
    parser.add_argument(
        "--queue", default=None, metavar="MODULE:NAME", help="another queue than the trace was recorded on"
    )
    add_lab_options(parser)
    add_trace_option(parser)
    parser.set_defaults(perform=perform)


def perform(arguments: argparse.Namespace) -> int:
    trace = read_trace(arguments.trace)
    queue = arguments.queue or trace.header["queue"]["path"]
    explored = explored_in(trace)
    if explored is None:
        return _shrink_schedule(arguments, trace, queue)
    program, schedule = explored
    executor = QueueExecutor(queue, lab_options(arguments))
    directory = ensure_trace_dir(arguments.trace_dir)
    try:
        execution = executor.open(program)
        outcome = replay(execution, schedule).outcome
        execution.close()
        assert outcome is not None
        if not outcome.failed:
            raise UsageError(f"{arguments.trace}: there is nothing to shrink, this order does not fail.")
        finding = find(executor, program, schedule, outcome)
    finally:
        close_stages()
    replaying = partial(replay_command, queue=queue, options=executor.options)
    paths = write_traces(finding, directory, replaying)
    lines = [*told(finding, replaying(finding.text)), "", *(f"trace {path}" for path in paths)]
    console_for_text().print("\n".join(lines))
    return EXIT_INTERRUPTED if finding.interrupted else EXIT_FAIL


def _shrink_schedule(arguments: argparse.Namespace, trace: Trace, queue: str) -> int:
    try:
        schedule = schedule_of(trace)
    except NoSchedule as error:
        raise UsageError(f"{arguments.trace}: no schedule says what this trace did ({error}).") from error
    loaded = load_queue(queue)
    directory = ensure_trace_dir(arguments.trace_dir)
    with Lab(lab_options(arguments)) as lab, pinned(lab.core):
        bench = lab.bench(loaded)
        variant = replay_of(schedule)
        lacking = bench.lacks(variant)
        if lacking:
            raise UsageError(f"The schedule cannot be replayed: {lacking}.")
        found = run_foretold(bench, variant)
        names = names_of(found)
        if not names:
            raise UsageError(f"{arguments.trace}: there is nothing to shrink, this order does not fail.")
        shrunk = shrink_run(bench, VARIANT, found, names[0])
    finding = finding_of(shrunk, loaded.path, directory / f"shrunk-{file_name(arguments.trace.stem)}.jsonl")
    console_for_text().print(f"{len(schedule)} steps before, {shrunk.tries} tries\n\n{finding}")
    return EXIT_FAIL
