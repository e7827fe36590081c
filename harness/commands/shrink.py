"""`fencepost shrink`: make a failing order that an exploration found as small as it gets."""

from __future__ import annotations

import argparse
from pathlib import Path

from fencepost.harness.commands.explore import replay_command, write_traces
from fencepost.harness.commands.options import (
    EXIT_FAIL,
    add_lab_options,
    add_trace_option,
    console_for_text,
    lab_options,
)
from fencepost.harness.errors import UsageError
from fencepost.harness.explore.findings import explored_in, find
from fencepost.harness.explore.real import QueueExecutor, close_stages
from fencepost.harness.explore.replay import replay
from fencepost.harness.explore.telling import told
from fencepost.harness.trace.format import ensure_trace_dir, read_trace


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser("shrink", help="make a failing order that was explored smaller")
    parser.add_argument(
        "trace", metavar="TRACE.jsonl", type=Path, help="a trace written by fencepost explore"
    )
    parser.add_argument(
        "--queue", default=None, metavar="MODULE:NAME", help="another queue than the trace was recorded on"
    )
    add_lab_options(parser)
    add_trace_option(parser)
    parser.set_defaults(perform=perform)


def perform(arguments: argparse.Namespace) -> int:
    trace = read_trace(arguments.trace)
    explored = explored_in(trace)
    if explored is None:
        raise UsageError(
            f"{arguments.trace} was not written by fencepost explore: it has no order to shrink."
        )
    program, schedule = explored
    queue = arguments.queue or trace.header["queue"]["path"]
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
    paths = write_traces(finding, directory)
    console_for_text().print(
        "\n".join(
            [*told(finding, replay_command(finding.text, queue)), "", *(f"trace {path}" for path in paths)]
        )
    )
    return EXIT_FAIL
