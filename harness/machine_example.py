"""One example of the state machine on its way: how a step is taken, how the example ends, and what there is in it."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from fencepost.harness.adapter import LIVE_STATES, OPERATION_NEEDS, Capability, JobId, JobState, Observation
from fencepost.harness.bench import Bench, Run
from fencepost.harness.errors import FencepostError, UsageError
from fencepost.harness.foretold import ForetoldRun, names_of
from fencepost.harness.history import CallStatus
from fencepost.harness.known import EXPECTATION
from fencepost.harness.machine_actions import (
    PRODUCERS,
    REAPERS,
    THEMES,
    TTLS_S,
    WORKERS,
)
from fencepost.harness.machine_tally import Tally
from fencepost.harness.machine_way import Action, Crossing, Turn, Way
from fencepost.harness.race import Race
from fencepost.harness.scenario import Scenario, Variant
from fencepost.harness.schedule import (
    AtCheckpoint,
    AtStatement,
    ClaimRef,
    ClockPast,
    GoOn,
    JobRef,
    Join,
    Place,
    Start,
    Statement,
    StatementFault,
    Step,
    Then,
)
from fencepost.harness.witness import Witness

NAME = "invariants"

ODD_ONE_OUT = "C"
"""Goes by A's name in the queue, in another time zone, and through the gate."""
BEHIND_THE_GATE = (ODD_ONE_OUT, "R2", "P2")
DEADLY = "B"
"""In some examples a process, which can be killed."""

IN_FLIGHT_AT_MOST = 3
JOBS_AT_MOST = 10
BATCH = 2
"""The jobs a batch of claims asks for."""
SHORT_WAIT_S = 10.0
NEAR_ITS_END_S = 7.0
SHORT_LEASE_S = 4.0
"""Longer than the rest of an example takes, also on a busy machine, and short enough to leave a lease near its end."""
JUST_OVER_S = 1.0
"""A moment that has just come is treated as one that is about to: between the two lies nothing but real time."""
ODD_AT_MOST = 1
"""In an example that has any: a job that fails thirteen times takes more steps than all the rest."""
FAILURES = 13
LARGEST_TOKEN = 2**63 - 1


class Found(AssertionError):
    """An example that failed. One subclass per name, so that Hypothesis tells one failure from another."""

    def __init__(self, name: str, run: Run) -> None:
        super().__init__(f"{name}: {run.trace.header['schedule']}")
        self.name = name
        self.run = run


class ProvedNothing(AssertionError):
    """An example that could not be played to its end."""

    def __init__(self, run: Run) -> None:
        super().__init__("; ".join(run.judgement.reasons))
        self.run = run


class CouldNotBegin(AssertionError):
    """An example of which nothing could be played: the adapter or the server is at fault."""


_FOUND: dict[str, type[Found]] = {}


def _found_as(name: str) -> type[Found]:
    return _FOUND.setdefault(name, type(f"Found_{re.sub(r'[^a-z_]', '_', name)}", (Found,), {}))


def _nothing(race: Race) -> None:
    """The machine takes the steps."""


VARIANT = Variant(
    Scenario(
        name=NAME,
        family=NAME,
        sentence="Operations, holds, clock moves and faults in an order that Hypothesis made up.",
        body=_nothing,
        requires=frozenset(),
        witnesses=(
            Witness("an operation was answered", lambda steps, executions: any(s.reply for s in steps)),
        ),
    )
)


