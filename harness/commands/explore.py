"""`fencepost explore`: try the orders in which a few actors' statements can happen."""

from __future__ import annotations

import argparse
import contextlib
import json
import shlex
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.live import Live
from rich.text import Text

from fencepost.harness.commands.options import (
    EXIT_FAIL,
    EXIT_INCONCLUSIVE,
    EXIT_INTERRUPTED,
    EXIT_PASS,
    add_lab_options,
    add_queue_option,
    add_trace_option,
    console_for_text,
    lab_options,
)
from fencepost.harness.errors import UsageError
from fencepost.harness.explore.dask_cluster import dask
from fencepost.harness.explore.findings import Finding, find, write_traces
from fencepost.harness.explore.processes import processes
from fencepost.harness.explore.program import Program, parse
from fencepost.harness.explore.real import FAULTS, QueueExecutor, check_program, close_stages
from fencepost.harness.explore.result import Result, count
from fencepost.harness.explore.scale import Here, Workers
from fencepost.harness.explore.search import explore, result_of
from fencepost.harness.explore.strategies import DEFAULT_DEPTH, STRATEGIES, make_strategy
from fencepost.harness.explore.tally import Tally
from fencepost.harness.explore.telling import told
from fencepost.harness.lab import LabOptions
from fencepost.harness.loading import load_queue
from fencepost.harness.trace.format import ensure_trace_dir

