"""Network faults by the built-in gate."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from fencepost.harness.errors import FencepostError
from fencepost.harness.gate.path import GatePath
from fencepost.harness.gate.proxy import Gate, Upstream
from fencepost.harness.network.base import CALL_DEADLINE_S, NetworkError
from fencepost.harness.network.one_fault import (
    CUT_MID_MESSAGE,
    DELAY,
    HALF_OPEN,
    LOSE_REPLY,
    LOSE_REQUEST,
    PAUSE,
    OneFaultPath,
)

ENGINE = "gate"


class GateNetwork:
    engine = ENGINE

    def __init__(self, gate: Gate | None = None, *, deadline_s: float = CALL_DEADLINE_S) -> None:
        """A gate that is given stays its owner's, and `close` closes this network's paths only."""
        self.gate = gate if gate is not None else Gate()
        self._owns_gate = gate is None
        self._deadline_s = deadline_s
        self._paths: list[PathThroughGate] = []
        self._closed = False

    def path(
        self, actor: str, upstream_host: str, upstream_port: int, *, resets: bool = False
    ) -> PathThroughGate:
        if self._closed:
            raise NetworkError(actor, "path", ENGINE, "the network is closed")
        opened = self.gate.open_path(actor, Upstream("tcp", upstream_host, upstream_port))
        path = PathThroughGate(self.gate, opened, resets, self._deadline_s)
        self._paths.append(path)
        return path

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        for path in self._paths:
            path.close()
        if self._owns_gate:
            self.gate.close()


class PathThroughGate(OneFaultPath):
    def __init__(self, gate: Gate, path: GatePath, resets: bool, deadline_s: float) -> None:
        super().__init__(ENGINE, path.actor, path.host, path.port, resets)
        self.through = path
        """The gate's own path, for what only the gate can do: holding or losing one statement."""
        self._gate = gate
        self._deadline_s = deadline_s

    def _pause(self) -> None:
        with self._at_the_gate(PAUSE):
            self.through.pause()

    def _resume(self) -> None:
        with self._at_the_gate("resume"):
            self.through.resume()

    def _delay(self, seconds: float) -> None:
        with self._at_the_gate(DELAY):
            self.through.delay(seconds)

    def _no_delay(self) -> None:
        with self._at_the_gate("no_delay"):
            self.through.delay(0)

    def _lose_reply(self) -> None:
        with self._at_the_gate(LOSE_REPLY):
            self.through.swallow_replies(True)

    def _lose_request(self) -> None:
        with self._at_the_gate(LOSE_REQUEST):
            self.through.swallow_requests(True)

    def _half_open(self) -> None:
        with self._at_the_gate(HALF_OPEN):
            self.through.half_open()

    def _end_half_open(self) -> None:
        with self._at_the_gate("clean"):
            self.through.close_half_open()

    def _cut_mid_message(self) -> None:
        with self._at_the_gate(CUT_MID_MESSAGE):
            self.through.cut_mid_message(True)

    def _end_cut_mid_message(self) -> None:
        with self._at_the_gate("clean"):
            self.through.cut_mid_message(False)

    def _cut(self, fault: str | None) -> None:
        with self._at_the_gate("cut"):
            # Under one lock, so that who connects at once meets no fault any more.
            self.through.cut("rst" if self._resets else "fin")
            self.through.swallow_replies(False)
            self.through.swallow_requests(False)
            self.through.cut_mid_message(False)

    def _close(self) -> None:
        with self._at_the_gate("close"):
            self.through.close()

    @contextmanager
    def _at_the_gate(self, fault: str) -> Iterator[None]:
        if not self._gate.lock.acquire(timeout=self._deadline_s):
            raise NetworkError(
                self.actor, fault, ENGINE, f"the gate was busy for longer than {self._deadline_s:g} s"
            )
        try:
            yield
        except NetworkError:
            raise
        except FencepostError as problem:
            raise NetworkError(self.actor, fault, ENGINE, str(problem)) from problem
        finally:
            self._gate.lock.release()
