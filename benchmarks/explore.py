"""How many orders a second are explored: `python benchmarks/explore.py`.

One run, one core, side by side: the same orders by the explorer, and bare: the same statements with the same parameters
issued by one script that knows the order, over one psycopg connection per actor. Both reset and enqueue alike. Rounds
alternate, so that a noisy machine disturbs both alike. Then: orders in which a step blocks, against looking every
10 ms as PostgreSQL's isolation tester does; one against two processes; and a failing order replayed a thousand times.
"""

from __future__ import annotations

import argparse
import select
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psycopg
from psycopg.adapt import Transformer
from psycopg.pq import ExecStatus, Format

from fencepost.harness.explore.executor import Schedule, choice
from fencepost.harness.explore.findings import find
from fencepost.harness.explore.footprint import Footprint
from fencepost.harness.explore.program import Program, parse
from fencepost.harness.explore.random_walk import RandomWalk, Uniform
from fencepost.harness.explore.real import QueueExecutor, RealExecution, close_stages, stage_of
from fencepost.harness.explore.reduced import Reduced
from fencepost.harness.explore.replay import Run, replay, run
from fencepost.harness.explore.sampled import chance
from fencepost.harness.explore.scale import Here, processes
from fencepost.harness.explore.search import explore
from fencepost.harness.explore.stage import Stage
from fencepost.harness.gate.statements import StatementRecord
from fencepost.harness.lab import LabOptions
from fencepost.harness.loading import DEFAULT_QUEUE, load_queue
from fencepost.harness.replay import replay_of
from fencepost.harness.schedule import parse_schedule

AIM = 0.4
SCALE_AIM = 1.8
POLL_S = 0.010
PROGRAM = parse("A:claim,complete B:claim,complete", jobs=2)
BLOCKING = parse("A:claim,heartbeat C:cancel")
BLOCKING_ORDER = tuple(map(choice, ["A"] * 5 + ["C"] * 2))
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

    def _touched(self, record: StatementRecord) -> Footprint:
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

    def begin(self) -> list[int]:
        self._stage.bench.reset()
        return [int(_enqueue(self._stage)) for _ in range(PROGRAM.jobs)]

    def run(self, script: Sequence[tuple[str, str, list[Any]]]) -> None:
        jobs = self.begin()
        for actor, sql, values in script:
            cursor = psycopg.RawCursor(self._connections[actor])
            cursor.execute(sql.encode(), [_bound(value, jobs) for value in values] or None, prepare=True)
            if cursor.description:
                cursor.fetchall()

    def run_polling(self, script: Sequence[tuple[str, str, list[Any]]]) -> None:
        """As the isolation tester: send, wait 10 ms for the answer, ask the server whether it is blocked."""
        self._stage.bench.reset()
        jobs = [int(_enqueue(self._stage))]
        waiting: set[str] = set()
        for actor, sql, values in script:
            raw = self._connections[actor].pgconn
            bound = [_bound(value, jobs) for value in values]
            texts = [None if v is None else _text(v).encode() for v in bound]
            raw.send_query_params(sql.encode(), texts)
            self._flush(actor)
            if not self._answered(actor):
                waiting.add(actor)
            for other in sorted(waiting - {actor}):
                if self._answered(other):
                    waiting.remove(other)

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


def per_second(what: Callable[[], None], runs: int) -> float:
    started = time.perf_counter()
    what()
    return runs / (time.perf_counter() - started)


def against_bare(executor: QueueExecutor, count: int, rounds: int) -> float:
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
    pairs = [(per_second(explored, count), per_second(issued, count)) for _ in range(rounds)]
    bare.close()
    ours, theirs = (statistics.median(side) for side in zip(*pairs, strict=True))
    ratio = statistics.median(mine / other for mine, other in pairs)
    steps = statistics.mean(len(done.steps) for done, _, _ in orders)
    print(f"{PROGRAM}, 2 jobs, {count} orders of {steps:.0f} statements that do not block, {rounds} rounds:")
    print(f"  explored {ours:8,.0f} schedules/s")
    print(f"  bare     {theirs:8,.0f} schedules/s; explored / bare = {ratio:.2f} (aim: {AIM})")
    return ratio


def against_polling(executor: QueueExecutor, rounds: int) -> None:
    execution = executor.open(BLOCKING)
    stage = stage_of(execution)
    ((done, sent, jobs),) = recorded(stage, BLOCKING, [BLOCKING_ORDER])
    assert done.blocked
    bare = Bare(stage, [actor.name for actor in BLOCKING.actors])
    script = bare.prepare(sent, jobs)
    ours, theirs = [], []
    for _ in range(rounds):
        ours.append(per_second(lambda: replay(execution, done.schedule), 1))
        theirs.append(per_second(lambda: bare.run_polling(script), 1))
    bare.close()
    print(f"{BLOCKING}, {len(done.steps)} statements, one of them blocked, {rounds} rounds:")
    print(f"  explored              {statistics.median(ours):8,.0f} schedules/s")
    print(f"  looking every 10 ms   {statistics.median(theirs):8,.0f} schedules/s")


def one_and_two_processes(executor: QueueExecutor, budget: int) -> float:
    rates = []
    for jobs in (1, 2):
        workers = processes(executor, PROGRAM, jobs)
        explore(PROGRAM, RandomWalk(100 * jobs, 1), workers)  # servers started, actors warm
        rates.append(per_second(lambda: explore(PROGRAM, RandomWalk(budget, 2), workers), budget))  # noqa: B023
        workers.close()
    ratio = rates[1] / rates[0]
    print(f"{budget} random orders, each process pinned with its server:")
    print(f"  1 process   {rates[0]:8,.0f} schedules/s")
    print(f"  2 processes {rates[1]:8,.0f} schedules/s, {ratio:.2f} times (aim: {SCALE_AIM})")
    return ratio


def against_frontrun() -> None:
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
        print("  frontrun: not installed (pip install frontrun), so not compared")
        return
    script = str(Path(__file__).with_name("explore_frontrun.py"))
    command = [sys.executable, "-m", "frontrun.cli", sys.executable, script]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    said = done.stdout.strip() or f"frontrun: {done.stderr.strip().splitlines()[-1]}"
    print(f"  {said}")


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
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--orders", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--budget", type=int, default=1_000)
    parser.add_argument("--replays", type=int, default=1_000)
    arguments = parser.parse_args()
    executor = QueueExecutor(DEFAULT_QUEUE, LabOptions())
    try:
        ratio = against_bare(executor, arguments.orders, arguments.rounds)
        against_polling(executor, 10 * arguments.rounds)
        close_stages()
        scaled = one_and_two_processes(executor, arguments.budget)
        held = replays(arguments.replays)
    finally:
        close_stages()
    against_frontrun()
    return 0 if ratio >= AIM and scaled >= SCALE_AIM and held else 1


if __name__ == "__main__":
    sys.exit(main())
