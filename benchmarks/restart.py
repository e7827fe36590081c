"""From a crash to a server that answers, beside a bare `pg_ctl restart -m immediate`: `python benchmarks/restart.py`.

Same binaries, same settings, same core, in turn. Before each crash both servers commit the same rows, so both have the
same to recover. Measured until a new connection's first answer. `pg_ctl` looks every tenth of a second whether its
server is ready, which is part of what it costs.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import time
from collections.abc import Callable
from typing import Any

import psycopg

from fencepost.harness.pinning import choose_core, pinned
from fencepost.harness.postgres.crashable import CrashableServer
from fencepost.harness.postgres.embedded import EmbeddedServers
from fencepost.harness.postgres.server_environment import server_environment

ROWS = 80
PG_CTL_DEADLINE_S = 60


class BareServer:
    """A server on data of its own that only `pg_ctl` starts and stops."""

    def __init__(self, servers: EmbeddedServers) -> None:
        self._server = servers.test
        self._server.stop()
        self._pg_ctl("start")

    def dsn(self, database: str) -> str:
        return self._server.dsn(database)

    def restart(self) -> None:
        self._pg_ctl("restart", "-m", "immediate")

    def stop(self) -> None:
        self._pg_ctl("stop", "-m", "immediate")

    def _pg_ctl(self, command: str, *options: str) -> None:
        server = self._server
        log = ["-l", str(server.data_dir / "bare.log")] if command != "stop" else []
        subprocess.run(
            [server._binaries.bindir / "pg_ctl", command, "-w", "-D", server.data_dir, *options, *log],
            env=server_environment(),
            cwd=server.data_dir,
            check=True,
            stdout=subprocess.DEVNULL,
            timeout=PG_CTL_DEADLINE_S,
            **server.user.run_as(),
        )


def commit_rows(dsn: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("CREATE TABLE IF NOT EXISTS kept (n int)")
        for n in range(ROWS):
            connection.execute("INSERT INTO kept VALUES (%s)", (n,))


def rows(dsn: str) -> int:
    with psycopg.connect(dsn, autocommit=True) as connection:
        row = connection.execute("SELECT count(*) FROM kept").fetchone()
    assert row is not None
    return int(row[0])


def timed_ms(server: CrashableServer | BareServer, crash: Callable[[], None]) -> float:
    dsn = server.dsn("postgres")
    commit_rows(dsn)
    started = time.perf_counter()
    crash()
    with psycopg.connect(dsn) as connection:
        connection.execute("SELECT 1")
    return (time.perf_counter() - started) * 1000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--crashes", type=int, default=20, help="of each server (default: 20)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = parser.parse_args()
    core = choose_core()
    with (
        EmbeddedServers.start(core=core) as servers,
        EmbeddedServers.start(core=core) as others,
        pinned(core),
    ):
        ours, bare = servers.test, BareServer(others)
        try:
            figures: dict[str, list[float]] = {"ours": [], "bare": []}
            for crashes in range(1, arguments.crashes + 1):
                figures["ours"].append(timed_ms(ours, ours.crash))
                figures["bare"].append(timed_ms(bare, bare.restart))
                for server in (ours, bare):
                    assert rows(server.dsn("postgres")) == crashes * ROWS, "an acknowledged row is gone"
        finally:
            bare.stop()
    report(figures, version=servers.test.version, core=core, as_json=arguments.json)


def report(figures: dict[str, list[float]], *, version: str, core: int | None, as_json: bool) -> None:
    medians = {name: statistics.median(each) for name, each in figures.items()}
    ratio = medians["ours"] / medians["bare"]
    count = len(figures["ours"])
    if as_json:
        told: dict[str, Any] = {f"{name}_ms": median for name, median in medians.items()}
        print(json.dumps({**told, "ratio": ratio, "crashes": count, "version": version}))
        return
    where = f"core {core} of {os.cpu_count()}" if core is not None else "no core of their own"
    print(f"PostgreSQL {version}, {count} crashes of each in turn, on {where}; median (fastest to slowest)")
    for name, label in (("ours", "crash to ready, ours, verified"), ("bare", "pg_ctl restart -m immediate")):
        each = figures[name]
        print(f"{label:32s} {medians[name]:7.1f} ms  ({min(each):.1f} to {max(each):.1f})")
    print(f"{'ratio':32s} {ratio:7.2f}")


if __name__ == "__main__":
    main()
