"""How many orders a second are explored: `python benchmarks/explore.py [--only PART]`.

Servers are started and actors warm before anything is measured, and rounds alternate between the two sides, so that a
noisy machine disturbs both alike. The parts:

- rate: the same orders by the explorer, and bare: the same statements with the same parameters issued by one script
  that knows the order, over one psycopg connection per actor. Both reset and enqueue alike. On one core.
- blocking: an order in which a step blocks, against the bare script looking every 10 ms whether a step is blocked, as
  PostgreSQL's isolation tester does: also for each step that waits, after every other step. On one core.
- scale: one against two processes, each on a core with its own server.
- replay: a failing order, found and shrunk, replayed a thousand times.
- frontrun: the same race by https://pypi.org/project/frontrun/, where that is installed.
"""

from __future__ import annotations

import argparse
import contextlib
import select
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psutil
import psycopg
from psycopg.adapt import Transformer
from psycopg.pq import ExecStatus, Format

from fencepost.harness.explore.executor import Choice, Schedule, Status, StepResult, choice
from fencepost.harness.explore.findings import find
from fencepost.harness.explore.footprint import Footprint
from fencepost.harness.explore.processes import processes
from fencepost.harness.explore.program import Program, parse
from fencepost.harness.explore.random_walk import RandomWalk, Uniform
from fencepost.harness.explore.real import QueueExecutor, RealExecution, close_stages, stage_of
from fencepost.harness.explore.reduced import Reduced
from fencepost.harness.explore.replay import Run, replay, run
from fencepost.harness.explore.sampled import chance
from fencepost.harness.explore.scale import Here, Pooled
from fencepost.harness.explore.search import explore
from fencepost.harness.explore.stage import Stage
from fencepost.harness.gate.statements import Statement
from fencepost.harness.lab import LabOptions
from fencepost.harness.loading import DEFAULT_QUEUE, load_queue
from fencepost.harness.replay import replay_of
from fencepost.harness.schedule import parse_schedule

PARTS = ("rate", "blocking", "scale", "replay", "frontrun")
AIM = 0.4
SCALE_AIM = 1.8
POLL_S = 0.010
PROGRAM = parse("A:claim,complete B:claim,complete", jobs=2)
BLOCKING = parse("A:claim,heartbeat C:cancel")
BLOCKING_ORDER = tuple(map(choice, ["A"] * 5 + ["C"] * 2))
FRONTRUN_RUNS = 5
FAILING_TWIN = "fencepost.queue_impl.twins:claim_without_lock"
FAILING = parse("A:claim B:claim")


@dataclass(frozen=True, slots=True)
class Sent:
    actor: str
    sql: str
    parameters: tuple[str | None, ...]


class Recording(RealExecution):
    """Keeps what passed the gate, for the script that is to issue it bare."""

    def __init__(self, stage: Stage, program: Program) -> None:
        super().__init__(stage, program)
        self.sent: list[Sent] = []
        self.jobs: list[str] = []
        self._waiting: set[int] = set()

    def reset(self) -> None:
        self.sent = []
        super().reset()
        self.jobs = list(self._names)

    def _touched(self, record: Statement) -> Footprint:
        actor = next(n for n, p in self._parts.items() if p.flight and record.pid in p.flight.seated.pids)
        sent = Sent(actor, record.sql, record.parameters)
        if not self.sent or record.pid not in self._waiting:
            self.sent.append(sent)
        self._waiting = {record.pid} if record.answer == "pending" else set()
        return super()._touched(record)


