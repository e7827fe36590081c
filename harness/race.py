"""The words a scenario is written in: a race, its participants, its clock, what it expects."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any
from uuid import UUID

from fencepost.harness.actors.base import ActorFailed
from fencepost.harness.adapter import Capability, Claim, JobId, JobState, JobView, Json, Outcome
from fencepost.harness.endings import ended_as, is_gone, says_why
from fencepost.harness.errors import FencepostError
from fencepost.harness.history import Call, CallStatus, Reply, Step, StepKind
from fencepost.harness.lease_time import LeaseTime
from fencepost.harness.postgres.provider import ServerFault
from fencepost.harness.race_faults import ParticipantPath, RaceServer, Seating, Stage, Striker
from fencepost.harness.runner import Runner
from fencepost.harness.sink import EFFECT, Sink
from fencepost.harness.verdict import Fault
from fencepost.harness.wire import StatementRule

DEFAULT_TTL_S = 60.0
"""Longer than any step's deadline: real time alone never expires a lease."""

PRODUCER = "P"
REAPER = "R"


class ExpectationFailed(FencepostError):
    """The queue did not do what the scenario expects of it."""


class NotEstablished(FencepostError):
    """The race could not be set up as the scenario says, so nothing can be concluded from it."""


class Race:
    """Handed to a scenario. Every call on it is a step, or an expectation about the steps so far."""

    def __init__(
        self,
        runner: Runner,
        stage: Stage,
        lease_time: LeaseTime,
        capabilities: frozenset[Capability],
        scenario_file: str,
        *,
        path: str = "direct",
        control: bool = False,
    ) -> None:
        self._runner = runner
        self._striker = Striker(runner, stage, self.scenario_line)
        self._path = path
        self._capabilities = capabilities
        self._participants: dict[str, Participant] = {}
        self._told: dict[str, dict[str, Json]] = {}
        self._scenario_file = scenario_file
        self._expectations = 0
        self.control = control
        """Whether this is the control run: the same schedule, to be played without its fault."""
        self.clock = RaceClock(self, lease_time)
        self.server = RaceServer(self._striker)

    # -- who takes part -----------------------------------------------------------------------------------

    def worker(
        self,
        name: str,
        *,
        known_as: str | None = None,
        time_zone: str | None = None,
        path: str | None = None,
        process: bool = False,
        clock_skew_s: float = 0.0,
    ) -> Participant:
        """A participant with its own connections. `known_as`: the name it goes by in the queue.

        `time_zone`: the TimeZone its sessions start with; without it, the server's. `path`: how it reaches the
        server (direct, gate, network); without it, as its scenario says. `process`: it can be killed and
        stopped. `clock_skew_s`: how wrong its own clock is.
        """
        if name in self._participants:
            raise FencepostError(f"{name} takes part already: every participant has a name of its own")
        kind = "process" if process or clock_skew_s else None
        seating = Seating(known_as or name, time_zone, path or self._path, kind, clock_skew_s)
        participant = Participant(self, self._runner, self._striker, name, seating)
        self._participants[name] = participant
        told = {
            "known_as": known_as,
            "time_zone": time_zone,
            "path": seating.path,
            "process": kind is not None,
        }
        self._told[name] = {key: value for key, value in told.items() if value} | (
            {"clock_skew_s": clock_skew_s} if clock_skew_s else {}
        )
        return participant

    def workers(self, *names: str) -> tuple[Participant, ...]:
        return tuple(self.worker(name) for name in names)

    @property
    def declared_actors(self) -> tuple[str, ...]:
        return tuple(self._participants)

    @property
    def participants_told(self) -> list[dict[str, Json]]:
        """How everybody was seated, for the trace."""
        return [{"name": name, **told} for name, told in self._told.items()]

    @property
    def history(self) -> Sequence[Step]:
        """Every step so far."""
        return self._runner.steps

    # -- what is done -------------------------------------------------------------------------------------

    def enqueue(self, payload: Json = None, **options: Any) -> JobId:
        """Put a job into the queue, by the producer P. Options: key, delay_s, max_attempts, priority."""
        producer = self._participants.get(PRODUCER) or self.worker(PRODUCER)
        return producer.enqueue(payload, **options)

    def recover(self) -> None:
        """Let the queue's own recovery run, on queues where an expired lease does not come back by itself."""
        if Capability.DEFERRED_RECLAIM in self._capabilities:
            self.sweep()

    def sweep(self) -> None:
        """Let whatever recovery the queue has run once, whether there is anything to recover or not."""
        if Capability.REAPER in self._capabilities:
            reaper = self._participants.get(REAPER) or self.worker(REAPER)
            reaper.reap()

    def restart_server(self) -> None:
        """Stop the server at once and start it again, so that it recovers from a crash; workers reconnect."""
        self.server.crash()

    def finish(self) -> None:
        """Let everybody who is held go on, until nobody is."""
        while parked := self._runner.parked:
            self._runner.go_on(parked[0], self.scenario_line())

    @property
    def faults(self) -> tuple[Fault, ...]:
        return self._striker.faults

    def unknown_claim(self, like: Claim) -> Claim:
        """A claim of a job that never was, in the form this queue's claims have."""
        job = _never_given(like.job)
        return replace(like, job=job, raw=_renamed(like.raw, like.job, job))

    # -- what is expected ---------------------------------------------------------------------------------

    def next_run_us(self, job: JobId) -> int:
        """When a waiting job may be claimed, as the last observation shows it."""
        moment_us = self.look(job).next_run_at_us
        if moment_us is None:
            raise NotEstablished(f"when job {job} is to run next is not shown by this queue's rows")
        return moment_us

    def due_us(self, job: JobId) -> int:
        """When it can be claimed: its lease ends then, or it has waited long enough."""
        view = self.look(job)
        if view.state is not JobState.LEASED:
            return self.next_run_us(job)
        if view.lease_until_us is None:
            raise NotEstablished(f"when the lease on job {job} ends is not shown by this queue's rows")
        return view.lease_until_us

    def lease_until_us(self, claim: Claim) -> int:
        """When the lease was to end when it was given."""
        if claim.lease_until_us is None:
            raise NotEstablished(f"this queue's claims, as that of job {claim.job}, do not say when they end")
        return claim.lease_until_us

    @property
    def now_us(self) -> int:
        """The database's time at the last observation."""
        return self._runner.last_observation.at_us

    @property
    def jobs_seen(self) -> int:
        """How many jobs the last observation shows."""
        return len(self._runner.last_observation.jobs)

    def look(self, job: JobId) -> JobView:
        """The job as the last observation shows it."""
        view = self._runner.last_observation.by_job.get(job)
        if view is None:
            raise ExpectationFailed(f"job {job} is not in the queue's rows any more")
        return view

    def expect(
        self,
        job: JobId,
        *,
        state: str | None = None,
        ledger: int | None = None,
        token: int | None = None,
        attempts: int | None = None,
        holder: str | None = None,
    ) -> None:
        """What the rows of a job must show now.

        `ledger` counts only on a queue that keeps one, `token` on one with FENCING, `attempts` on one with RETRY,
        `holder` on one whose rows say who holds a lease. A job whose row was deleted with its end counts as ended so.
        """
        ended = None if job in self._runner.last_observation.by_job else ended_as(self._runner.steps, job)
        if ended is not None:
            self._expect_ended(job, ended, state=state, ledger=ledger)
            return
        view = self.look(job)
        if Capability.LEDGER not in self._capabilities:
            ledger = None
        if Capability.FENCING not in self._capabilities:
            token = None
        if Capability.RETRY not in self._capabilities:
            attempts = None
        if view.state is JobState.LEASED and view.holder is None:
            holder = None
        shown: dict[str, Any] = {
            "state": view.state.value,
            "ledger": len(self._runner.last_observation.ledger_of(job)),
            "token": view.token,
            "attempts": view.attempts,
            "holder": view.holder,
        }
        wanted = {"state": state, "ledger": ledger, "token": token, "attempts": attempts, "holder": holder}
        for name, value in wanted.items():
            if value is not None:
                self.check(
                    shown[name] == value, f"job {job} should show {name} {value!r}, shows {shown[name]!r}"
                )

    def _expect_ended(self, job: JobId, ended: JobState, *, state: str | None, ledger: int | None) -> None:
        self.check(
            state in (None, ended.value),
            f"job {job} should show state {state!r}, its row went when it became {ended.value!r}",
        )
        entries = len(self._runner.last_observation.ledger_of(job))
        if ledger is not None and entries:  # a queue may delete them with the row
            self.check(
                entries == ledger, f"job {job} should show ledger {ledger!r}, shows {entries!r} without a row"
            )

    def check(self, holds: bool, otherwise: str) -> None:
        """Any further expectation: `otherwise` says what is wrong if it does not hold."""
        self._expectations += 1
        if not holds:
            raise ExpectationFailed(otherwise)

    @property
    def expectations_checked(self) -> int:
        return self._expectations

    def scenario_line(self) -> str | None:
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            if frame.f_code.co_filename == self._scenario_file:
                return f"{Path(self._scenario_file).name}:{frame.f_lineno}"
            frame = frame.f_back
        return None


