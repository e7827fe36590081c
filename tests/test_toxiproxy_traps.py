"""What the real Toxiproxy does that one would not expect. The engine is built around each of these."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from fencepost.harness.network.toxiproxy import DOWN, UP
from fencepost.harness.network.toxiproxy_api import ToxiproxyApi, ToxiproxyApiError
from fencepost.harness.network.toxiproxy_server import ToxiproxyServer
from fencepost.harness.postgres.ports import free_port
from fencepost.tests.fix_network import DEADLINE_S, SILENCE_S, toxiproxy_or_skip

PROXY = "trap"
LONG_MS = 3_600_000


@pytest.fixture(scope="module")
def server() -> Iterator[ToxiproxyServer]:
    started = ToxiproxyServer.start(toxiproxy_or_skip())
    yield started
    started.close()


class Upstream:
    """Accepts, keeps what it hears, and says what it is told to: both ends of a stream are in the test's hands."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.settimeout(DEADLINE_S)
        self.port: int = self._listener.getsockname()[1]

    def accept(self) -> socket.socket:
        accepted, _ = self._listener.accept()
        accepted.settimeout(DEADLINE_S)
        return accepted

    def close(self) -> None:
        self._listener.close()


class Place:
    """One proxy in front of one upstream."""

    def __init__(self, server: ToxiproxyServer, ends: contextlib.ExitStack) -> None:
        self.server = server
        self.api = server.api()
        self.port = free_port()
        self._upstream = Upstream()
        self._ends = ends
        ends.callback(self._upstream.close)
        self.api.create_proxy(PROXY, f"127.0.0.1:{self.port}", f"127.0.0.1:{self._upstream.port}")
        ends.callback(self.api.delete_proxy, PROXY)

    def connect(self) -> tuple[socket.socket, socket.socket]:
        """A client and the server's end of its connection, both past their first byte."""
        client = socket.create_connection(("127.0.0.1", self.port), DEADLINE_S)
        self._ends.callback(client.close)
        far = self._upstream.accept()
        self._ends.callback(far.close)
        return client, far

    def connect_warm(self) -> tuple[socket.socket, socket.socket]:
        client, far = self.connect()
        client.sendall(b"?")
        assert far.recv(1) == b"?"
        far.sendall(b"!")
        assert client.recv(1) == b"!"
        return client, far


@pytest.fixture
def place(server: ToxiproxyServer) -> Iterator[Place]:
    with contextlib.ExitStack() as ends:
        yield Place(server, ends)


def heard(end: socket.socket) -> str:
    """What comes next: bytes, the end (fin), a reset (rst), or nothing for a while (silence)."""
    end.settimeout(SILENCE_S)
    try:
        received = end.recv(65536)
    except TimeoutError:
        return "silence"
    except ConnectionResetError:
        return "rst"
    finally:
        end.settimeout(DEADLINE_S)
    return received.decode() if received else "fin"


def test_reset_peer_does_not_reset_a_connection_that_lived_before_it(place: Place) -> None:
    old, old_far = place.connect_warm()
    place.api.add_toxic(PROXY, "trap", "reset_peer", DOWN, {"timeout": 0})
    assert heard(old) == "silence"  # nothing at all happens by adding it
    old_far.sendall(b"reply")
    assert _end(old) == "fin"  # and then the old connection ends in order
    new, new_far = place.connect()
    new_far.sendall(b"reply")
    assert _end(new) == "rst"


def test_reset_peer_planted_at_toxicity_zero_passes_all_and_turns_the_proxys_close_into_a_reset(
    place: Place,
) -> None:
    place.api.add_toxic(PROXY, "reset", "reset_peer", DOWN, {"timeout": 0}, toxicity=0.0)
    client, _ = place.connect_warm()
    place.api.disable_proxy(PROXY)
    assert _end(client) == "rst"


def _end(end: socket.socket) -> str:
    try:
        assert end.recv(65536) == b""
    except ConnectionResetError:
        return "rst"
    return "fin"


def test_timeout_drops_data_for_good(place: Place) -> None:
    client, far = place.connect_warm()
    place.api.add_toxic(PROXY, "trap", "timeout", DOWN, {"timeout": 0})
    far.sendall(b"dropped")
    assert heard(client) == "silence"
    place.api.remove_toxic(PROXY, "trap")
    assert _end(client) == "fin"  # taking it off ends the connection; what was dropped never comes


def test_timeout_starts_its_time_anew_at_every_chunk(place: Place) -> None:
    client, far = place.connect_warm()
    timeout_s = 0.4
    place.api.add_toxic(PROXY, "trap", "timeout", DOWN, {"timeout": round(timeout_s * 1000)})
    begun = time.monotonic()
    last = begun
    while time.monotonic() < begun + 2 * timeout_s:
        last = time.monotonic()
        far.sendall(b"keeps it open")
        client.settimeout(timeout_s / 10)
        with contextlib.suppress(TimeoutError):
            if client.recv(1) == b"":
                pytest.skip("this machine stalled for longer than the toxic's time, which then ran out")
    client.settimeout(DEADLINE_S)
    assert _end(client) == "fin"
    assert last - begun > timeout_s  # alive after its time, and ended only when the chunks did