class Bare:
    """One script, one connection per actor, the order known beforehand. No gate, no actor, no invariant."""

    def __init__(self, stage: Stage, actors: Sequence[str]) -> None:
        self._stage = stage
        dsn = stage.bench.place.dsn_for("bare")
        self._connections = {name: psycopg.connect(dsn, autocommit=True) for name in actors}
        self._watch = psycopg.connect(dsn, autocommit=True)
        self._types: dict[str, list[int]] = {}
        self._loaders = Transformer()
        self._known: set[tuple[str, str]] = set()

    def close(self) -> None:
        for connection in (*self._connections.values(), self._watch):
            connection.close()

    def prepare(self, sent: Sequence[Sent], jobs: Sequence[str]) -> list[tuple[str, str, list[Any]]]:
        return [(s.actor, s.sql, [self._value(s, at, jobs) for at in range(len(s.parameters))]) for s in sent]

    def _value(self, sent: Sent, at: int, jobs: Sequence[str]) -> Any:
        if sent.sql not in self._types:
            raw = self._watch.pgconn
            raw.prepare(b"types", sent.sql.encode())
            described = raw.describe_prepared(b"types")
            self._types[sent.sql] = [described.param_type(n) for n in range(described.nparams)]
            raw.exec_(b"DEALLOCATE types")
        text = sent.parameters[at]
        if text is None or not text.startswith("\\x"):
            return text
        oid = self._types[sent.sql][at]
        value = self._loaders.get_loader(oid, Format.BINARY).load(bytes.fromhex(text[2:]))
        return _of_this_run(value, jobs)

    def begin(self, program: Program) -> list[int]:
        self._stage.bench.reset()
        return [int(_enqueue(self._stage)) for _ in range(program.jobs)]

    def run(self, script: Sequence[tuple[str, str, list[Any]]]) -> None:
        jobs = self.begin(PROGRAM)
        for actor, sql, values in script:
            cursor = psycopg.RawCursor(self._connections[actor])
            cursor.execute(sql.encode(), [_bound(value, jobs) for value in values] or None, prepare=True)
            if cursor.description:
                cursor.fetchall()

    def run_polling(self, script: Sequence[tuple[str, str, list[Any]]]) -> list[float]:
        """As the isolation tester: send, wait 10 ms for the answer, ask the server whether it is blocked.

        Returns how long it took to find each step that was."""
        jobs = self.begin(BLOCKING)
        waiting: set[str] = set()
        found_s = []
        for actor, sql, values in script:
            name = self._prepared(actor, sql)
            bound = [_bound(value, jobs) for value in values]
            texts = [None if v is None else _text(v).encode() for v in bound]
            sent_at = time.perf_counter()
            self._connections[actor].pgconn.send_query_prepared(name, texts)
            self._flush(actor)
            if not self._answered(actor):
                found_s.append(time.perf_counter() - sent_at)
                waiting.add(actor)
            for other in sorted(waiting - {actor}):
                if self._answered(other):
                    waiting.remove(other)
        return found_s

    def _prepared(self, actor: str, sql: str) -> bytes:
        """By name, as psycopg does it for the others."""
        name = b"" if sql.split()[0] in ("BEGIN", "COMMIT", "ROLLBACK") else f"s{hash(sql)}".encode()
        if (actor, sql) not in self._known or not name:
            self._connections[actor].pgconn.prepare(name, sql.encode())
            self._known.add((actor, sql))
        return name

    def _flush(self, actor: str) -> None:
        raw = self._connections[actor].pgconn
        while raw.flush():
            select.select([], [raw.socket], [])

    def _answered(self, actor: str) -> bool:
        raw = self._connections[actor].pgconn
        others = [c.pgconn.backend_pid for c in self._connections.values()]
        while True:
            if select.select([raw.socket], [], [], POLL_S)[0]:
                raw.consume_input()
                if not raw.is_busy():
                    while (result := raw.get_result()) is not None:
                        assert result.status in (ExecStatus.TUPLES_OK, ExecStatus.COMMAND_OK), (
                            result.error_message
                        )
                    return True
                continue
            row = self._watch.execute(
                "SELECT pg_isolation_test_session_is_blocked(%s, %s)", (raw.backend_pid, others)
            ).fetchone()
            assert row is not None
            if row[0]:
                return False


@dataclass(frozen=True, slots=True)
class Job:
    place: int


def _of_this_run(value: Any, jobs: Sequence[str]) -> Any:
    """Ids differ from run to run: where one stands, the same job's of this run is put."""
    if isinstance(value, list):
        return [_of_this_run(each, jobs) for each in value]
    if isinstance(value, int) and not isinstance(value, bool) and str(value) in jobs and value > 100:
        return Job(jobs.index(str(value)))
    return value


def _bound(value: Any, jobs: Sequence[int]) -> Any:
    if isinstance(value, list):
        return [_bound(each, jobs) for each in value]
    return jobs[value.place] if isinstance(value, Job) else value


def _text(value: Any) -> str:
    return "{" + ",".join(map(str, value)) + "}" if isinstance(value, list) else str(value)


def _enqueue(stage: Stage) -> str:
    from fencepost.harness.actors.messages import Request

    job = stage.producer.perform(Request("enqueue", {"payload": {}})).job
    assert job is not None
    return job


def recorded(
    stage: Stage, program: Program, orders: Sequence[Schedule] | int
) -> list[tuple[Run, list[Sent], list[str]]]:
    execution = Recording(stage, program)
    # Ids above 100 are not taken for tokens and counts.
    for _ in range(101):
        _enqueue(stage)
    kept = []
    count = orders if isinstance(orders, int) else len(orders)
    for number in range(10 * count):
        if len(kept) == count:
            break
        if isinstance(orders, int):
            done = run(execution, Uniform().pick(chance("benchmark", 0, number)))
            if done.blocked:
                continue
        else:
            done = replay(execution, orders[number])
        kept.append((done, execution.sent, execution.jobs))
    return kept


