"""The PostgreSQL protocol (3.0 and 3.2) cut into messages: over bytes, in both directions, without any I/O.

What does not have to be understood is never kept: rows and COPY data go through as they come, however they are torn.
What has to be understood is kept until it is whole, up to a limit. Anything that cannot be the protocol raises
ProtocolError at the first byte that shows it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from fencepost.harness.errors import FencepostError

SSL_REQUEST = -1
GSS_REQUEST = -2
CANCEL_REQUEST = -3
STARTUP = -4
CONTINUED = 0
"""More bytes of a message whose beginning was handed out before."""

QUERY, PARSE, BIND, EXECUTE, DESCRIBE, CLOSE = b"QPBEDC"
SYNC, FLUSH, FUNCTION_CALL, COPY_DATA, COPY_DONE, COPY_FAIL, PASSWORD, TERMINATE = b"SHFdcfpX"

KEY_DATA, READY, COMPLETE, ERROR, EMPTY, SUSPENDED, COPY_IN, COPY_BOTH = b"KZCEIsGW"

FLUSH_MESSAGE = b"H\x00\x00\x00\x04"

_STARTUP_CODES = {80877103: SSL_REQUEST, 80877104: GSS_REQUEST, 80877102: CANCEL_REQUEST}
_MAX_STARTUP_BYTES = 10_000  # the server's own limit
_MAX_SMALL_BYTES = 10_000  # the server's own limit for messages without a text
_MAX_AUTHENTICATION_BYTES = 65_535
_MAX_MESSAGE_BYTES = 0x3FFFFFFF  # the server's own limit for everything else
_MAX_WHOLE_BYTES = 64 * 1024 * 1024  # of a message the gate must understand: it is kept until it is whole
_MAX_WHOLE_ANSWER_BYTES = 16 * 1024 * 1024

_FRONTEND_LIMITS = {
    **dict.fromkeys((QUERY, PARSE, BIND, FUNCTION_CALL), _MAX_WHOLE_BYTES),
    **dict.fromkeys((EXECUTE, DESCRIBE, CLOSE, SYNC, FLUSH, COPY_DONE, TERMINATE), _MAX_SMALL_BYTES),
    **dict.fromkeys((COPY_DATA, COPY_FAIL), _MAX_MESSAGE_BYTES),
    PASSWORD: _MAX_AUTHENTICATION_BYTES,
}
_STREAMED = frozenset((COPY_DATA, COPY_FAIL))
_BACKEND_KINDS = frozenset(b"RKSvZTtDd12Cc3EINAnsGHWV")
_MARKED = frozenset((KEY_DATA, READY, COMPLETE, ERROR, EMPTY, SUSPENDED, COPY_IN, COPY_BOTH))
_TLS_HANDSHAKE = 0x16

_head = struct.Struct(">BI").unpack_from
_length_and_code = struct.Struct(">II").unpack_from


class ProtocolError(FencepostError):
    """Bytes that are no PostgreSQL protocol, or more of it than the gate keeps."""


class FrontendFramer:
    """What a client sends: the start of a connection, then typed messages, each whole but for COPY data."""

    __slots__ = ("_asked", "_at", "_buffer", "_left", "_started")

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._at = 0
        self._left = 0  # bytes still to come of a message that is handed out as it comes
        self._started = False
        self._asked: set[int] = set()

    @property
    def buffered(self) -> int:
        return len(self._buffer) - self._at

    def feed(self, data: bytes) -> None:
        if self._at == len(self._buffer):
            self._buffer.clear()
            self._at = 0
        elif self._at > 65_536:
            del self._buffer[: self._at]
            self._at = 0
        self._buffer += data

    def peek(self) -> int | None:
        """The kind of the next message; None while not even that has come."""
        if self.buffered == 0:
            return None
        if self._left:
            return CONTINUED
        return self._buffer[self._at] if self._started else STARTUP

    def next(self) -> tuple[int, bytes] | None:
        """The next message with its head, as its kind and bytes; None until more has been fed."""
        at, here = self._at, len(self._buffer) - self._at
        if self._left:
            return self._take(CONTINUED, min(here, self._left)) if here else None
        if not self._started:
            return self._next_of_start()
        if here == 0:
            return None
        kind = self._buffer[at]
        limit = _FRONTEND_LIMITS.get(kind)
        if limit is None:
            raise ProtocolError(f"the client sent a message of unknown type {_shown(kind)}")
        if here < 5:
            return None
        size = _head(self._buffer, at)[1] + 1
        if size < 5 or size > limit:
            raise ProtocolError(
                f"the client sent a message of type {_shown(kind)} with length {size - 1}; "
                f"4 to {limit - 1} are possible"
            )
        if here >= size:
            return self._take(kind, size)
        if kind in _STREAMED:
            self._left = size
            return self._take(kind, here)
        return None

    def _next_of_start(self) -> tuple[int, bytes] | None:
        at, here = self._at, len(self._buffer) - self._at
        if here and self._buffer[at] == _TLS_HANDSHAKE:
            raise ProtocolError("the client began with TLS without asking; the gate speaks plain text")
        if here and self._buffer[at] != 0:
            raise ProtocolError(
                f"the client began with byte {self._buffer[at]:#04x}, which starts no connection"
            )
        if here < 8:
            return None
        size, code = _length_and_code(self._buffer, at)
        if size < 8 or size > _MAX_STARTUP_BYTES:
            raise ProtocolError(
                f"the client began with a message of length {size}; 8 to {_MAX_STARTUP_BYTES} are possible"
            )
        kind = _STARTUP_CODES.get(code, STARTUP)
        if kind in (SSL_REQUEST, GSS_REQUEST):
            if size != 8:
                raise ProtocolError(
                    f"the client asked for encryption with a message of length {size} instead of 8"
                )
            if kind in self._asked:
                raise ProtocolError("the client asked for the same encryption twice")
        elif kind == STARTUP and code >> 16 != 3:
            raise ProtocolError(
                f"the client speaks protocol {code >> 16}.{code & 0xFFFF}; the gate understands 3.0 to 3.2"
            )
        if here < size:
            return None
        if kind in (SSL_REQUEST, GSS_REQUEST):
            self._asked.add(kind)
        else:
            self._started = True
        return self._take(kind, size)

    def _take(self, kind: int, size: int) -> tuple[int, bytes]:
        end = self._at + size
        if self._left:
            self._left -= size
        data = bytes(self._buffer[self._at : end])
        self._at = end
        return kind, data


Mark = tuple[int, bytes, int]
"""A message of the server that must be understood: its kind, its body, and where it ends in what can go on."""


class BackendFramer:
    """What a server sends. Only the messages that end or mark an answer are looked into; rows are counted over."""

    __slots__ = ("_left", "_tail")

    def __init__(self) -> None:
        self._tail = b""
        self._left = 0

    def feed(self, data: bytes) -> tuple[bytes, list[Mark]]:
        """The bytes that can go on, and the marks in them. A torn mark waits until it is whole."""
        buffer = self._tail + data if self._tail else data
        at, size = self._left, len(buffer)
        marks: list[Mark] = []
        while at + 5 <= size:
            kind, length = _head(buffer, at)
            end = at + 1 + length
            if kind in _MARKED:
                if length < 4 or length > _MAX_WHOLE_ANSWER_BYTES:
                    raise _wrong_answer(kind, length)
                if end > size:
                    break
                marks.append((kind, buffer[at + 5 : end], end))
            elif kind not in _BACKEND_KINDS or length < 4 or length > _MAX_MESSAGE_BYTES:
                raise _wrong_answer(kind, length)
            at = end
        if at >= size:
            self._tail = b""
            self._left = at - size
            return buffer, marks
        self._tail = buffer[at:]
        self._left = 0
        return buffer[:at], marks


def messages_in(data: bytes) -> Iterator[tuple[int, bytes]]:
    """The whole messages in these bytes, as kind and bytes with their head; what is torn at the end is left out."""
    at = 0
    while at + 5 <= len(data):
        kind, length = _head(data, at)
        yield kind, data[at : at + 1 + length]
        at += 1 + length


def typed(kind: int, body: bytes) -> bytes:
    return struct.pack(">BI", kind, len(body) + 4) + body


def query(sql: str) -> bytes:
    return typed(QUERY, sql.encode() + b"\0")


def parse(sql: str) -> bytes:
    """Of the unnamed statement, without parameters."""
    return typed(PARSE, b"\0" + sql.encode() + b"\0\0\0")


BIND_UNNAMED = typed(BIND, b"\0\0\0\0\0\0\0\0")
EXECUTE_UNNAMED = typed(EXECUTE, b"\0\0\0\0\0")


def error_response(severity: str, sqlstate: str, message: str) -> bytes:
    fields = (b"S", severity), (b"V", severity), (b"C", sqlstate), (b"M", message)
    return typed(ERROR, b"".join(field + text.encode() + b"\0" for field, text in fields) + b"\0")


def ready_for_query(status: str) -> bytes:
    return typed(READY, status.encode())


def error_fields(body: bytes) -> dict[str, str]:
    """The fields of an ErrorResponse: 'C' is its SQLSTATE, 'S' its severity, 'M' its message."""
    fields = {}
    for field in body.split(b"\0"):
        if field:
            fields[chr(field[0])] = field[1:].decode(errors="replace")
    return fields


def _shown(kind: int) -> str:
    return repr(chr(kind)) if 32 < kind < 127 else f"{kind:#04x}"


def _wrong_answer(kind: int, length: int) -> ProtocolError:
    return ProtocolError(f"the server sent a message of type {_shown(kind)} with length {length}")
