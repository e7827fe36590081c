"""Plays a schedule on a race, step by step. A step that does not end where it says leaves nothing to conclude."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from fencepost.harness.actors.messages import claim_to_json
from fencepost.harness.adapter import OPERATION_NEEDS, Capability, Claim, JobId, JobState
from fencepost.harness.errors import FencepostError, UsageError
from fencepost.harness.gate import Rule, parse_rule
from fencepost.harness.history import Call, CallStatus
from fencepost.harness.postgres import provider
from fencepost.harness.race import NotEstablished, Participant, Pending, Race
from fencepost.harness.scenario import Scenario, Variant
from fencepost.harness.schedule import (
    BACKEND_FAULTS,
    ERROR,
    PROCESS_FAULTS,
    ActorFault,
    AtCheckpoint,
    AtEveryStatement,
    AtStatement,
    ClaimRef,
    ClockBy,
    ClockPast,
    Exit,
    GoOn,
    JobRef,
    Join,
    Place,
    Schedule,
    ServerFault,
    Start,
    Statement,
    Step,
    Then,
)
from fencepost.harness.schedule_of import DEFAULT_ARGUMENTS, TERMINATE, UNDER_A_CLAIM, Names
from fencepost.harness.sink import EFFECT, Sink
from fencepost.harness.witness import Witness

WAITS = (CallStatus.BLOCKED, CallStatus.CUT_OFF)
"""In flight, and not at a hold: it waits for a lock, or for its path."""


class Player:
    """Plays one step after another. Claims and jobs are known by the order in which they were handed out."""

    def __init__(
        self,
        race: Race,
        sinks: contextlib.ExitStack | None = None,
        path_of: Callable[[str], str | None] = lambda _: None,
    ) -> None:
        """`path_of`: how an actor reaches the server whose join does not say it."""
        self._race = race
        self._path_of = path_of
        self._pending: dict[str, Pending] = {}
        self._every: dict[str, bool] = {}
        self._participants: dict[str, Participant] = {}
        self._names = Names()
        self._claims: list[Claim] = []
        self._read = 0
        self._sinks = sinks
        self._open_sinks: dict[bool, Sink] = {}
        self.played = 0

    # -- what there is ----------------------------------------------------------------------------------------

    @property
    def claims(self) -> list[Claim]:
        """Number n is claim #n+1."""
        return self._claims

    @property
    def jobs(self) -> list[JobId]:
        return self._names.jobs

    def owner_of(self, number: int) -> str:
        """Who was given claim #number."""
        return self._names.claims[number - 1][0]

    def latest_of(self, actor: str) -> int | None:
        return self._names.latest_of(actor)

    def status_of(self, actor: str) -> CallStatus | None:
        """Where the actor's call in flight stands; None where it has none."""
        pending = self._pending.get(actor)
        status = None if pending is None else pending.status
        return None if status is CallStatus.ANSWERED else status

    def is_over(self, ref: ClaimRef) -> bool:
        """A claim past which no write may come: where the guard does not see to it, the ledger must."""
        claim = self._claims[ref.number - 1]
        view = self._race.history[-1].after.by_job.get(claim.job)
        return view is not None and (view.token != claim.token or view.state is JobState.SUCCEEDED)

    def call_of(self, actor: str) -> Call:
        """The actor's latest."""
        return self._pending[actor].call

    def claims_of_call(self, actor: str) -> list[ClaimRef]:
        """Of the actor's call in flight: the claims it acts under that were handed out."""
        return [
            ClaimRef(self._claims.index(claim) + 1)
            for claim in self._pending[actor].call.claims
            if claim in self._claims
        ]

    # -- playing ----------------------------------------------------------------------------------------------

    def play(self, step: Step) -> None:
        """Raises NotEstablished where the step cannot be taken, or does not end as it says."""
        try:
            self._play(step)
        finally:
            self._read_on()
        self.played += 1

    def _play(self, step: Step) -> None:
        match step:
            case Join():
                if step.actor in self._participants:
                    raise NotEstablished(f"{step}: {step.actor} takes part already")
                self._seat(step)
            case Start():
                self._start(step)
            case GoOn():
                self._go_on(step)
            case Exit():
                self._participant(step.actor).exit()
            case ClockBy():
                move = self._race.clock.advance if step.seconds >= 0 else self._race.clock.rewind
                move(abs(step.seconds))
            case ClockPast():
                self._pass(step)
            case ServerFault():
                strike = getattr(self._race.server, step.name)
                strike(**_allowed(step, step.arguments, ("notice",)))
            case ActorFault():
                self._actor_fault(step)

    def _actor_fault(self, step: ActorFault) -> None:
        participant = self._participant(step.actor)
        if step.name in PROCESS_FAULTS:
            _allowed(step, step.arguments, ())
            getattr(participant, step.name)()
        elif step.name in BACKEND_FAULTS:
            strike = self._race.server.kill_backend
            if step.name == "terminate":
                strike = self._race.server.terminate_backend
            strike(step.actor, **_allowed(step, step.arguments, ("notice",)))
        elif step.name == "refuse_connections":
            if step.arguments:
                participant.is_refused_a_connection(**_allowed(step, step.arguments, ("sqlstate",)))
            else:
                participant.is_refused_while_the_server_starts()
        else:
            allowed = {"cut": ("how", "notice"), "delay": ("seconds",)}.get(step.name, ())
            getattr(participant.path, step.name)(**_allowed(step, step.arguments, allowed))

    def _start(self, step: Start) -> None:
        if step.operation not in OPERATION_NEEDS and step.operation != EFFECT:
            known = ", ".join(sorted(OPERATION_NEEDS))
            raise UsageError(f"The step {step} names no operation of a queue: they are {known}.")
        participant = self._participant(step.actor)
        claims = tuple(map(self._claim, step.claims or self._own_claim(step)))
        every = AtEveryStatement() in step.holds
        pending = participant.start(
            step.operation,
            *claims,
            hold_at=[_hold(place) for place in step.holds if not isinstance(place, AtEveryStatement)],
            faults=[
                parse_rule(f"{_address(fault.statement)}: {_action(fault.name)}") for fault in step.faults
            ],
            every_statement=every,
            **self._arguments(step),
        )
        self._pending[step.actor] = pending
        self._every[step.actor] = every
        self._expect(step, step.then)

    def _go_on(self, step: GoOn) -> None:
        if self.status_of(step.actor) is not CallStatus.PARKED:
            status = self.status_of(step.actor)
            told = "has nothing under way" if status is None else f"is {status.value} and not held"
            raise NotEstablished(f"{step}: {step.actor} {told}, so it cannot go on")
        self._pending[step.actor].go_on()
        self._expect(step, step.then)

    def _expect(self, step: Start | GoOn, then: Then) -> None:
        self._read_on()
        pending = self._pending[step.actor]
        status = pending.status
        if then is Then.ANY:
            return
        if then is Then.BLOCKED:
            if status not in WAITS:
                raise NotEstablished(f"{step}: {step.actor} should be blocked, it is {pending.told}")
            return
        held = status is CallStatus.PARKED or (pending.holds_ahead and not self._every[step.actor])
        wanted = CallStatus.PARKED if held else CallStatus.ANSWERED
        if status is not wanted:
            raise NotEstablished(f"{step}: {step.actor} should be {wanted.value}, it is {pending.told}")

    def _pass(self, step: ClockPast) -> None:
        if isinstance(step.target, JobRef):
            job = self._job(step.target)
            moment_us = self._race.due_us(job) + round(step.offset_s * 1e6)
            self._race.clock.advance_to(moment_us, str(step).removeprefix("clock>"))
            return
        target = step.target
        if isinstance(target, str):
            latest = self.latest_of(target)
            if latest is None:
                raise NotEstablished(f"{step}: {target} has claimed nothing")
            target = ClaimRef(latest)
        claim = self._claim(target)
        if step.offset_s:
            moment_us = self._race.lease_until_us(claim) + round(step.offset_s * 1e6)
            self._race.clock.advance_to(moment_us, str(replace(step, target=target)).removeprefix("clock>"))
            return
        self._race.clock.advance_past(claim)

    # -- names ------------------------------------------------------------------------------------------------

    def _participant(self, actor: str) -> Participant:
        return self._participants.get(actor) or self._seat(Join(actor))

    def _seat(self, told: Join) -> Participant:
        self._participants[told.actor] = self._race.worker(
            told.actor,
            known_as=told.known_as,
            time_zone=told.time_zone,
            path=told.path or self._path_of(told.actor),
            process=told.process,
            clock_skew_s=told.clock_skew_s,
        )
        return self._participants[told.actor]

    def _own_claim(self, step: Start) -> tuple[ClaimRef, ...]:
        if step.operation not in UNDER_A_CLAIM:
            return ()
        latest = self.latest_of(step.actor)
        if latest is None:
            raise NotEstablished(f"{step}: {step.actor} has claimed nothing to act under")
        return (ClaimRef(latest),)

    def _claim(self, ref: ClaimRef) -> Claim:
        if ref.number > len(self._claims):
            raise NotEstablished(f"claim {ref} is not there: {len(self._claims)} were handed out so far")
        claim = self._claims[ref.number - 1]
        return self._race.unknown_claim(claim) if ref.never_was else claim

    def _job(self, ref: JobRef) -> JobId:
        if ref.number > len(self.jobs):
            raise NotEstablished(f"job {ref} is not there: {len(self.jobs)} were handed out so far")
        return self.jobs[ref.number - 1]

    def _arguments(self, step: Start) -> dict[str, Any]:
        given: Mapping[str, Any] = {**DEFAULT_ARGUMENTS.get(step.operation, {}), **step.arguments}
        arguments = dict(given)
        if step.job is not None:
            arguments["job"] = self._job(step.job)
        if step.operation == EFFECT:
            arguments["url"] = self._sink(bool(arguments.pop("checks_tokens", True))).url
        return arguments

    def _sink(self, checks_tokens: bool) -> Sink:
        if self._sinks is None:
            raise FencepostError("nobody closes an outside system here")
        if checks_tokens not in self._open_sinks:
            self._open_sinks[checks_tokens] = self._sinks.enter_context(Sink(checks_tokens=checks_tokens))
        return self._open_sinks[checks_tokens]

    def _read_on(self) -> None:
        """What was handed out since the last look, in the order it was recorded."""
        for step in self._race.history[self._read :]:
            if step.reply is not None and step.actor is not None:
                claims = [claim_to_json(claim) for claim in step.reply.claims]
                self._names.note(step.actor, step.reply.job, claims)
                self._claims.extend(step.reply.claims)
        self._read = len(self._race.history)