@dataclass(slots=True)
class Side:
    """One of two that take turns. `cpu_s` is of this process and its servers together."""

    what: Callable[[], None]
    wall_s: list[float] = field(default_factory=list)
    cpu_s: list[float] = field(default_factory=list)

    def round(self) -> None:
        cpu, started = _cpu_s(), time.perf_counter()
        self.what()
        self.wall_s.append(time.perf_counter() - started)
        self.cpu_s.append(_cpu_s() - cpu)


def _cpu_s() -> float:
    own = psutil.Process()
    times = [process.cpu_times() for process in (own, *own.children(recursive=True))]
    return sum(t.user + t.system for t in times)


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """How much of their speed ours has: the median over the rounds."""
    return statistics.median(b / a for a, b in zip(ours, theirs, strict=True))


def against_bare(count: int, rounds: int) -> bool:
    executor = QueueExecutor(DEFAULT_QUEUE, LabOptions())
    execution = executor.open(PROGRAM)
    stage = stage_of(execution)
    orders = recorded(stage, PROGRAM, count)
    bare = Bare(stage, [actor.name for actor in PROGRAM.actors])
    scripts = [bare.prepare(sent, jobs) for _, sent, jobs in orders]

    def explored() -> None:
        for done, _, _ in orders:
            again = replay(execution, done.schedule)
            assert again.outcome == done.outcome

    def issued() -> None:
        for script in scripts:
            bare.run(script)

    explored(), issued()
    ours, theirs = Side(explored), Side(issued)
    for _ in range(rounds):
        ours.round()
        theirs.round()
    bare.close()
    reached = ratio(ours.wall_s, theirs.wall_s)
    steps = statistics.mean(len(done.steps) for done, _, _ in orders)
    print(f"{PROGRAM}, 2 jobs, {count} orders of {steps:.0f} statements that do not block, {rounds} rounds:")
    for name, side in (("explored", ours), ("bare", theirs)):
        wall_s, cpu_ms = statistics.median(side.wall_s), 1_000 * sum(side.cpu_s) / (rounds * count)
        print(f"  {name:9} {count / wall_s:7,.0f} schedules/s, {cpu_ms:5.1f} ms of CPU time each")
    by_cpu = sum(theirs.cpu_s) / sum(ours.cpu_s)
    print(f"  explored / bare = {reached:.2f} (aim: {AIM}); by CPU time {by_cpu:.2f}")
    return reached >= AIM


def against_polling(rounds: int) -> bool:
    executor = QueueExecutor(DEFAULT_QUEUE, LabOptions())
    execution = executor.open(BLOCKING)
    stage = stage_of(execution)
    ((done, sent, jobs),) = recorded(stage, BLOCKING, [BLOCKING_ORDER])
    (blocked_at,) = [at for at, step in enumerate(done.steps) if step.status is Status.BLOCKED]
    bare = Bare(stage, [actor.name for actor in BLOCKING.actors])
    script = bare.prepare(sent, jobs)
    timed = Timed(execution)
    their_finds: list[float] = []
    ours = Side(lambda: _check_same(replay(timed, done.schedule), done))
    theirs = Side(lambda: their_finds.extend(bare.run_polling(script)))
    ours.round(), theirs.round()
    for side in (ours, theirs):
        side.wall_s.clear()
    timed.took_s.clear(), their_finds.clear()
    for _ in range(rounds):
        ours.round()
        theirs.round()
    bare.close()
    assert len(their_finds) == rounds, "the bare script did not block once in each round"
    our_finds = [took[blocked_at] for took in timed.took_s]
    times = ratio(ours.wall_s, theirs.wall_s)
    print(f"{BLOCKING}, {len(done.steps)} statements, one of them blocked, {rounds} rounds:")
    for name, side, finds in (("explored", ours, our_finds), ("looking every 10 ms", theirs, their_finds)):
        rate, found_ms = 1 / statistics.median(side.wall_s), 1_000 * statistics.median(finds)
        print(f"  {name:19} {rate:6,.0f} schedules/s; a step is found to be blocked after {found_ms:.2f} ms")
    print(f"  explored / looking every 10 ms = {times:.1f}")
    return times > 1


class Timed:
    """An execution that notes how long each step took."""

    def __init__(self, execution: RealExecution) -> None:
        self._execution = execution
        self.took_s: list[list[float]] = []
        self.enabled = execution.enabled
        self.finish = execution.finish
        self.close = execution.close

    def reset(self) -> None:
        self.took_s.append([])
        self._execution.reset()

    def take(self, choice: Choice) -> StepResult:
        started = time.perf_counter()
        step = self._execution.take(choice)
        self.took_s[-1].append(time.perf_counter() - started)
        return step


def _check_same(again: Run, before: Run) -> None:
    assert again.outcome == before.outcome


