"""Network faults by the real Toxiproxy.

What the server does in truth, each shown by a test in `tests/test_toxiproxy_traps.py`:

- `reset_peer` resets only connections opened after it was added: it sets SO_LINGER when a connection starts.
  Planted before that, at a toxicity of 0, it does nothing until the proxy closes the connection, by RST then.
- `timeout` drops data, and with a time it starts anew at every chunk: used here without a time, where it swallows
  for ever. Taking it off closes every live connection, which is used to cut them.
- `latency` loses nothing; taken off, it lets go what it holds at once. So it is the pause. But adding any toxic
  behind it lets go what it holds, too: hence one fault at a time, and a paused path is cut by replacing its proxy.
- Taking a toxic off hangs while a connection cannot be written to: hence a deadline on every call.
- The seed is ignored: hence no toxicity between 0 and 1.
- `limit_data` of 0 bytes loses the reply *and* ends the connection at that moment: no use for a client that is to
  hear nothing, but with a few bytes it is the cut in the middle of a message.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from contextlib import contextmanager

from fencepost.harness.network import tcp_sockets
from fencepost.harness.network.base import CALL_DEADLINE_S, NetworkError
from fencepost.harness.network.one_fault import (
    CUT_MID_MESSAGE,
    DELAY,
    HALF_OPEN,
    HOLDING,
    LOSE_REPLY,
    LOSE_REQUEST,
    PAUSE,
    OneFaultPath,
)
from fencepost.harness.network.toxiproxy_api import NEVER, ToxiproxyApi, ToxiproxyApiError
from fencepost.harness.network.toxiproxy_binary import find_binary
from fencepost.harness.network.toxiproxy_server import ToxiproxyServer
from fencepost.harness.postgres.ports import free_port
from fencepost.harness.postgres.settings import LOOPBACK

ENGINE = "toxiproxy"

UP = "upstream"
DOWN = "downstream"

_LONGER_THAN_ANY_RUN_MS = 30 * 24 * 3600 * 1000
_PART_OF_A_REPLY_BYTES = 7
"""Never the end of a message: they have 5 bytes (ParseComplete), 6 (ReadyForQuery), or more than 7."""
_PORT_ATTEMPTS = 5
_POLL_S = 0.001

_CUTTER = "cut"
_RESETTER = "reset"


class ToxiproxyNetwork:
    engine = ENGINE

    def __init__(self, server: ToxiproxyServer, *, deadline_s: float = CALL_DEADLINE_S) -> None:
        """The network owns the server from now on."""
        self.server = server
        self._deadline_s = deadline_s
        self._numbers = itertools.count(1)
        self._paths: list[ToxiproxyPath] = []
        self._closed = False

    @classmethod
    def start(cls, asked_for: str | None = None, *, deadline_s: float = CALL_DEADLINE_S) -> ToxiproxyNetwork:
        return cls(ToxiproxyServer.start(find_binary(asked_for)), deadline_s=deadline_s)

    def path(
        self, actor: str, upstream_host: str, upstream_port: int, *, resets: bool = False
    ) -> ToxiproxyPath:
        if self._closed:
            raise NetworkError(actor, "path", ENGINE, "the network is closed")
        path = ToxiproxyPath(
            self.server.api(self._deadline_s),
            f"path-{next(self._numbers)}",
            actor,
            f"{upstream_host}:{upstream_port}",
            resets,
            self._deadline_s,
        )
        self._paths.append(path)
        return path

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self.server.close()  # takes every proxy, toxic and connection with it
        for path in self._paths:
            path.end_with_server()


class ToxiproxyPath(OneFaultPath):
    def __init__(
        self, api: ToxiproxyApi, proxy: str, actor: str, upstream: str, resets: bool, deadline_s: float
    ) -> None:
        self._api = api
        self._proxy = proxy
        self._upstream = upstream
        self._deadline_s = deadline_s
        self._held_ms = 0  # of the pause or delay in force
        super().__init__(ENGINE, actor, LOOPBACK, 0, resets)
        self._open_on_a_free_port()

    def end_with_server(self) -> None:
        self._closed = True

    def _open_on_a_free_port(self) -> None:
        """Not one the server chooses: a replaced proxy must find its port free (see `free_port`)."""
        for attempt in range(_PORT_ATTEMPTS):
            self.port = free_port()
            try:
                self._open()
                return
            except ToxiproxyApiError as problem:
                if "address already in use" not in str(problem) or attempt == _PORT_ATTEMPTS - 1:
                    raise NetworkError(self.actor, "path", ENGINE, str(problem)) from problem
                self._api.delete_proxy(self._proxy)

    def _open(self) -> None:
        """Closed to connections until its toxics are there, so none gets past them."""
        self._api.create_proxy(self._proxy, f"{self.host}:{self.port}", self._upstream, enabled=False)
        if self._resets:
            self._api.add_toxic(self._proxy, _RESETTER, "reset_peer", DOWN, {"timeout": 0}, toxicity=NEVER)
        if self._fault in HOLDING:
            self._hold(self._held_ms)
        self._api.enable_proxy(self._proxy)

    def _pause(self) -> None:
        with self._asking(PAUSE):
            self._hold(_LONGER_THAN_ANY_RUN_MS)

    def _resume(self) -> None:
        with self._asking("resume"):
            self._let_go()

    def _delay(self, seconds: float) -> None:
        with self._asking(DELAY):
            self._hold(max(1, round(seconds * 1000)))

    def _no_delay(self) -> None:
        with self._asking("no_delay"):
            self._let_go()

    def _hold(self, milliseconds: int) -> None:
        self._held_ms = milliseconds
        for stream in (UP, DOWN):  # requests first: a reply that still gets through belongs to an earlier one
            self._add(f"hold-{stream}", "latency", stream, latency=milliseconds)

    def _let_go(self) -> None:
        for stream in (UP, DOWN):
            self._remove(f"hold-{stream}")

    def _lose_reply(self) -> None:
        with self._asking(LOSE_REPLY):
            self._add(LOSE_REPLY, "timeout", DOWN, timeout=0)

    def _lose_request(self) -> None:
        with self._asking(LOSE_REQUEST):
            self._add(LOSE_REQUEST, "timeout", UP, timeout=0)

    def _half_open(self) -> None:
        """`slow_close` keeps the end of the server's side from the client, for as long as it is there."""
        with self._asking(HALF_OPEN):
            self._add(HALF_OPEN, "slow_close", DOWN, delay=_LONGER_THAN_ANY_RUN_MS)
            self._close_links(UP)

    def _end_half_open(self) -> None:
        with self._asking("clean"):
            self._remove(HALF_OPEN)

    def _cut_mid_message(self) -> None:
        with self._asking(CUT_MID_MESSAGE):
            self._add(CUT_MID_MESSAGE, "limit_data", DOWN, bytes=_PART_OF_A_REPLY_BYTES)

    def _end_cut_mid_message(self) -> None:
        with self._asking("clean"):
            self._remove(CUT_MID_MESSAGE)

    def _cut(self, fault: str | None) -> None:
        with self._asking("cut"):
            if fault in HOLDING or not tcp_sockets.listens(self.port):
                # What is held must go nowhere. And where the kernel does not show the connections, this is the
                # call that closes them before it returns, at the price of a moment in which nobody listens.
                self._replace_proxy(fault)
                return
            peers = tcp_sockets.open_peers(self.port)
            match fault:
                case "lose_reply" | "lose_request":
                    self._remove(fault)  # closes the links, and leaves no toxic for who connects at once
                case "half_open":
                    self._close_links(DOWN)
                    self._remove(fault)
                case "cut_mid_message":
                    self._remove(fault)
                    self._close_links(DOWN)
                case _:
                    self._close_links(DOWN)
            self._await_closed(peers)

    def _close_links(self, stream: str) -> None:
        """Closes the receiving ends of this stream, and the listener goes on: a client may connect at once."""
        self._add(_CUTTER, "timeout", stream, timeout=0)
        self._remove(_CUTTER)

    def _replace_proxy(self, fault: str | None) -> None:
        self._api.delete_proxy(self._proxy)
        if fault not in HOLDING:
            self._fault = None
        self._open()

    def _await_closed(self, peers: frozenset[int]) -> None:
        """Toxiproxy answers when a connection's fate is sealed, and closes it a moment later."""
        deadline = time.monotonic() + self._deadline_s
        while left := peers & tcp_sockets.open_peers(self.port):
            if time.monotonic() >= deadline:
                raise NetworkError(
                    self.actor,
                    "cut",
                    ENGINE,
                    f"{len(left)} connections were still open after {self._deadline_s:g} s",
                )
            time.sleep(_POLL_S)

    def _close(self) -> None:
        with self._asking("close"):
            self._api.delete_proxy(self._proxy)

    def _add(self, name: str, kind: str, stream: str, **attributes: int) -> None:
        self._api.add_toxic(self._proxy, name, kind, stream, attributes)

    def _remove(self, name: str) -> None:
        self._api.remove_toxic(self._proxy, name)

    @contextmanager
    def _asking(self, fault: str) -> Iterator[None]:
        try:
            yield
        except ToxiproxyApiError as problem:
            raise NetworkError(self.actor, fault, ENGINE, str(problem)) from problem