def replay_of(schedule: Schedule, *, name: str = "replay", sentence: str | None = None) -> Variant:
    """A scenario that plays the schedule. Its witness: every step took place and ended as it says."""
    played: list[int] = []

    def body(race: Race) -> None:
        played.clear()
        with contextlib.ExitStack() as sinks:
            player = Player(race, sinks, schedule.path_of)
            for step in schedule:
                player.play(step)
                played.append(player.played)

    witness = Witness(
        f"each of the schedule's {len(schedule)} steps took place and ended as it says",
        lambda steps, executions: len(played) == len(schedule),
    )
    made = Scenario(
        name=name,
        family="replay",
        sentence=sentence or "A schedule is replayed.",
        body=body,
        requires=_requires(schedule),
        witnesses=(witness,),
        server_faults=frozenset(faults_of_the_server(schedule)),
        classified_without_fence=True,
    )
    return Variant(made)


def faults_of_the_server(schedule: Schedule) -> Iterator[provider.ServerFault]:
    for step in schedule:
        if isinstance(step, ServerFault):
            yield provider.ServerFault(step.name)
        if isinstance(step, ActorFault) and step.name in BACKEND_FAULTS:
            yield provider.ServerFault(TERMINATE if step.name == "terminate" else step.name)


def _allowed(step: Step, arguments: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    wrong = [name for name in arguments if name not in names]
    if wrong:
        takes = f"takes {', '.join(names)}" if names else "takes nothing"
        raise UsageError(f"The step {step} {takes}, not {wrong[0]}.")
    return dict(arguments)


def _hold(place: Place) -> str | Rule:
    if isinstance(place, AtCheckpoint):
        return place.name
    assert isinstance(place, AtStatement)
    return parse_rule(f"{_address(place.statement)}: park {place.when}")


def _address(statement: Statement) -> str:
    return str(statement) if statement.pattern is not None else f"statement {statement.number}"


def _action(name: str) -> str:
    return f"{ERROR} {name.removeprefix(ERROR)}" if name.startswith(ERROR) else name.replace("_", " ")


def _requires(schedule: Schedule) -> frozenset[Capability]:
    needs = {OPERATION_NEEDS.get(step.operation) for step in schedule if isinstance(step, Start)}
    held = any(
        isinstance(step, Start) and any(isinstance(p, AtCheckpoint) for p in step.holds) for step in schedule
    )
    moved = any(isinstance(step, ClockBy) for step in schedule)
    if held:
        needs.add(Capability.CHECKPOINTS)
    if moved:
        needs.add(Capability.CLOCK)
    return frozenset(need for need in needs if need is not None)
