"""`fencepost replay`: run that very order of steps again, from its schedule or from a trace."""

from __future__ import annotations

import argparse
import json
import shlex
from collections import Counter
from pathlib import Path

from rich.console import Console

from fencepost.harness.bench import Run
from fencepost.harness.commands.options import (
    add_lab_options,
    add_trace_option,
    console_for_text,
    exit_code,
    lab_options,
)
from fencepost.harness.errors import UsageError
from fencepost.harness.foretold import run_foretold
from fencepost.harness.known import what_failed
from fencepost.harness.lab import Lab
from fencepost.harness.loading import DEFAULT_QUEUE, LoadedQueue, load_queue
from fencepost.harness.pinning import pinned
from fencepost.harness.replay import replay_of
from fencepost.harness.scenario import Variant
from fencepost.harness.schedule import Schedule, parse_schedule
from fencepost.harness.schedule_of import NoSchedule, schedule_of
from fencepost.harness.story import failure_text, render, steps_table
from fencepost.harness.trace.canonical import canonical_hash
from fencepost.harness.trace.format import ensure_trace_dir, read_trace, write_trace
from fencepost.harness.verdict import Verdict

TRACE_SUFFIX = ".jsonl"


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser("replay", help="run the order of steps a schedule or a trace holds")
    parser.add_argument(
        "order", metavar="SCHEDULE|TRACE.jsonl", help="steps as docs/schedule.md says, or a trace file"
    )
    parser.add_argument(
        "--queue",
        default=None,
        metavar="MODULE:NAME",
        help=f"the queue under test (default: the trace's; of a schedule, {DEFAULT_QUEUE})",
    )
    add_lab_options(parser)
    add_trace_option(parser)
    parser.add_argument(
        "--repeat", type=_repeats, default=1, metavar="N", help="run it N times; all must agree"
    )
    parser.add_argument(
        "--model",
        action="store_true",
        help="compare every step with the model too, as `pytest scenarios/ -m invariants` does",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(perform=perform)


def _repeats(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: give a whole number from 1 on")
    return int(text)


def perform(arguments: argparse.Namespace) -> int:
    schedule, recorded_on = _order(arguments.order)
    loaded = load_queue(arguments.queue or recorded_on or DEFAULT_QUEUE)
    options = lab_options(arguments)
    directory = ensure_trace_dir(arguments.trace_dir)
    variant = replay_of(schedule)
    with Lab(options) as lab:
        lacking = lab.bench(loaded).lacks(variant)
        if lacking:
            raise UsageError(f"The schedule cannot be replayed: {lacking}.")
        runs = [_run(lab, loaded, variant, by_the_model=arguments.model) for _ in range(arguments.repeat)]
    path = directory / f"replay{TRACE_SUFFIX}"
    write_trace(runs[-1].trace, path)
    if arguments.json:
        console_for_text().print(json.dumps(_as_json(schedule, runs, path)))
    else:
        _show(console_for_text(), schedule, runs, path)
    if len(_agreeing(runs)) > 1:
        return exit_code([Verdict.INCONCLUSIVE, *(run.judgement.verdict for run in runs)])
    return exit_code(run.judgement.verdict for run in runs)


def _run(lab: Lab, loaded: LoadedQueue, variant: Variant, *, by_the_model: bool) -> Run:
    if not by_the_model:
        return lab.run(loaded, variant)
    with pinned(lab.core):
        return run_foretold(lab.bench(loaded), variant)


def _order(text: str) -> tuple[Schedule, str | None]:
    """The schedule, and the queue a trace was recorded on."""
    if not text.endswith(TRACE_SUFFIX):
        return parse_schedule(text), None
    trace = read_trace(Path(text))
    try:
        return schedule_of(trace), trace.header["queue"].get("path")
    except NoSchedule as error:
        raise UsageError(f"{text}: no schedule says what this trace did ({error}).") from error


def _agreeing(runs: list[Run]) -> Counter[str]:
    return Counter(canonical_hash(run.trace) for run in runs)


def _broke(run: Run) -> str:
    verdict = run.judgement.verdict.value
    names = what_failed(run.facts, run.judgement)
    return f"{verdict} ({', '.join(names)})" if names else verdict


def _show(console: Console, schedule: Schedule, runs: list[Run], path: Path) -> None:
    last = runs[-1]
    if last.judgement.verdict is Verdict.PASS:
        console.print(render(steps_table(last.trace)))
    else:
        queue = last.trace.header["queue"]["path"]
        console.print(
            failure_text(
                last.trace, shlex.join(["fencepost", "replay", str(schedule), "--queue", queue]), None
            )
        )
    console.print()
    for outcome, count in Counter(map(_broke, runs)).items():
        console.print(f"{count} of {len(runs)}: {outcome}")
    different = len(_agreeing(runs))
    if different > 1:
        console.print(f"the runs disagree: {different} canonical traces")
    console.print(f"trace {path}")


def _as_json(schedule: Schedule, runs: list[Run], path: Path) -> dict[str, object]:
    last = runs[-1]
    return {
        "schedule": str(schedule),
        "queue": last.trace.header["queue"]["name"],
        "verdicts": Counter(run.judgement.verdict.value for run in runs),
        "reasons": list(last.judgement.reasons),
        "canonical_traces": len(_agreeing(runs)),
        "trace": str(path),
    }
