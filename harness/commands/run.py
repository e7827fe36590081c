"""`fencepost run`: scenarios outside pytest, with a progress bar and a table, or as one JSON object."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from fencepost.harness.commands.options import (
    EXIT_PASS,
    add_lab_options,
    add_queue_option,
    add_trace_option,
    console_for_tables,
    console_for_text,
    exit_code,
    lab_options,
)
from fencepost.harness.commands.run_tally import KNOWN, SKIPPED, Tally
from fencepost.harness.errors import UsageError
from fencepost.harness.known import OUTDATED, Baseline, KnownFailure, read_known
from fencepost.harness.known_names import Nameable
from fencepost.harness.lab import Lab
from fencepost.harness.loading import LoadedQueue, load_queue
from fencepost.harness.scenario import choose, installed_scenarios
from fencepost.harness.trace.format import ensure_trace_dir
from fencepost.harness.verdict import Verdict

COLOURS = {
    Verdict.PASS.value: "green",
    Verdict.FAIL.value: "red",
    Verdict.INCONCLUSIVE.value: "yellow",
    KNOWN: "cyan",
}


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser("run", help="run scenarios on a queue")
    parser.add_argument("names", nargs="*", metavar="NAME", help="scenarios or families (default: all)")
    add_queue_option(parser)
    add_lab_options(parser)
    add_trace_option(parser)
    parser.add_argument("--repeat", default=1, type=int, metavar="N", help="run each N times")
    parser.add_argument(
        "--known",
        type=Path,
        metavar="FILE",
        help="a TOML file of known failures (docs/adapters.md): only new ones fail the run",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of the table")
    parser.set_defaults(perform=perform)


def perform(arguments: argparse.Namespace) -> int:
    if arguments.repeat < 1:
        raise UsageError(f"--repeat {arguments.repeat}: give a whole number from 1 on.")
    scenarios = choose(installed_scenarios(), arguments.names)
    loaded = load_queue(arguments.queue)
    options = lab_options(arguments)
    baseline = _known_failures(arguments.known)
    directory = ensure_trace_dir(arguments.trace_dir)
    tallies = [Tally(variant) for scenario in scenarios for variant in scenario.variants()]
    with Lab(options) as lab:
        _run_all(lab, loaded, tallies, arguments.repeat, directory, baseline, quiet=arguments.json)
    code = _code(tallies)
    if arguments.json:
        console_for_text().print(json.dumps(_as_json(loaded, tallies, baseline.gone, code)))
    else:
        _show(loaded, tallies, baseline.gone, directory)
    return code


def _known_failures(path: Path | None) -> Baseline:
    if path is None:
        return Baseline()
    baseline = read_known(path)
    nameable = Nameable()
    nameable.add_installed()
    nameable.check(baseline.known, Path.cwd())
    return baseline


def _code(tallies: Sequence[Tally]) -> int:
    """Of what is news: where all that ran failed as was known, nothing is."""
    ran = [tally for tally in tallies if tally.word != SKIPPED]
    news = [tally.verdict for tally in ran if tally.word != KNOWN]
    return exit_code(news) if news or not ran else EXIT_PASS


def _run_all(
    lab: Lab,
    loaded: LoadedQueue,
    tallies: Sequence[Tally],
    repeat: int,
    directory: Path,
    baseline: Baseline,
    *,
    quiet: bool,
) -> None:
    bench = lab.bench(loaded)
    progress = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=Console(stderr=True),
        disable=quiet or not sys.stderr.isatty(),
        transient=True,
    )
    with progress:
        task = progress.add_task("", total=len(tallies) * repeat)
        for tally in tallies:
            progress.update(task, description=f"{tally.variant.name:50}")
            lacking = bench.lacks(tally.variant)
            if lacking:
                tally.skip(lacking, baseline, loaded.names)
                progress.advance(task, repeat)
                continue
            for _ in range(repeat):
                tally.add(lab.run(loaded, tally.variant), directory, baseline, loaded.names)
                progress.advance(task)


def _counts(tallies: Sequence[Tally]) -> dict[str, int]:
    counts = {verdict.value: 0 for verdict in Verdict} | {KNOWN: 0, SKIPPED: 0}
    for tally in tallies:
        counts[tally.word] += 1
    return counts


def wholly_skipped(tallies: Sequence[Tally]) -> list[str]:
    families = dict.fromkeys(tally.variant.scenario.family for tally in tallies)
    ran = {tally.variant.scenario.family for tally in tallies if tally.skipped is None}
    return [family for family in families if family not in ran]


def _as_json(
    loaded: LoadedQueue, tallies: Sequence[Tally], gone: Sequence[KnownFailure], code: int
) -> dict[str, Any]:
    return {
        "queue": loaded.queue.name,
        "counts": _counts(tallies),
        "exit_code": code,
        "wholly_skipped_families": wholly_skipped(tallies),
        "gone": [entry.as_json() for entry in gone],
        "scenarios": [
            {
                "name": tally.variant.name,
                "family": tally.variant.scenario.family,
                "verdict": tally.word,
                "reasons": [tally.skipped] if tally.skipped is not None else tally.told_reasons(),
                "known": [entry.as_json() for entry in tally.known],
                "classes": dict(tally.classes),
                "runs": sum(tally.verdicts.values()),
                "canonical_hashes": sorted(tally.hashes),
                "elapsed_ms": round(tally.elapsed_s * 1000, 3),
                "trace": str(tally.trace) if tally.trace else None,
            }
            for tally in tallies
        ],
    }


def _show(
    loaded: LoadedQueue, tallies: Sequence[Tally], gone: Sequence[KnownFailure], directory: Path
) -> None:
    console = console_for_tables()
    table = Table(title=f"queue {loaded.queue.name}", title_justify="left")
    for name in ("scenario", "verdict", "runs", "ms a run", "canonical trace"):
        table.add_column(name, justify="right" if name in ("runs", "ms a run") else "left", overflow="fold")
    for tally in tallies:
        if tally.skipped is not None:
            table.add_row(Text(tally.variant.name), Text(SKIPPED, "dim"), "0", "", Text(tally.skipped, "dim"))
            continue
        runs = sum(tally.verdicts.values())
        table.add_row(
            Text(tally.variant.name),
            Text(" ".join([tally.word, *sorted(tally.classes)]), COLOURS[tally.word]),
            str(runs),
            f"{tally.elapsed_s * 1000 / runs:.1f}",
            ", ".join(digest[:12] for digest in sorted(tally.hashes)),
        )
    console.print(table)
    for tally in tallies:
        if tally.skipped is None and tally.told_reasons():
            console.print(Text(f"{tally.variant.name}: {tally.word}", COLOURS[tally.word]))
            for reason in _why(tally):
                console.print(Text(f"  - {reason}"))
    for family in wholly_skipped(tallies):
        console.print(f"every scenario of the family {family} was skipped", style="yellow")
    for entry in gone:
        console.print(Text(f"gone: {entry}", "green"))
    if gone:
        console.print(Text(OUTDATED))
    told = ", ".join(f"{count} {name}" for name, count in _counts(tallies).items() if count)
    console.print(f"{told or 'nothing was run'}; traces in {directory}", markup=False)


def _why(tally: Tally) -> list[str]:
    if tally.word == KNOWN:
        return [f"{entry.invariant} ({entry.reason})" for entry in tally.known]
    return tally.told_reasons()
