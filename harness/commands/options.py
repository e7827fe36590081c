"""Options several subcommands share, and what they mean by exit codes."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from pathlib import Path

from rich.console import Console

from fencepost.harness.bench import OPERATION, STEP_SIZES
from fencepost.harness.lab import ACTOR_KINDS, CLOCK_MODES, LabOptions
from fencepost.harness.loading import DEFAULT_QUEUE
from fencepost.harness.network.base import ENGINES
from fencepost.harness.network.engines import check_network
from fencepost.harness.postgres.choice import PROVIDER_HELP
from fencepost.harness.verdict import Verdict

EXIT_PASS = 0
EXIT_FAIL = 1
EXIT_USAGE = 2
EXIT_INCONCLUSIVE = 3
EXIT_INTERRUPTED = 130

TRACES = Path(".fencepost/traces")

TABLE_WIDTH = 120
"""Of a table that goes to a file or a pipe; a terminal has its own."""


def console_for_tables() -> Console:
    width = None if sys.stdout.isatty() else TABLE_WIDTH
    return Console(highlight=False, width=width)


def console_for_text() -> Console:
    """For lines another program reads: no colours, no wrapping."""
    return Console(highlight=False, soft_wrap=True, markup=False, emoji=False)


def add_lab_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--pg", default="embedded", metavar="PROVIDER", help=PROVIDER_HELP)
    parser.add_argument("--actors", default="thread", metavar="|".join(ACTOR_KINDS), help="default: thread")
    parser.add_argument(
        "--clock",
        default="auto",
        metavar="|".join(CLOCK_MODES),
        help="how leases are made to expire (default: the best that can be had)",
    )
    parser.add_argument(
        "--step",
        default=OPERATION,
        metavar="|".join(STEP_SIZES),
        help="what one step is: a whole operation, or every SQL statement (default: operation)",
    )
    parser.add_argument(
        "--network",
        default="gate",
        metavar="|".join(ENGINES),
        help="what the paths that are to be harmed lead through (default: gate)",
    )
    parser.add_argument(
        "--toxiproxy",
        default=None,
        metavar="PATH",
        help="the Toxiproxy server (default: the one that is found)",
    )


def add_queue_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--queue",
        default=DEFAULT_QUEUE,
        metavar="MODULE:NAME",
        help="the queue under test (default: reference)",
    )


def add_trace_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--trace-dir", default=TRACES, type=Path, metavar="DIR", help=f"where traces go (default: {TRACES})"
    )


def lab_options(arguments: argparse.Namespace) -> LabOptions:
    options = LabOptions(
        pg=arguments.pg,
        actors=arguments.actors,
        clock=arguments.clock,
        step=arguments.step,
        network=arguments.network,
        toxiproxy=arguments.toxiproxy,
    )
    check_network(options.network, options.toxiproxy)
    return options


def exit_code(verdicts: Iterable[Verdict]) -> int:
    """The worst of them: a failure is a fact, an inconclusive run is a missing one."""
    found = set(verdicts)
    if Verdict.FAIL in found:
        return EXIT_FAIL
    if Verdict.INCONCLUSIVE in found or not found:
        return EXIT_INCONCLUSIVE
    return EXIT_PASS
