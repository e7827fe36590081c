"""One actor's way through the gate: its operations, what is armed at their statements, and its faults."""

from __future__ import annotations

import socket
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from psycopg.conninfo import conninfo_to_dict, make_conninfo

from fencepost.harness.errors import FencepostError, UsageError
from fencepost.harness.gate import rules
from fencepost.harness.gate.connection import JUST_PARK, GateConnection, Held
from fencepost.harness.gate.rules import Action, CutHow, ParkBefore, Rule, SqlPattern, When
from fencepost.harness.gate.statements import Statement, StatementRecord

if TYPE_CHECKING:
    from fencepost.harness.gate.proxy import Gate, Upstream

_MAX_RECORDS = 10_000
_MAX_PROBLEMS = 100
NO_ACTIONS: Sequence[Action] = ()


@dataclass(frozen=True, slots=True)
class ParkedStatement:
    """A statement that waits at the gate for the runner, as it stood when it was asked for."""

    ordinal: int
    sql: str
    parameters: tuple[str | None, ...]
    when: When
    answer: str
    """Of the server, where it waits after; "pending" where it waits before."""
    pid: int
    operation: str


@dataclass(frozen=True, slots=True)
class ConnectionView:
    """One open connection as it stood when it was asked for."""

    pid: int
    """Of the backend; 0 until the server has told."""
    state: str
    """starting, idle, busy, parked before, parked after, delayed, half open, cancel request"""
    transaction: str
    """I, T or E as of the last answer; ? before the first."""
    statement: str | None
    """The SQL it carries."""


class Operation:
    """What is armed for one operation, and the statements that have come in it."""

    def __init__(
        self, name: str, armed: Sequence[Rule], step_every_statement: bool, first_step: int = 1
    ) -> None:
        self.name = name
        self.rules = tuple(armed)
        self.steps = step_every_statement
        self.first_step = first_step
        self.count = 0
        self.statements: deque[Statement] = deque(maxlen=_MAX_RECORDS)
        self.fired: set[int] = set()
        self._seen = [0] * len(self.rules)
        self._matched: dict[Statement, list[int]] = {}

    def reach(self, statement: Statement) -> Sequence[Action]:
        """Count the statement and say what is to happen to it, in order."""
        self.count += 1
        statement.ordinal = self.count
        statement.operation = self.name
        self.statements.append(statement)
        steps = self.steps and self.count >= self.first_step
        if not self.rules:
            return JUST_PARK if steps else NO_ACTIONS
        actions: list[Action] = [ParkBefore()] if steps else []
        for number, rule in enumerate(self.rules):
            if self._applies(number, rule, statement):
                self._matched.setdefault(statement, []).append(number)
                if rule.action not in actions:
                    actions.append(rule.action)
        return actions

    def _applies(self, number: int, rule: Rule, statement: Statement) -> bool:
        if not isinstance(rule.address, SqlPattern):
            return rule.address.ordinal == self.count
        if not rule.address.found_in(statement.sql):
            return False
        self._seen[number] += 1
        return self._seen[number] == rule.address.nth

    def fire(self, statement: Statement, action: Action) -> None:
        for number in self._matched.get(statement, ()):
            if self.rules[number].action == action:
                self.fired.add(number)

    def chosen(self, *, fired: bool) -> tuple[Rule, ...]:
        return tuple(rule for number, rule in enumerate(self.rules) if (number in self.fired) == fired)


