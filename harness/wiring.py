"""The paths of one run: the gate and the network engine, each started when the first actor needs it."""

from __future__ import annotations

from fencepost.harness.gate import Gate, Upstream
from fencepost.harness.wire import Wire


class Wiring:
    def __init__(self, engine: str, toxiproxy: str | None = None) -> None:
        self._engine = engine
        self._toxiproxy = toxiproxy
        self._gate: Gate | None = None

    def open(self, name: str, path: str, host: str, port: int) -> Wire:
        if self._gate is None:
            self._gate = Gate()
        return Wire(self._gate.open_path(name, Upstream("tcp", host, port)), None)

    def close(self) -> None:
        if self._gate is not None:
            self._gate.close()
