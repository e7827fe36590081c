"""Both engines behind one fixture's parameter, and a PostgreSQL client whose every wait can be looked at."""

from __future__ import annotations

import os
import select
import socket
import time
from collections.abc import Callable

import psycopg
import pytest
from psycopg import pq
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from fencepost.harness.errors import UsageError
from fencepost.harness.network.base import Network, NetworkPath
from fencepost.harness.network.engines import open_network
from fencepost.harness.network.toxiproxy_binary import ToxiproxyBinary, find_binary

DEADLINE_S = 30.0
SILENCE_S = 0.15
"""How long nothing must be heard. What would be heard by mistake comes within a millisecond."""


def toxiproxy_or_skip() -> ToxiproxyBinary:
    try:
        return find_binary()
    except UsageError as problem:
        pytest.skip(str(problem))


def network_or_skip(engine: str) -> Network:
    if engine == "toxiproxy":
        toxiproxy_or_skip()
    return open_network(engine)


def eventually(true: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not true():
        assert time.monotonic() < deadline, f"not within {DEADLINE_S:g} s: {what}"
        time.sleep(0.005)


def through(path: NetworkPath, dsn: str) -> str:
    return make_conninfo("", **{**conninfo_to_dict(dsn), "host": path.host, "port": path.port})


class Client:
    """One connection, driven below psycopg's blocking calls: sending and hearing are two things here."""

    def __init__(self, dsn: str) -> None:
        self.connection = psycopg.connect(dsn, autocommit=True, connect_timeout=int(DEADLINE_S))
        self.pid = self.connection.info.backend_pid

    def send(self, sql: str) -> None:
        """Returns once the kernel has all of it."""
        pgconn = self.connection.pgconn
        pgconn.send_query(sql.encode())
        while pgconn.flush():
            select.select([], [pgconn.socket], [], DEADLINE_S)

    def hears_nothing(self) -> bool:
        readable, _, _ = select.select([self.connection.pgconn.socket], [], [], SILENCE_S)
        return not readable

    def answer(self) -> str:
        """Of the statement sent: its first value, or its command tag. Raises OperationalError when cut off."""
        pgconn = self.connection.pgconn
        told = ""
        deadline = time.monotonic() + DEADLINE_S
        while True:
            while pgconn.is_busy():
                left_s = deadline - time.monotonic()
                assert left_s > 0 and select.select([pgconn.socket], [], [], left_s)[0], "no answer came"
                pgconn.consume_input()  # raises OperationalError where the connection has ended
            result = pgconn.get_result()
            if result is None:
                return told
            if result.status not in (pq.ExecStatus.TUPLES_OK, pq.ExecStatus.COMMAND_OK):
                raise psycopg.OperationalError(pgconn.get_error_message())
            value = (
                result.get_value(0, 0) if result.status == pq.ExecStatus.TUPLES_OK else result.command_status
            )
            told = (value or b"").decode()

    def ask(self, sql: str) -> str:
        self.send(sql)
        return self.answer()

    def raw_end(self) -> tuple[bytes, str]:
        """Every byte up to the connection's end, past the driver, and whether that was FIN or RST."""
        received = b""
        with socket.socket(fileno=os.dup(self.connection.pgconn.socket)) as raw:
            raw.settimeout(DEADLINE_S)
            while True:
                try:
                    part = raw.recv(65536)
                except ConnectionResetError:
                    return received, "rst"
                if not part:
                    return received, "fin"
                received += part

    def close(self) -> None:
        self.connection.close()
