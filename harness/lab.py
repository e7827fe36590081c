"""The lab: the servers of one run and the benches set up on them. Closed at the end, whatever happened."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from types import TracebackType

from fencepost.harness.actors.base import Actor
from fencepost.harness.actors.messages import Seat
from fencepost.harness.actors.process import ProcessActor, ProcessPool
from fencepost.harness.actors.thread import ThreadActor
from fencepost.harness.adapter import Capability
from fencepost.harness.bench import Bench, Run, Surroundings
from fencepost.harness.clock.preload import ClockPreload, find_preload, require_preload
from fencepost.harness.clock.server_clock import ServerClock
from fencepost.harness.control import Control
from fencepost.harness.errors import UsageError
from fencepost.harness.lease_time import ByClock, ByRewritingTheRow, ByWaiting, LeaseTime
from fencepost.harness.loading import LoadedQueue
from fencepost.harness.pinning import choose_core, pinned
from fencepost.harness.postgres.binaries import PostgresBinaries, find_binaries
from fencepost.harness.postgres.embedded import EmbeddedServers
from fencepost.harness.scenario import Variant
from fencepost.harness.settling import DEFAULT_DEADLINE_S
from fencepost.harness.watch import ServerWatch

ACTOR_KINDS = ("thread", "process")
CLOCK_MODES = ("auto", "clock", "expire", "wait")


@dataclass(frozen=True, slots=True)
class LabOptions:
    pg: str = "embedded"  # embedded, embedded:MAJOR or embedded:BINDIR
    actors: str = "thread"
    clock: str = "auto"  # the best of clock, expire, wait that can be had
    deadline_s: float = DEFAULT_DEADLINE_S  # of one step

    def __post_init__(self) -> None:
        if self.actors not in ACTOR_KINDS:
            raise UsageError(f"--actors {self.actors}: give one of {', '.join(ACTOR_KINDS)}.")
        if self.clock not in CLOCK_MODES:
            raise UsageError(f"--clock {self.clock}: give one of {', '.join(CLOCK_MODES)}.")
        if self.pg.partition(":")[0] != "embedded" or self.pg.endswith(":"):
            raise UsageError(
                f"--pg {self.pg}: give embedded, embedded:MAJOR (as embedded:16) or embedded:BINDIR."
            )

    def check(self) -> None:
        """Everything that can be known to be missing before a server is started. Raises UsageError."""
        self.binaries()
        self.preload()

    def binaries(self) -> PostgresBinaries:
        return find_binaries(self.pg.partition(":")[2] or None)

    def preload(self) -> ClockPreload | None:
        match self.clock:
            case "clock":
                return require_preload()
            case "auto":
                return find_preload()
            case _:
                return None


class Lab:
    def __init__(self, options: LabOptions) -> None:
        self.options = options
        self.core = choose_core()
        self._preload = options.preload()
        self._servers = EmbeddedServers.start(
            binaries=options.binaries(), preload=self._preload, core=self.core
        )
        self._control = Control(self._servers.control.dsn())
        self._benches: dict[str, Bench] = {}
        self._databases = 0
        self._pool = ProcessPool()

    @property
    def server_version(self) -> str:
        return self._servers.test.version

    def bench(self, loaded: LoadedQueue) -> Bench:
        """The bench of this queue, set up at its first use."""
        if loaded.path not in self._benches:
            with pinned(self.core):
                self._benches[loaded.path] = self._set_up(loaded)
        return self._benches[loaded.path]

    def run(self, loaded: LoadedQueue, variant: Variant) -> Run:
        with pinned(self.core):
            return self.bench(loaded).run(variant)

    def restart_server(self) -> None:
        """An immediate stop and a new start of the server under test: it recovers as after a crash."""
        for bench in self._benches.values():
            bench.disconnect()
        self._servers.test.crash()
        for bench in self._benches.values():
            bench.reconnect()

    def put_away(self, loaded: LoadedQueue) -> None:
        """Close a bench that is done with, so that many queues in one run do not pile up sessions."""
        bench = self._benches.pop(loaded.path, None)
        if bench is not None:
            bench.close()

    def _set_up(self, loaded: LoadedQueue) -> Bench:
        self._databases += 1
        database = f"bench_{self._databases}"
        self._servers.test.create_database(database)

        def make_actor(seat: Seat) -> Actor:
            kind = seat.kind or ("process" if seat.clock_skew_s else self.options.actors)
            if kind == "process":
                return ProcessActor(self._pool, seat)
            return ThreadActor(loaded.queue, seat)

        return Bench(
            loaded,
            dsn_for=lambda name: self._servers.test.dsn(database, application_name=name),
            control=self._control,
            control_dsn=self._servers.control.dsn(),
            make_actor=make_actor,
            make_lease_time=self._lease_time,
            restart_server=self.restart_server,
            surroundings=Surroundings("embedded", self.server_version, self.options.actors),
            deadline_s=self.options.deadline_s,
        )

    def _lease_time(self, watch: ServerWatch, bench: Bench) -> LeaseTime:
        capabilities = bench.queue.capabilities
        offset = self._servers.test.clock_offset
        if offset is not None and Capability.CLOCK in capabilities:
            return ByClock(ServerClock(offset, watch.now_us))
        if self.options.clock == "clock":
            raise UsageError(
                f"--clock clock: queue '{bench.queue.name}' does not decide leases by the database's clock "
                "(it has no capability CLOCK); use --clock auto."
            )
        if self.options.clock in ("auto", "expire") and Capability.EXPIRE in capabilities:
            return ByRewritingTheRow(bench.expire)
        if self.options.clock == "expire":
            raise UsageError(
                f"--clock expire: queue '{bench.queue.name}' has no capability EXPIRE; use --clock auto."
            )
        return ByWaiting(watch.now_us)

    def close(self) -> None:
        with contextlib.ExitStack() as stack:
            stack.callback(self._servers.close)
            stack.callback(self._control.close)
            stack.callback(self._pool.close)
            for bench in self._benches.values():
                stack.callback(bench.close)
        self._benches.clear()

    def __enter__(self) -> Lab:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """What ended the run is told; what closing says then is a note to it."""
        try:
            self.close()
        except Exception as problem:
            if error is None:
                raise
            error.add_note(f"the lab could not be closed in order: {problem}")
