"""The conversation of one connection: which statements a client sends and what becomes of each. No I/O.

A *statement* is a simple Query or an Execute. Parse, Bind, Describe and Close that come before an Execute belong to
it, so that holding a statement holds all of it: the server has not even begun a transaction for it. Where a Sync or
Flush follows them instead, they are a round of their own that passes and is not counted: the count stays the same
when a driver begins to prepare.

When an answer is complete: a Query's at its ReadyForQuery; an Execute's too if a Sync follows it, because that is
where a transaction the client did not open commits. In a pipeline, where another statement or a Flush follows first,
it is complete at its CommandComplete. A server may keep the answers of a pipeline to itself until the Sync; who holds
a statement in the middle of one sends a Flush ahead (`flush`), so that what was sent before it is answered.
"""

from __future__ import annotations

import struct
from collections import deque
from dataclasses import dataclass
from typing import Final

from fencepost.harness.gate import framing
from fencepost.harness.gate.framing import BackendFramer, FrontendFramer, Mark, ProtocolError

PENDING: Final = "pending"
LOST: Final = "lost"
SKIPPED: Final = "skipped"

_SYNCED: Final = 1  # a ReadyForQuery will come
_FLUSHED: Final = 2
_MAX_GATHERED_BYTES = 64 * 1024 * 1024
_MAX_NAMES = 10_000
_ROUND = frozenset((framing.PARSE, framing.BIND, framing.DESCRIBE, framing.CLOSE))
BEGINS_A_STATEMENT = _ROUND | {framing.QUERY, framing.EXECUTE, framing.FUNCTION_CALL}


@dataclass(frozen=True, slots=True)
class StatementRecord:
    """One statement of an operation as it stood when it was asked for."""

    ordinal: int
    sql: str
    parameters: tuple[str | None, ...]
    """As text; those in binary format as `\\x` and hexadecimal digits."""
    answer: str
    """What the server said, once all of it has come: "SELECT 1", "error 40001", "empty", "suspended", "skipped" (after
    an error in its pipeline). "pending" before that; "lost" if the connection ended before that."""
    fate: str
    """What became of it: "at the gate", "sent", "delivered", "request lost", "reply lost", "injected 40001" or
    "connection ended"."""
    pid: int
    """Of the backend; 0 where the server has not told."""
    transaction: str
    """After it: "I" for none, "T" in one, "E" in a failed one, "?" while its pipeline goes on."""
    operation: str


class Statement:
    """A statement on its way. `ordinal` and `operation` are set when the gate reaches it."""

    __slots__ = ("answer", "bind", "fate", "is_query", "operation", "ordinal", "pid", "sql", "transaction")

    def __init__(self, sql: str, bind: bytes | None, is_query: bool, pid: int) -> None:
        self.sql = sql
        self.bind = bind
        self.is_query = is_query
        self.pid = pid
        self.ordinal = 0
        self.operation = ""
        self.answer = PENDING
        self.fate = "at the gate"
        self.transaction = "?"

    @property
    def parameters(self) -> tuple[str | None, ...]:
        return () if self.bind is None else parameters_of(self.bind)

    def record(self) -> StatementRecord:
        return StatementRecord(
            self.ordinal,
            self.sql,
            self.parameters,
            self.answer,
            self.fate,
            self.pid,
            self.transaction,
            self.operation,
        )


class Unit:
    """Bytes of the client that go on together: a whole statement, or something that is none."""

    __slots__ = ("data", "kind", "statement")

    def __init__(self, kind: int, data: bytes, statement: Statement | None = None) -> None:
        self.kind = kind
        self.data = data
        self.statement = statement


