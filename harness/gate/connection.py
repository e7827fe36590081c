"""One client's connection through the gate: its two sockets, what is held of it, and how it is ended."""

from __future__ import annotations

import contextlib
import errno
import math
import re
import select
import socket
import struct
import time
from collections import deque
from typing import TYPE_CHECKING, Final, Protocol

from fencepost.harness.gate import framing, rules
from fencepost.harness.gate.framing import ProtocolError, messages_in
from fencepost.harness.gate.outlet import Outlet
from fencepost.harness.gate.rules import Action, CutHow, When
from fencepost.harness.gate.statements import BEGINS_A_STATEMENT, LOST, PENDING, Conversation, Statement, Unit

if TYPE_CHECKING:
    from fencepost.harness.gate.path import GatePath

_READ_BYTES = 65_536
_WAITING_LIMIT_BYTES = 1024 * 1024
"""Of one direction: beyond it nothing more is read, so the sender waits as it would for a slow peer."""
_HELD_LIMIT_BYTES = 64 * 1024 * 1024
_CONNECT_RETRY_S = 0.002
_CONNECT_ATTEMPTS = 2500
_RESET: Final = struct.pack("ii", 1, 0)
_ENDS_A_TRANSACTION = re.compile(r"\s*(COMMIT|END)\b(?!\s+PREPARED)", re.IGNORECASE)
_NEVER_SQL = "fencepost injects an error here"
"""No SQL at all, so it fails before it does anything, and takes an open transaction with it."""
_ASYNCHRONOUS = frozenset(b"AS")  # notifications and parameter changes belong to no statement


JUST_PARK: Final[tuple[Action, ...]] = (rules.ParkBefore(),)
"""Where every statement is held and no rule speaks of this one."""


class Loop(Protocol):
    """What a connection needs of the gate that runs it."""

    def listen_to(self, sock: socket.socket, connection: GateConnection, events: int) -> None: ...
    def forget(self, sock: socket.socket) -> None: ...
    def wake_at(self, moment_s: float, connection: GateConnection) -> None: ...


class Held:
    """A statement that waits at the gate: parked for the runner, or only delayed."""

    __slots__ = ("statement", "unit", "when")

    def __init__(self, statement: Statement, when: When, unit: Unit | None) -> None:
        self.statement = statement
        self.when: When = when
        self.unit = unit


