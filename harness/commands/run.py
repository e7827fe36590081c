"""`fencepost run`: scenarios outside pytest, with a progress bar and a table, or as one JSON object."""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from fencepost.harness.bench import Run
from fencepost.harness.commands.options import (
    add_lab_options,
    add_queue_option,
    add_trace_option,
    console_for_tables,
    console_for_text,
    exit_code,
    lab_options,
)
from fencepost.harness.errors import UsageError
from fencepost.harness.lab import Lab
from fencepost.harness.loading import LoadedQueue, load_queue
from fencepost.harness.plugin import file_name
from fencepost.harness.scenario import Variant, choose, installed_scenarios
from fencepost.harness.trace.canonical import canonical_hash
from fencepost.harness.trace.format import ensure_trace_dir, write_trace
from fencepost.harness.verdict import Verdict

COLOURS = {Verdict.PASS: "green", Verdict.FAIL: "red", Verdict.INCONCLUSIVE: "yellow"}


@dataclass
class Tally:
    """All runs of one variant. The verdict is the worst of them; more than one hash is a failure too."""

    variant: Variant
    skipped: str | None = None
    verdicts: Counter[Verdict] = field(default_factory=Counter)
    reasons: list[str] = field(default_factory=list)
    hashes: Counter[str] = field(default_factory=Counter)
    classes: Counter[str] = field(default_factory=Counter)  # of a classified scenario's runs
    elapsed_s: float = 0.0
    trace: Path | None = None

    def add(self, run: Run, directory: Path) -> None:
        self.verdicts[run.judgement.verdict] += 1
        self.hashes[canonical_hash(run.trace)] += 1
        self.elapsed_s += run.elapsed_s
        if self.trace is None or run.judgement.verdict is not Verdict.PASS:
            self.trace = directory / f"{run.variant.scenario.family}-{file_name(run.variant.name)}.jsonl"
            write_trace(run.trace, self.trace)
            if run.control is not None:
                write_trace(run.control.trace, self.trace.with_name(f"{self.trace.stem}.control.jsonl"))
        if "class" in run.trace.end:
            self.classes[run.trace.end["class"]] += 1
        if run.judgement.reasons and not self.reasons:
            self.reasons = list(run.judgement.reasons)

    @property
    def verdict(self) -> Verdict:
        for verdict in (Verdict.FAIL, Verdict.INCONCLUSIVE):
            if self.verdicts[verdict]:
                return verdict
        if len(self.hashes) != 1:
            return Verdict.INCONCLUSIVE
        (verdict,) = self.verdicts
        return verdict

    def told_reasons(self) -> list[str]:
        if len(self.hashes) > 1:
            told = ", ".join(f"{digest[:12]} ({count} runs)" for digest, count in self.hashes.items())
            return [*self.reasons, f"the runs' canonical traces disagree: {told}"]
        return self.reasons


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser("run", help="run scenarios on a queue")
    parser.add_argument("names", nargs="*", metavar="NAME", help="scenarios or families (default: all)")
    add_queue_option(parser)
    add_lab_options(parser)
    add_trace_option(parser)
    parser.add_argument("--repeat", default=1, type=int, metavar="N", help="run each N times")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of the table")
    parser.set_defaults(perform=perform)


def perform(arguments: argparse.Namespace) -> int:
    if arguments.repeat < 1:
        raise UsageError(f"--repeat {arguments.repeat}: give a whole number from 1 on.")
    scenarios = choose(installed_scenarios(), arguments.names)
    loaded = load_queue(arguments.queue)
    options = lab_options(arguments)
    directory = ensure_trace_dir(arguments.trace_dir)
    variants = [variant for scenario in scenarios for variant in scenario.variants()]
    with Lab(options) as lab:
        tallies = _run_all(lab, loaded, variants, arguments.repeat, directory, quiet=arguments.json)
    code = exit_code(tally.verdict for tally in tallies if tally.skipped is None)
    if arguments.json:
        console_for_text().print(json.dumps(_as_json(loaded, tallies, code)))
    else:
        _show(loaded, tallies, directory)
    return code


def _run_all(
    lab: Lab, loaded: LoadedQueue, variants: Sequence[Variant], repeat: int, directory: Path, *, quiet: bool
) -> list[Tally]:
    tallies = [Tally(variant) for variant in variants]
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
                tally.skipped = lacking
                progress.advance(task, repeat)
                continue
            for _ in range(repeat):
                tally.add(lab.run(loaded, tally.variant), directory)
                progress.advance(task)
    return tallies


def _counts(tallies: Sequence[Tally]) -> dict[str, int]:
    counts = {verdict.value: 0 for verdict in Verdict} | {"skipped": 0}
    for tally in tallies:
        counts["skipped" if tally.skipped is not None else tally.verdict.value] += 1
    return counts


def wholly_skipped(tallies: Sequence[Tally]) -> list[str]:
    families = dict.fromkeys(tally.variant.scenario.family for tally in tallies)
    ran = {tally.variant.scenario.family for tally in tallies if tally.skipped is None}
    return [family for family in families if family not in ran]


def _as_json(loaded: LoadedQueue, tallies: Sequence[Tally], code: int) -> dict[str, Any]:
    return {
        "queue": loaded.queue.name,
        "counts": _counts(tallies),
        "exit_code": code,
        "wholly_skipped_families": wholly_skipped(tallies),
        "scenarios": [
            {
                "name": tally.variant.name,
                "family": tally.variant.scenario.family,
                "verdict": "skipped" if tally.skipped is not None else tally.verdict.value,
                "reasons": [tally.skipped] if tally.skipped is not None else tally.told_reasons(),
                "classes": dict(tally.classes),
                "runs": sum(tally.verdicts.values()),
                "canonical_hashes": sorted(tally.hashes),
                "elapsed_ms": round(tally.elapsed_s * 1000, 3),
                "trace": str(tally.trace) if tally.trace else None,
            }
            for tally in tallies
        ],
    }


def _show(loaded: LoadedQueue, tallies: Sequence[Tally], directory: Path) -> None:
    console = console_for_tables()
    table = Table(title=f"queue {loaded.queue.name}", title_justify="left")
    for name in ("scenario", "verdict", "runs", "ms a run", "canonical trace"):
        table.add_column(name, justify="right" if name in ("runs", "ms a run") else "left", overflow="fold")
    for tally in tallies:
        if tally.skipped is not None:
            table.add_row(
                Text(tally.variant.name), Text("skipped", "dim"), "0", "", Text(tally.skipped, "dim")
            )
            continue
        runs = sum(tally.verdicts.values())
        colour = COLOURS[tally.verdict]
        table.add_row(
            Text(tally.variant.name),
            Text(" ".join([tally.verdict.value, *sorted(tally.classes)]), colour),
            str(runs),
            f"{tally.elapsed_s * 1000 / runs:.1f}",
            ", ".join(digest[:12] for digest in sorted(tally.hashes)),
        )
    console.print(table)
    for tally in tallies:
        if tally.skipped is None and tally.told_reasons():
            console.print(Text(f"{tally.variant.name}: {tally.verdict.value}", COLOURS[tally.verdict]))
            for reason in tally.told_reasons():
                console.print(Text(f"  - {reason}"))
    for family in wholly_skipped(tallies):
        console.print(f"every scenario of the family {family} was skipped", style="yellow")
    told = ", ".join(f"{count} {name}" for name, count in _counts(tallies).items() if count)
    console.print(f"{told or 'nothing was run'}; traces in {directory}", markup=False)
