"""The runner: lets one thing move at a time, observes, and asks every invariant after each step."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from fencepost.harness.actors.base import Actor
from fencepost.harness.actors.messages import Request
from fencepost.harness.adapter import GUARD_PASSED, Claim, Json, Observation
from fencepost.harness.control import Control
from fencepost.harness.errors import FencepostError
from fencepost.harness.history import (
    Call,
    CallStatus,
    ClockMove,
    Step,
    StepKind,
    Violation,
)
from fencepost.harness.invariants import Invariant
from fencepost.harness.settling import InFlight, Settler
from fencepost.harness.verdict import Hold


class InvariantBroken(FencepostError):
    """Raised at the step that broke it: what comes after a broken invariant proves nothing more."""

    def __init__(self, violations: Sequence[Violation]) -> None:
        super().__init__("; ".join(violation.message for violation in violations))
        self.violations = tuple(violations)


class Runner:
    """Orders the steps of one run. Owns its history; knows nothing of scenarios."""

    def __init__(
        self,
        *,
        race: int,
        control: Control,
        settler: Settler,
        observe: Callable[[], Observation],
        invariants: Sequence[Invariant],
        reports_checkpoints: bool,
    ) -> None:
        self._race = race
        self._control = control
        self._settler = settler
        self._observe = observe
        self._reports_checkpoints = reports_checkpoints
        self._in_flight: dict[str, InFlight] = {}
        self._were_blocked: list[InFlight] = []
        self._holds: list[InFlightHold] = []
        self._calls = 0
        self.invariants = tuple(invariants)
        self.steps: list[Step] = []
        self.exercised: list[tuple[str, ...]] = []
        """Per step, the invariants whose subject was there."""
        self.violations: list[Violation] = []
        self.first_observation = self.last_observation = observe()

    # -- what can be let go -------------------------------------------------------------------------------

    def let_go(
        self,
        actor: Actor,
        operation: str,
        arguments: Mapping[str, Json],
        *,
        claims: tuple[Claim, ...] = (),
        hold_at: Sequence[str] = (),
        line: str | None = None,
    ) -> Call:
        """Start an operation and wait until it has answered, is parked, or is blocked."""
        name = actor.seat.actor
        if name in self._in_flight:
            busy = self._in_flight[name].call
            raise FencepostError(f"{name} is still in {busy.operation}: an actor does one thing at a time")
        self._calls += 1
        now_us = self.last_observation.at_us
        call = Call(
            number=self._calls,
            actor=name,
            worker_name=actor.seat.worker_name,
            operation=operation,
            arguments=arguments,
            claims=claims,
            started_step=len(self.steps) + 1,
            started_us=now_us,
            unguarded_until_us=now_us,
        )
        keys = {checkpoint: self._control.raise_barrier() for checkpoint in hold_at}
        self._holds.extend(InFlightHold(call, checkpoint) for checkpoint in hold_at)
        flight = InFlight(call, actor, holds=dict(keys))
        self._in_flight[name] = flight
        actor.submit(Request(operation, arguments, claims, keys, self._race))
        self._settle_and_record(flight, line)
        return call

    def go_on(self, call: Call, line: str | None = None) -> None:
        """Open the barrier a parked call waits at, and wait until it stands still again."""
        flight = self._in_flight.get(call.actor)
        if flight is None or flight.call is not call or flight.status is not CallStatus.PARKED:
            raise FencepostError(f"{call.actor}'s {call.operation} is not parked, so it cannot go on")
        assert flight.checkpoint is not None
        key = flight.holds.pop(flight.checkpoint)
        flight.status = None
        flight.checkpoint = None
        self._control.open_barrier(key)
        self._settle_and_record(flight, line)

    def move_clock(self, move: Callable[[], ClockMove], detail: Mapping[str, Json], line: str | None) -> None:
        before = self.last_observation
        clock = move()
        self._settle_blocked()
        after = self._look()
        self._record(Step(self._next(), StepKind.CLOCK, before, after, clock=clock, detail=detail, line=line))
        self._record_freed(before, after, None)
        self._raise_if_broken()

    def fault(self, name: str, strike: Callable[[], None], line: str | None) -> None:
        """Let a fault of the server happen. For now only with nobody in flight."""
        if self._in_flight:
            busy = ", ".join(f"{flight.name} in {flight.call.operation}" for flight in self.in_flight)
            raise FencepostError(f"{name} with calls in flight is not supported yet: {busy}")
        before = self.last_observation
        strike()
        after = self._look()
        self._record(Step(self._next(), StepKind.FAULT, before, after, fault=name, line=line))
        self._raise_if_broken()

    def note(self, kind: StepKind, actor: str | None, detail: Mapping[str, Json], line: str | None) -> None:
        """Record a step in which nobody was let go: an actor leaves, the run ends."""
        before = self.last_observation
        after = self._look()
        self._record(Step(self._next(), kind, before, after, actor=actor, detail=detail, line=line))
        self._raise_if_broken()

    # -- what stands still --------------------------------------------------------------------------------

    @property
    def parked(self) -> list[Call]:
        """Calls held at a checkpoint, in actor order."""
        return [f.call for _, f in sorted(self._in_flight.items()) if f.status is CallStatus.PARKED]

    @property
    def in_flight(self) -> list[InFlight]:
        return [flight for _, flight in sorted(self._in_flight.items())]

    def status_of(self, call: Call) -> CallStatus:
        flight = self._in_flight.get(call.actor)
        if flight is not None and flight.call is call and flight.status is not None:
            return flight.status
        return CallStatus.ANSWERED

    def holds(self) -> tuple[Hold, ...]:
        return tuple(
            Hold(hold.call.actor, hold.call.operation, hold.checkpoint, hold.reached) for hold in self._holds
        )

    # -- inside -------------------------------------------------------------------------------------------

    def _next(self) -> int:
        return len(self.steps) + 1

    def _settle_and_record(self, flight: InFlight, line: str | None) -> None:
        before = self.last_observation
        self._settler.settle([flight, *self._wake_blocked()])
        after = self._look()
        self._record(self._call_step(StepKind.CALL, flight, before, after, line))
        self._record_freed(before, after, flight)
        self._raise_if_broken()

    def _settle_blocked(self) -> None:
        blocked = self._wake_blocked()
        if blocked:
            self._settler.settle(blocked)

    def _wake_blocked(self) -> list[InFlight]:
        """Blocked calls may move in any step: they count as moving until they are seen to stand still."""
        self._were_blocked = [f for f in self.in_flight if f.status is CallStatus.BLOCKED]
        for flight in self._were_blocked:
            flight.status = None
        return self._were_blocked

    def _record_freed(self, before: Observation, after: Observation, mover: InFlight | None) -> None:
        # In actor order: the server answers several freed calls in any order.
        for flight in self._were_blocked:
            if flight is not mover and flight.status is not CallStatus.BLOCKED:
                self._record(self._call_step(StepKind.FREED, flight, before, after, None))
        self._were_blocked = []

    def _call_step(
        self, kind: StepKind, flight: InFlight, before: Observation, after: Observation, line: str | None
    ) -> Step:
        if flight.status is CallStatus.ANSWERED:
            del self._in_flight[flight.name]
        if flight.status is CallStatus.PARKED:
            for hold in self._holds:
                if hold.call is flight.call and hold.checkpoint == flight.checkpoint:
                    hold.reached = True
        return Step(
            self._next(),
            kind,
            before,
            after,
            call=flight.call,
            status=flight.status,
            checkpoint=flight.checkpoint,
            blocked_by=flight.blocked_by if flight.status is CallStatus.BLOCKED else (),
            actor=flight.name,
            line=line,
        )

    def _look(self) -> Observation:
        self.last_observation = self._observe()
        for flight in self._in_flight.values():
            if flight.status is not CallStatus.ANSWERED and self._surely_not_judged(flight):
                flight.call.unguarded_until_us = self.last_observation.at_us
        return self.last_observation

    def _surely_not_judged(self, flight: InFlight) -> bool:
        if GUARD_PASSED in flight.call.passed or flight.checkpoint == GUARD_PASSED:
            return False
        return flight.status is CallStatus.BLOCKED or self._reports_checkpoints

    def _record(self, step: Step) -> None:
        self.steps.append(step)
        exercised: list[str] = []
        for invariant in self.invariants:
            count = invariant.exercised
            violation = invariant.judge(step)
            if violation is not None:
                self.violations.append(violation)
            if invariant.exercised != count:
                exercised.append(invariant.name)
        self.exercised.append(tuple(exercised))

    def _raise_if_broken(self) -> None:
        if self.violations:
            raise InvariantBroken(self.violations)


class InFlightHold:
    """A hold as the run goes on; `reached` turns true when the actor is seen parked there."""

    __slots__ = ("call", "checkpoint", "reached")

    def __init__(self, call: Call, checkpoint: str) -> None:
        self.call = call
        self.checkpoint = checkpoint
        self.reached = False