class Participant:
    """One actor, in the scenario's words. A finished operation returns what it brought; see `start` for held ones."""

    def __init__(self, race: Race, runner: Runner, striker: Striker, name: str, seating: Seating) -> None:
        self._race = race
        self._runner = runner
        self._striker = striker
        self._seating = seating
        self._last: Reply | None = None
        self.name = name
        self.path = ParticipantPath(striker, name)
        self._stage.seat(name, seating)  # its worker is open before the race begins

    @property
    def _stage(self) -> Stage:
        return self._striker.stage

    # -- whole operations ---------------------------------------------------------------------------------

    def enqueue(self, payload: Json = None, **options: Any) -> JobId:
        reply = self.start("enqueue", payload={} if payload is None else payload, **options).reply()
        if reply.job is None:
            raise ExpectationFailed(f"{self.name}'s enqueue was refused: {_why(reply)}")
        return reply.job

    def submit(self, payload: Json = None, **options: Any) -> Result:
        """An enqueue that may be refused."""
        return self.start("enqueue", payload={} if payload is None else payload, **options).result()

    def claim(self, job: JobId | None = None, *, ttl_s: float = DEFAULT_TTL_S) -> Claim:
        """Claim a job that must be there to be claimed; where it is not, the race was not established."""
        return self.start("claim", ttl_s=ttl_s).claim(job)

    def finds_nothing(self, *, ttl_s: float = DEFAULT_TTL_S) -> None:
        """Try to claim, and expect that there is nothing to be had."""
        self.start("claim", ttl_s=ttl_s).found_nothing()

    def try_claim(self, *, ttl_s: float = DEFAULT_TTL_S) -> Result:
        """A claim that may find something, find nothing or be refused."""
        return self.start("claim", ttl_s=ttl_s).result()

    def claim_batch(self, limit: int, *, ttl_s: float = DEFAULT_TTL_S) -> tuple[Claim, ...]:
        reply = self.start("claim_batch", ttl_s=ttl_s, limit=limit).reply()
        if len(reply.claims) != limit:
            raise NotEstablished(f"{self.name} was to claim {limit} jobs and got {len(reply.claims)}")
        return reply.claims

    def heartbeat(self, claim: Claim, *, ttl_s: float = DEFAULT_TTL_S) -> Result:
        return self.start("heartbeat", claim, ttl_s=ttl_s).result()

    def complete(self, claim: Claim) -> Result:
        return self.start("complete", claim).result()

    def complete_batch(self, *claims: Claim) -> tuple[Result, ...]:
        """One result per claim, in the order given."""
        return self.start("complete_batch", *claims).results()

    def fail(self, claim: Claim, error: str = "boom") -> Result:
        return self.start("fail", claim, error=error).result()

    def end(self, claim: Claim, state: str) -> Result:
        """Bring a job it holds to this terminal state; `failed` takes a job on its last attempt."""
        match state:
            case "succeeded":
                return self.complete(claim)
            case "failed":
                return self.fail(claim)
            case "cancelled":
                return self.cancel(claim.job)
        raise FencepostError(f"{state!r} is no terminal state: they are succeeded, failed and cancelled")

    def cancel(self, job: JobId) -> Result:
        return self.start("cancel", job=job).result()

    def reap(self, *, limit: int | None = None) -> int:
        """How many leases the sweep recovered. `limit`, its bound, needs BOUNDED_REAP."""
        sweep = self.start("reap") if limit is None else self.start("reap", limit=limit)
        reply = sweep.reply()
        if reply.count is None:
            raise ExpectationFailed(f"{self.name}'s reap was refused: {_why(reply)}")
        return reply.count

    def try_requeue(self, job: JobId) -> Result:
        """A requeue that may be refused."""
        return self.start("requeue", job=job).result()

    def requeue(self, job: JobId) -> JobId:
        reply = self.try_requeue(job).reply
        if reply.job is None:
            raise ExpectationFailed(f"{self.name}'s requeue was refused: {_why(reply)}")
        return reply.job

    def act_on(self, sink: Sink, claim: Claim) -> Result:
        """Do what the job is about in an outside system, which is told the claim's token."""
        return self.start(EFFECT, claim, url=sink.url).result()

    def set_token(self, job: JobId, token: int) -> Result:
        """Put a job's token anywhere, behind the queue's back."""
        return self.start("set_token", job=job, token=token).result()

    def bypass_guard(self, claim: Claim) -> Result:
        """Write a completion to the ledger as if the guard had let it through."""
        return self.start("bypass_guard", claim).result()

    def exit(self) -> None:
        """Leave the race; the reason is what the last answer says."""
        self._runner.note(
            StepKind.EXIT, self.name, {"reason": _exit_reason(self._last)}, self._race.scenario_line()
        )

    # -- what is done to it -------------------------------------------------------------------------------

    def kill(self) -> None:
        """SIGKILL of its process: it answers nothing any more. Its next operation is that of a new process."""
        self._strike("kill", ends_calls=True)

    def stop(self) -> None:
        """SIGSTOP of its process: it stands where it is, its connections stay."""
        self._strike("stop")

    def cont(self) -> None:
        """SIGCONT: it goes on as if nothing had happened."""
        self._strike("cont")

    def is_refused_a_connection(self, sqlstate: str) -> None:
        """Its connections end, and the server answers its next one with this error; the one after that works."""
        wire = self._stage.wire(self.name)
        if wire is None:
            raise FencepostError(f"{self.name} is connected directly: seat it with path='gate'")

        def end_and_refuse() -> None:
            wire.refuse_connections(sqlstate)
            wire.cut("fin")

        def strike() -> None:
            self._stage.strike_path(self.name, end_and_refuse, ends=True, notice=True)
            self._try_to_connect(f"with {sqlstate}")

        self._striker.strike(
            "refuse_connections",
            strike,
            actor=self.name,
            ends_connections_of=(self.name,),
            detail={"sqlstate": sqlstate},
        )

    def is_refused_while_the_server_starts(self) -> None:
        """The server crashes; while it still recovers this worker tries to connect and is refused; then it is up."""
        refused = partial(self._try_to_connect, "because the server was starting")
        self._striker.strike(
            ServerFault.REFUSE_CONNECTIONS.value,
            lambda: self._stage.strike_server_starting(refused),
            actor=self.name,
        )

    def _try_to_connect(self, why_not: str) -> None:
        try:
            self._stage.seat(self.name, self._seating)
        except ActorFailed:
            return
        raise NotEstablished(f"{self.name} got a connection that was to be refused {why_not}")

    def _strike(self, signal: str, *, ends_calls: bool = False) -> None:
        self._striker.strike(
            signal,
            lambda: self._stage.strike_process(self.name, signal),
            actor=self.name,
            ends_calls_of=(self.name,) if ends_calls else (),
        )

    # -- operations in flight -----------------------------------------------------------------------------

    def start(
        self,
        operation: str,
        *claims: Claim,
        hold_at: str | StatementRule | Sequence[str | StatementRule] = (),
        faults: Sequence[StatementRule] = (),
        every_statement: bool = False,
        **arguments: Json,
    ) -> Pending:
        """Let an operation go, to be held at these checkpoints or statements; it comes back once it stands still.

        `every_statement`: held before each of them. Statements are addressed with `before`, `after`, and the faults
        at them with `lose_reply`, … (harness/wire.py).
        """
        holds = (hold_at,) if isinstance(hold_at, str | StatementRule) else tuple(hold_at)
        call = self._runner.let_go(
            self._stage.seat(self.name, self._seating),
            operation,
            arguments,
            claims=claims,
            hold_at=[hold for hold in holds if isinstance(hold, str)],
            rules=[*(hold for hold in holds if isinstance(hold, StatementRule)), *faults],
            wire=self._stage.wire(self.name),
            every_statement=every_statement,
            line=self._race.scenario_line(),
        )
        return Pending(self._race, self._runner, call, self._note_reply)

    def _note_reply(self, reply: Reply) -> None:
        self._last = reply


