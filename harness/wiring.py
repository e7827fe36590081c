"""The paths of one run: through the gate and through the network engine, each started when an actor needs it."""

from __future__ import annotations

from fencepost.harness.gate.drive import GateDrive
from fencepost.harness.network.base import Network
from fencepost.harness.network.by_gate import ENGINE as BY_GATE
from fencepost.harness.network.by_gate import GateNetwork
from fencepost.harness.network.engines import open_network
from fencepost.harness.wire import Wire


class Wiring:
    def __init__(self, engine: str, toxiproxy: str | None = None) -> None:
        self._engine = engine
        self._toxiproxy = toxiproxy
        self._by_gate: GateNetwork | None = None
        self._by_other: Network | None = None
        self._drive: GateDrive | None = None

    def open(self, name: str, path: str, host: str, port: int) -> Wire:
        """A path of this kind (`scenario.PATHS`) to this server, for one actor."""
        resets = path == "network_rst"
        if path == "gate" or self._engine == BY_GATE:
            if self._by_gate is None:
                self._by_gate = GateNetwork()
                self._drive = GateDrive(self._by_gate.gate)
            through_gate = self._by_gate.path(name, host, port, resets=resets)
            return Wire(through_gate, through_gate.through, self._drive)
        if self._by_other is None:
            self._by_other = open_network(self._engine, self._toxiproxy)
        return Wire(self._by_other.path(name, host, port, resets=resets))

    def let_go(self) -> None:
        """Let the gate's own thread serve it, until the runner waits at it again."""
        if self._drive is not None:
            self._drive.let_go()

    def close(self) -> None:
        self.let_go()
        for network in (self._by_gate, self._by_other):
            if network is not None:
                network.close()
        self._by_gate = self._by_other = None