class Conversation:
    """Both directions of one connection. The shell tells it what it sent on, in the order in which it did."""

    def __init__(self) -> None:
        self.pid = 0
        self.transaction = "?"
        self._client = FrontendFramer()
        self._server = BackendFramer()
        self._gathered: list[bytes] = []
        self._gathered_bytes = 0
        self._prepared: dict[bytes, str] = {}
        self._portals: dict[bytes, tuple[str, bytes]] = {}
        self._expected: deque[Statement | int] = deque()
        self._answered: Statement | None = None  # the first expected one, once its own answer has come
        self._skips_until_sync = False
        self._copies_in = False

    # -- from the client ------------------------------------------------------------------------------------

    @property
    def buffered(self) -> int:
        """Bytes of the client that no unit has taken yet."""
        return self._client.buffered + self._gathered_bytes

    def feed(self, data: bytes) -> None:
        self._client.feed(data)

    def peek(self) -> int | None:
        """The kind of the next message; None if nothing has come."""
        return self._client.peek()

    def next_unit(self) -> Unit | None:
        """The next thing that can be sent on; None until more has come."""
        while (message := self._client.next()) is not None:
            kind, data = message
            if kind in _ROUND:
                self._gather(kind, data)
                continue
            statement = None
            if kind == framing.EXECUTE:
                sql, bind = self._portals.get(_text(data, 5)[0], ("", b""))
                statement = Statement(sql, bind or None, False, self.pid)
            elif kind == framing.QUERY:
                statement = Statement(_text(data, 5)[0].decode(errors="replace"), None, True, self.pid)
            if self._gathered:
                self._gathered.append(data)
                data = b"".join(self._gathered)
                self._gathered.clear()
                self._gathered_bytes = 0
            return Unit(kind, data, statement)
        return None

    def _gather(self, kind: int, data: bytes) -> None:
        self._gathered.append(data)
        self._gathered_bytes += len(data)
        if self._gathered_bytes > _MAX_GATHERED_BYTES:
            raise ProtocolError(
                f"the client sent more than {_MAX_GATHERED_BYTES} bytes without a statement to them"
            )
        if kind == framing.PARSE:
            name, at = _text(data, 5)
            self._prepared[name] = _text(data, at)[0].decode(errors="replace")
            _keep_newest(self._prepared)
        elif kind == framing.BIND:
            portal, at = _text(data, 5)
            self._portals[portal] = self._prepared.get(_text(data, at)[0], ""), data
            _keep_newest(self._portals)
        elif kind == framing.CLOSE and len(data) > 6:
            names: dict[bytes, str] | dict[bytes, tuple[str, bytes]]
            names = self._prepared if data[5] == ord("S") else self._portals
            names.pop(_text(data, 6)[0], None)

    def sent(self, unit: Unit) -> list[Statement]:
        """The unit is on its way to the server. Returns the statements whose answer is complete by that."""
        kind, statement = unit.kind, unit.statement
        if statement is not None:
            statement.fate = "sent"
            if self._skips_until_sync and not statement.is_query:
                statement.answer = SKIPPED
                return [statement]
            return self._expect(statement)
        if kind == framing.SYNC:
            self._skips_until_sync = False
            return [] if self._copies_in else self._expect(_SYNCED)
        if kind == framing.FLUSH:
            return self.flushed()
        if kind in (framing.FUNCTION_CALL, framing.STARTUP):
            return self._expect(_SYNCED)
        if kind in (framing.COPY_DONE, framing.COPY_FAIL):
            self._copies_in = False
        return []

    @property
    def unflushed(self) -> bool:
        """Whether the server may keep the answer of a statement to itself because neither Sync nor Flush follows."""
        return (
            bool(self._expected)
            and isinstance(self._expected[-1], Statement)
            and not self._expected[-1].is_query
        )

    def flushed(self) -> list[Statement]:
        """A Flush is on its way to the server, the client's or one of the gate's own."""
        return [] if self._copies_in else self._expect(_FLUSHED)

    def _expect(self, what: Statement | int) -> list[Statement]:
        self._expected.append(what)
        return self._settle() if self._answered is not None else []

    # -- from the server ------------------------------------------------------------------------------------

    def feed_answer(self, data: bytes) -> tuple[bytes, list[Mark]]:
        """The bytes that can go on and the marks in them; hand each mark to `answer` in its turn."""
        return self._server.feed(data)

    @property
    def answering(self) -> Statement | None:
        """The statement to which what the server sends next belongs."""
        for expected in self._expected:
            if isinstance(expected, Statement):
                return expected
            if expected == _SYNCED:
                return None
        return None

    @property
    def expects_nothing(self) -> bool:
        """Whether the server has answered everything: what it says now it says unasked."""
        return not self._expected

    @property
    def unanswered(self) -> list[Statement]:
        return [expected for expected in self._expected if isinstance(expected, Statement)]

    def answer(self, kind: int, body: bytes) -> list[Statement]:
        """What a mark means. Returns the statements whose answer is complete with it."""
        match kind:
            case framing.READY:
                return self._ready(body)
            case framing.COMPLETE:
                return self._said(body.rstrip(b"\0").decode(errors="replace"))
            case framing.ERROR:
                return self._failed(body)
            case framing.KEY_DATA:
                if len(body) < 4:
                    raise ProtocolError("the server sent key data without a process id")
                self.pid = struct.unpack_from(">I", body)[0]
            case framing.COPY_IN | framing.COPY_BOTH:
                self._copy_begins()
            case framing.EMPTY:
                return self._said("empty")
            case framing.SUSPENDED:
                return self._said("suspended")
        return []

    def _said(self, answer: str) -> list[Statement]:
        self._drop_flushes()
        statement = self._expected[0] if self._expected else None
        if not isinstance(statement, Statement):
            return []  # replication and the like: nothing of ours
        if statement.is_query:
            # Several statements in one Query: the last one's answer, as most drivers show it.
            statement.answer = answer
            return []
        statement.answer = answer
        self._answered = statement
        return self._settle()

    def _failed(self, body: bytes) -> list[Statement]:
        self._copies_in = False
        fields = framing.error_fields(body)
        answer = f"error {fields.get('C', '?????')}"
        self._drop_flushes()
        first = self._expected[0] if self._expected else None
        if isinstance(first, Statement) and first.is_query:
            first.answer = answer
            return []
        if isinstance(first, Statement):
            first.answer = answer
            self._answered = first
            self._expected.popleft()
        # The server passes over everything up to the next Sync.
        skipped: list[Statement] = []
        ends_at_error = False
        while self._expected and self._expected[0] != _SYNCED:
            passed_over = self._expected.popleft()
            ends_at_error = True
            if isinstance(passed_over, Statement):
                passed_over.answer = SKIPPED
                skipped.append(passed_over)
        is_over = fields.get("V", fields.get("S")) in ("FATAL", "PANIC")
        self._skips_until_sync = not self._expected and self.transaction != "?" and not is_over
        if isinstance(first, Statement):
            if ends_at_error:  # a Flush or another statement followed: nothing of it waits for the Sync
                self._expected.appendleft(_FLUSHED)
            self._expected.appendleft(first)
            return self._settle() + skipped
        return skipped

    def _ready(self, body: bytes) -> list[Statement]:
        if len(body) != 1:
            raise ProtocolError("the server sent a ReadyForQuery that is not one byte long")
        self.transaction = chr(body[0])
        done: list[Statement] = []
        while self._expected:
            first = self._expected.popleft()
            if isinstance(first, Statement):
                if first.answer == PENDING:
                    first.answer = SKIPPED
                first.transaction = self.transaction
                done.append(first)
                if first.is_query:
                    break
            elif first == _SYNCED:
                break
        self._answered = None
        if not self._expected and self.transaction == "I":
            self._portals.clear()
        return done

    def _settle(self) -> list[Statement]:
        """The first statement has its own answer: it is complete unless a Sync follows, or nothing yet."""
        if len(self._expected) < 2 or self._expected[1] == _SYNCED:
            return []
        done = self._answered
        assert done is not None and self._expected[0] is done
        self._expected.popleft()
        self._answered = None
        self._drop_flushes()
        return [done]

    def _copy_begins(self) -> None:
        """From here to the end of the copy the server ignores Sync and Flush, also those already on their way."""
        self._drop_flushes()
        first = self._expected[0] if self._expected else None
        if isinstance(first, Statement) and not first.is_query:
            self._copies_in = True
            while len(self._expected) > 1 and not isinstance(self._expected[1], Statement):
                del self._expected[1]

    def _drop_flushes(self) -> None:
        while self._expected and self._expected[0] == _FLUSHED:
            self._expected.popleft()


