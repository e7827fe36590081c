"""`fencepost race`: replay the lease race once and show it."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from rich.console import Console

from fencepost.harness.bench import Run
from fencepost.harness.commands.options import (
    add_lab_options,
    add_queue_option,
    add_trace_option,
    console_for_text,
    exit_code,
    lab_options,
)
from fencepost.harness.errors import UsageError
from fencepost.harness.events import events
from fencepost.harness.lab import Lab
from fencepost.harness.loading import load_queue
from fencepost.harness.scenario import Variant, installed_scenarios
from fencepost.harness.story import failure_text
from fencepost.harness.trace.format import ensure_trace_dir, write_trace
from fencepost.harness.verdict import Verdict

SCENARIO = "lease_race"


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser("race", help="replay the lease race and print its structured log")
    add_queue_option(parser)
    add_lab_options(parser)
    add_trace_option(parser)
    parser.add_argument("--log", action="store_true", help="print the JSON lines only")
    parser.set_defaults(perform=perform)


def perform(arguments: argparse.Namespace) -> int:
    loaded = load_queue(arguments.queue)
    options = lab_options(arguments)
    variant = _the_race()
    directory = ensure_trace_dir(arguments.trace_dir)
    with Lab(options) as lab:
        lacking = lab.bench(loaded).lacks(variant)
        if lacking:
            raise UsageError(f"The lease race cannot be replayed: {lacking}.")
        run = lab.run(loaded, variant)
    path = directory / f"{SCENARIO}.jsonl"
    write_trace(run.trace, path)
    console = console_for_text()
    for event in events(run.trace):
        console.print(json.dumps(event, separators=(",", ":")))
    if not arguments.log:
        _summarize(console, run, path)
    return exit_code([run.judgement.verdict])


def _the_race() -> Variant:
    for scenario in installed_scenarios():
        if scenario.name == SCENARIO:
            return next(scenario.variants())
    raise UsageError(f"The scenario {SCENARIO} is not installed: install fencepost with its scenarios.")


def _summarize(console: Console, run: Run, path: Path) -> None:
    header, end = run.trace.header, run.trace.end
    console.print()
    if run.judgement.verdict is Verdict.PASS:
        (job,) = run.trace.steps[-1]["after"]["jobs"]
        ledger = run.trace.steps[-1]["after"]["ledger"]
        console.print(f"job {job['job']}: {job['state']}, token {job['token']}, ledger entries {len(ledger)}")
    else:
        console.print(failure_text(run.trace, f"fencepost race --queue {header['queue']['path']}", None))
    counts = ", ".join(f"{name} {count['evaluated']}" for name, count in end["invariants"].items())
    console.print(f"invariants evaluated (times): {counts}")
    console.print(
        f"queue {header['queue']['name']}, PostgreSQL {header['server']['version']} "
        f"({header['server']['provider']}), {header['actors']} actors, time moved by {header['clock']}"
    )
    console.print(
        f"verdict {run.judgement.verdict.value} in {run.elapsed_s * 1000:.0f} ms, trace {path}",
        style="bold green" if run.judgement.verdict is Verdict.PASS else "bold red",
    )