class Pending:
    """An operation that was let go."""

    def __init__(self, race: Race, runner: Runner, call: Call, note_reply: Callable[[Reply], None]) -> None:
        self._race = race
        self._runner = runner
        self._call = call
        self._note_reply = note_reply

    @property
    def call(self) -> Call:
        return self._call

    @property
    def status(self) -> CallStatus:
        return self._runner.status_of(self._call)

    @property
    def holds_ahead(self) -> bool:
        """Whether a hold it was to come to has not been reached."""
        return self._runner.has_holds_ahead(self._call)

    @property
    def told(self) -> str:
        return self._tell(self.status)

    def is_held(self) -> Pending:
        """Expect it to be parked at a checkpoint; where it is not, the race was not established."""
        status = self._runner.status_of(self._call)
        if status is not CallStatus.PARKED:
            raise NotEstablished(f"{self._name} should be held at a checkpoint, it is {self._tell(status)}")
        return self

    def is_blocked(self) -> Pending:
        """Expect it to wait for a lock another actor holds."""
        status = self._runner.status_of(self._call)
        if status is not CallStatus.BLOCKED:
            raise NotEstablished(f"{self._name} should wait for a lock, it is {self._tell(status)}")
        return self

    def is_cut_off(self) -> Pending:
        """Expect it to wait for its path to the server."""
        status = self._runner.status_of(self._call)
        if status is not CallStatus.CUT_OFF:
            raise NotEstablished(f"{self._name} should be cut off, it is {self._tell(status)}")
        return self

    def go_on(self) -> Pending:
        """Let it go on from where it is held."""
        self._runner.go_on(self._call, self._race.scenario_line())
        return self

    def finish(self) -> Pending:
        """Let it go on as far as it can, wherever it is; one that is blocked goes on when it is freed."""
        while self._runner.status_of(self._call) is CallStatus.PARKED:
            self.go_on()
        return self

    def reply(self) -> Reply:
        """Its answer; a call that has none yet means the race was not established."""
        if self._call.reply is None:
            raise NotEstablished(
                f"{self._name} should have answered, it is {self._tell(self._runner.status_of(self._call))}"
            )
        self._note_reply(self._call.reply)
        return self._call.reply

    def result(self) -> Result:
        return Result(self._race, self._name, self.reply(), row_is_gone=self._row_is_gone)

    @property
    def _row_is_gone(self) -> bool:
        return is_gone(self._runner.last_observation, self._call)

    def results(self) -> tuple[Result, ...]:
        """A batch's: one per claim, in the order given."""
        reply = self.reply()
        wanted, got = len(self._call.claims), len(reply.items)
        self._race.check(
            got == wanted, f"{self._name} should have {wanted} answers, it has {got}: {_why(reply)}"
        )
        return tuple(
            Result(self._race, f"item {number} of {self._name}", item, row_is_gone=self._row_is_gone)
            for number, item in enumerate(reply.items, start=1)
        )

    @property
    def statements(self) -> int:
        """How many SQL statements it has sent so far; only of an actor behind the gate."""
        return max(
            (
                statement.number
                for step in self._runner.steps
                if step.call is self._call
                for statement in step.statements
            ),
            default=0,
        )

    def claim(self, job: JobId | None = None) -> Claim:
        reply = self.reply()
        if not reply.accepted:
            raise ExpectationFailed(f"{self._name} was refused: {_why(reply)}")
        if not reply.claims:
            raise NotEstablished(f"{self._name} found nothing to claim")
        claim = reply.claims[0]
        if job is not None and claim.job != job:
            raise NotEstablished(f"{self._name} got job {claim.job}, the schedule wants {job}")
        return claim

    def claims(self, count: int) -> tuple[Claim, ...]:
        """What a batch claim brought: so many, or the race was not established."""
        found = self.result().claims()
        if len(found) != count:
            raise NotEstablished(f"{self._name} found {len(found)} jobs to claim, the schedule wants {count}")
        return found

    def job(self) -> JobId:
        """The job it made, or found under its key."""
        job = self.result().accepted().reply.job
        if job is None:
            raise NotEstablished(f"{self._name} brought no job")
        return job

    def found_nothing(self) -> None:
        reply = self.reply()
        got = ", ".join(f"job {claim.job} under token {claim.token}" for claim in reply.claims)
        self._race.check(
            reply.accepted and not reply.claims,
            f"{self._name} should find nothing, it got {got or _why(reply)}",
        )

    @property
    def _name(self) -> str:
        return f"{self._call.actor}'s {self._call.operation}"

    def _tell(self, status: CallStatus) -> str:
        if status is CallStatus.ANSWERED and self._call.reply is not None:
            return f"answered ({_why(self._call.reply)})"
        return status.value