ENGINES: Final = ("local", "dask")
DEFAULT_BUDGET: Final = 5_000


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "explore", help="try the orders in which a few actors' statements can happen"
    )
    add_queue_option(parser)
    parser.add_argument(
        "--ops", required=True, metavar="OPS", help='who does what, as "A:claim,complete B:claim R:reap"'
    )
    parser.add_argument("--faults", default="", metavar="LIST", help=f"any of {', '.join(sorted(FAULTS))}")
    parser.add_argument(
        "--enqueue", type=_count, default=1, metavar="N", help="jobs there at the start (default: 1)"
    )
    parser.add_argument(
        "--strategy", default="reduced", metavar="|".join(STRATEGIES), help="default: reduced"
    )
    parser.add_argument(
        "--budget", type=_count, default=DEFAULT_BUDGET, metavar="N", help="the most orders to run"
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of pct and random (default: 0)")
    parser.add_argument(
        "--depth", type=_count, default=DEFAULT_DEPTH, metavar="N", help="pct: the bug depth (default: 3)"
    )
    parser.add_argument("--first", action="store_true", help="stop after the batch with the first failure")
    parser.add_argument("--jobs", type=_count, default=1, metavar="N", help="worker processes (default: 1)")
    parser.add_argument("--engine", default="local", metavar="|".join(ENGINES), help="default: local")
    parser.add_argument("--address", default=None, metavar="ADDRESS", help="of a Dask scheduler")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    add_lab_options(parser)
    add_trace_option(parser)
    parser.set_defaults(perform=perform)


def _count(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: give a whole number from 1 on")
    return int(text)


def perform(arguments: argparse.Namespace) -> int:
    program = parse(arguments.ops, arguments.faults, jobs=arguments.enqueue, known_faults=FAULTS)
    loaded = load_queue(arguments.queue)
    check_program(program, loaded.queue.capabilities)
    strategy = make_strategy(
        arguments.strategy, program, budget=arguments.budget, seed=arguments.seed, depth=arguments.depth
    )
    executor = QueueExecutor(arguments.queue, lab_options(arguments))
    directory = ensure_trace_dir(arguments.trace_dir)
    interrupted = False
    finding = None
    paths: list[Path] = []
    started = time.perf_counter()
    try:
        with _progress() as progress:
            try:
                with _workers(arguments, executor, program) as workers:
                    if progress is not None:
                        progress.begin()
                    started = time.perf_counter()
                    result = explore(
                        program, strategy, workers, stop_at_first=arguments.first, progress=progress
                    )
            except KeyboardInterrupt:
                if not strategy.tally.failed:
                    raise
                interrupted, result = True, result_of(program, strategy)
            elapsed_s = time.perf_counter() - started
            if result.shortest is not None:
                if progress is not None:
                    progress.say("making the failing order smaller, and looking for the nearest that holds")
                try:
                    shortest = result.shortest
                    finding = find(
                        executor, program, shortest.schedule, shortest.outcome, shrinking=not interrupted
                    )
                except KeyboardInterrupt:
                    interrupted = True
                replaying = partial(replay_command, queue=arguments.queue, options=executor.options)
                if finding is not None:
                    interrupted = interrupted or finding.interrupted
                    paths = write_traces(finding, directory, replaying)
    finally:
        close_stages()
    console = console_for_text()
    if arguments.json:
        console.print(json.dumps(_as_json(result, finding, paths, elapsed_s) | {"interrupted": interrupted}))
    else:
        lines = [*result.lines(), f"  {result.tally.runs / elapsed_s:,.0f} schedules/s", *_not_all(result)]
        if interrupted:
            lines.append("  interrupted: this is what was found so far")
        console.print("\n".join(lines))
        if finding is not None:
            finding_told = told(finding, replaying(finding.text))
            console.print("\n".join(["", *finding_told, "", *(f"trace {p}" for p in paths)]))
    return EXIT_INTERRUPTED if interrupted else exit_code_of(result)


@contextlib.contextmanager
def _workers(arguments: argparse.Namespace, executor: QueueExecutor, program: Program) -> Iterator[Workers]:
    if arguments.engine not in ENGINES:
        raise UsageError(f"--engine {arguments.engine}: give one of {', '.join(ENGINES)}.")
    if arguments.address is not None and arguments.engine != "dask":
        raise UsageError("--address is where a Dask scheduler is: use it with --engine dask.")
    if arguments.engine == "dask":
        with dask(executor, program, arguments.address, max(arguments.jobs, 2)) as workers:
            yield workers
        return
    if arguments.jobs > 1:
        with processes(executor, program, arguments.jobs) as workers:
            yield workers
        return
    here = Here(executor, program)
    try:
        yield here
    finally:
        here.close()


class _Line:
    """The live line; on a terminal only."""

    def __init__(self, live: Live) -> None:
        self._live = live
        self.begin()

    def begin(self) -> None:
        """From here on counts for the rate: the servers have started."""
        self._started = time.perf_counter()

    def __call__(self, tally: Tally) -> None:
        rate = tally.runs / max(time.perf_counter() - self._started, 1e-9)
        self.say(
            f"{count(tally.runs, 'schedule')}, {rate:,.0f}/s, {count(len(tally.outcomes), 'distinct outcome')}, "
            f"depth {tally.longest}, {count(tally.failed, 'failure')}"
        )

    def say(self, words: str) -> None:
        self._live.update(Text(words))


@contextlib.contextmanager
def _progress() -> Iterator[_Line | None]:
    console = Console(stderr=True, highlight=False)
    if not console.is_terminal:
        yield None
        return
    with Live(Text("starting a server"), console=console, transient=True) as live:
        yield _Line(live)


def exit_code_of(result: Result) -> int:
    if result.tally.failed:
        return EXIT_FAIL
    return EXIT_PASS if result.conclusive else EXIT_INCONCLUSIVE


def _not_all(result: Result) -> list[str]:
    if result.tally.failed or result.differences or result.complete:
        return []
    return ["  inconclusive: the budget was spent before every order had been tried; give a larger --budget"]


def replay_command(text: str, queue: str, options: LabOptions) -> str:
    return shlex.join(["fencepost", "replay", text, "--queue", queue, *options.typed_again()])


def _as_json(result: Result, finding: Finding | None, paths: list[Path], elapsed_s: float) -> dict[str, Any]:
    tally = result.tally
    told: dict[str, Any] = {
        "program": result.program,
        "strategy": result.strategy,
        "basis": result.basis,
        "complete": result.complete,
        "conclusive": result.conclusive,
        "runs": tally.runs,
        "outcomes": len(tally.outcomes),
        "failing_runs": tally.failed,
        "first_failure": tally.first_failure,
        "fingerprint": f"{tally.fingerprint:016x}",
        "nondeterminism": [str(difference) for difference in result.differences],
        "missing": [*result.missing, *(line.partition(": ")[2] for line in _not_all(result))],
        "notes": list(result.notes),
        "schedules_per_s": round(tally.runs / elapsed_s, 1),
    }
    if finding is not None:
        told["failure"] = {
            "schedule": finding.text,
            "broken": list(finding.broken),
            "steps": len(finding.shrunk.run.steps),
            "minimal": finding.shrunk.minimal,
            "replays": finding.replays,
            "nearest_passing": finding.near_text,
            "problems": list(finding.problems),
            "traces": [str(path) for path in paths],
        }
    return told
