"""Who sits at a bench and by which path: actors kept warm, and what is done to them, their paths and their server."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

from fencepost.harness.actors.base import Actor, ActorFailed
from fencepost.harness.actors.messages import Seat
from fencepost.harness.control import Control
from fencepost.harness.errors import FencepostError
from fencepost.harness.postgres.connection_string import conninfo
from fencepost.harness.postgres.provider import ServerFault, ServerUnderTest
from fencepost.harness.race_faults import Seating
from fencepost.harness.runner import Runner
from fencepost.harness.settling import InFlight
from fencepost.harness.watch import ServerWatch, SessionFacts, actor_application_name
from fencepost.harness.wire import Wire, Withholds


@dataclass(frozen=True, slots=True)
class Place:
    """What actors of one bench are given: a queue, two servers, and the means to reach them."""

    queue_path: str
    dsn_for: Callable[[str], str]  # the shortest way to the database, for this application name
    tcp_dsn_for: Callable[[str], str]  # over TCP, for paths to be put in between
    control_dsn: str
    make_actor: Callable[[Seat], Actor]
    open_wire: Callable[[str, str], Wire]
    """A path for an actor of this name, of the kind the second argument says (`scenario.PATHS`)."""
    let_go_of_gate: Callable[[], None]
    """Before connections are opened or closed outside of a step: the gate must be run by its own thread then."""
    server: ServerUnderTest
    strike_server: Callable[[Callable[[], None]], None]
    """Lets a fault hit the whole server, with everybody else out of its way."""


class Seats:
    """The `Stage` of a bench's races. Actors outlive a race where the queue's workers may be kept warm."""

    def __init__(
        self, place: Place, watch: ServerWatch, control: Control, deadline_s: float, *, every_statement: bool
    ) -> None:
        self.place = place
        self._watch = watch
        self._control = control
        self._deadline_s = deadline_s
        self._every_statement = every_statement
        self.actors: dict[str, Actor] = {}
        self._wires: dict[tuple[str, str], Wire] = {}
        self._wire_of: dict[str, Wire] = {}  # the wire an actor sits behind now
        self._stale: set[str] = set()  # actors whose connections are gone, to be seated anew
        self._stopped: frozenset[str] = frozenset()  # by this race
        self._runner: Runner | None = None

    def begin(self, runner: Runner) -> None:
        """A race begins: its runner says who is in flight, and whose answer was lost."""
        self._runner = runner
        self._wire_of = {name: wire for name, wire in self._wire_of.items() if name in self.actors}

    # -- seating ------------------------------------------------------------------------------------------

    def seat(self, name: str, seating: Seating) -> Actor:
        """The actor of this name, warm where it sat like this before and its connections are good."""
        actor = self.actors.get(name)
        if actor is not None and self._is_in_flight(name):
            return actor
        seat = self.seat_of(name, seating)
        if actor is not None and actor.seat == seat and not actor.is_gone and not self._is_stale(name):
            return actor
        self.place.let_go_of_gate()
        if actor is not None:
            self._unseat(name)
        self.actors[name] = self.place.make_actor(seat)
        return self.actors[name]

    def seat_of(self, name: str, seating: Seating) -> Seat:
        dsn = self.place.dsn_for(actor_application_name(name))
        wire = self._choose_wire(name, seating.path)
        if wire is not None:
            dsn = conninfo(self.place.tcp_dsn_for(actor_application_name(name)), **wire.address)
        if seating.time_zone is not None:
            dsn = conninfo(dsn, options=f"-c TimeZone={seating.time_zone}")
        return Seat(
            actor=name,
            worker_name=seating.worker_name,
            queue_path=self.place.queue_path,
            dsn=dsn,
            control_dsn=self.place.control_dsn,
            kind=seating.kind,
            clock_skew_s=seating.clock_skew_s,
        )

    def open(self, name: str, seating: Seating) -> Actor:
        """An actor of the caller's own: to be closed, or abandoned, by the caller."""
        self.place.let_go_of_gate()
        return self.place.make_actor(self.seat_of(name, seating))

    def _is_in_flight(self, name: str) -> bool:
        return self._runner is not None and any(flight.name == name for flight in self._runner.in_flight)

    def _is_stale(self, name: str) -> bool:
        return name in self._stale or (self._runner is not None and name in self._runner.lost_connection)

    def _unseat(self, name: str) -> None:
        """Closing a worker whose connection is gone may fail as its queue likes: nothing is lost with it."""
        stale = self._is_stale(name)
        self._stale.discard(name)
        if self._runner is not None:
            self._runner.lost_connection.discard(name)
        try:
            self.actors.pop(name).close()
        except ActorFailed:
            if not stale:
                raise

    # -- paths --------------------------------------------------------------------------------------------

    def wire(self, name: str) -> Wire | None:
        return self._wire_of.get(name)

    def _choose_wire(self, name: str, path: str) -> Wire | None:
        if self._every_statement and path == "direct":
            path = "gate"
        if path == "direct":
            self._wire_of.pop(name, None)
            return None
        if (name, path) not in self._wires:
            self._wires[name, path] = self.place.open_wire(name, path)
        self._wire_of[name] = self._wires[name, path]
        return self._wire_of[name]

    def is_cut_off(self, flight: InFlight) -> bool:
        """Its path withholds what is sent, and no backend of its is at work on what had passed before."""
        wire = flight.wire
        if wire is None or not wire.withholds:
            return False
        sessions = self._watch.sessions(flight.name)
        if not all(session.waits_for_its_client for session in sessions):
            return False
        if wire.withholds is Withholds.REPLIES:
            return _last_query_us(sessions) != wire.last_query_us
        # With a barrier ahead it may still be on its way there, and an engine cannot tell.
        return not flight.holds

    # -- faults -------------------------------------------------------------------------------------------

    def strike_server(self, fault: ServerFault, actor: str | None, *, notice: bool) -> None:
        server = self.place.server
        if fault is ServerFault.TERMINATE_BACKEND:
            self._watch.orphan(self._each_session(actor or "", server.terminate_backend), self._deadline_s)
            self._stale |= {actor or ""} if notice else set()
            return
        if fault is ServerFault.KILL_BACKEND:
            self.place.strike_server(lambda: self._first_session(actor or "", server.kill_backend))
        else:
            self.place.strike_server(getattr(server, fault.value))
        self._stale |= self.actors.keys() if notice else set()

    def strike_server_starting(self, meanwhile: Callable[[], None]) -> None:
        def strike() -> None:
            self.place.server.refuse_connections()
            self._stale |= self.actors.keys()
            try:
                meanwhile()
            finally:
                self.place.server.accept_connections()

        self.place.strike_server(strike)

    def _each_session(self, actor: str, end: Callable[[int], None]) -> list[int]:
        pids = [session.pid for session in self._sessions_to_end(actor)]
        for pid in pids:
            end(pid)
        return pids

    def _first_session(self, actor: str, end: Callable[[int], None]) -> None:
        end(self._sessions_to_end(actor)[0].pid)

    def _sessions_to_end(self, actor: str) -> tuple[SessionFacts, ...]:
        sessions = self._watch.sessions(actor)
        if not sessions:
            raise FencepostError(f"{actor} has no backend that could be ended")
        return sessions

    def strike_path(self, actor: str, strike: Callable[[], None], *, ends: bool, notice: bool) -> None:
        """`ends`: the server's side of the actor's connections ends with it."""
        wire = self._wire_of[actor]
        sessions = self._watch.sessions(actor)
        wire.last_query_us = _last_query_us(sessions)
        strike()
        if ends:
            self._watch.orphan([session.pid for session in sessions], self._deadline_s)
            if notice:
                self._stale.add(actor)

    def strike_process(self, actor: str, signal: str) -> None:
        sessions = self._watch.sessions(actor)
        getattr(self.actors[actor], signal)()
        self._stopped = self._stopped | {actor} if signal == "stop" else self._stopped - {actor}
        if signal == "kill":
            self.place.let_go_of_gate()  # it hears that a client of it is dead, and passes it on
            self._watch.orphan([session.pid for session in sessions], self._deadline_s)
            self._stale.add(actor)

    def end_faults(self, runner: Runner) -> None:
        """Before a run is brought to its end: who is stopped goes on, what is withheld passes or is cut."""
        for name in sorted(self._stopped):
            runner.fault("cont", partial(self.strike_process, name, "cont"), None, actor=name)
        for name, wire in sorted(self._wire_of.items()):
            if wire.withholds is not None:
                self._end_withholding(runner, name, wire)

    def _end_withholding(self, runner: Runner, name: str, wire: Wire) -> None:
        ends = wire.has_lost
        runner.fault(
            "cut" if ends else "resume",
            partial(self.strike_path, name, wire.end_withholding, ends=ends, notice=True),
            None,
            actor=name,
            ends_connections_of=(name,) if ends else (),
        )

    # -- the end ------------------------------------------------------------------------------------------

    def clear(self, runner: Runner) -> None:
        """Nothing of a race reaches the next one: stuck actors are ended, paths are whole, nothing is armed."""
        self.place.let_go_of_gate()
        stuck = [flight.name for flight in runner.in_flight]
        stuck += [name for name, actor in self.actors.items() if actor.is_stopped and name not in stuck]
        if stuck:
            self._watch.end_backends(stuck)
        if runner.holds():
            self._control.open_all_barriers()
        for name in stuck:
            self.actors.pop(name).abandon()
        self._stopped = frozenset()
        self._stale |= runner.lost_connection
        for wire in self._wires.values():
            wire.clean()
        self._runner = None

    def close_wires(self) -> None:
        for wire in self._wires.values():
            wire.close()
        self._wires.clear()
        self._wire_of.clear()

    def close_all(self) -> list[str]:
        """Returns what went wrong on the way."""
        self.place.let_go_of_gate()
        failures: list[str] = []
        for name in list(self.actors):
            try:
                self._unseat(name)
            except ActorFailed as error:
                failures.append(str(error))
        return failures


def _last_query_us(sessions: Iterable[SessionFacts]) -> int | None:
    return max((session.query_start_us or 0 for session in sessions), default=None)
