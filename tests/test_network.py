"""What a network fault does to a real client and a real server: the same on both engines."""

from __future__ import annotations

import contextlib
import hashlib
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from fencepost.harness.errors import UsageError
from fencepost.harness.network import tcp_sockets
from fencepost.harness.network.base import ENGINES, NO_FAULT, Network, NetworkError, NetworkPath
from fencepost.harness.network.engines import check_network, open_network
from fencepost.harness.postgres.embedded import EmbeddedServer, EmbeddedServers
from fencepost.tests.fix_network import Client, eventually, network_or_skip, through

INSERT = "INSERT INTO heard DEFAULT VALUES"
FAULTS: dict[str, tuple[Callable[[NetworkPath], None], str]] = {
    "pause": (lambda path: path.pause(), "paused"),
    "delay": (lambda path: path.delay(0.05), "delayed by 0.05 s each way"),
    "lose_reply": (lambda path: path.lose_reply(), "replies are lost"),
    "lose_request": (lambda path: path.lose_request(), "requests are lost"),
    "half_open": (lambda path: path.half_open(), "half open"),
    "cut_mid_message": (lambda path: path.cut_mid_message(), "cut in the next reply"),
}


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedServer]:
    with EmbeddedServers.start() as started:
        with psycopg.connect(started.test.dsn(), autocommit=True) as connection:
            connection.execute("CREATE TABLE heard (at timestamptz DEFAULT clock_timestamp())")
        yield started.test


@pytest.fixture(scope="module", params=ENGINES)
def network(request: pytest.FixtureRequest) -> Iterator[Network]:
    opened = network_or_skip(request.param)
    yield opened
    opened.close()


class Surroundings:
    """A path, clients on it, and a connection beside it that sees what the server got."""

    def __init__(self, network: Network, server: EmbeddedServer, ends: contextlib.ExitStack) -> None:
        self.network = network
        self.server = server
        self._ends = ends
        self.path = self.new_path("A")
        self._beside = psycopg.connect(server.dsn(), autocommit=True)
        ends.callback(self._beside.close)
        self._beside.execute("TRUNCATE heard")

    def new_path(self, actor: str, *, resets: bool = False) -> NetworkPath:
        path = self.network.path(actor, "127.0.0.1", self.server.port, resets=resets)
        self._ends.callback(path.close)
        return path

    def client(self, path: NetworkPath | None = None) -> Client:
        client = Client(through(path or self.path, self.server.tcp_dsn()))
        self._ends.callback(client.close)
        return client

    def beside(self, sql: str, *parameters: object) -> object:
        row = self._beside.execute(sql, parameters).fetchone()
        assert row is not None
        return row[0]

    def rows(self) -> object:
        return self.beside("SELECT count(*) FROM heard")

    def backend_is_there(self, client: Client) -> bool:
        return self.beside("SELECT count(*) FROM pg_stat_activity WHERE pid = %s", client.pid) == 1

    def await_rows(self, expected: int) -> None:
        eventually(lambda: self.rows() == expected, f"{expected} rows at the server")

    def await_backend_gone(self, client: Client) -> None:
        eventually(lambda: not self.backend_is_there(client), f"backend {client.pid} gone")


@pytest.fixture
def here(network: Network, server: EmbeddedServer) -> Iterator[Surroundings]:
    with contextlib.ExitStack() as ends:
        yield Surroundings(network, server, ends)


def test_a_path_without_a_fault_passes_everything(here: Surroundings) -> None:
    client = here.client()
    assert here.path.description == NO_FAULT
    assert client.ask(INSERT) == "INSERT 0 1"
    assert here.rows() == 1
    assert len(client.ask("SELECT repeat('x', 3000000)")) == 3_000_000


def test_a_pause_holds_requests_and_loses_none(here: Surroundings) -> None:
    client = here.client()
    here.path.pause()
    client.send(INSERT)
    assert client.hears_nothing()
    assert here.rows() == 0
    here.path.resume()
    assert client.answer() == "INSERT 0 1"
    assert here.rows() == 1
    assert client.ask("SELECT 1") == "1"