class Example:
    """To be subclassed by `machine_on`, which gives it a queue."""

    bench: ClassVar[Bench]
    tally: ClassVar[Tally]
    checkpoints: ClassVar[Mapping[str, tuple[str, ...]]]
    wanted: ClassVar[str | None]
    """Only a finding by this name counts: for measuring what is found by what."""
    known: ClassVar[frozenset[str]]
    """Findings by these names alone are no news."""

    start: ClassVar[Crossing]
    """Where all examples begin."""

    def __init__(self) -> None:
        super().__init__()
        self._has = self.bench.capabilities
        self._way = Way(self.start)
        self._is_played = False
        self._could_begin = True
        self._over = False
        self._joined: set[str] = set()
        self._cut_off: set[str] = set()
        """Whose connection is gone, under a call that is still held."""
        self._ahead: set[tuple[JobId, int]] = set()
        """The ends of leases and of waits that were seen to come, and that the clock was not put past."""
        self._theme = ""
        self._odd_left = ODD_AT_MOST
        self._died = False

    # -- going its way ----------------------------------------------------------------------------------------

    def _do(self, unless_held: Action, while_held: Action) -> None:
        turn = Turn(unless_held, while_held)
        if not self._is_played:
            if self._way.follow(turn):
                return
            self._begin_to_play()
        chosen = turn.chosen(bool(self._held))
        before = self._stands
        self._perform(chosen)
        self._way.go(chosen, held=bool(self._held), over=self._over, moved=before != self._stands)

    def _begin_to_play(self) -> None:
        self.tally.examples += 1
        try:
            self._playing = ForetoldRun(self.bench, VARIANT)
        except UsageError:
            raise
        except FencepostError as error:
            self._could_begin = False
            raise CouldNotBegin(str(error)) from error
        self._player = self._playing.player
        self._is_played = True
        as_before = True
        for turn, place in self._way.passed:
            self._perform(turn.chosen(bool(self._held)))
            as_before &= (bool(self._held), self._over) == (place.held, place.over)
        if not as_before:
            self.tally.otherwise += 1
            self._way.leave()

    @property
    def _stands(self) -> object:
        """All that decides how it goes on."""
        steps = len(self._playing.opened.runner.steps)
        return (
            steps,
            frozenset(self._joined),
            frozenset(self._cut_off),
            self._odd_left,
            self._died,
            self._over,
        )

    def _perform(self, action: Action) -> None:
        name, given = action
        getattr(self, name)(**given)

    # -- taking a step ----------------------------------------------------------------------------------------

    def _enqueue(
        self,
        who: str,
        *,
        key: str | None = None,
        payload: Any = None,
        delay_s: float = 0.0,
        attempts: int | None = None,
        priority: int = 0,
        where: int | None = None,
        loss: str | None = None,
    ) -> None:
        arguments: dict[str, Any] = {}
        if payload:
            arguments["payload"] = payload
        if key is not None and Capability.IDEMPOTENCY_KEY in self._has:
            arguments["key"] = key
        if delay_s and Capability.DELAY in self._has:
            arguments["delay_s"] = delay_s
        if attempts is not None and Capability.RETRY in self._has:
            arguments["max_attempts"] = attempts
        if priority and Capability.PRIORITY in self._has:
            arguments["priority"] = priority
        self._start(who, "enqueue", where=where, loss=loss, arguments=arguments)

    def _write(self, operation: str, pick: int, ttl_s: float, where: int | None = None) -> None:
        claim = self._claim(pick)
        arguments = self._ttl(ttl_s) if operation == "heartbeat" else {}
        self._start(self._acting_for(claim), operation, claims=(claim,), where=where, arguments=arguments)

    def _acting_for(self, claim: ClaimRef) -> str:
        """Who was given the claim; or, while that one is busy, the other that goes by its name."""
        owner = self._player.owner_of(claim.number)
        other = {WORKERS[0]: ODD_ONE_OUT, ODD_ONE_OUT: WORKERS[0]}.get(owner)
        return other if other is not None and not self._idle(owner) and self._idle(other) else owner

    def _batch(self, claim: ClaimRef, how: str) -> tuple[ClaimRef, ...]:
        who = self._player.owner_of(claim.number)
        match how:
            case "twice":
                return (claim, claim)
        own = [ClaimRef(n) for n in range(1, len(self._player.claims) + 1) if self._player.owner_of(n) == who]
        others = [ref for ref in own if ref != claim][-2:]
        if how == "never_was":
            return (ClaimRef(claim.number, never_was=True), *others, claim)
        return (*others, claim)

    def _ttl(self, ttl_s: float) -> dict[str, float]:
        given = ttl_s != TTLS_S[0] and Capability.LEASE_LENGTH in self._has
        return {"ttl_s": ttl_s} if given else {}

    def _start(
        self,
        who: str,
        operation: str,
        *,
        claims: tuple[ClaimRef, ...] = (),
        job: JobRef | None = None,
        where: int | None = None,
        loss: str | None = None,
        arguments: Mapping[str, Any] | None = None,
    ) -> None:
        need = OPERATION_NEEDS[operation]
        if self._over or (need is not None and need not in self._has):
            return
        if not self._idle(who) and not claims and loss is None:
            who = self._other(next(group for group in (WORKERS, REAPERS, PRODUCERS) if who in group))
        if self._player.status_of(who) is CallStatus.PARKED:
            self._play(GoOn(who, Then.ANY))  # it has something to finish first
            return
        if not self._idle(who):
            return
        self._join(who)
        holds = () if where is None or not self._may_hold else self._holds(who, operation, where)
        self._cut_off.discard(who)
        faults = () if loss is None else (StatementFault(loss, Statement("^COMMIT")),)
        self._play(Start(who, operation, claims, job, arguments or {}, holds, faults, Then.ANY))

    def _holds(self, who: str, operation: str, where: int) -> tuple[Place, ...]:
        """At a checkpoint, where the queue has them; else, or beyond the last of them, at a statement."""
        names = self.checkpoints.get(operation, ())
        if where < len(names):
            return (AtCheckpoint(names[where]),)
        if self._by_gate(who):
            return (AtStatement("before", Statement(None, where + 1)),)
        return (AtCheckpoint(names[where % len(names)]),) if names else ()

    def _by_gate(self, who: str) -> bool:
        return who in BEHIND_THE_GATE or not self.checkpoints

    def _join(self, who: str) -> None:
        if who in self._joined:
            return
        self._joined.add(who)
        odd = who == ODD_ONE_OUT
        process = who == DEADLY and "die" in THEMES[self._theme]
        if odd or process or self._by_gate(who):
            self._play(
                Join(
                    who,
                    known_as=WORKERS[0] if odd else None,
                    time_zone="Asia/Tokyo" if odd else None,
                    path="gate" if self._by_gate(who) else None,
                    process=process,
                )
            )

    def _play(self, step: Step) -> None:
        if isinstance(step, ClockPast) and not step.offset_s:
            self._put_past(self._moment_of(step.target))
        self._take(step)
        for number, job in enumerate(self._player.jobs, 1):
            if not self._over and self._comes_due_about_now(job):
                self._put_past(self._due_at(job))
                self._take(ClockPast(JobRef(number)))

    def _comes_due_about_now(self, job: JobId) -> bool:
        """So near that real time would decide who gets the job: no example would replay."""
        if Capability.CLOCK not in self._has:
            return False
        for moment in self._due_at(job):
            left_s = (moment[1] - self._rows.at_us) / 1e6
            if left_s >= 0:
                self._ahead.add(moment)
            leased = self._rows.by_job[job].state is JobState.LEASED
            return moment in self._ahead and -JUST_OVER_S <= left_s < (
                SHORT_LEASE_S if leased else SHORT_WAIT_S
            )
        return False

    def _put_past(self, moments: list[tuple[JobId, int]]) -> None:
        for _, moment_us in moments:
            self._ahead = {(job, ahead_us) for job, ahead_us in self._ahead if ahead_us > moment_us}

    def _moment_of(self, target: str | ClaimRef | JobRef) -> list[tuple[JobId, int]]:
        if isinstance(target, JobRef):
            return self._due_at(self._player.jobs[target.number - 1])
        number = self._player.latest_of(target) if isinstance(target, str) else target.number
        return [] if number is None else self._due_at(self._player.claims[number - 1].job)

    def _due_at(self, job: JobId) -> list[tuple[JobId, int]]:
        """When it can be taken, if it cannot be yet or could not be until now."""
        view = self._rows.by_job.get(job)
        if view is None or view.state not in LIVE_STATES:
            return []
        moment_us = view.lease_until_us if view.state is JobState.LEASED else view.next_run_at_us
        return [] if moment_us is None else [(job, moment_us)]

    def _take(self, step: Step) -> None:
        if self._over:
            return
        going_on = self._playing.take(step)
        if not going_on or (self._playing.unmet and self.wanted in (None, EXPECTATION)):
            self._conclude()

    # -- the end ----------------------------------------------------------------------------------------------

    def teardown(self) -> None:
        if not self._could_begin:
            return
        if isinstance(sys.exc_info()[1], KeyboardInterrupt | SystemExit):
            self._abandon()
            return
        if not self._is_played:
            if self._way.ended:
                self.tally.repeated += 1
                return
            self._begin_to_play()
        if not self._over:
            self._conclude()
        self._way.end()

    def _abandon(self) -> None:
        """It is not the queue that ends it."""
        if self._is_played and not self._over:
            self._over = True
            self._playing.abandon()

    def _conclude(self) -> None:
        """Bring the example to its end; raise what it found."""
        self._over = True
        run = self._playing.end()
        self.tally.take(run, self._playing.opened, self._playing.model)
        names = names_of(run)
        if names and self.known.issuperset(names):
            self.tally.known.update(names)
            return
        if names and (self.wanted is None or self.wanted in names):
            if self.tally.found_at is None:
                self.tally.found_at = self.tally.examples
            name = self.wanted or next(name for name in names if name not in self.known)
            raise _found_as(name)(name, run)
        if run.facts.obstacles and not names:
            raise ProvedNothing(run)

    # -- what there is ----------------------------------------------------------------------------------------

    @property
    def _held(self) -> list[str]:
        return sorted(who for who in self._joined if self._player.status_of(who) is CallStatus.PARKED)

    @property
    def _may_hold(self) -> bool:
        return len([who for who in self._joined if not self._idle(who)]) < IN_FLIGHT_AT_MOST

    def _idle(self, who: str) -> bool:
        return who not in self._joined or self._player.status_of(who) is None

    def _other(self, actors: Sequence[str]) -> str:
        """The first that is free."""
        return next((who for who in actors if self._idle(who)), actors[0])

    @property
    def has_room_for_a_job(self) -> bool:
        return len(self._player.jobs) < JOBS_AT_MOST

    @property
    def _rows(self) -> Observation:
        return self._playing.opened.runner.last_observation

    def _lease_jobs(self, more_than: int) -> None:
        """So many leases, live or lost, that a bounded sweep must choose."""
        for _ in range(more_than + 1 - sum(view.state is JobState.LEASED for view in self._rows.jobs)):
            self._make_something_due()
            self._start(self._other(WORKERS), "claim")

    def _make_something_due(self, jobs: int = 1) -> None:
        for _ in range(jobs - self._due):
            if not self._over and self.has_room_for_a_job:
                self._enqueue(PRODUCERS[0])

    @property
    def _due(self) -> int:
        now_us = self._rows.at_us
        return sum(
            (view.state is JobState.READY and (view.next_run_at_us or 0) <= now_us)
            or (view.state is JobState.LEASED and (view.lease_until_us or 0) <= now_us)
            for view in self._rows.jobs
        )

    def _waits(self, job: JobRef) -> bool:
        view = self._rows.by_job.get(self._player.jobs[job.number - 1])
        return view is not None and view.state in (JobState.READY, JobState.DELAYED)

    def _claim(self, pick: int) -> ClaimRef:
        count = len(self._player.claims)
        return ClaimRef(count - pick % count)

    def _is_live(self, pick: int) -> bool:
        """Whether this claim is current and its lease has not ended."""
        if not self._player.claims:
            return False
        claim = self._player.claims[self._claim(pick).number - 1]
        view = self._rows.by_job.get(claim.job)
        if view is None or view.state is not JobState.LEASED or view.token != claim.token:
            return False
        return view.lease_until_us is None or view.lease_until_us > self._rows.at_us

    def _is_dead(self, job: JobId) -> bool:
        view = self._rows.by_job.get(job)
        return view is not None and view.state is JobState.FAILED

    def _ref(self, job: Any) -> JobRef:
        return JobRef(self._player.jobs.index(str(job)) + 1)

    def _job(self, pick: int) -> JobRef:
        count = len(self._player.jobs)
        return JobRef(count - pick % count)
