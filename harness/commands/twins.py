"""`fencepost twins`: every broken copy of a queue must be caught, each by the invariant it names."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from fencepost.harness.commands.options import (
    EXIT_FAIL,
    EXIT_PASS,
    add_lab_options,
    console_for_tables,
    console_for_text,
    lab_options,
)
from fencepost.harness.errors import UsageError
from fencepost.harness.lab import LabOptions
from fencepost.harness.scenario import Variant
from fencepost.harness.twin_hunt import hunt_all
from fencepost.harness.twin_json import OfOthers, as_json, asked_in, from_json
from fencepost.harness.twin_pages import markdown, matrix, table
from fencepost.harness.twins import Asked, SuiteReport, TwinSuite, is_as_it_should_be, suites_of, variants_of

WHEN_IT_SUCCEEDS = (
    "It succeeds if the queue itself is clean and every twin is caught by the invariant it names. "
    "With --twin only those twins are hunted, and each must be caught by the scenarios named. "
    "Scenarios named without --twin are tried on every twin: most are for others, which are listed, so each of these "
    "scenarios must catch at least one."
)


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "twins", help="run the scenarios on every broken twin: all must be caught", epilog=WHEN_IT_SUCCEEDS
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="scenarios or families (default: all)")
    parser.add_argument(
        "--twin",
        dest="twins",
        action="append",
        default=[],
        metavar="NAME",
        help="hunt this twin, which must be caught; may be given several times (default: all)",
    )
    add_lab_options(parser)
    parser.add_argument(
        "--jobs", type=int, default=os.cpu_count() or 1, metavar="N", help="processes (default: one per core)"
    )
    shape = parser.add_mutually_exclusive_group()
    shape.add_argument("--json", action="store_true", help="print one JSON object")
    shape.add_argument("--matrix", action="store_true", help="print scenario x twin")
    shape.add_argument("--markdown", action="store_true", help="print docs/what-it-catches.md")
    parser.add_argument(
        "--from",
        dest="earlier",
        type=Path,
        metavar="FILE",
        help="hunt nothing: show what an earlier `--json` found, in another shape, of these scenarios and twins",
    )
    parser.set_defaults(perform=perform)


def perform(arguments: argparse.Namespace) -> int:
    options = lab_options(arguments)
    if arguments.jobs < 1:
        raise UsageError(f"--jobs {arguments.jobs}: give a whole number from 1 on.")
    suites_of(arguments.twins)  # an unknown name is said before anything is started,
    variants_of(arguments.names)
    options.check()  # and so is what no process of the pool could say in one sentence
    if arguments.earlier is not None:
        reports = _read(arguments.earlier, Asked(tuple(arguments.names), tuple(arguments.twins)))
    else:
        reports = _hunt(arguments, options)
    if arguments.json:
        console_for_text().print(json.dumps({report.suite.original: as_json(report) for report in reports}))
    elif arguments.markdown:
        console_for_text().print("\n\n".join(markdown(report) for report in reports))
    elif arguments.matrix:
        console_for_text().print("\n\n".join(matrix(report) for report in reports))
    else:
        for report in reports:
            console_for_tables().print(table(report))
            console_for_text().print(report.summary())
    return EXIT_PASS if is_as_it_should_be(reports) else EXIT_FAIL


def _hunt(arguments: argparse.Namespace, options: LabOptions) -> list[SuiteReport]:
    progress = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=Console(stderr=True),
        disable=arguments.json or not sys.stderr.isatty(),
        transient=True,
    )
    with progress:
        hunts = sum(1 + len(suite.twins) for suite in suites_of(arguments.twins))
        task = progress.add_task("", total=hunts)
        return hunt_all(
            options,
            arguments.names,
            only=arguments.twins,
            jobs=arguments.jobs,
            thorough=arguments.matrix or arguments.markdown or arguments.json,
            show=lambda name: progress.update(task, description=f"{name:35}", advance=1),
        )


def _read(path: Path, asked: Asked) -> list[SuiteReport]:
    """Of what the file tells, what is asked now; where nothing is, what was asked then."""
    try:
        return _reports_in(json.loads(path.read_text()), asked)
    except OSError as error:
        raise UsageError(f"--from {path}: {error.strerror}.") from error
    except OfOthers as error:
        raise UsageError(f"--from {path}: {error}.") from error
    except (ValueError, TypeError, AttributeError, LookupError) as error:
        raise UsageError(f"--from {path}: this is not what `fencepost twins --json` prints.") from error


def _reports_in(told: Mapping[str, Any], asked: Asked) -> list[SuiteReport]:
    then = asked_in(next(iter(told.values()), {}))
    names, twins = asked.names or then.names, asked.twins or then.twins
    try:
        suites, variants = suites_of(twins), variants_of(names)
    except UsageError as error:
        raise OfOthers(f"it is of other scenarios or twins: {str(error).rstrip('.')}") from error
    return [_report_in(told, suite, variants, Asked(names, twins)) for suite in suites]


def _report_in(
    told: Mapping[str, Any], suite: TwinSuite, variants: Sequence[Variant], asked: Asked
) -> SuiteReport:
    if suite.original not in told:
        raise OfOthers(f"it is of other twins: it says nothing of those of queue {suite.original!r}")
    return from_json(told[suite.original], suite, variants, asked)