def test_a_pause_holds_a_reply_however_long_and_loses_none_of_it(here: Surroundings) -> None:
    """The reply is under way when the pause comes: the server was held by a lock until then."""
    client = here.client()
    size = 8_000_000
    expected = hashlib.md5(b"x" * size).hexdigest()
    here.beside("SELECT pg_advisory_lock(7)::text")
    client.send(f"SELECT repeat('x', {size}) FROM pg_advisory_lock(7)")
    waits = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted AND pid = %s"
    eventually(lambda: here.beside(waits, client.pid) == 1, "the client's statement at the lock")
    here.path.pause()
    assert here.beside("SELECT pg_advisory_unlock(7)") is True
    eventually(lambda: here.beside(waits, client.pid) == 0, "the statement past the lock")
    assert client.hears_nothing()
    # As in a run, the client reads while it is resumed: letting go more than a socket buffer waits for that.
    with ThreadPoolExecutor(1) as reading:
        answer = reading.submit(client.answer)
        here.path.resume()
        assert hashlib.md5(answer.result(30).encode()).hexdigest() == expected
    assert client.ask("SELECT pg_advisory_unlock(7)") == "t"


def test_who_connects_during_a_pause_is_connected_after_it(here: Surroundings) -> None:
    here.path.pause()
    connected: list[Client] = []
    waiting = threading.Thread(target=lambda: connected.append(here.client()))
    waiting.start()
    waiting.join(0.15)
    assert waiting.is_alive() and not connected
    here.path.resume()
    waiting.join(30)
    assert connected[0].ask("SELECT 1") == "1"


def test_a_cut_ends_live_connections_on_both_sides_and_new_ones_work(here: Surroundings) -> None:
    clients = [here.client(), here.client()]
    here.path.cut()
    for client in clients:
        with pytest.raises(psycopg.OperationalError):
            client.ask(INSERT)
        here.await_backend_gone(client)
    assert here.rows() == 0
    assert here.client().ask("SELECT 1") == "1"


def test_a_cut_by_fin_is_the_end_of_the_stream(here: Surroundings) -> None:
    client = here.client()
    here.path.cut("fin")
    assert client.raw_end() == (b"", "fin")


def test_a_cut_by_rst_resets_connections_that_lived_already(here: Surroundings) -> None:
    path = here.new_path("B", resets=True)
    client = here.client(path)
    assert client.ask("SELECT 1") == "1"
    path.cut("rst")
    assert client.raw_end() == (b"", "rst")
    assert here.client(path).ask("SELECT 1") == "1"


def test_a_path_is_cut_as_it_was_made_for(here: Surroundings) -> None:
    with pytest.raises(NetworkError, match=r"cut\('rst'\) on the network path of A .*resets=True"):
        here.path.cut("rst")
    with pytest.raises(NetworkError, match=r"cut\('fin'\) on the network path of B"):
        here.new_path("B", resets=True).cut("fin")
    assert here.client().ask("SELECT 1") == "1"


@pytest.mark.parametrize("fault", ["none", "lose_reply", "lose_request"])
def test_who_connects_again_at_once_after_a_cut_gets_through(here: Surroundings, fault: str) -> None:
    for _ in range(15):
        client = here.client()
        if fault != "none":
            FAULTS[fault][0](here.path)
            client.send("SELECT 1")
        again: list[str] = []

        def reconnect(client: Client = client, again: list[str] = again) -> None:
            client.raw_end()
            again.append(here.client().ask("SELECT 'again'"))

        reconnecting = threading.Thread(target=reconnect)
        reconnecting.start()
        here.path.cut()
        reconnecting.join(30)
        assert again == ["again"]


def test_a_cut_during_a_pause_lets_nothing_go_that_was_held(here: Surroundings) -> None:
    client = here.client()
    here.path.pause()
    client.send(INSERT)
    assert client.hears_nothing()
    here.path.cut()
    assert here.path.description == "paused"
    with pytest.raises(psycopg.OperationalError):
        client.answer()
    here.await_backend_gone(client)
    here.path.resume()
    assert here.rows() == 0
    assert here.client().ask(INSERT) == "INSERT 0 1"


def test_a_delay_makes_both_ways_longer(here: Surroundings) -> None:
    client = here.client()
    here.path.delay(0.1)
    started = time.monotonic()
    assert client.ask(INSERT) == "INSERT 0 1"
    assert time.monotonic() - started >= 0.2
    here.path.no_delay()
    assert client.ask("SELECT 1") == "1"


