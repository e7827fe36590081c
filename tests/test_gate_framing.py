"""Framing, without a server: torn anywhere it gives the same messages, and hostile bytes give one clear error."""

from __future__ import annotations

import itertools
import struct

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fencepost.harness.gate import framing
from fencepost.harness.gate.framing import BackendFramer, FrontendFramer, ProtocolError, typed

STARTUP_30 = struct.pack(">II", 23, 3 << 16) + b"user\0postgres\0\0"
STARTUP_32 = struct.pack(">II", 23, 3 << 16 | 2) + b"user\0postgres\0\0"
SSL = struct.pack(">II", 8, 80877103)
GSS = struct.pack(">II", 8, 80877104)
CANCEL = struct.pack(">IIII", 16, 80877102, 4711, 42)
CANCEL_32 = struct.pack(">III", 44, 80877102, 4711) + bytes(32)

FRONTEND_BODIES = st.tuples(st.sampled_from(list(b"QPBEDCSHFdcfpX")), st.binary(max_size=40))
BACKEND_BODIES = st.tuples(st.sampled_from(list(b"RKSvZTtDd12Cc3EINAnsGHWV")), st.binary(max_size=40))


def torn(data: bytes, cuts: list[int]) -> list[bytes]:
    edges = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    return [data[start:end] for start, end in itertools.pairwise(edges)]


def all_of(framer: FrontendFramer) -> list[tuple[int, bytes]]:
    found = []
    while (message := framer.next()) is not None:
        found.append(message)
    return found


def joined(messages: list[tuple[int, bytes]]) -> list[tuple[int, bytes]]:
    """Pieces of a message that is handed out as it comes, put together."""
    whole: list[tuple[int, bytes]] = []
    for kind, data in messages:
        if kind == framing.CONTINUED:
            whole[-1] = whole[-1][0], whole[-1][1] + data
        else:
            whole.append((kind, data))
    return whole


@given(
    st.sampled_from([[], [SSL], [GSS], [GSS, SSL], [SSL, GSS]]),
    st.sampled_from([STARTUP_30, STARTUP_32]),
    st.lists(FRONTEND_BODIES, max_size=8),
    st.lists(st.integers(0, 500), max_size=20),
)
def test_what_a_client_sends_is_framed_alike_however_it_is_torn(
    asks: list[bytes], startup: bytes, bodies: list[tuple[int, bytes]], cuts: list[int]
) -> None:
    kinds = {SSL: framing.SSL_REQUEST, GSS: framing.GSS_REQUEST}
    sent = [(kinds[ask], ask) for ask in asks] + [(framing.STARTUP, startup)]
    sent += [(kind, typed(kind, body)) for kind, body in bodies]
    framer = FrontendFramer()
    found: list[tuple[int, bytes]] = []
    for piece in torn(b"".join(data for _, data in sent), cuts):
        framer.feed(piece)
        found += all_of(framer)
    assert joined(found) == sent
    assert framer.buffered == 0


@given(st.lists(BACKEND_BODIES, max_size=10), st.lists(st.integers(0, 700), max_size=20))
def test_what_a_server_sends_goes_on_unchanged_however_it_is_torn(
    bodies: list[tuple[int, bytes]], cuts: list[int]
) -> None:
    data = b"".join(typed(kind, body) for kind, body in bodies)
    framer = BackendFramer()
    went_on = b""
    marks: list[tuple[int, bytes]] = []
    for piece in torn(data, cuts):
        ready, found = framer.feed(piece)
        for kind, body, end in found:
            assert ready[:end].endswith(typed(kind, body))
            marks.append((kind, body))
        went_on += ready
    assert went_on == data
    assert marks == [(kind, body) for kind, body in bodies if kind in b"KZCEIsGW"]


@given(st.binary(max_size=2000), st.lists(st.integers(0, 2000), max_size=10), st.booleans())
@example(b"\x16\x03\x01\x02\x00", [], False)
@example(b"GET / HTTP/1.1\r\n\r\n", [], False)
@example(b"Q\xff\xff\xff\xff", [], True)
def test_hostile_bytes_of_a_client_end_in_an_error_or_in_waiting_for_few_more(
    data: bytes, cuts: list[int], started: bool
) -> None:
    framer = FrontendFramer()
    if started:
        framer.feed(STARTUP_30)
        assert framer.next() == (framing.STARTUP, STARTUP_30)
    handed_out = 0
    try:
        for piece in torn(data, cuts):
            framer.feed(piece)
            handed_out += sum(len(each) for _, each in all_of(framer))
    except ProtocolError as problem:
        assert str(problem).startswith("the client")
    assert handed_out + framer.buffered <= len(data)


@given(st.binary(max_size=2000), st.lists(st.integers(0, 2000), max_size=10))
def test_hostile_bytes_of_a_server_end_in_an_error_or_go_on(data: bytes, cuts: list[int]) -> None:
    framer = BackendFramer()
    went_on = b""
    try:
        for piece in torn(data, cuts):
            went_on += framer.feed(piece)[0]
    except ProtocolError as problem:
        assert str(problem).startswith("the server")
    assert data.startswith(went_on)


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"\x16\x03\x01", "TLS"),
        (b"GET / HTTP", "0x47"),
        (struct.pack(">II", 7, 3 << 16), "length 7"),
        (struct.pack(">II", 10_001, 3 << 16), "length 10001"),
        (struct.pack(">II", 0x00FFFFFF, 3 << 16), "length 16777215"),
        (struct.pack(">II", 8, 2 << 16), "protocol 2.0"),
        (struct.pack(">II", 9, 80877103), "encryption"),
        (SSL + SSL, "twice"),
        (STARTUP_30 + b"\0\0\0\0\x08", "unknown type 0x00"),
        (STARTUP_30 + b"Z", "unknown type 'Z'"),
        (STARTUP_30 + b"Q\0\0\0\x03", "length 3"),
        (STARTUP_30 + b"S\0\0\xff\xff", "length 65535"),
        (STARTUP_30 + b"P\x7f\xff\xff\xff", "length 2147483647"),
        (STARTUP_30 + b"d\x7f\xff\xff\xff", "length 2147483647"),
    ],
)
def test_each_kind_of_nonsense_has_its_sentence(data: bytes, says: str) -> None:
    framer = FrontendFramer()
    framer.feed(data)
    with pytest.raises(ProtocolError, match=says):
        all_of(framer)


@pytest.mark.parametrize("request_", [CANCEL, CANCEL_32])
def test_a_cancel_request_of_either_protocol(request_: bytes) -> None:
    framer = FrontendFramer()
    framer.feed(SSL + request_)
    assert [kind for kind, _ in all_of(framer)] == [framing.SSL_REQUEST, framing.CANCEL_REQUEST]


def test_copy_data_is_not_kept() -> None:
    framer = FrontendFramer()
    framer.feed(STARTUP_30 + struct.pack(">BI", framing.COPY_DATA, 100_000_000))
    all_of(framer)
    for _ in range(100):
        framer.feed(bytes(65_536))
        assert sum(len(data) for _, data in all_of(framer)) == 65_536
        assert framer.buffered == 0


def test_a_row_is_not_kept() -> None:
    framer = BackendFramer()
    assert framer.feed(struct.pack(">BI", ord("D"), 100_000_000))[0]
    for _ in range(100):
        assert len(framer.feed(bytes(65_536))[0]) == 65_536


def test_the_fields_of_an_error_come_back() -> None:
    message = framing.error_response("ERROR", "40001", "no")
    assert framing.error_fields(message[5:]) == {"S": "ERROR", "V": "ERROR", "C": "40001", "M": "no"}
