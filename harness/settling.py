"""Waiting until every call in flight has answered, is parked at a checkpoint, or is blocked in the server.

After that nothing moves until the runner lets something move: that is what makes an order of steps exact.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from fencepost.harness.actors.base import Actor
from fencepost.harness.control import Control
from fencepost.harness.errors import StepDeadline
from fencepost.harness.gate.drive import GateDrive
from fencepost.harness.history import Call, CallStatus
from fencepost.harness.wire import Wire

# A call that neither waits nor is held answers within this time on an idle machine; asking the server whether
# it is blocked before that would only take the core away from it.
FIRST_LOOK_S = 0.002
POLL_S = 0.0003
QUIET_S = 0.0005
"""With nothing to be heard at the gate for so long, whoever moves may be blocked: the server is asked."""
DEFAULT_DEADLINE_S = 20.0


@dataclass(slots=True)
class InFlight:
    """A call that has been let go and has not answered."""

    call: Call
    actor: Actor
    holds: dict[str, int] = field(default_factory=dict)
    """Barriers still ahead of it, by checkpoint."""
    status: CallStatus | None = None
    """None while it moves."""
    checkpoint: str | None = None
    """Where it is parked."""
    blocked_by: tuple[str, ...] = ()
    wire: Wire | None = None
    """Its actor's path, where it goes through the gate or a network engine."""
    every_statement: bool = False
    """The schedule holds it before each of its statements."""
    at_statement: bool = False
    """Parked by the gate, before or after a statement, and not by a barrier."""
    maybe_judged: bool = False
    """Parked with a statement's answer withheld: the server may have judged the write already."""

    @property
    def name(self) -> str:
        return self.call.actor

    @property
    def drive(self) -> GateDrive | None:
        """Where its path leads through the gate: the gate's loop, to be run while it is waited for."""
        return self.wire.drive if self.wire is not None else None


class Settler:
    def __init__(
        self,
        control: Control,
        waits: Callable[[], Mapping[str, frozenset[str]]],
        describe: Callable[[], str],
        cut_off: Callable[[InFlight], bool],
        deadline_s: float = DEFAULT_DEADLINE_S,
    ) -> None:
        self._control = control
        self._waits = waits
        self._describe = describe
        self._cut_off = cut_off
        self._deadline_s = deadline_s

    def settle(self, moving: Collection[InFlight]) -> None:
        """Returns when each of `moving` has a status that only another step can change."""
        drive = next((flight.drive for flight in moving if flight.drive is not None), None)
        if drive is None:
            self._settle(list(moving), None)
            return
        watched = [flight.actor.answer_fd for flight in moving]
        for fd in watched:
            drive.watch(fd)
        try:
            self._settle(list(moving), drive)
        finally:
            for fd in watched:
                drive.unwatch(fd)

    def _settle(self, restless: list[InFlight], drive: GateDrive | None) -> None:
        deadline = time.monotonic() + self._deadline_s
        first_look = True
        while restless:
            if drive is None:
                pause_s = FIRST_LOOK_S if first_look and not restless[0].holds else POLL_S
                quiet = True
            else:
                pause_s = 0.0
                quiet = not drive.turn(QUIET_S)
            first_look = False
            restless = [flight for flight in restless if not self._arrived(flight, pause_s)]
            if restless and quiet and self._all_still(restless):
                return
            if restless and time.monotonic() > deadline:
                for flight in restless:
                    flight.call.passed.extend(flight.actor.take_passed())
                raise StepDeadline(self._tell(restless))

    def _arrived(self, flight: InFlight, pause_s: float) -> bool:
        reply = flight.actor.poll(pause_s)
        if reply is not None:
            flight.call.passed.extend(flight.actor.take_passed())
            flight.call.reply = reply
            flight.status = CallStatus.ANSWERED
            return True
        parked = flight.wire.parked if flight.wire is not None else None
        if parked is not None:
            flight.call.passed.extend(flight.actor.take_passed())
            flight.status = CallStatus.PARKED
            flight.checkpoint = parked.place
            flight.at_statement = True
            flight.maybe_judged = parked.answered
            return True
        for checkpoint, key in flight.holds.items():
            if self._control.is_parked(key):
                flight.call.passed.extend(flight.actor.take_passed())
                flight.status = CallStatus.PARKED
                flight.checkpoint = checkpoint
                return True
        return False

    def _all_still(self, restless: list[InFlight]) -> bool:
        """Blocked or cut off for good: each waits for somebody who is still, and none has answered meanwhile."""
        waits = self._waits()
        still = {f.name: self._status_of(f, waits) for f in restless}
        if None in still.values() or has_cycle(waits):
            # In a cycle the server's deadlock detector will end one of them: that is not a resting state.
            return False
        if any(self._arrived(flight, 0.0) for flight in restless):
            # The answer came between the two looks. What else waits may have been freed by it: look again.
            restless[:] = [flight for flight in restless if flight.status is None]
            return False
        for flight in restless:
            flight.call.passed.extend(flight.actor.take_passed())
            flight.status = still[flight.name]
            flight.blocked_by = tuple(sorted(waits.get(flight.name, ())))
        return True

    def _status_of(self, flight: InFlight, waits: Mapping[str, frozenset[str]]) -> CallStatus | None:
        if flight.name in waits:
            return CallStatus.BLOCKED
        return CallStatus.CUT_OFF if self._cut_off(flight) else None

    def _tell(self, restless: list[InFlight]) -> str:
        awaited = ", ".join(
            f"{flight.name} in {flight.call.operation}"
            + (f" (to be held at {' or '.join(flight.holds)})" if flight.holds else "")
            + (f" (last checkpoint passed: {flight.call.passed[-1]})" if flight.call.passed else "")
            for flight in restless
        )
        return f"waited {self._deadline_s:g} s for {awaited}; the server: {self._describe()}"


def has_cycle(waits: Mapping[str, frozenset[str]]) -> bool:
    def reaches(start: str, node: str, seen: set[str]) -> bool:
        for blocker in waits.get(node, ()):
            if blocker == start:
                return True
            if blocker not in seen:
                seen.add(blocker)
                if reaches(start, blocker, seen):
                    return True
        return False

    return any(reaches(actor, actor, set()) for actor in waits)
