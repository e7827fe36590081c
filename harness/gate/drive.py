"""The runner at the gate's wheel: it runs the loop itself while it waits, so no thread stands between two steps.

Held from the first wait to the end of the race. Whoever opens or closes connections outside of a wait lets go before:
the gate's own thread serves them then.
"""

from __future__ import annotations

import contextlib

from fencepost.harness.gate.proxy import Gate


class GateDrive:
    def __init__(self, gate: Gate) -> None:
        self._gate = gate
        self._held = contextlib.ExitStack()
        self._is_held = False

    def turn(self, timeout_s: float) -> bool:
        """Wait until something happens at the gate or at what is watched, handle it, and say whether anything did."""
        if not self._is_held:
            self._held.enter_context(self._gate.borrowed())
            self._is_held = True
        return self._gate.turn(timeout_s)

    @property
    def readable(self) -> frozenset[int]:
        """What is watched and could be read in the latest turn."""
        return self._gate.readable

    def watch(self, fd: int) -> None:
        self._gate.watch_fd(fd)

    def unwatch(self, fd: int) -> None:
        self._gate.unwatch_fd(fd)

    def let_go(self) -> None:
        if self._is_held:
            self._is_held = False
            self._held.close()