class GateConnection:
    """Everything here happens under the gate's lock, in whichever thread runs its loop or calls a path."""

    def __init__(self, loop: Loop, path: GatePath, client: socket.socket) -> None:
        self._loop = loop
        self._path = path
        self._client: socket.socket | None = client
        self._server: socket.socket | None = None
        self._connecting = False
        self._connect_attempts = 0
        self._retry_connect = False
        self._conversation = Conversation()
        self._to_server = Outlet()
        self._to_client = Outlet()
        self._to_client.socket = client
        self._unsent: list[bytes] = []
        self._client_ended = False
        self._server_knows_end = False
        self._server_ended = False
        self._client_knows_end = False
        self._reset_client_at_end = False
        self._is_closing = False
        self._tick_at = math.inf
        self._held: Held | None = None
        self._delayed_until = 0.0
        self._before: deque[Action] = deque()
        self._after: dict[Statement, deque[Action]] = {}
        self._answer_parts: list[bytes] = []
        self._answer_bytes = 0
        self._drops_until_sync = False
        self._cuts_mid_message = False
        self._mid_message: bytes = b""
        self.is_half_open = False
        self.is_cancel = False
        self.is_open = True
        self._interest = {"client": 0, "server": 0}
        self._listens_to_both = False
        self.apply_path_settings()
        self._refresh()

    # -- what it looks like ---------------------------------------------------------------------------------

    @property
    def pid(self) -> int:
        return self._conversation.pid

    @property
    def transaction(self) -> str:
        return self._conversation.transaction

    @property
    def parked(self) -> Held | None:
        return None if self._delayed_until else self._held

    @property
    def asks_server(self) -> bool:
        return not self._conversation.expects_nothing

    @property
    def statement(self) -> Statement | None:
        """The one it carries: held, or on its way."""
        return self._held.statement if self._held is not None else self._conversation.answering

    @property
    def state(self) -> str:
        if self.is_half_open:
            return "half open"
        if self._held is not None:
            return "delayed" if self._delayed_until else f"parked {self._held.when}"
        if self.is_cancel:
            return "cancel request"
        if self.transaction == "?":
            return "starting"
        return "idle" if self._conversation.answering is None else "busy"

    @property
    def holds_bytes(self) -> bool:
        return self._to_server.holds or self._to_client.holds

    # -- what the loop calls --------------------------------------------------------------------------------

    def handle(self, sock_fd: int, events: int) -> None:
        if self._client is not None and sock_fd == self._client.fileno():
            if events & select.EPOLLOUT:
                self._to_client.flush()
            if events & ~select.EPOLLOUT:
                self._read_client()
        elif self._server is not None and sock_fd == self._server.fileno():
            if self._connecting:
                self._connected(self._server.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR))
            else:
                if events & select.EPOLLOUT:
                    self._to_server.flush()
                if events & ~select.EPOLLOUT:
                    self._read_server()
        self._refresh()

    def tick(self) -> None:
        """A moment it asked for has come."""
        if not self.is_open:
            return
        self._tick_at = math.inf
        if self._retry_connect:
            self._retry_connect = False
            self._open_upstream()
        if self._delayed_until:
            if time.monotonic() >= self._delayed_until:
                self._delayed_until = 0.0
                self._go_on_before()
            else:
                self._wake_at(self._delayed_until)
        self._to_client.flush()
        self._to_server.flush()
        self._refresh()

    def apply_path_settings(self) -> None:
        self._to_server.paused = self._path.paused_to_server
        self._to_client.paused = self._path.paused_to_client
        for outlet in (self._to_server, self._to_client):
            outlet.delay_s = self._path.delay_s
            if not outlet.delay_s:
                outlet.hurry()
        self._to_client.swallows = self._path.swallows_replies
        self._to_server.swallows = self._path.swallows_requests
        self._cuts_mid_message = self._path.cuts_mid_message
        if self._mid_message and not self._cuts_mid_message:
            self._to_client.write(self._mid_message)
            self._mid_message = b""

    def settings_changed(self) -> None:
        self.apply_path_settings()
        self._to_server.flush()
        self._to_client.flush()
        self._refresh()

    # -- from the client ------------------------------------------------------------------------------------

    def _read_client(self) -> None:
        assert self._client is not None
        try:
            data = self._client.recv(_READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
            self._to_client.break_off()
        if self.is_half_open or self._is_closing:
            if not data:
                self.cut("fin")
            return
        if not data:
            self._client_ended = True
        else:
            self._conversation.feed(data)
        self._pump()

    def _pump(self) -> None:
        """Send on what the client has sent, up to the next statement that is to be held."""
        try:
            while self._held is None and self.is_open and not self._is_closing:
                if self._after and self._conversation.peek() in BEGINS_A_STATEMENT:
                    # The answer of the one before is to be held: nothing overtakes it.
                    self._flush_pipeline()
                    if self._after:
                        break
                    continue
                unit = self._conversation.next_unit()
                if unit is None:
                    break
                if self._drops_until_sync:
                    if unit.kind != framing.SYNC:
                        continue
                    self._drops_until_sync = False
                    unit.data = framing.typed(framing.SYNC, b"")
                if unit.statement is not None:
                    self._reach(unit, unit.statement)
                elif unit.kind < 0:
                    self._start(unit)
                else:
                    self._send(unit)
        except ProtocolError as problem:
            if self._unsent:
                self._send_together()
            self._refuse_protocol(problem)
            return
        if self._unsent:
            self._send_together()
        if self._client_ended and not self._server_knows_end and self._held is None and self.is_open:
            self._server_knows_end = True
            if self._server is None:
                self.cut("fin")
            else:
                self._to_server.end()

    def _send_together(self) -> None:
        """A statement and the Sync behind it in one piece: the server need not wake up twice."""
        data = self._unsent[0] if len(self._unsent) == 1 else b"".join(self._unsent)
        self._unsent.clear()
        self._to_server.write(data)

    def _flush_pipeline(self) -> None:
        if self._conversation.unflushed:
            self._unsent.append(framing.FLUSH_MESSAGE)
            self._all_finished(self._conversation.flushed())

    def _start(self, unit: Unit) -> None:
        if unit.kind in (framing.SSL_REQUEST, framing.GSS_REQUEST):
            self._to_client.write(b"N")
            return
        if unit.kind == framing.STARTUP:
            sqlstate = self._path.take_refusal()
            if sqlstate is not None:
                self._say_and_close(sqlstate)
                return
        self.is_cancel = unit.kind == framing.CANCEL_REQUEST
        self._open_upstream()
        self._to_server.write(unit.data)
        self._conversation.sent(unit)

    def _reach(self, unit: Unit, statement: Statement) -> None:
        actions = self._path.reached(statement)
        if not actions:
            self._send(unit)
            return
        if actions is JUST_PARK:
            self._flush_pipeline()
            if self._unsent:
                self._send_together()
            self._held = Held(statement, "before", unit)
            return
        self._before.extend(action for action in actions if rules.is_before(action))
        after = deque(action for action in actions if not rules.is_before(action))
        if after:
            self._after[statement] = after
        if self._before:
            self._flush_pipeline()
        if self._unsent:
            self._send_together()
        self._held = Held(statement, "before", unit)
        self._do_before()

    def _do_before(self) -> None:
        """What is to happen before the held statement is sent; it is sent when nothing of that is left."""
        held = self._held
        assert held is not None and held.unit is not None
        while self._before:
            action = self._before.popleft()
            self._path.fired(held.statement, action)
            match action:
                case rules.ParkBefore():
                    return
                case rules.Delay():
                    self._delayed_until = time.monotonic() + action.seconds
                    self._wake_at(self._delayed_until)
                    return
                case rules.LoseRequest():
                    self.lose_held_request("fin")
                    return
                case rules.Cut():
                    self.lose_held_request(action.how)
                    return
                case rules.InjectError():
                    self._inject(held.unit, held.statement, action.sqlstate)
                    return
                case _:
                    raise AssertionError(action)
        self._held = None
        self._send(held.unit)

    def _send(self, unit: Unit) -> None:
        """Goes out with what else can go now, at the end of `_pump`."""
        self._unsent.append(unit.data)
        self._all_finished(self._conversation.sent(unit))

    def _inject(self, unit: Unit, statement: Statement, sqlstate: str) -> None:
        """The server gets something that fails in the statement's place, so both sides' transactions have failed.

        A COMMIT becomes a ROLLBACK: a transaction that fails to commit is over, and not one in a failed state.
        """
        self._held = None
        if sqlstate == rules.ADMIN_SHUTDOWN:
            statement.fate = f"injected {sqlstate}"
            statement.answer = f"error {sqlstate}"
            self._say_and_close(sqlstate)
            return
        ends = _ENDS_A_TRANSACTION.match(statement.sql) is not None
        sql = "ROLLBACK" if ends else _NEVER_SQL
        if statement.is_query:
            unit.data = framing.query(sql)
        else:
            unit.data = framing.parse(sql) + framing.BIND_UNNAMED + framing.EXECUTE_UNNAMED
        self._after.setdefault(statement, deque()).appendleft(rules.InjectError(sqlstate))
        self._send(unit)

    # -- from the server ------------------------------------------------------------------------------------

    def _open_upstream(self) -> None:
        family, address = self._path.upstream.socket_address
        if self._server is None:
            self._server = socket.socket(family, socket.SOCK_STREAM)
            self._server.setblocking(False)
            if family == socket.AF_INET:
                self._server.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._connect_attempts += 1
        result = self._server.connect_ex(address)
        if result == errno.EINPROGRESS:
            self._connecting = True
        elif result == errno.EAGAIN and self._connect_attempts < _CONNECT_ATTEMPTS:
            # A unix socket whose queue of new connections is full says so instead of waiting.
            self._retry_connect = True
            self._wake_at(time.monotonic() + _CONNECT_RETRY_S)
        else:
            self._connected(result)

    def _connected(self, error: int) -> None:
        self._connecting = False
        if error:
            self._path.note_problem(
                f"{self._path.actor}'s connection could not reach the server: {errno.errorcode.get(error, error)}"
            )
            self.cut("rst")
            return
        self._to_server.socket = self._server
        self._to_server.flush()

    def _read_server(self) -> None:
        assert self._server is not None
        try:
            data = self._server.recv(_READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
            self._reset_client_at_end = True
        if not data:
            self._end_of_server()
            return
        if self.is_cancel:
            self._to_client.write(data)
            return
        try:
            ready, marks = self._conversation.feed_answer(data)
            if self._cuts_mid_message:
                self._cut_mid_message(data)
                return
            if self._held is not None and marks and self._conversation.expects_nothing:
                # Unasked: that the connection ends. Who is parked does not hear of it before he is let go.
                for kind, body, _ in marks:
                    self._conversation.answer(kind, body)
                self._pass_on(ready, True)
                return
            if not self._after:
                for kind, body, _ in marks:
                    done = self._conversation.answer(kind, body)
                    if done:
                        self._all_finished(done)
                self._to_client.write(ready)
                return
            at = 0
            for kind, body, end in marks:
                holds = self._holds_answer()
                if holds and kind in (framing.COPY_IN, framing.COPY_BOTH):
                    # Not the answer yet: the server asks for data, and the client must hear of that to send it.
                    self._to_client.write(self._take_answer())
                    holds = False
                done = self._conversation.answer(kind, body)
                self._pass_on(ready[at:end], holds)
                at = end
                self._all_finished(done)
                if not self.is_open:
                    return
            self._pass_on(ready[at:], self._holds_answer())
        except ProtocolError as problem:
            self._refuse_protocol(problem)
        if not self._after:
            self._pump()  # what came behind the statement whose answer was held

    def _holds_answer(self) -> bool:
        if self._held is not None and self._held.when == "after":
            return True
        answering = self._conversation.answering
        return answering is not None and answering in self._after

    def _pass_on(self, data: bytes, holds: bool) -> None:
        if not holds:
            self._to_client.write(data)
        elif data:
            self._answer_parts.append(data)
            self._answer_bytes += len(data)
            if self._answer_bytes > _HELD_LIMIT_BYTES:
                raise ProtocolError(f"an answer that was to be held is longer than {_HELD_LIMIT_BYTES} bytes")

    def _all_finished(self, done: list[Statement]) -> None:
        for statement in done:
            if statement in self._after:
                self._do_after(statement)
                if not self.is_open:
                    return
            else:
                statement.fate = "connection ended" if self._to_client.broken else "delivered"

    def _do_after(self, statement: Statement) -> None:
        """What is to happen now that the whole answer is here; it goes on when nothing of that is left."""
        self._held = None
        actions = self._after[statement]
        while actions:
            action = actions.popleft()
            self._path.fired(statement, action)
            match action:
                case rules.ParkAfter():
                    self._held = Held(statement, "after", None)
                    return
                case rules.LoseReply():
                    self._lose_reply(statement, "fin")
                    return
                case rules.Cut():
                    self._lose_reply(statement, action.how)
                    return
                case rules.CutMidReply():
                    self._cut_mid_reply(statement)
                    return
                case rules.InjectError():
                    self._replace_answer(statement, action.sqlstate)
                case _:
                    raise AssertionError(action)
        del self._after[statement]
        if statement.fate == "sent":
            statement.fate = "delivered"
        self._to_client.write(self._take_answer())

    def _take_answer(self) -> bytes:
        answer = b"".join(self._answer_parts)
        self._answer_parts.clear()
        self._answer_bytes = 0
        return answer

    def _replace_answer(self, statement: Statement, sqlstate: str) -> None:
        statement.fate = f"injected {sqlstate}"
        server_failed = statement.answer.startswith("error")
        statement.answer = f"error {sqlstate}"
        error = framing.error_response("ERROR", sqlstate, rules.message_of(sqlstate))
        ready = b""
        kept: list[bytes] = []
        for kind, message in messages_in(self._take_answer()):
            if kind == framing.READY:
                ready = message
            elif kind in _ASYNCHRONOUS:
                kept.append(message)
        if not ready and not server_failed:
            # The client passes over everything up to its Sync now; the server, which did not fail, must not see it.
            self._drops_until_sync = True
        self._pass_on(b"".join((*kept, error, ready)), True)

    def _end_of_server(self) -> None:
        self._server_ended = True
        self._to_server.break_off()
        self._finish_if_over()

    def _finish_if_over(self) -> None:
        """Once the server is gone the client hears of it, but nobody who is parked is let go by that."""
        if not self._server_ended or self._client_knows_end or self._held is not None:
            return
        if not self.is_open or self.is_half_open or self._is_closing:
            return
        self._client_knows_end = True
        if self._answer_parts:
            self._to_client.write(self._take_answer())
        self._lose_all("connection ended")
        self._to_client.end()

    # -- how it ends ----------------------------------------------------------------------------------------

    def release(self) -> None:
        """Let what is parked here go on."""
        held = self._held
        assert held is not None
        if held.when == "before":
            self._go_on_before()
        else:
            self._do_after(held.statement)
            if self.is_open:
                self._pump()
            self._finish_if_over()
        self._refresh()

    def release_and_lose_reply(self) -> None:
        """Decided only now that it is parked: as if the rule had been armed for it."""
        assert self._held is not None
        self._after.setdefault(self._held.statement, deque()).append(rules.LoseReply())
        self.release()

    def _go_on_before(self) -> None:
        try:
            self._do_before()
        except ProtocolError as problem:
            self._refuse_protocol(problem)
        if self.is_open:
            if self._answer_parts and self._held is None and not self._after:
                self._to_client.write(self._take_answer())
            self._pump()
        self._finish_if_over()

    def lose_held_request(self, how: CutHow) -> None:
        assert self._held is not None
        self._held.statement.fate = "request lost"
        self._held.statement.answer = LOST
        self.cut(how)

    def lose_held_reply(self, how: CutHow) -> None:
        assert self._held is not None
        self._lose_reply(self._held.statement, how)

    def _lose_reply(self, statement: Statement, how: CutHow) -> None:
        statement.fate = "reply lost"
        self.cut(how)

    def _cut_mid_reply(self, statement: Statement) -> None:
        statement.fate = "reply lost"
        answer = self._take_answer()
        first = next((message for _, message in messages_in(answer)), answer)
        self._to_client.write(first[: max(1, len(first) // 2)])
        self.cut("fin", keeps_what_was_sent=True)

    def _cut_mid_message(self, data: bytes) -> None:
        self._mid_message += data
        if len(self._mid_message) < 5:
            return
        size = struct.unpack_from(">I", self._mid_message, 1)[0] + 1
        self._to_client.write(self._mid_message[: max(1, min(len(self._mid_message), size // 2))])
        self.cut("fin", keeps_what_was_sent=True)

    def half_open(self) -> None:
        """The server's side is gone and the client is not told: it can write, and nothing ever comes."""
        self.is_half_open = True
        self._lose_all("connection ended")
        self._held = None
        self._after.clear()
        self._take_answer()
        self._close_server()
        self._to_server.break_off()
        self._to_client.swallows = True
        self._refresh()

    def cut(self, how: CutHow, *, keeps_what_was_sent: bool = False) -> None:
        """End both sides now. On a unix socket there is no reset: the client sees the end of the stream."""
        if not self.is_open:
            return
        self._lose_all("connection ended")
        self._close_server()
        if keeps_what_was_sent and self._to_client.waiting:
            self._is_closing = True
            self._to_client.end()
        else:
            self._close_client(how)
        self._refresh()

    def _lose_all(self, fate: str) -> None:
        statements = self._conversation.unanswered + list(self._after)
        if self._held is not None:
            statements.append(self._held.statement)
        for statement in statements:
            if statement.answer == PENDING:
                statement.answer = LOST
            if statement.fate in ("sent", "at the gate"):
                statement.fate = fate

    def _say_and_close(self, sqlstate: str) -> None:
        self._lose_all("connection ended")
        self._to_client.write(framing.error_response("FATAL", sqlstate, rules.message_of(sqlstate)))
        self._close_with_what_was_said()

    def _refuse_protocol(self, problem: ProtocolError) -> None:
        self._path.note_problem(f"{self._path.actor}'s connection: {problem}")
        self._lose_all("connection ended")
        self._held = None
        self._to_client.write(framing.error_response("FATAL", "08P01", str(problem)))
        self._close_with_what_was_said()

    def _close_with_what_was_said(self) -> None:
        self._is_closing = True
        self._after.clear()
        self._close_server()
        self._to_client.end()

    def _close_server(self) -> None:
        if self._server is not None:
            self._loop.forget(self._server)
            self._server.close()
            self._server = None
            self._listens_to_both = False
        self._to_server.break_off()
        self._connecting = False
        self._retry_connect = False

    def _close_client(self, how: CutHow) -> None:
        if self._client is not None:
            self._loop.forget(self._client)
            if how == "rst":
                self._client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            else:
                # Unread bytes would turn the end of the stream into a reset.
                with contextlib.suppress(OSError):
                    while self._client.recv(_READ_BYTES):
                        pass
            self._client.close()
            self._client = None
        self._to_client.break_off()
        self._held = None
        self._after.clear()
        self.is_open = False
        self._path.closed(self)

    def _refresh(self) -> None:
        """Close what has reached its end, and tell the loop what is waited for."""
        if (
            self._listens_to_both
            and self._to_client.is_idle
            and self._to_server.is_idle
            and not self._client_ended
            and not self._server_ended
            and self.is_open
            and self._conversation.buffered < _WAITING_LIMIT_BYTES
        ):
            return  # as most of the time: nothing waits, and both sides are heard
        if self._to_client.ended and self.is_open:
            self._close_server()
            self._close_client("rst" if self._reset_client_at_end else "fin")
            return
        if not self.is_open:
            return
        if self._to_server.ended:
            self._to_server.ended = False
            if self._server is not None:
                with contextlib.suppress(OSError):
                    self._server.shutdown(socket.SHUT_WR)
        self._listen()
        for outlet in (self._to_client, self._to_server):
            if outlet.due:
                self._wake_at(outlet.due)

    def _wake_at(self, moment_s: float) -> None:
        if moment_s < self._tick_at:
            self._tick_at = moment_s
            self._loop.wake_at(moment_s, self)

    def _listen(self) -> None:
        if self._client is not None:
            reads = (
                not self._client_ended
                # A message that must be whole may be longer; its framer has a limit of its own.
                and (self._conversation.buffered < _WAITING_LIMIT_BYTES or not (self._held or self._after))
                and self._to_server.waiting < _WAITING_LIMIT_BYTES
            )
            events = (select.EPOLLIN if reads else 0) | (select.EPOLLOUT if self._to_client.is_full else 0)
            self._want("client", self._client, events)
        if self._server is not None and not self._retry_connect:
            if self._connecting:
                events = select.EPOLLOUT
            else:
                reads = not self._server_ended and self._to_client.waiting < _WAITING_LIMIT_BYTES
                events = (select.EPOLLIN if reads else 0) | (
                    select.EPOLLOUT if self._to_server.is_full else 0
                )
            self._want("server", self._server, events)
        self._listens_to_both = (
            self._server is not None
            and not self._connecting
            and self._interest == {"client": select.EPOLLIN, "server": select.EPOLLIN}
        )

    def _want(self, side: str, sock: socket.socket, events: int) -> None:
        if self._interest[side] != events:
            self._interest[side] = events
            self._loop.listen_to(sock, self, events)
