"""The runner: lets one thing move at a time, observes, and asks every invariant after each step."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from fencepost.harness.actors.base import Actor
from fencepost.harness.actors.messages import Request, signed
from fencepost.harness.adapter import GUARD_PASSED, Claim, Json, Observation, Outcome
from fencepost.harness.control import Control
from fencepost.harness.errors import FencepostError
from fencepost.harness.history import (
    Call,
    CallStatus,
    ClockMove,
    Lock,
    Step,
    StepKind,
    Violation,
)
from fencepost.harness.invariants import Invariant
from fencepost.harness.settling import InFlight, Settler
from fencepost.harness.told_leases import ToldLeases
from fencepost.harness.verdict import Fault, Hold
from fencepost.harness.wire import StatementRule, Wire, hold_place, is_hold


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
        orphan: Callable[[Collection[int]], None] = lambda _: None,
        locks: Callable[[], tuple[Lock, ...]] = tuple,
        every_statement: bool = False,
        keeps_results: bool = False,
    ) -> None:
        self._race = race
        self._control = control
        self._settler = settler
        self._observe = observe
        self._reports_checkpoints = reports_checkpoints
        self._orphan = orphan
        self._locks = locks
        self._every_statement = every_statement
        self._keeps_results = keeps_results
        self._in_flight: dict[str, InFlight] = {}
        self._woken: list[tuple[InFlight, CallStatus]] = []
        """Calls that stood still when the current step began and may move in it, with how they stood."""
        self._holds: list[InFlightHold] = []
        self._calls = 0
        self.invariants = tuple(invariants)
        self.steps: list[Step] = []
        self.exercised: list[tuple[str, ...]] = []
        """Per step, the invariants whose subject was there."""
        self.violations: list[Violation] = []
        self._fired: dict[int, list[bool]] = {}
        self.statement_faults: list[Fault] = []
        """Faults armed at statements, in the order in which their calls ended."""
        self.lost_connection: set[str] = set()
        """Actors whose last answer was lost: whoever works for them opens a new connection next."""
        self._told = ToldLeases()
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
        rules: Sequence[StatementRule] = (),
        wire: Wire | None = None,
        every_statement: bool = False,
        line: str | None = None,
    ) -> Call:
        """Start an operation and wait until it has answered, or stands still."""
        name = actor.seat.actor
        if name in self._in_flight:
            busy = self._in_flight[name].call
            raise FencepostError(f"{name} is still in {busy.operation}: an actor does one thing at a time")
        if (rules or every_statement) and wire is None:
            raise FencepostError(
                f"{name}'s {operation} is addressed by its statements, and {name} is not behind the gate"
            )
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
            faults=tuple(str(rule) for rule in rules if not is_hold(rule)),
        )
        keys = {checkpoint: self._control.raise_barrier() for checkpoint in hold_at}
        self._holds.extend(InFlightHold(call, checkpoint) for checkpoint in hold_at)
        self._holds.extend(InFlightHold(call, hold_place(rule)) for rule in rules if is_hold(rule))
        flight = InFlight(call, actor, holds=dict(keys), wire=wire, every_statement=every_statement)
        self._in_flight[name] = flight
        if wire is not None:
            wire.begin(operation, rules, every_statement=self._every_statement or every_statement)
        asked = signed(operation, arguments, name) if self._keeps_results else arguments
        actor.submit(Request(operation, asked, claims, keys, self._race))
        self._settle_and_record(flight, line)
        return call

    def go_on(self, call: Call, line: str | None = None) -> None:
        """Let a parked call go on, and wait until it stands still again."""
        flight = self._in_flight.get(call.actor)
        if flight is None or flight.call is not call or flight.status is not CallStatus.PARKED:
            raise FencepostError(f"{call.actor}'s {call.operation} is not parked, so it cannot go on")
        self._release(flight)
        self._settle_and_record(flight, line)

    def _release(self, flight: InFlight) -> None:
        assert flight.checkpoint is not None
        checkpoint, flight.checkpoint = flight.checkpoint, None
        flight.status = None
        flight.maybe_judged = False
        if flight.at_statement:
            assert flight.wire is not None
            flight.at_statement = False
            flight.wire.release()
        else:
            self._control.open_barrier(flight.holds.pop(checkpoint))

    def move_clock(self, move: Callable[[], ClockMove], detail: Mapping[str, Json], line: str | None) -> None:
        before = self.last_observation
        clock = move()
        if clock.expired_claim is not None:
            self._told.expired(clock.expired_claim)
        self._settle_woken()
        after = self._look()
        self._record(Step(self._next(), StepKind.CLOCK, before, after, clock=clock, detail=detail, line=line))
        self._record_freed(before, after, None)
        self._walk_on()
        self._raise_if_broken()

    def fault(
        self,
        name: str,
        strike: Callable[[], None],
        line: str | None,
        *,
        actor: str | None = None,
        ends_connections_of: Collection[str] = (),
        ends_calls_of: Collection[str] = (),
        detail: Mapping[str, Json] | None = None,
    ) -> None:
        """Let a fault happen, whoever is in flight.

        `ends_connections_of` names the actors whose side of their connections it ends: a statement of theirs
        that the gate holds comes back as lost. `ends_calls_of` names the actors it ends themselves. Whoever is
        parked stays so when only the server's side is gone, and finds out when it goes on.
        """
        before = self.last_observation
        strike()
        self._settle_woken(
            [
                f
                for f in self.in_flight
                if (f.at_statement and f.name in ends_connections_of) or f.name in ends_calls_of
            ]
        )
        after = self._look()
        self._record(
            Step(
                self._next(),
                StepKind.FAULT,
                before,
                after,
                fault=name,
                actor=actor,
                detail=detail or {},
                line=line,
            )
        )
        self._record_freed(before, after, None)
        self._walk_on()
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

    def has_holds_ahead(self, call: Call) -> bool:
        return any(hold.call is call and not hold.reached for hold in self._holds)

    def forget_what_never_came(self) -> None:
        """For orders made up as they go: a hold that was not reached and a fault that did not fire are none."""
        self._holds = [hold for hold in self._holds if hold.reached]
        self.statement_faults = [fault for fault in self.statement_faults if fault.fired]
        for call in {id(step.call): step.call for step in self.steps if step.call is not None}.values():
            fired = self._fired.get(call.number, [])
            call.faults = tuple(rule for rule, did in zip(call.faults, fired, strict=False) if did)

    def holds(self) -> tuple[Hold, ...]:
        return tuple(
            Hold(hold.call.actor, hold.call.operation, hold.checkpoint, hold.reached) for hold in self._holds
        )

    # -- inside -------------------------------------------------------------------------------------------

    def _next(self) -> int:
        return len(self.steps) + 1

    def _settle_and_record(self, flight: InFlight, line: str | None) -> None:
        self._one_step(flight, line)
        self._walk_on(line)
        self._raise_if_broken()

    def _one_step(self, flight: InFlight, line: str | None) -> None:
        before = self.last_observation
        self._settler.settle([flight, *self._wake(except_for=flight)])
        after = self._look()
        self._record(self._call_step(StepKind.CALL, flight, before, after, line))
        self._record_freed(before, after, flight)

    def _walk_on(self, line: str | None = None) -> None:
        """Where every statement is a step: whoever the gate holds only for that goes on, in actor order."""
        while not self.violations:
            walking = [f for f in self.in_flight if f.at_statement and not self._is_wanted(f)]
            if not walking:
                return
            self._release(walking[0])
            self._one_step(walking[0], line)

    def _is_wanted(self, flight: InFlight) -> bool:
        """Whether the schedule holds it there."""
        return flight.every_statement or (flight.wire is not None and flight.wire.held_by_rule is not None)

    def _settle_woken(self, others: Sequence[InFlight] = ()) -> None:
        moving = self._wake()
        for flight in others:
            if flight.status is not None:
                self._woken.append((flight, flight.status))
                flight.status = flight.checkpoint = None
                flight.at_statement = False
                moving.append(flight)
        if moving:
            self._settler.settle(moving)

    def _wake(self, except_for: InFlight | None = None) -> list[InFlight]:
        """Calls that wait for others may move in any step: they count as moving until seen to stand still."""
        waiting = (CallStatus.BLOCKED, CallStatus.CUT_OFF)
        self._woken = [(f, f.status) for f in self.in_flight if f.status in waiting and f is not except_for]
        for flight, _ in self._woken:
            flight.status = None
        return [flight for flight, _ in self._woken]

    def _record_freed(self, before: Observation, after: Observation, mover: InFlight | None) -> None:
        # In actor order: the server answers several freed calls in any order.
        for flight, stood in sorted(self._woken, key=lambda woken: woken[0].name):
            if flight is not mover and flight.status is not stood:
                self._record(self._call_step(StepKind.FREED, flight, before, after, None))
        self._woken = []

    def _call_step(
        self, kind: StepKind, flight: InFlight, before: Observation, after: Observation, line: str | None
    ) -> Step:
        statements = flight.wire.take_statements() if flight.wire is not None else ()
        if flight.status is CallStatus.ANSWERED:
            self._end_call(flight)
        if flight.status is CallStatus.PARKED:
            places = {flight.checkpoint} | (
                {flight.wire.held_by_rule} if flight.at_statement and flight.wire is not None else set()
            )
            for hold in self._holds:
                if hold.call is flight.call and hold.checkpoint in places:
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
            statements=statements,
            locks=self._locks() if flight.status is CallStatus.BLOCKED else (),
        )

    def _end_call(self, flight: InFlight) -> None:
        del self._in_flight[flight.name]
        if flight.call.reply is not None and flight.call.reply.outcome is Outcome.UNKNOWN:
            self.lost_connection.add(flight.name)
        if flight.wire is not None:
            ended = flight.wire.end(flight.call)
            self.statement_faults.extend(ended)
            self._fired[flight.call.number] = [fault.fired for fault in ended]

    def _look(self) -> Observation:
        self._orphan(
            [pid for f in self._in_flight.values() if f.wire is not None for pid in f.wire.lost_backends()]
        )
        seen = self._observe()
        for flight in self._in_flight.values():
            self._told.note(flight.call, seen.at_us)
        self.last_observation = self._told.fill_in(seen)
        for flight in self._in_flight.values():
            if flight.status is not CallStatus.ANSWERED and self._surely_not_judged(flight):
                flight.call.unguarded_until_us = self.last_observation.at_us
        return self.last_observation

    def _surely_not_judged(self, flight: InFlight) -> bool:
        if GUARD_PASSED in flight.call.passed or flight.checkpoint == GUARD_PASSED or flight.maybe_judged:
            return False
        if flight.status is CallStatus.CUT_OFF:
            return False  # what was sent before the path was cut may have been judged, its answer on the way
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