def one_and_two_processes(budget: int, rounds: int) -> bool:
    executor = QueueExecutor(DEFAULT_QUEUE, LabOptions())
    with contextlib.ExitStack() as stack:
        pools = {jobs: stack.enter_context(processes(executor, PROGRAM, jobs)) for jobs in (1, 2)}
        one, two = (Side(partial(_explore, pool, budget)) for pool in pools.values())
        for jobs, pool in pools.items():
            pool.open_all(jobs)
        for side in (one, two):
            side.what()
        for _ in range(rounds):
            one.round()
            two.round()
    times = ratio(two.wall_s, one.wall_s)
    print(
        f"{PROGRAM}, 2 jobs, {budget} random orders, each process on a core with its server, {rounds} rounds:"
    )
    for name, side in (("1 process", one), ("2 processes", two)):
        cpu_ms = 1_000 * sum(side.cpu_s) / (rounds * budget)
        rate = budget / statistics.median(side.wall_s)
        print(f"  {name:11} {rate:7,.0f} schedules/s, {cpu_ms:5.1f} ms of CPU time each")
    print(f"  2 processes / 1 process = {times:.2f} (aim: {SCALE_AIM})")
    return times >= SCALE_AIM


def _explore(workers: Pooled, budget: int) -> None:
    result = explore(PROGRAM, RandomWalk(budget, 1), workers)
    assert result.tally.runs == budget and not result.differences


def against_frontrun() -> bool:
    """One race in Python that both can express, with the orders each needed."""
    executor = QueueExecutor(FAILING_TWIN, LabOptions())
    here = Here(executor, FAILING)
    try:
        started = time.perf_counter()
        result = explore(FAILING, Reduced(1_000), here, stop_at_first=True)
        elapsed_s = time.perf_counter() - started
    finally:
        here.close()
        close_stages()
    print(f"{FAILING} on {FAILING_TWIN}, to the first failure:")
    print(
        f"  fencepost explore: the race found in schedule {result.tally.first_failure} of {result.tally.runs} in "
        f"{elapsed_s:.2f} s, {result.tally.runs / elapsed_s:,.1f} schedules/s"
    )
    if find_spec("frontrun") is None:
        print(
            "  frontrun: not installed, so not compared "
            "(pip install --constraint constraints.txt --editable '.[bench]')"
        )
        return True
    script = str(Path(__file__).with_name("explore_frontrun.py"))
    command = [sys.executable, "-m", "frontrun.cli", sys.executable, script]
    # Several times: on this race it does not always come to the same end.
    for _ in range(FRONTRUN_RUNS):
        done = subprocess.run(command, capture_output=True, text=True, timeout=300)
        said = done.stdout.strip() or f"frontrun: {done.stderr.strip().splitlines()[-1]}"
        print(f"  {said}")
        if done.returncode:
            return False
    return True


def replays(times: int) -> bool:
    executor = QueueExecutor(FAILING_TWIN, LabOptions())
    here = Here(executor, FAILING)
    result = explore(FAILING, Reduced(1_000), here, stop_at_first=True)
    shortest = result.shortest
    assert shortest is not None
    finding = find(executor, FAILING, shortest.schedule, shortest.outcome)
    stage = stage_of(executor.open(FAILING))
    loaded, variant = load_queue(FAILING_TWIN), replay_of(parse_schedule(finding.text))
    broke = Counter(
        ", ".join(v.invariant for v in stage.lab.run(loaded, variant).facts.violations) or "nothing"
        for _ in range(times)
    )
    print(
        f"{finding.text}\n  found in run {result.tally.first_failure} of {FAILING} on {FAILING_TWIN}; replayed:"
    )
    for what, count in broke.items():
        print(f"  {count:,} of {times:,} broke {what}")
    return len(broke) == 1 and "nothing" not in broke


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", choices=PARTS, action="append", help="only this part; may be repeated")
    parser.add_argument("--orders", type=int, default=25, help="of rate: different orders in a round")
    parser.add_argument("--rounds", type=int, default=15, help="of rate; of blocking three times as many")
    parser.add_argument("--budget", type=int, default=600, help="of scale: orders in a round")
    parser.add_argument("--scale-rounds", type=int, default=3)
    parser.add_argument("--replays", type=int, default=1_000)
    arguments = parser.parse_args()
    parts: dict[str, Callable[[], bool]] = {
        "rate": lambda: against_bare(arguments.orders, arguments.rounds),
        "blocking": lambda: against_polling(3 * arguments.rounds),
        "scale": lambda: one_and_two_processes(arguments.budget, arguments.scale_rounds),
        "replay": lambda: replays(arguments.replays),
        "frontrun": against_frontrun,
    }
    held = True
    for name in arguments.only or PARTS:
        try:
            held = parts[name]() and held
        finally:
            close_stages()
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())