def test_latency_as_a_pause_loses_nothing_and_lets_go_at_once_when_taken_off(place: Place) -> None:
    client, far = place.connect_warm()
    place.api.add_toxic(PROXY, "trap", "latency", DOWN, {"latency": LONG_MS})
    far.sendall(b"first ")
    assert heard(client) == "silence"
    far.sendall(b"second")
    assert heard(client) == "silence"
    place.api.remove_toxic(PROXY, "trap")
    received = b""
    while len(received) < 12:
        received += client.recv(100)
    assert received == b"first second"
    far.sendall(b"third")
    assert client.recv(100) == b"third"


def test_adding_a_toxic_behind_a_pause_lets_go_what_the_pause_holds(place: Place) -> None:
    client, far = place.connect_warm()
    place.api.add_toxic(PROXY, "trap", "latency", DOWN, {"latency": LONG_MS})
    far.sendall(b"held")
    assert heard(client) == "silence"
    place.api.add_toxic(PROXY, "other", "slow_close", DOWN, {"delay": LONG_MS})
    assert client.recv(100) == b"held"


def test_limit_data_of_zero_loses_the_reply_and_ends_the_connection_at_that_moment(place: Place) -> None:
    client, far = place.connect_warm()
    place.api.add_toxic(PROXY, "trap", "limit_data", DOWN, {"bytes": 0})
    client.sendall(b"request")
    assert far.recv(100) == b"request"
    assert heard(client) == "silence"  # no timer: it waits for the reply, however long that takes
    far.sendall(b"reply")
    assert _end(client) == "fin"


def test_limit_data_counts_from_the_moment_it_is_added(place: Place) -> None:
    client, far = place.connect_warm()
    far.sendall(b"before")
    assert client.recv(100) == b"before"
    place.api.add_toxic(PROXY, "trap", "limit_data", DOWN, {"bytes": 3})
    far.sendall(b"abcdef")
    assert client.recv(100) == b"abc"
    assert _end(client) == "fin"


def test_taking_a_toxic_off_hangs_while_a_connection_cannot_be_written_to(place: Place) -> None:
    """The client does not read, so the deadline is all that ends the call. Deleting the proxy still works.

    A call that hangs keeps the lock on the proxy's toxics, so every later one hangs with it: five seconds for each
    chunk that is held, even once the client has gone.
    """
    client, far = place.connect_warm()
    place.api.add_toxic(PROXY, "trap", "latency", DOWN, {"latency": LONG_MS})
    sending = threading.Thread(target=_send_all, args=(far, b"x" * 16_000_000))
    sending.start()
    assert heard(client) == "silence"
    hurried = ToxiproxyApi(place.api.host, place.api.port, 0.5)
    with pytest.raises(ToxiproxyApiError, match=r"did not answer DELETE .*/toxics/trap in 0\.5 s"):
        hurried.remove_toxic(PROXY, "trap")
    with pytest.raises(ToxiproxyApiError, match="did not answer GET"):
        hurried.toxics(PROXY)
    client.close()
    far.close()
    sending.join(DEADLINE_S)
    assert not sending.is_alive()
    with pytest.raises(ToxiproxyApiError, match="did not answer GET"):
        hurried.toxics(PROXY)
    place.api.delete_proxy(PROXY)
    place.api.create_proxy(PROXY, f"127.0.0.1:{place.port}", "127.0.0.1:1")


def _send_all(far: socket.socket, data: bytes) -> None:
    with contextlib.suppress(OSError):
        far.sendall(data)


def test_adding_a_toxic_is_in_force_on_live_connections_when_the_call_returns(place: Place) -> None:
    connections = [place.connect_warm() for _ in range(10)]
    for number in range(20):
        place.api.add_toxic(PROXY, "trap", "latency", UP, {"latency": LONG_MS})
        for client, _ in connections:
            client.sendall(b"%d" % (number % 10))
        assert not any(_readable_now(far) for _, far in connections)
        place.api.remove_toxic(PROXY, "trap")
        assert [far.recv(1) for _, far in connections] == [b"%d" % (number % 10)] * len(connections)


def _readable_now(end: socket.socket) -> bool:
    end.setblocking(False)
    try:
        return bool(end.recv(1, socket.MSG_PEEK))
    except BlockingIOError:
        return False
    finally:
        end.settimeout(DEADLINE_S)


def test_disabling_a_proxy_ends_live_connections_but_refuses_new_ones_meanwhile(place: Place) -> None:
    client, far = place.connect_warm()
    place.api.disable_proxy(PROXY)
    assert _end(client) == "fin"
    assert _end(far) == "fin"
    with pytest.raises(ConnectionRefusedError):
        place.connect()
    place.api.enable_proxy(PROXY)
    place.connect_warm()


def test_the_seed_is_ignored() -> None:
    """Two servers with one seed, and a toxic that strikes every second connection or so: they do not agree."""
    binary = toxiproxy_or_skip()
    struck: list[str] = []
    for _ in range(2):
        server = ToxiproxyServer.start(binary, arguments=("-seed", "42"))
        try:
            with contextlib.ExitStack() as ends:
                place = Place(server, ends)
                place.api.add_toxic(PROXY, "coin", "limit_data", DOWN, {"bytes": 0}, toxicity=0.5)
                struck.append("".join(_toss(place) for _ in range(64)))
        finally:
            server.close()
    assert all(set(tosses) == {"0", "1"} for tosses in struck)
    assert struck[0] != struck[1]


def _toss(place: Place) -> str:
    client, far = place.connect()
    far.sendall(b"1")
    tossed = client.recv(1).decode() or "0"
    client.close()
    far.close()
    return tossed
