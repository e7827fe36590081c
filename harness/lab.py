"""The lab: the servers of one run and the benches set up on them. Closed at the end, whatever happened."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import TracebackType

from fencepost.harness.actors.base import Actor
from fencepost.harness.actors.messages import Seat
from fencepost.harness.actors.process import ProcessActor, ProcessPool
from fencepost.harness.actors.thread import ThreadActor
from fencepost.harness.adapter import Capability
from fencepost.harness.bench import OPERATION, STEP_SIZES, Bench, Run, Surroundings
from fencepost.harness.clock.preload import ClockPreload, find_preload, require_preload
from fencepost.harness.clock.server_clock import ServerClock
from fencepost.harness.control import Control
from fencepost.harness.errors import UsageError
from fencepost.harness.foretold import run_foretold
from fencepost.harness.lease_time import ByClock, ByRewritingTheRow, ByWaiting, LeaseTime
from fencepost.harness.loading import LoadedQueue
from fencepost.harness.network.engines import check_engine, check_network
from fencepost.harness.pinning import choose_core, pinned
from fencepost.harness.postgres.choice import ProviderChoice, ServersOfRun
from fencepost.harness.postgres.connection_string import without_password
from fencepost.harness.postgres.provider import ServerUnderTest
from fencepost.harness.scenario import Variant
from fencepost.harness.seats import Place
from fencepost.harness.settling import DEFAULT_DEADLINE_S
from fencepost.harness.watch import ServerWatch
from fencepost.harness.wiring import Wiring

ACTOR_KINDS = ("thread", "process")
CLOCK_MODES = ("auto", "clock", "expire", "wait")
LAB_OPTIONS = ("pg", "actors", "clock", "step", "network", "toxiproxy")
"""Options that say how a run is made: fields of LabOptions, and part of the command that replays it."""


@dataclass(frozen=True, slots=True)
class LabOptions:
    pg: str = field(
        default="embedded", repr=False
    )  # postgres/choice.py; a connection string may hold a password
    actors: str = "thread"
    clock: str = "auto"  # the best of clock, expire, wait that can be had
    deadline_s: float = DEFAULT_DEADLINE_S  # of one step
    step: str = OPERATION  # operation, or statement: every SQL statement is a step of its own
    network: str = "gate"  # gate or toxiproxy: what paths that are to be harmed lead through
    toxiproxy: str | None = None  # the Toxiproxy server to start; None: the one that is found

    def __post_init__(self) -> None:
        if self.actors not in ACTOR_KINDS:
            raise UsageError(f"--actors {self.actors}: give one of {', '.join(ACTOR_KINDS)}.")
        if self.step not in STEP_SIZES:
            raise UsageError(f"--step {self.step}: give one of {', '.join(STEP_SIZES)}.")
        check_engine(self.network)
        if self.step != OPERATION and self.network != "gate":
            raise UsageError(
                f"--step {self.step} needs every statement to pass the gate: use it without --network {self.network}."
            )
        if self.clock not in CLOCK_MODES:
            raise UsageError(f"--clock {self.clock}: give one of {', '.join(CLOCK_MODES)}.")
        provider = self.provider()
        if self.clock == "clock" and not provider.moves_its_clock:
            raise UsageError(
                f"--clock clock: the clock of a server by --pg {provider.name} cannot be moved; use --clock auto."
            )

    def typed_again(self) -> list[str]:
        """Those that were not left as they are by default, as they are typed; without a password."""
        default = LabOptions()
        chosen = {name: getattr(self, name) for name in LAB_OPTIONS}
        return [
            f"--{name}={without_password(value)}"
            for name, value in chosen.items()
            if value != getattr(default, name)
        ]

    def check(self) -> None:
        """Everything that can be known to be missing before a server is started. Raises UsageError."""
        self.provider().check()
        self.preload()
        check_network(self.network, self.toxiproxy)

    def provider(self) -> ProviderChoice:
        return ProviderChoice(self.pg)

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
        self._servers: ServersOfRun = options.provider().start(preload=self._preload, core=self.core)
        self._control = Control(self._servers.control.dsn())
        self._benches: dict[str, Bench] = {}
        self.restarts = 0  # faults that ended every session of the server under test
        self._databases = 0
        self._database_of: dict[str, str] = {}
        self._pool = ProcessPool()
        self._wiring = Wiring(options.network, options.toxiproxy)

    @property
    def server(self) -> ServerUnderTest:
        return self._servers.test

    @property
    def server_version(self) -> str:
        return self._servers.test.version

    def bench(self, loaded: LoadedQueue) -> Bench:
        """The bench of this queue, set up at its first use."""
        if loaded.path not in self._benches:
            with pinned(self.core), self._database_for(loaded) as database:
                self._benches[loaded.path] = self._set_up(loaded, database)
        return self._benches[loaded.path]

    def run(self, loaded: LoadedQueue, variant: Variant) -> Run:
        with pinned(self.core):
            bench = self.bench(loaded)
            return run_foretold(bench, variant) if variant.scenario.foretold else bench.run(variant)

    def _strike_server(self, running: LoadedQueue, strike: Callable[[], None]) -> None:
        """Let a fault hit the server under test. Benches that do not run now leave it before and return after."""
        for path, bench in self._benches.items():
            if path != running.path:
                bench.disconnect()
        strike()
        self.restarts += 1
        for bench in self._benches.values():
            bench.reconnect()

    def put_away(self, loaded: LoadedQueue) -> None:
        """Close a bench that is done with, so that many queues in one run do not pile up sessions."""
        bench = self._benches.pop(loaded.path, None)
        if bench is not None:
            bench.close()
            self.server.drop_database(self._database_of.pop(loaded.path))

    @contextlib.contextmanager
    def _database_for(self, loaded: LoadedQueue) -> Iterator[str]:
        """A new database, dropped again if the bench cannot be set up in it."""
        self._databases += 1
        database = f"bench_{self._databases}"
        self.server.create_database(database)
        try:
            yield database
        except BaseException:
            self.server.drop_database(database)
            raise
        self._database_of[loaded.path] = database

    def _set_up(self, loaded: LoadedQueue, database: str) -> Bench:
        def make_actor(seat: Seat) -> Actor:
            kind = seat.kind or ("process" if seat.clock_skew_s else self.options.actors)
            if kind == "process":
                return ProcessActor(self._pool, seat)
            return ThreadActor(loaded.queue, seat)

        place = Place(
            queue_path=loaded.path,
            dsn_for=lambda name: self.server.dsn(database, application_name=name),
            tcp_dsn_for=lambda name: self.server.tcp_dsn(database, application_name=name),
            control_dsn=self._servers.control.dsn(),
            make_actor=make_actor,
            open_wire=lambda actor, path: self._wiring.open(
                f"{database}:{actor}", path, *self.server.tcp_address
            ),
            let_go_of_gate=self._wiring.let_go,
            server=self.server,
            strike_server=lambda strike: self._strike_server(loaded, strike),
        )
        return Bench(
            loaded,
            place=place,
            control=self._control,
            make_lease_time=self._lease_time,
            surroundings=Surroundings(
                self.server.provider,
                self.server_version,
                self.options.actors,
                step=self.options.step,
                network=self.options.network,
            ),
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
            stack.callback(self._wiring.close)
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
