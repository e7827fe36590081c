"""The paths of one run: the gate and the network engine, each started when the first actor needs it."""

from __future__ import annotations

from fencepost.harness.gate import Gate
from fencepost.harness.network.base import Network
from fencepost.harness.network.by_gate import GateNetwork
from fencepost.harness.network.toxiproxy import ToxiproxyNetwork
from fencepost.harness.wire import Wire


class Wiring:
    def __init__(self, engine: str, toxiproxy: str | None = None) -> None:
        self._engine = engine
        self._toxiproxy = toxiproxy
        self._gate: Gate | None = None
        self._by_gate: GateNetwork | None = None
        self._other: Network | None = None

    def open(self, name: str, path: str, host: str, port: int) -> Wire:
        resets = path == "network_rst"
        if path == "gate" or self._engine == "gate":
            if self._by_gate is None:
                self._by_gate = GateNetwork()
            network_path = self._by_gate.path(name, host, port, resets=resets)
            return Wire(network_path.gate_path, network_path)
        if self._other is None:
            self._other = ToxiproxyNetwork.start(self._toxiproxy)
        return Wire(None, self._other.path(name, host, port, resets=resets))

    def close(self) -> None:
        for network in (self._by_gate, self._other):
            if network is not None:
                network.close()
        self._by_gate = self._other = None