class Result:
    """An answer, with what the scenario may expect of it."""

    def __init__(self, race: Race, name: str, reply: Reply, *, row_is_gone: bool = False) -> None:
        self._race = race
        self._name = name
        self._row_is_gone = row_is_gone
        self.reply = reply

    def accepted(self) -> Result:
        self._race.check(self.reply.accepted, f"{self._name} should be accepted, it was {_why(self.reply)}")
        return self

    def unknown(self) -> Result:
        """Its answer was lost: it may have happened or not."""
        self._race.check(
            self.reply.outcome is Outcome.UNKNOWN,
            f"{self._name} should have lost its answer, it was {_why(self.reply)}",
        )
        return self

    def claims(self) -> tuple[Claim, ...]:
        """What a claim brought, which may be nothing. One that was refused did not look, so it found nothing out."""
        return self.accepted().reply.claims

    def refused(self, reason: str | None = None) -> Result:
        wanted = f"refused ({reason})" if reason else "refused"
        self._race.check(
            self.reply.outcome is Outcome.REFUSED
            and (reason is None or says_why(self.reply, reason, row_is_gone=self._row_is_gone)),
            f"{self._name} should be {wanted}, it was {_why(self.reply)}",
        )
        return self


class RaceClock:
    """The database's clock, in the scenario's words. Every move is a step."""

    def __init__(self, race: Race, lease_time: LeaseTime) -> None:
        self._race = race
        self._lease_time = lease_time

    def advance(self, seconds: float) -> None:
        self._move(lambda: self._lease_time.advance(seconds), {"seconds": seconds})

    def rewind(self, seconds: float) -> None:
        """Back by `seconds`. Refused while a step is blocked: the server's timers for it would run that much longer."""
        blocked = [f for f in self._race._runner.in_flight if f.status is CallStatus.BLOCKED]
        if blocked:
            waiting = ", ".join(f"{flight.name}'s {flight.call.operation}" for flight in blocked)
            raise FencepostError(f"the clock cannot be set back while {waiting} waits for a lock")
        self._move(lambda: self._lease_time.rewind(seconds), {"seconds": -seconds})

    def advance_past(self, claim: Claim) -> None:
        """Until the claim's lease has expired, however that can be had here."""
        view = self._race._runner.last_observation.by_job.get(claim.job)
        shown = view.lease_until_us if view is not None and view.token == claim.token else None
        until_us = shown if shown is not None else claim.lease_until_us
        detail: dict[str, Json] = {"past_lease_of": claim.job}
        if claim.token is not None:
            detail["token"] = (
                claim.token
            )  # an earlier claim of the job may be meant, whose lease is long over
        self._move(lambda: self._lease_time.pass_lease(claim, until_us), detail)

    def advance_to(self, moment_us: int, name: str) -> None:
        """To just past a moment of database time, called `name` in the trace (`next_run_at`, …)."""
        self._move(lambda: self._lease_time.advance_to(moment_us), {"to": name})

    def _move(self, move: Callable[[], Any], detail: dict[str, Json]) -> None:
        self._race._runner.move_clock(move, detail, self._race.scenario_line())


