"""What a replayed race costs beside its bare statements: `python benchmarks/race.py`.

One run, one core, one server, side by side: the whole lease race by the harness (actors, observations, invariants,
verdict, trace file) against the same queue statements issued by one psycopg script that knows the order. Both reset
the queue before each race, and both move the clock. Rounds alternate, so that a noisy machine disturbs both alike.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg

from fencepost.harness.actors.thread import ThreadActor
from fencepost.harness.bench import Bench
from fencepost.harness.control import Control, ControlSession
from fencepost.harness.invariants import Invariant
from fencepost.harness.lab import Lab, LabOptions
from fencepost.harness.lease_time import ByClock
from fencepost.harness.loading import load_queue
from fencepost.harness.pinning import pinned
from fencepost.harness.scenario import choose, installed_scenarios
from fencepost.harness.settling import Settler
from fencepost.harness.trace import write_trace
from fencepost.harness.verdict import Verdict
from fencepost.queue_impl.reference.adapter import ADAPTER_STATEMENTS
from fencepost.queue_impl.reference.sql import STATEMENTS

WANTED_RATIO = 4.0


class BareRace:
    """The statements of the lease race, in order, and nothing else."""

    def __init__(self, lab: Lab, database: str) -> None:
        dsn = lab._servers.test.dsn(database)
        self._p, self._a, self._b, self._reset = (psycopg.connect(dsn, autocommit=True) for _ in range(4))
        offset = lab._servers.test.clock_offset
        assert offset is not None, "this benchmark needs a movable clock"
        self._offset = offset

    def run(self) -> None:
        self._send(self._reset, ADAPTER_STATEMENTS["reset_by_delete"], {})
        job = {"payload": "{}", "priority": 0, "delay_s": 0.0, "max_attempts": 5, "key": None}
        self._transaction(self._p, [("insert_job", job)])
        stale = self._claim(self._a, "A")
        self._offset.add_us(60_001_000)
        fresh = self._claim(self._b, "B")
        steps = ["lock_job", "judge_job", "insert_ledger", "mark_succeeded"]
        self._transaction(self._b, [(name, fresh) for name in steps])
        self._transaction(self._a, [(name, stale) for name in ("lock_job", "judge_job")], end="rollback")

    def _claim(self, connection: psycopg.Connection[Any], worker: str) -> dict[str, Any]:
        wanted = {"worker": worker, "ttl_s": 60.0, "limit": 1}
        (row,) = self._transaction(connection, [("claim", wanted)])
        return {
            "job_id": row[0],
            "token": row[1],
            "worker": worker,
            "ttl_s": 0.0,
            "operation": "complete",
            "result": None,
        }

    def _transaction(
        self,
        connection: psycopg.Connection[Any],
        statements: list[tuple[str, dict[str, Any]]],
        end: str = "commit",
    ) -> list[Any]:
        connection.execute(STATEMENTS["begin"].encode(), prepare=False)
        rows: list[Any] = []
        for name, parameters in statements:
            cursor = self._send(connection, STATEMENTS[name], parameters)
            rows = cursor.fetchall() if cursor.description else []
        connection.execute(STATEMENTS[end].encode(), prepare=False)
        return rows

    def _send(
        self, connection: psycopg.Connection[Any], text: str, parameters: dict[str, Any]
    ) -> psycopg.Cursor[Any]:
        return connection.execute(text.encode(), parameters, prepare=True)


class Profile:
    """Where the harness's time goes, by what it calls. What an actor does happens inside `settle`."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)

    @contextmanager
    def watching(self, targets: dict[str, tuple[Any, str]]) -> Iterator[None]:
        originals = [(owner, name, getattr(owner, name)) for owner, name in targets.values()]
        for label, (owner, name) in targets.items():
            setattr(owner, name, self._timed(label, getattr(owner, name)))
        try:
            yield
        finally:
            for owner, name, original in originals:
                setattr(owner, name, original)

    def _timed(self, label: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*arguments: Any, **options: Any) -> Any:
            started = time.perf_counter()
            try:
                return function(*arguments, **options)
            finally:
                self.seconds[label] += time.perf_counter() - started

        return timed


