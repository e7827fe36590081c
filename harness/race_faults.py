"""The words for faults in a scenario: what is done to the server, to an actor's path, to its process.

Every word is a step. What cannot be had here (a server that is not ours, a thread that cannot be killed) is known
before the scenario starts: it declares its faults, and is skipped with the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Protocol

from fencepost.harness.actors.base import Actor
from fencepost.harness.adapter import Json
from fencepost.harness.errors import FencepostError
from fencepost.harness.network.base import CutBy
from fencepost.harness.postgres.provider import ServerFault
from fencepost.harness.runner import Runner
from fencepost.harness.verdict import Fault
from fencepost.harness.wire import Wire


@dataclass(frozen=True, slots=True)
class Seating:
    """How a participant sits: what its scenario asks for beside its name."""

    worker_name: str
    time_zone: str | None = None
    path: str = "direct"  # one of scenario.PATHS
    kind: str | None = None  # thread or process; None: what the run uses
    clock_skew_s: float = 0.0  # of its own clock; needs a process


class Stage(Protocol):
    """What stands around the queue of one race, and can be seated or harmed."""

    def seat(self, name: str, seating: Seating) -> Actor: ...

    def wire(self, name: str) -> Wire | None:
        """The path of an actor that is seated behind the gate or a network engine."""

    def strike_server(self, fault: ServerFault, actor: str | None, *, notice: bool) -> None: ...

    def strike_server_starting(self, meanwhile: Callable[[], None]) -> None:
        """Crash the server, do this while it refuses connections because it recovers, and let it start."""

    def strike_path(self, actor: str, strike: Callable[[], None], *, ends: bool, notice: bool) -> None: ...

    def strike_process(self, actor: str, signal: str) -> None: ...


class Striker:
    """Records every fault as armed before it strikes and as fired after it: a strike that raises is neither."""

    def __init__(self, runner: Runner, stage: Stage, line: Callable[[], str | None]) -> None:
        self.stage = stage
        self._runner = runner
        self._line = line
        self._faults: list[Fault] = []

    @property
    def faults(self) -> tuple[Fault, ...]:
        return (*self._faults, *self._runner.statement_faults)

    def strike(
        self,
        name: str,
        what: Callable[[], None],
        *,
        actor: str | None = None,
        ends_connections_of: Collection[str] = (),
        ends_calls_of: Collection[str] = (),
        detail: Mapping[str, Json] | None = None,
    ) -> None:
        self._faults.append(Fault(name, fired=False))
        self._runner.fault(
            name,
            what,
            self._line(),
            actor=actor,
            ends_connections_of=ends_connections_of,
            ends_calls_of=ends_calls_of,
            detail=detail,
        )
        self._faults[-1] = Fault(name, fired=True)


class RaceServer:
    """The server under test, in the scenario's words.

    `notice`: whether idle workers know that their connection is gone and open another for their next operation;
    without it that operation is sent into the dead one, as by a pool that does not look.
    """

    def __init__(self, striker: Striker) -> None:
        self._striker = striker

    def crash(self, *, notice: bool = True) -> None:
        """An immediate shutdown and a new start: the server recovers from its log."""
        self._everybody(ServerFault.CRASH, notice)

    def kill_postmaster(self, *, notice: bool = True) -> None:
        self._everybody(ServerFault.KILL_POSTMASTER, notice)

    def kill_all(self, *, notice: bool = True) -> None:
        """SIGKILL of every process of the server at once."""
        self._everybody(ServerFault.KILL_ALL, notice)

    def fast_restart(self, *, notice: bool = True) -> None:
        """In order: transactions are rolled back, sessions ended, nothing has to be recovered."""
        self._everybody(ServerFault.FAST_RESTART, notice)

    def kill_backend(self, of: str, *, notice: bool = True) -> None:
        """SIGKILL of one actor's backend: the server ends all others as well and recovers."""
        self._everybody(ServerFault.KILL_BACKEND, notice, actor=of)

    def terminate_backend(self, of: str, *, notice: bool = True) -> None:
        """End one actor's sessions, as an operator does with pg_terminate_backend."""
        stage = self._striker.stage
        self._striker.strike(
            ServerFault.TERMINATE_BACKEND,
            lambda: stage.strike_server(ServerFault.TERMINATE_BACKEND, of, notice=notice),
            actor=of,
            detail=_unnoticed(notice),
        )

    def strike(self, fault: ServerFault, *, of: str, notice: bool = True) -> None:
        """Any of them, by its name; `of` counts where one backend is hit."""
        if fault is ServerFault.TERMINATE_BACKEND:
            self.terminate_backend(of, notice=notice)
        else:
            self._everybody(fault, notice, actor=of if fault is ServerFault.KILL_BACKEND else None)

    def _everybody(self, fault: ServerFault, notice: bool, actor: str | None = None) -> None:
        stage = self._striker.stage
        self._striker.strike(
            fault.value,
            lambda: stage.strike_server(fault, actor, notice=notice),
            actor=actor,
            detail=_unnoticed(notice),
        )