def test_the_end_of_a_delay_lets_go_at_once_what_waits(here: Surroundings) -> None:
    client = here.client()
    here.path.delay(3600)
    client.send(INSERT)
    assert client.hears_nothing()
    assert here.rows() == 0
    here.path.no_delay()
    assert client.answer() == "INSERT 0 1"


def test_a_lost_reply_is_committed_and_the_client_hears_nothing_until_it_is_cut(here: Surroundings) -> None:
    client = here.client()
    here.path.lose_reply()
    client.send(INSERT)
    here.await_rows(1)
    assert client.hears_nothing()
    here.path.cut()
    with pytest.raises(psycopg.OperationalError):
        client.answer()
    assert here.rows() == 1
    assert here.client().ask("SELECT 1") == "1"


def test_a_lost_request_is_not_committed_and_the_client_hears_nothing(here: Surroundings) -> None:
    client = here.client()
    here.path.lose_request()
    client.send(INSERT)
    assert client.hears_nothing()
    assert here.backend_is_there(client)
    here.path.cut()
    with pytest.raises(psycopg.OperationalError):
        client.answer()
    here.await_backend_gone(client)
    assert here.rows() == 0
    assert here.client().ask(INSERT) == "INSERT 0 1"


def test_who_connects_while_replies_are_lost_hears_nothing_either(here: Surroundings) -> None:
    here.path.lose_reply()
    dsn = psycopg.conninfo.make_conninfo(through(here.path, here.server.tcp_dsn()), connect_timeout=2)
    with pytest.raises(psycopg.OperationalError, match="timeout"):
        psycopg.connect(dsn)


def test_half_open_ends_the_servers_side_and_the_client_is_not_told(here: Surroundings) -> None:
    client = here.client()
    assert client.ask("BEGIN") == "BEGIN"
    assert client.ask(INSERT) == "INSERT 0 1"
    here.path.half_open()
    here.await_backend_gone(client)
    assert client.hears_nothing()
    client.send("COMMIT")
    assert client.hears_nothing()
    assert here.rows() == 0
    assert here.client().ask("SELECT 1") == "1"
    here.path.cut()
    with pytest.raises(psycopg.OperationalError):
        client.answer()
    assert here.client().ask("SELECT 1") == "1"


def test_a_cut_in_the_middle_of_a_message_lets_a_part_of_it_through(here: Surroundings) -> None:
    client = here.client()
    here.path.cut_mid_message()
    client.send(f"{INSERT} RETURNING 'a value that is long enough to be cut in two'")
    received, _ = client.raw_end()
    assert received and _is_torn(received)
    assert here.rows() == 1
    here.path.cut()
    assert here.client().ask("SELECT 1") == "1"


def _is_torn(received: bytes) -> bool:
    """Whether these bytes end within a message: a type byte, then a length that counts itself."""
    at = 0
    while at < len(received):
        if len(received) < at + 5:
            return True
        at += 1 + int.from_bytes(received[at + 1 : at + 5])
    return at > len(received)


def test_the_driver_reports_a_cut_in_the_middle_of_a_message(here: Surroundings) -> None:
    client = here.client()
    here.path.cut_mid_message()
    with pytest.raises(psycopg.OperationalError):
        client.connection.execute("SELECT repeat('x', 100)")


@pytest.mark.parametrize("fault", FAULTS)
def test_the_fault_of_one_actor_is_not_anothers(here: Surroundings, fault: str) -> None:
    other = here.new_path("B")
    a, b = here.client(), here.client(other)
    FAULTS[fault][0](here.path)
    assert b.ask(INSERT) == "INSERT 0 1"
    assert here.client(other).ask("SELECT 1") == "1"
    here.path.cut()
    with pytest.raises(psycopg.OperationalError):
        a.ask("SELECT 1")
    assert b.ask(INSERT) == "INSERT 0 1"
    assert other.description == NO_FAULT


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_told_until_it_is_cleaned_and_cleaning_ends_it(here: Surroundings, fault: str) -> None:
    put, told = FAULTS[fault]
    put(here.path)
    assert here.path.description == told
    here.path.clean()
    assert here.path.description == NO_FAULT
    assert here.client().ask("SELECT 1") == "1"
    here.path.clean()