WATCHED = {
    "waiting for actors (their statements, hand-offs)": (Settler, "settle"),
    "observing after every step": (Bench, "_observe"),
    "resetting the queue": (Bench, "_reset"),
    "moving the clock, verified": (ByClock, "advance_to"),
    "invariants": (Invariant, "judge"),
    "barriers": (Control, "is_parked"),
    "reading the journal": (Control, "executions"),
    "submitting to actors": (ThreadActor, "submit"),
    "building the trace": (Bench, "_trace"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--races", type=int, default=400, help="races of each kind (default: 400)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = parser.parse_args()
    (scenario,) = [s for s in choose(installed_scenarios(), ["lease_race"]) if s.name == "lease_race"]
    (variant,) = scenario.variants()
    loaded = load_queue("reference")
    with tempfile.TemporaryDirectory() as directory, Lab(LabOptions(clock="clock")) as lab, pinned(lab.core):
        path = Path(directory) / "race.jsonl"
        harness_bench = lab.bench(loaded)
        bare = BareRace(lab, "bench_1")

        def whole() -> None:
            run = harness_bench.run(variant)
            assert run.judgement.verdict is Verdict.PASS, run.judgement
            write_trace(run.trace, path)

        for warm_up in (whole, bare.run):
            for _ in range(30):
                warm_up()
        whole_ms, bare_ms = alternate(whole, bare.run, arguments.races)
        profile = Profile()
        with profile.watching(WATCHED):
            watched_ms = [timed_ms(whole) for _ in range(arguments.races // 2)]
        journal_ms = journal_cost_ms(lab)
    report(whole_ms, bare_ms, watched_ms, profile, journal_ms, as_json=arguments.json)


def alternate(
    first: Callable[[], None], second: Callable[[], None], races: int
) -> tuple[list[float], list[float]]:
    first_ms: list[float] = []
    second_ms: list[float] = []
    for _ in range(races):
        first_ms.append(timed_ms(first))
        second_ms.append(timed_ms(second))
    return first_ms, second_ms


def timed_ms(function: Callable[[], None]) -> float:
    started = time.perf_counter()
    function()
    return (time.perf_counter() - started) * 1000


def journal_cost_ms(lab: Lab) -> float:
    """Two entries a race, written by the actors, so inside what is waited for."""
    session = ControlSession(lab._servers.control.dsn(), application_name="benchmark")
    entries = [timed_ms(lambda: session.record_execution(0, "A", "1", 1)) for _ in range(200)]
    session.close()
    return 2 * statistics.median(entries)


def report(
    whole_ms: list[float],
    bare_ms: list[float],
    watched_ms: list[float],
    profile: Profile,
    journal_ms: float,
    *,
    as_json: bool,
) -> None:
    whole, bare = statistics.median(whole_ms), statistics.median(bare_ms)
    ratio = whole / bare
    parts = {label: seconds * 1000 / len(watched_ms) for label, seconds in profile.seconds.items()}
    rest = statistics.mean(watched_ms) - sum(parts.values())
    if as_json:
        print(
            json.dumps(
                {"whole_ms": whole, "bare_ms": bare, "ratio": ratio, "parts_ms": parts, "rest_ms": rest}
            )
        )
        return
    print(f"a whole race by the harness   {whole:7.3f} ms  (median of {len(whole_ms)})")
    print(f"its bare statements           {bare:7.3f} ms  (median of {len(bare_ms)}, in turn with the above)")
    print(f"ratio                         {ratio:7.2f}     (wanted: at most {WANTED_RATIO:g})")
    print("\nwhere a whole race's time goes (mean, of runs watched by a timer around each part):")
    for label, part_ms in sorted(parts.items(), key=lambda item: -item[1]):
        print(f"  {part_ms:7.3f} ms  {label}")
    print(f"  {rest:7.3f} ms  everything else")
    print(f"  of the waiting, {journal_ms:.3f} ms are the journal's two entries on the control server")


if __name__ == "__main__":
    main()