class ParticipantPath:
    """One participant's path to the server, in the scenario's words. Needs `path="network"` or `"gate"`."""

    def __init__(self, striker: Striker, name: str) -> None:
        self._striker = striker
        self._name = name

    def pause(self) -> None:
        """Nothing passes either way until `resume`; nothing is lost."""
        self._strike("pause", lambda wire: wire.pause())

    def resume(self) -> None:
        self._strike("resume", lambda wire: wire.resume())

    def cut(self, how: CutBy = "fin", *, notice: bool = True) -> None:
        """Its connections die now. `how`: fin, or rst on a path that resets. New ones work."""
        self._strike("cut", lambda wire: wire.cut(how), ends=True, notice=notice, detail={"how": how})

    def delay(self, seconds: float) -> None:
        """What is sent arrives that much later, or at `arrive`. Longer than a step's deadline, it is the latter."""
        self._strike("delay", lambda wire: wire.delay(seconds), detail={"seconds": seconds})

    def arrive(self) -> None:
        """The delay is over: what was on its way arrives now."""
        self._strike("arrive", lambda wire: wire.arrive())

    def lose_reply(self) -> None:
        """From now on the server gets what is sent and its answers are swallowed, until the path is cut."""
        self._strike("lose_reply", lambda wire: wire.lose_reply())

    def lose_request(self) -> None:
        """From now on what is sent is swallowed, until the path is cut."""
        self._strike("lose_request", lambda wire: wire.lose_request())

    def half_open(self) -> None:
        """The server's side of its connections is gone, and nobody tells the worker."""
        self._strike("half_open", lambda wire: wire.half_open(), ends=True, notice=False)

    def cut_mid_message(self) -> None:
        """A part of the next reply arrives, then the connection dies."""
        self._strike("cut_mid_message", lambda wire: wire.cut_mid_message())

    def mend(self) -> None:
        """The path is whole again; connections through which something was lost are gone."""
        self._strike("mend", lambda wire: wire.end_withholding())

    def _strike(
        self,
        fault: str,
        what: Callable[[Wire], None],
        *,
        ends: bool = False,
        notice: bool = True,
        detail: Mapping[str, Json] | None = None,
    ) -> None:
        stage = self._striker.stage
        wire = stage.wire(self._name)
        if wire is None:
            raise FencepostError(
                f"{fault} hits a path, and {self._name} is connected directly: seat it with path='network'"
            )
        self._striker.strike(
            fault,
            lambda: stage.strike_path(self._name, lambda: what(wire), ends=ends, notice=notice),
            actor=self._name,
            ends_connections_of=(self._name,) if ends else (),
            detail={**(detail or {}), **_unnoticed(notice)},
        )


def _unnoticed(notice: bool) -> dict[str, Json]:
    return {} if notice else {"notice": False}
