"""What is kept warm between orders: a queue on its server, and actors behind a gate that this thread runs itself."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import psycopg

from fencepost.harness.actors.base import Actor, ActorFailed
from fencepost.harness.actors.body import ActorBody
from fencepost.harness.actors.messages import Seat
from fencepost.harness.errors import StepDeadline
from fencepost.harness.explore.catalog import Catalog, read_catalog
from fencepost.harness.gate.drive import GateDrive
from fencepost.harness.gate.path import GatePath
from fencepost.harness.gate.proxy import Gate, Upstream
from fencepost.harness.history import Call, CallStatus
from fencepost.harness.lab import Lab
from fencepost.harness.loading import load_queue
from fencepost.harness.pinning import pinned
from fencepost.harness.settling import QUIET_S, has_cycle
from fencepost.harness.watch import actor_application_name

PRODUCER = "P"


@dataclass(slots=True)
class Flight:
    """A call under way. `status` is None while it moves; `told` is its last statement that was looked at."""

    call: Call
    seated: Seated
    place: int
    status: CallStatus | None = None
    told: int = 0


@dataclass(slots=True)
class Seated:
    """An actor that can be given an operation, and its path. `stale`: a connection of it was ended."""

    actor: Actor
    path: GatePath
    stale: bool = False
    pids: set[int] = field(default_factory=set)


class Stage:
    """One bench, its gate and its actors. Belongs to the thread that opened it; the lab stays its owner's."""

    def __init__(self, queue_path: str, lab: Lab) -> None:
        self._stack = contextlib.ExitStack()
        self._lab = lab
        try:
            self._stack.enter_context(pinned(self._lab.core))
            loaded = load_queue(queue_path)
            self.bench = self._lab.bench(loaded)
            self._gate = self._stack.enter_context(Gate())
            self._drive = GateDrive(self._gate)
            self._stack.callback(self._close_actors)
            dsn = self.bench.place.dsn_for("fencepost-explorer")
            self._upstream = Upstream.of(dsn)
            self.catalog: Catalog = self._read_catalog(dsn)
            self._actors: dict[str, Seated] = {}
            self._paths: dict[str, GatePath] = {}
            self.producer = ActorBody(loaded.queue, self._seat(PRODUCER, dsn), lambda _: None)
            self._stack.callback(self.producer.close)
        except BaseException:
            self._stack.close()
            raise

    @property
    def lab(self) -> Lab:
        return self._lab

    def _read_catalog(self, dsn: str) -> Catalog:
        with psycopg.connect(dsn, autocommit=True) as connection:
            return read_catalog(connection)

    # -- seating ----------------------------------------------------------------------------------------------

    def seat(self, name: str) -> Seated:
        """The actor of this name: warm, unless a connection of it was ended."""
        seated = self._actors.get(name)
        if seated is not None and not seated.stale and not seated.actor.is_gone:
            return seated
        self._drive.let_go()
        if seated is not None:
            self._unseat(name)
        if name not in self._paths:
            listen = "unix" if self._upstream.kind == "unix" else "tcp"
            self._paths[name] = self._gate.open_path(name, self._upstream, listen)  # type: ignore[arg-type]
        path = self._paths[name]
        dsn = path.conninfo(self.bench.place.dsn_for(actor_application_name(name)))
        seated = Seated(self.bench.place.make_actor(self._seat(name, dsn)), path)
        self._actors[name] = seated
        return seated

    def _seat(self, name: str, dsn: str) -> Seat:
        return Seat(
            actor=name,
            worker_name=name,
            queue_path=self.bench.place.queue_path,
            dsn=dsn,
            control_dsn=self.bench.place.control_dsn,
        )

    def _unseat(self, name: str) -> None:
        seated = self._actors.pop(name)
        with contextlib.suppress(ActorFailed):  # closing over an ended connection may fail as its queue likes
            seated.actor.close()

    # -- waiting ----------------------------------------------------------------------------------------------

    def settle(self, flights: Sequence[Flight]) -> None:
        """Returns when each has answered, is parked before a statement, or waits for a lock."""
        # Only theirs: an answer is taken before its descriptor is written to, so that of one who rests may stay
        # readable, and nothing would ever be quiet.
        for flight in flights:
            self._drive.watch(flight.seated.actor.answer_fd)
        try:
            self._settle([flight for flight in flights if not self._arrived(flight)])
        finally:
            for flight in flights:
                self._drive.unwatch(flight.seated.actor.answer_fd)

    def _settle(self, moving: list[Flight]) -> None:
        deadline = time.monotonic() + self.bench.deadline_s
        while moving:
            quiet = not self._drive.turn(QUIET_S)
            moving = [flight for flight in moving if not self._arrived(flight)]
            if moving and quiet and self._all_blocked(moving):
                return
            if moving and time.monotonic() > deadline:
                awaited = ", ".join(f"{f.call.actor} in {f.call.operation}" for f in moving)
                raise StepDeadline(
                    f"waited {self.bench.deadline_s:g} s for {awaited}; the server: {self.bench.watch.describe()}; "
                    f"the gate: {self._gate.told()}"
                )

    def _arrived(self, flight: Flight) -> bool:
        reply = flight.seated.actor.poll(0.0)
        if reply is not None:
            flight.call.reply = reply
            flight.status = CallStatus.ANSWERED
        elif flight.seated.path.is_parked:
            flight.status = CallStatus.PARKED
        else:
            return False
        flight.call.passed.extend(flight.seated.actor.take_passed())
        return True

    def _all_blocked(self, moving: list[Flight]) -> bool:
        waits = self.bench.watch.waits()
        if any(flight.call.actor not in waits for flight in moving) or has_cycle(waits):
            return False
        arrived = [self._arrived(flight) for flight in moving]
        if any(arrived):
            moving[:] = [flight for flight in moving if flight.status is None]
            return False
        for flight in moving:
            flight.call.passed.extend(flight.seated.actor.take_passed())
            flight.status = CallStatus.BLOCKED
        return True

    def end_connections(self, flight: Flight | None, seated: Seated) -> None:
        """The client is gone: its backends end, and what it still says is not heard."""
        pids = [view.pid for view in seated.path.connections if view.pid]
        seated.path.cut("fin")
        seated.stale = True
        self.bench.watch.orphan(pids, self.bench.deadline_s)
        while flight is not None and flight.status is not CallStatus.ANSWERED:
            flight.status = None
            self.settle([flight])
            seated.path.cut("fin")  # a client that connects anew to try again is dead as well

    def orphan(self, pids: Sequence[int]) -> None:
        self.bench.watch.orphan(pids, self.bench.deadline_s)

    def finish(self, flights: Sequence[Flight]) -> None:
        """Let everybody go on to the end of his operation: the run was cut short."""
        for flight in flights:
            flight.seated.path.begin_operation("")
        left = list(flights)
        while left:
            for flight in left:
                if flight.seated.path.is_parked:
                    flight.seated.path.release()
                flight.status = None
            self.settle(left)
            left = [flight for flight in left if flight.status is not CallStatus.ANSWERED]

    # -- the end ----------------------------------------------------------------------------------------------

    def abandon(self) -> None:
        """After a step that did not end: nobody can be trusted to stand where he should."""
        self._drive.let_go()
        names = list(self._actors)
        self.bench.watch.end_backends(names)
        for name in names:
            seated = self._actors.pop(name)
            seated.path.reset()
            seated.actor.abandon()

    def _close_actors(self) -> None:
        self._drive.let_go()
        for name in list(self._actors):
            self._unseat(name)

    def close(self) -> None:
        self._drive.let_go()
        self._stack.close()