class GatePath:
    """Where an actor connects to instead of the server. Every method may be called from any thread."""

    def __init__(
        self, gate: Gate, actor: str, upstream: Upstream, listener: socket.socket, directory: Path | None
    ) -> None:
        self.actor = actor
        self.upstream = upstream
        self.directory = directory
        """Of the unix socket; None where it listens on TCP."""
        self.host: str = str(directory) if directory is not None else listener.getsockname()[0]
        self.port: int = upstream.port if directory is not None else listener.getsockname()[1]
        self.paused_to_server = False
        self.paused_to_client = False
        self.delay_s = 0.0
        self.swallows_replies = False
        self.swallows_requests = False
        self.cuts_mid_message = False
        self._gate = gate
        self._lock = gate.lock
        self._listener = listener
        self._connections: list[GateConnection] = []
        self._operation = Operation("", (), False)
        self._refusals: list[tuple[str, int]] = []
        self._problems: deque[str] = deque(maxlen=_MAX_PROBLEMS)

    def conninfo(self, dsn: str) -> str:
        """This connection string, with the way to the server exchanged for this path."""
        given = {key: value for key, value in conninfo_to_dict(dsn).items() if key != "hostaddr"}
        return make_conninfo("", **{**given, "host": self.host, "port": self.port})

    # -- operations -----------------------------------------------------------------------------------------

    def begin_operation(
        self,
        name: str,
        rules: Sequence[Rule] = (),
        step_every_statement: bool = False,
        first_step: int = 1,
    ) -> None:
        """Statements are counted from 1 again, and these rules apply until the operation ends.

        `first_step`: the first statement that is held where every statement is.
        """
        with self._lock:
            self._gate.check()
            self._operation = Operation(name, rules, step_every_statement, first_step)

    def end_operation(self) -> tuple[StatementRecord, ...]:
        """Nothing is armed any more. What is parked stays parked until it is released, lost or cut."""
        with self._lock:
            self._gate.check()
            ended = self.statements
            self._operation = Operation("", (), False)
            return ended

    @property
    def statements(self) -> tuple[StatementRecord, ...]:
        """Those of the operation that have come so far; outside of one, those since the last ended."""
        with self._lock:
            return tuple(statement.record() for statement in self._operation.statements)

    def statements_after(self, ordinal: int) -> list[Statement]:
        """Those of the operation after this one: themselves, for who runs the gate's loop and sees them stand still."""
        with self._lock:
            return [statement for statement in self._operation.statements if statement.ordinal > ordinal]

    @property
    def statement_count(self) -> int:
        return self._operation.count

    @property
    def rules_fired(self) -> tuple[Rule, ...]:
        with self._lock:
            return self._operation.chosen(fired=True)

    @property
    def unfired(self) -> tuple[Rule, ...]:
        """Rules of this operation whose moment has not come."""
        with self._lock:
            return self._operation.chosen(fired=False)

    # -- what is held ---------------------------------------------------------------------------------------

    @property
    def parked(self) -> ParkedStatement | None:
        """What waits here; of several connections the statement that came first."""
        with self._lock:
            self._gate.check()
            found = self._parked_connection()
            return None if found is None else _view(found[1])

    @property
    def is_parked(self) -> bool:
        """Whether anything waits here; cheaper than looking at it."""
        for each in self._connections:  # noqa: SIM110 - asked at every turn, and any() is slower
            if each.parked is not None:
                return True
        return False

    @property
    def asks_server(self) -> bool:
        """Whether the server owes an answer on any connection of this path."""
        return any(each.asks_server for each in self._connections)

    @property
    def all_parked(self) -> tuple[ParkedStatement, ...]:
        with self._lock:
            held = [each.parked for each in self._connections]
            return tuple(_view(each) for each in sorted(filter(None, held), key=_ordinal))

    def release(self) -> None:
        """Let it go on: to the server, or its answer to the client."""
        with self._lock:
            self._required_parked(None)[0].release()

    def lose_parked_request(self, how: CutHow = "fin") -> None:
        with self._lock:
            self._required_parked("before")[0].lose_held_request(how)

    def release_and_lose_reply(self) -> None:
        """Let a statement that is parked before go to the server, and end the connection when it is answered."""
        with self._lock:
            self._required_parked("before")[0].release_and_lose_reply()

    def lose_parked_reply(self, how: CutHow = "fin") -> None:
        with self._lock:
            self._required_parked("after")[0].lose_held_reply(how)

    @property
    def holding(self) -> bool:
        """Whether a pause keeps bytes from going on."""
        with self._lock:
            return any(each.holds_bytes for each in self._connections)

    @property
    def connections(self) -> tuple[ConnectionView, ...]:
        with self._lock:
            return tuple(
                ConnectionView(
                    each.pid, each.state, each.transaction, each.statement.sql if each.statement else None
                )
                for each in self._connections
            )

    @property
    def problems(self) -> tuple[str, ...]:
        """Why connections were ended that nobody asked to end: bytes that are no protocol, a server not reached."""
        with self._lock:
            return tuple(self._problems)

    # -- faults of the whole path ---------------------------------------------------------------------------

    def cut(self, how: CutHow = "fin") -> None:
        """End all its connections now, on both sides. On unix sockets a reset is an ordinary end."""
        if how not in ("fin", "rst"):
            raise UsageError(f"cut by '{how}': give fin or rst.")
        with self._lock:
            self._gate.check()
            for connection in list(self._connections):
                connection.cut(how)

    def pause(self, direction: Literal["both", "to_server", "to_client"] = "both") -> None:
        """Nothing goes on in this direction until `resume`; nothing is lost. New connections are paused as well."""
        if direction not in ("both", "to_server", "to_client"):
            raise UsageError(f"pause {direction}: give both, to_server or to_client.")
        with self._lock:
            self.paused_to_server = self.paused_to_server or direction != "to_client"
            self.paused_to_client = self.paused_to_client or direction != "to_server"
            self._settings_changed()

    def resume(self) -> None:
        with self._lock:
            self.paused_to_server = self.paused_to_client = False
            self._settings_changed()

    def swallow_replies(self, swallows: bool) -> None:
        """The server is heard and the client is not told; the connection stays open."""
        with self._lock:
            self.swallows_replies = swallows
            self._settings_changed()

    def swallow_requests(self, swallows: bool) -> None:
        """The client is heard and the server is not told; the connection stays open."""
        with self._lock:
            self.swallows_requests = swallows
            self._settings_changed()

    def delay(self, seconds: float) -> None:
        """Everything takes this much longer, each way, in real time. 0 ends it, and lets go at once what waits."""
        if not 0 <= seconds <= rules.MAX_DELAY_S:
            raise UsageError(f"delay {seconds:g} s: give 0 to {rules.MAX_DELAY_S:g} seconds.")
        with self._lock:
            self.delay_s = seconds
            self._settings_changed()

    def half_open(self) -> None:
        """The server's side of every open connection is gone and the clients are not told. New ones are whole."""
        with self._lock:
            self._gate.check()
            for connection in list(self._connections):
                connection.half_open()

    def close_half_open(self) -> None:
        with self._lock:
            for connection in [each for each in self._connections if each.is_half_open]:
                connection.cut("fin")

    def cut_mid_message(self, cuts: bool = True) -> None:
        """Of the next message a server sends, on each connection, the client gets half, and then the end.

        Connections opened meanwhile are cut so as well, until it is ended by False.
        """
        with self._lock:
            self.cuts_mid_message = cuts
            self._settings_changed()

    def refuse_connections(self, sqlstate: str = rules.TOO_MANY_CONNECTIONS, count: int = 1) -> None:
        """The next `count` connections are answered with this error instead of reaching the server; 0 ends that."""
        rules.check_sqlstate(sqlstate)
        if count < 0:
            raise UsageError(f"refuse {count} connections: give 0 or more.")
        with self._lock:
            self._refusals = [(sqlstate, count)] if count else []

    def reset(self) -> None:
        """As new: nothing armed, paused, delayed or refused; parked statements go on, half-open connections end."""
        with self._lock:
            self._gate.check()
            self._operation = Operation("", (), False)
            self._refusals = []
            self.paused_to_server = self.paused_to_client = False
            self.swallows_replies = self.swallows_requests = self.cuts_mid_message = False
            self.delay_s = 0.0
            self._settings_changed()
            self.close_half_open()
            while (found := self._parked_connection()) is not None:
                found[0].release()

    def close(self) -> None:
        """End its connections and stop listening. Closing twice does nothing the second time."""
        with self._lock:
            for connection in list(self._connections):
                connection.cut("fin")
            self._gate.forget_path(self)
            self._listener.close()
            if self.directory is not None and self.directory.exists():
                for file in self.directory.iterdir():
                    file.unlink()
                self.directory.rmdir()

    # -- what connections say and ask; the gate's lock is held ----------------------------------------------

    @property
    def listener(self) -> socket.socket:
        return self._listener

    def opened(self, connection: GateConnection) -> None:
        self._connections.append(connection)

    def closed(self, connection: GateConnection) -> None:
        if connection in self._connections:
            self._connections.remove(connection)

    def reached(self, statement: Statement) -> Sequence[Action]:
        return self._operation.reach(statement)

    def fired(self, statement: Statement, action: Action) -> None:
        self._operation.fire(statement, action)

    def take_refusal(self) -> str | None:
        if not self._refusals:
            return None
        sqlstate, count = self._refusals.pop()
        if count > 1:
            self._refusals.append((sqlstate, count - 1))
        return sqlstate

    def note_problem(self, problem: str) -> None:
        self._problems.append(problem)

    def _settings_changed(self) -> None:
        self._gate.check()
        for connection in list(self._connections):
            connection.settings_changed()

    def _parked_connection(self) -> tuple[GateConnection, Held] | None:
        first: tuple[GateConnection, Held] | None = None
        for each in self._connections:
            held = each.parked
            if held is not None and (first is None or _ordinal(held) < _ordinal(first[1])):
                first = each, held
        return first

    def _required_parked(self, when: When | None) -> tuple[GateConnection, Held]:
        self._gate.check()
        found = self._parked_connection()
        if found is None or when not in (None, found[1].when):
            place = f"parked {when} its statement" if when else "parked"
            raise FencepostError(f"{self.actor} is not {place}: {self._told()}")
        return found

    def _told(self) -> str:
        told = "; ".join(f"{each.state}: {each.statement or 'no statement'}" for each in self.connections)
        return f"its connections are {told}" if told else "it has no connection"


def _ordinal(held: Held | None) -> int:
    return held.statement.ordinal if held is not None else 0


def _view(held: Held | None) -> ParkedStatement:
    assert held is not None
    statement = held.statement
    return ParkedStatement(
        statement.ordinal,
        statement.sql,
        statement.parameters,
        held.when,
        statement.answer,
        statement.pid,
        statement.operation,
    )
