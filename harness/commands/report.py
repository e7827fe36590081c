"""`fencepost report`: traces as a page to walk through, as a Perfetto trace, or as Markdown."""

from __future__ import annotations

import argparse
import sys
import webbrowser
from pathlib import Path

from fencepost.harness.commands.options import EXIT_PASS, EXIT_USAGE, TRACES, console_for_text
from fencepost.harness.errors import UsageError
from fencepost.harness.reporting import load_format, report_formats


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser("report", help="show traces as a page, a Perfetto trace or Markdown")
    parser.add_argument(
        "traces",
        nargs="*",
        type=Path,
        default=[TRACES],
        metavar="TRACE",
        help=f"trace files, or folders of them (default: {TRACES})",
    )
    parser.add_argument(
        "-o",
        "--output",
        type=Path,
        metavar="PATH",
        help="file; for several traces a folder, or the index's file",
    )
    parser.add_argument(
        "--format", default="html", metavar="|".join(report_formats()), help="default: html, one file a run"
    )
    parser.add_argument(
        "--compare", type=Path, metavar="TRACE", help="put this trace beside the one given (html)"
    )
    parser.add_argument("--open", action="store_true", help="open the page in the browser")
    parser.set_defaults(perform=perform)


def perform(arguments: argparse.Namespace) -> int:
    write = load_format(arguments.format)
    written = write(arguments.traces, output=arguments.output, compare_with=arguments.compare)
    console = console_for_text()
    for told in written.unreadable:
        sys.stderr.write(f"fencepost: {told}\n")
    if written.path is not None:
        console.print(f"report: {written.path}")
    if arguments.open:
        if written.path is None or written.path.suffix != ".html":
            raise UsageError(f"--open: --format {arguments.format} writes no page to open.")
        webbrowser.open(written.path.resolve().as_uri())
    return EXIT_USAGE if written.unreadable else EXIT_PASS
