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
from fencepost.harness.explore.catalog import Catalog, Drawn, read_catalog
from fencepost.harness.explore.statement_memory import StatementMemory
from fencepost.harness.gate.drive import GateDrive
from fencepost.harness.gate.path import GatePath
from fencepost.harness.gate.proxy import Gate, Upstream
from fencepost.harness.history import Call, CallStatus
from fencepost.harness.lab import Lab
from fencepost.harness.loading import load_queue
from fencepost.harness.pinning import pinned
from fencepost.harness.settling import has_cycle
from fencepost.harness.watch import actor_application_name

PRODUCER = "P"
FIRST_LOOK_S = 0.0003
"""A statement that waits for nobody is mostly answered by then; one that is not may be blocked: the server is asked."""
LONGEST_LOOK_S = 0.004
"""Each further look comes later: a statement that takes long should not have to share its core with questions."""


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
            self.memory = StatementMemory(self.catalog)
            self._actors: dict[str, Seated] = {}
            self._unheard: set[int] = set()
            self._paths: dict[str, GatePath] = {}
            self._loaded = loaded
            self._dsn = dsn
            self._restarts = lab.restarts
            self._bystanders: dict[str, ActorBody] = {}
            self._restart_sequences = restart_of(self.catalog.drawn)
            self._resetting: psycopg.Connection[tuple[str]] | None = None
            self._stack.callback(self._close_resetting)
            self._restarted: frozenset[str] = frozenset()
            self.unsteady = self.catalog.unsteady(frozenset())
            self._stack.callback(self._close_bystanders)
        except BaseException:
            self._stack.close()
            raise

    @property
    def lab(self) -> Lab:
        return self._lab

    def _read_catalog(self, dsn: str) -> Catalog:
        with psycopg.connect(dsn, autocommit=True) as connection:
            return read_catalog(connection)

    def reset(self) -> None:
        """As after install. Numbers are drawn from the start again, so that a row has the same key in every run of
        one order; where a table kept rows they go on, or they would meet."""
        self.bench.reset()
        if not self._restart_sequences:
            return
        self._notice_restarts()
        if self._resetting is None:
            self._resetting = psycopg.connect(self._dsn, autocommit=True)
        found = self._resetting.execute(self._restart_sequences.encode(), prepare=True).fetchall()
        restarted = frozenset(sequence for (sequence,) in found)
        if restarted != self._restarted:
            self._restarted = restarted
            self.unsteady = self.catalog.unsteady(restarted)

    def _close_resetting(self) -> None:
        if self._resetting is not None:
            self._resetting.close()
            self._resetting = None

    # -- bystanders -------------------------------------------------------------------------------------------

    @property
    def producer(self) -> ActorBody:
        return self.bystander(PRODUCER)

    def bystander(self, name: str) -> ActorBody:
        """Who is no part of the race: enqueues before it, settles what is left after it. Not behind the gate."""
        self._notice_restarts()
        if name not in self._bystanders:
            self._bystanders[name] = ActorBody(
                self._loaded.queue, self._seat(name, self._dsn), lambda _: None
            )
        return self._bystanders[name]

    def _close_bystanders(self) -> None:
        while self._bystanders:
            _, body = self._bystanders.popitem()
            with contextlib.suppress(psycopg.Error):  # its server may have crashed
                body.close()

    # -- seating ----------------------------------------------------------------------------------------------

    def seat(self, name: str) -> Seated:
        """The actor of this name: warm, unless a connection of it was ended."""
        self._notice_restarts()
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
        self._drive.watch(seated.actor.answer_fd)
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
        self._stop_hearing(seated)
        with contextlib.suppress(ActorFailed):  # closing over an ended connection may fail as its queue likes
            seated.actor.close()

    # -- waiting ----------------------------------------------------------------------------------------------

    def settle(self, flights: Sequence[Flight]) -> None:
        """Returns when each has answered, is parked before a statement, or waits for a lock."""
        if self._unheard:
            self._hear_again(flights)
        moving = list(flights)
        deadline = time.monotonic() + self.bench.deadline_s
        wait_s = look_s = FIRST_LOOK_S
        while moving:
            quiet = not self._drive.turn(wait_s)
            moving = [flight for flight in moving if not self._arrived(flight)]
            if not moving:
                return
            if quiet:
                if look_s < LONGEST_LOOK_S and not self._somebody_else_is_in_a_transaction(moving):
                    wait_s = look_s = LONGEST_LOOK_S
                    continue
                if self._all_blocked(moving):
                    return
                look_s = min(2 * look_s, LONGEST_LOOK_S)
            else:
                self._stop_hearing_who_rests(moving)
            # Who is not asking the server anything cannot be blocked there.
            wait_s = look_s if any(f.seated.path.asks_server for f in moving) else LONGEST_LOOK_S
            if time.monotonic() > deadline:
                awaited = ", ".join(f"{f.call.actor} in {f.call.operation}" for f in moving)
                raise StepDeadline(
                    f"waited {self.bench.deadline_s:g} s for {awaited}; the server: {self.bench.watch.describe()}; "
                    f"the gate: {self._gate.told()}"
                )

    def _stop_hearing_who_rests(self, moving: Sequence[Flight]) -> None:
        """What one who rests has to say is not read now: nothing would ever be quiet."""
        for fd in self._drive.readable - {flight.seated.actor.answer_fd for flight in moving}:
            self._drive.unwatch(fd)
            self._unheard.add(fd)

    def _hear_again(self, flights: Sequence[Flight]) -> None:
        for fd in self._unheard & {flight.seated.actor.answer_fd for flight in flights}:
            self._drive.watch(fd)
            self._unheard.remove(fd)

    def _stop_hearing(self, seated: Seated) -> None:
        self._unheard.discard(seated.actor.answer_fd)
        self._drive.unwatch(seated.actor.answer_fd)

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

    def _somebody_else_is_in_a_transaction(self, moving: Sequence[Flight]) -> bool:
        """If not, a lock that is waited for is one of a whole session, which is rare: the server is asked later."""
        alone = moving[0].seated if len(moving) == 1 else None
        return self.bench.watch.has_orphans or any(
            seated is not alone and view.transaction != "I"
            for seated in self._actors.values()
            for view in seated.path.connections
        )

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

    def crash_server(self) -> None:
        """It crashes and recovers. Who is parked stays so, and finds his connection dead when he goes on."""
        self._drive.let_go()
        self.bench.place.strike_server(self.bench.place.server.crash)
        self._notice_restarts()

    def _notice_restarts(self) -> None:
        """The server may have been restarted for another queue, or by a run of the runner."""
        if self._restarts == self._lab.restarts:
            return
        self._restarts = self._lab.restarts
        self._close_bystanders()
        self._close_resetting()
        for seated in self._actors.values():
            seated.stale = True

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
            self._stop_hearing(seated)
            seated.path.reset()
            seated.actor.abandon()

    def _close_actors(self) -> None:
        self._drive.let_go()
        for name in list(self._actors):
            self._unseat(name)

    def close(self) -> None:
        self._drive.let_go()
        self._stack.close()

    def put_away(self) -> None:
        """Close it with its bench, so that many queues in one process do not pile up sessions."""
        self.close()
        self._lab.put_away(self._loaded)


def restart_of(drawn: Sequence[Drawn]) -> str:
    """A statement that restarts each sequence of which no table holds a number, and names those."""
    tables: dict[str, set[str]] = {}
    for each in drawn:
        tables.setdefault(each.sequence, set()).add(_quoted(each.table))
    starts = {each.sequence: each.start for each in drawn}
    return " UNION ALL ".join(
        f"SELECT '{literal}' FROM setval('{literal}', {starts[sequence]}, false) WHERE "
        + " AND ".join(f"NOT EXISTS (SELECT FROM {table})" for table in sorted(tables[sequence]))
        for sequence in sorted(tables)
        for literal in [sequence.replace("'", "''")]
    )


def _quoted(table: str) -> str:
    return ".".join('"' + part.replace('"', '""') + '"' for part in table.split(".", 1))