def _why(reply: Reply) -> str:
    text = reply.outcome.value
    if reply.reason:
        text += f" ({reply.reason})"
    if reply.message and reply.message != reply.reason:
        text += f": {reply.message.splitlines()[0]}"
    return text


def _never_given(job: JobId) -> JobId:
    """An id of the same form that no job has: the last of all, since ids are given from the first."""
    if job.isdecimal():
        return str(2**31 - 1)  # also where ids are 32 bits wide
    try:
        return str(UUID(int=2**128 - 1 if UUID(job).int != 2**128 - 1 else 0))
    except ValueError:
        raise NotEstablished(f"no id is known that job {job} of this queue could not have had") from None


def _renamed(raw: Json, old: JobId, new: JobId) -> Json:
    """`raw` with the job's id exchanged wherever it stands, as a number where it is one."""
    match raw:
        case dict():
            return {name: _renamed(value, old, new) for name, value in raw.items()}
        case list() | tuple():
            return [_renamed(value, old, new) for value in raw]
        case bool():
            return raw
        case int() if str(raw) == old:
            return int(new)
        case str() if raw == old:
            return new
    return raw


def _exit_reason(reply: Reply | None) -> str:
    if reply is None:
        return "idle"
    if reply.accepted:
        return "success"
    return "stale" if reply.outcome is Outcome.REFUSED else "unknown"