@pytest.mark.parametrize("fault", ["pause", "delay", "cut_mid_message"])
def test_a_connection_that_lost_nothing_goes_on_after_cleaning(here: Surroundings, fault: str) -> None:
    client = here.client()
    FAULTS[fault][0](here.path)
    here.path.clean()
    assert client.ask("SELECT 1") == "1"


@pytest.mark.parametrize("fault", ["lose_reply", "lose_request"])
def test_a_connection_that_may_have_lost_something_is_cut_by_cleaning(here: Surroundings, fault: str) -> None:
    client = here.client()
    FAULTS[fault][0](here.path)
    client.send(INSERT)
    here.path.clean()
    with pytest.raises(psycopg.OperationalError):
        client.answer()


def test_cleaning_ends_what_is_half_open_and_nothing_else(here: Surroundings) -> None:
    half = here.client()
    here.path.half_open()
    whole = here.client()
    here.path.clean()
    with pytest.raises(psycopg.OperationalError):
        half.ask("SELECT 1")
    assert whole.ask("SELECT 1") == "1"


def test_a_second_fault_is_refused_by_name(here: Surroundings) -> None:
    here.path.pause()
    expected = rf"delay on the network path of A \(engine {here.network.engine}\): .*\(paused\)"
    with pytest.raises(NetworkError, match=expected):
        here.path.delay(1)
    assert here.path.description == "paused"


def test_ending_a_fault_that_is_not_there_is_refused(here: Surroundings) -> None:
    with pytest.raises(NetworkError, match=r"resume on the network path of A .*not paused \(no fault\)"):
        here.path.resume()
    with pytest.raises(NetworkError, match="no_delay on the network path of A"):
        here.path.no_delay()


@pytest.mark.parametrize("seconds", [0, -1, float("nan"), float("inf"), 10**9])
def test_a_delay_that_is_none_is_refused(here: Surroundings, seconds: float) -> None:
    with pytest.raises(UsageError, match="give seconds above 0"):
        here.path.delay(seconds)


def test_a_cut_by_anything_else_is_refused(here: Surroundings) -> None:
    with pytest.raises(UsageError, match="give 'fin' or 'rst'"):
        here.path.cut("ack")  # type: ignore[arg-type]


def test_a_closed_path_answers_nobody(here: Surroundings) -> None:
    path = here.new_path("B")
    client = here.client(path)
    path.close()
    path.close()
    with pytest.raises(psycopg.OperationalError):
        client.ask("SELECT 1")
    with pytest.raises(psycopg.OperationalError):
        here.client(path)
    with pytest.raises(NetworkError, match=r"pause on the network path of B .*closed"):
        path.pause()


@pytest.mark.parametrize("engine", ENGINES)
def test_a_closed_network_leaves_no_thread_no_port_and_no_connection(
    engine: str, server: EmbeddedServer
) -> None:
    threads_before = set(threading.enumerate())
    opened = network_or_skip(engine)
    paths = [opened.path(actor, "127.0.0.1", server.port) for actor in "ABC"]
    clients = [Client(through(path, server.tcp_dsn())) for path in paths]
    assert all(tcp_sockets.listens(path.port) for path in paths)
    paths[0].pause()
    paths[1].lose_reply()
    clients[0].send(INSERT)
    opened.close()
    opened.close()
    for path, client in zip(paths, clients, strict=True):
        assert not tcp_sockets.listens(path.port)
        assert not tcp_sockets.open_peers(path.port)
        with pytest.raises(psycopg.OperationalError):
            client.ask("SELECT 1")
        client.close()
    assert set(threading.enumerate()) <= threads_before
    with pytest.raises(NetworkError, match="closed"):
        opened.path("D", "127.0.0.1", server.port)


def test_a_toxiproxy_that_would_not_be_used_is_refused() -> None:
    with pytest.raises(UsageError, match="--toxiproxy /some/where has no use without --network toxiproxy"):
        check_network("gate", "/some/where")


def test_an_unknown_engine_is_named_with_the_choices() -> None:
    for ask in (check_network, open_network):
        with pytest.raises(UsageError, match="--network carrier-pigeon: give one of gate, toxiproxy"):
            ask("carrier-pigeon")
