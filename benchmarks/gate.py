"""What a statement costs more through the gate: `python benchmarks/gate.py`.

One run, one core, one server, side by side: the same statements by the same psycopg client, directly and through the
gate. Rounds alternate, so that a noisy machine disturbs all alike. Three ways through it: unarmed; every statement
parked and released by a runner that has borrowed the loop; the same by one that leaves the loop to the gate's thread.
"""

from __future__ import annotations

import argparse
import cProfile
import os
import pstats
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg

from fencepost.harness.gate import Gate, GatePath, Upstream
from fencepost.harness.pinning import choose_core, pinned
from fencepost.harness.postgres.embedded import EmbeddedServers

AIM_MS = 0.3
DEADLINE_S = 60.0
STATEMENT = "SELECT payload FROM (VALUES (%s::int, 'a payload'::text)) AS job (id, payload)"
Connection = psycopg.Connection[Any]


def send(connection: Connection, count: int) -> None:
    for number in range(count):
        connection.execute(STATEMENT, (number,), prepare=True).fetchall()


class Sender:
    """An actor: a thread that sends statements when it is told to, and writes to an eventfd when it is done."""

    def __init__(self, connection: Connection) -> None:
        self.done_fd = os.eventfd(0, os.EFD_NONBLOCK)
        self.done = threading.Event()
        self._connection = connection
        self._count = 0
        self._go = threading.Semaphore(0)
        threading.Thread(target=self._run, daemon=True).start()

    def start(self, count: int) -> None:
        self.done.clear()
        self._count = count
        self._go.release()

    def _run(self) -> None:
        while True:
            self._go.acquire()
            send(self._connection, self._count)
            os.eventfd_write(self.done_fd, 1)
            self.done.set()


def direct(connection: Connection, count: int) -> float:
    started = time.perf_counter()
    send(connection, count)
    return time.perf_counter() - started


def stepped_by_the_runner(gate: Gate, path: GatePath, sender: Sender, count: int) -> float:
    path.begin_operation("bench", step_every_statement=True)
    released = 0
    started = time.perf_counter()
    with gate.borrowed():
        sender.start(count)
        while not sender.done.is_set():
            if path.parked is not None:
                path.release()
                released += 1
            gate.turn(DEADLINE_S)
    took_s = time.perf_counter() - started
    os.eventfd_read(sender.done_fd)
    path.end_operation()
    assert released == count, f"{released} of {count} statements were parked"
    return took_s


def stepped_beside_the_thread(path: GatePath, sender: Sender, count: int) -> float:
    """The runner polls, as it would if it could not run the loop."""
    path.begin_operation("bench", step_every_statement=True)
    released = 0
    started = time.perf_counter()
    sender.start(count)
    while not sender.done.is_set():
        if path.parked is not None:
            path.release()
            released += 1
        else:
            time.sleep(0)
    took_s = time.perf_counter() - started
    os.eventfd_read(sender.done_fd)
    path.end_operation()
    assert released == count, f"{released} of {count} statements were parked"
    return took_s


@contextmanager
def set_up() -> Iterator[dict[str, Callable[[int], float]]]:
    core = choose_core()
    with pinned(core), EmbeddedServers.start(core=core) as servers, Gate() as gate:
        ways: dict[str, Callable[[int], float]] = {}
        for kind, dsn in (("unix", servers.test.dsn()), ("tcp", servers.test.tcp_dsn())):
            path = gate.open_path(kind, Upstream.of(dsn), "unix" if kind == "unix" else "tcp")
            straight = psycopg.connect(dsn, autocommit=True)
            gated = psycopg.connect(path.conninfo(dsn), autocommit=True)
            sender = Sender(gated)
            gate.watch_fd(sender.done_fd)
            ways[f"{kind}: direct"] = lambda count, each=straight: direct(each, count)
            ways[f"{kind}: gate, unarmed"] = lambda count, each=gated: direct(each, count)
            ways[f"{kind}: gate, stepped by the runner"] = lambda count, path=path, sender=sender: (
                stepped_by_the_runner(gate, path, sender, count)
            )
            ways[f"{kind}: gate, stepped beside its thread"] = lambda count, path=path, sender=sender: (
                stepped_beside_the_thread(path, sender, count)
            )
        yield ways


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--statements", type=int, default=500, help="per round")
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    with set_up() as ways:
        for way in ways.values():
            way(50)
        took: dict[str, list[float]] = {name: [] for name in ways}
        used: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(options.rounds):
            for name, way in ways.items():
                cpu_s = time.process_time()
                took[name].append(way(options.statements) / options.statements * 1000)
                used[name].append((time.process_time() - cpu_s) / options.statements * 1000)
        print(f"ms per statement, median of {options.rounds} rounds of {options.statements}, one core")
        print(
            "(cpu: of client, gate and runner together; on a busy machine it says more than the time that passed)"
        )
        over = []
        for name, figures in took.items():
            bare = statistics.median(took[f"{name.partition(':')[0]}: direct"])
            median = statistics.median(figures)
            added = "" if name.endswith("direct") else f"   added {median - bare:+.3f}"
            print(
                f"  {name:40} {median:.3f}  ({min(figures):.3f} to {max(figures):.3f})"
                f"  cpu {statistics.median(used[name]):.3f}{added}"
            )
            if median - bare > AIM_MS:
                over.append(name)
        print(f"aim: below {AIM_MS} ms added")
        for name in over:
            print(f"\nabove the aim: {name}; where the calling thread's time goes")
            profile = cProfile.Profile()
            profile.runcall(ways[name], options.statements)
            pstats.Stats(profile).sort_stats("tottime").print_stats(15)


if __name__ == "__main__":
    main()
