"""`fencepost twins`: every broken copy of a queue must be caught, each by the invariant it names."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
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
from fencepost.harness.twin_hunt import hunt_all, variants_of
from fencepost.harness.twins import (
    SuiteReport,
    TwinSuite,
    as_json,
    from_json,
    load_suites,
    markdown,
    matrix,
    table,
)


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser("twins", help="run the scenarios on every broken twin: all must be caught")
    parser.add_argument("names", nargs="*", metavar="NAME", help="scenarios or families (default: all)")
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
        help="hunt nothing: show what an earlier `--json` found, in another shape",
    )
    parser.set_defaults(perform=perform)


def perform(arguments: argparse.Namespace) -> int:
    options = lab_options(arguments)
    if arguments.jobs < 1:
        raise UsageError(f"--jobs {arguments.jobs}: give a whole number from 1 on.")
    suites = load_suites()
    variants = variants_of(arguments.names)  # an unknown name is said before anything is started,
    options.check()  # and so is what no process of the pool could say in one sentence
    if arguments.earlier is not None:
        reports = _read(arguments.earlier, suites, variants)
    else:
        reports = _hunt(arguments, options, suites)
    if arguments.json:
        console_for_text().print(json.dumps(_all_as_json(suites, reports)))
    elif arguments.markdown:
        console_for_text().print("\n\n".join(markdown(report) for report in reports))
    elif arguments.matrix:
        console_for_text().print("\n\n".join(matrix(report) for report in reports))
    else:
        for report in reports:
            console_for_tables().print(table(report))
            console_for_text().print(report.summary())
    return EXIT_PASS if all(report.all_caught for report in reports) else EXIT_FAIL


def _hunt(
    arguments: argparse.Namespace, options: LabOptions, suites: Sequence[TwinSuite]
) -> list[SuiteReport]:
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
        task = progress.add_task("", total=sum(1 + len(suite.twins) for suite in suites))
        return hunt_all(
            options,
            arguments.names,
            jobs=arguments.jobs,
            thorough=arguments.matrix or arguments.markdown or arguments.json,
            show=lambda name: progress.update(task, description=f"{name:35}", advance=1),
        )


def _read(path: Path, suites: Sequence[TwinSuite], variants: Sequence[Variant]) -> list[SuiteReport]:
    try:
        told = json.loads(path.read_text())
        return [from_json(told[suite.original], suite, variants) for suite in suites]
    except OSError as error:
        raise UsageError(f"--from {path}: {error.strerror}.") from error
    except (ValueError, TypeError, AttributeError) as error:
        raise UsageError(f"--from {path}: this is not what `fencepost twins --json` prints.") from error
    except KeyError as error:
        raise UsageError(
            f"--from {path}: it says nothing of {error}, or it is of other twins and scenarios than there are now."
        ) from error


def _all_as_json(suites: Sequence[TwinSuite], reports: Sequence[SuiteReport]) -> dict[str, Any]:
    return {suite.original: as_json(report) for suite, report in zip(suites, reports, strict=True)}