def parameters_of(bind: bytes) -> tuple[str | None, ...]:
    """A Bind's parameters as text; none where the server will find it malformed."""
    try:
        at = _text(bind, _text(bind, 5)[1])[1]
        (count,) = struct.unpack_from(">H", bind, at)
        formats = struct.unpack_from(f">{count}H", bind, at + 2)
        at += 2 + 2 * count
        (parameters,) = struct.unpack_from(">H", bind, at)
        at += 2
        shown: list[str | None] = []
        for number in range(parameters):
            (size,) = struct.unpack_from(">i", bind, at)
            at += 4
            if size < 0:
                shown.append(None)
                continue
            value = bind[at : at + size]
            at += size
            is_binary = formats[number if count > 1 else 0] if count else 0
            shown.append("\\x" + value.hex() if is_binary else value.decode(errors="backslashreplace"))
    except (struct.error, ProtocolError, IndexError):
        return ()
    return tuple(shown)


def _text(data: bytes, at: int) -> tuple[bytes, int]:
    """The text from here to its zero byte, and where the next thing begins."""
    end = data.find(b"\0", at)
    if end < 0:
        raise ProtocolError(f"the client sent a message of type {chr(data[0])!r} without the end of a name")
    return data[at:end], end + 1


def _keep_newest(names: dict[bytes, str] | dict[bytes, tuple[str, bytes]]) -> None:
    if len(names) > _MAX_NAMES:
        names.pop(next(iter(names)))
