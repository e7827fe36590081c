"""Runs orders of steps on a real queue: actors behind the gate, one statement a step.

Fast, because the search is only as good as the number of orders it can try: connections and actors stay open between
orders, rows are looked at only after something can have been committed, and this thread runs the gate itself.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import islice
from types import MappingProxyType
from typing import Final

from fencepost.harness.actors.messages import Request, signed
from fencepost.harness.adapter import (
    GUARD_PASSED,
    OPERATION_NEEDS,
    Capability,
    Claim,
    JobId,
    JobState,
    Json,
    Observation,
)
from fencepost.harness.adapter import Outcome as Answered
from fencepost.harness.bench import AdapterBroke
from fencepost.harness.classify import GOOD, SEVERITY, Class, LeaseBook
from fencepost.harness.drain import DRAINER
from fencepost.harness.errors import FencepostError, UsageError
from fencepost.harness.explore.dependency import CLOCK, IDLE, Transaction, ended
from fencepost.harness.explore.ending import settle_what_is_left
from fencepost.harness.explore.executor import Choice, Kind, Outcome, Seen, Status, StepResult
from fencepost.harness.explore.footprint import NOTHING, UNKNOWN, Access, Footprint, Mode
from fencepost.harness.explore.keeping import keep
from fencepost.harness.explore.program import ENQUEUE_OTHER, UNDER_A_CLAIM, Program
from fencepost.harness.explore.stage import PRODUCER, Flight, Seated, Stage
from fencepost.harness.gate.rules import LoseReply, LoseRequest, Rule, StatementNumber
from fencepost.harness.gate.statements import PENDING, Statement
from fencepost.harness.history import Call, CallStatus, Reply, Step, StepKind
from fencepost.harness.invariants import Invariant, applicable
from fencepost.harness.lab import Lab, LabOptions
from fencepost.harness.postgres.provider import ServerFault
from fencepost.harness.wire import headline

EXPIRE, CRASH, LOSE_REPLY, LOSE_REQUEST = "expire", "crash", "lose-reply", "lose-request"
RESTART: Final = "restart"
STRIKE_BY_THEMSELVES: Final = (EXPIRE, RESTART)
"""Each is a thread of its own; the others meet an actor's statement."""
FAULTS: Final = frozenset({CRASH, LOSE_REPLY, LOSE_REQUEST, *STRIKE_BY_THEMSELVES})
MOST_STAGES: Final = 4
"""Kept warm at once: each holds sessions of the server. The one opened first is put away for a fifth."""
TTL_S: Final = 60.0
PAST_EVERY_LEASE_S: Final = 61.0
KEY: Final = "k"
"""Of every job that is enqueued in the program itself: what is explored is one submission made twice."""

ARGUMENTS: Mapping[str, Mapping[str, Json]] = MappingProxyType(
    {
        "enqueue": {"payload": {}, "key": KEY},
        ENQUEUE_OTHER: {"payload": {"other": True}, "key": KEY},
        "claim": {"ttl_s": TTL_S},
        "heartbeat": {"ttl_s": TTL_S},
        "fail": {"error": "boom"},
    }
)
NEEDS: Final[Mapping[str, Capability | None]] = {**OPERATION_NEEDS, ENQUEUE_OTHER: Capability.IDEMPOTENCY_KEY}
TAKEN: Final[Mapping[str, str]] = {
    PRODUCER: "enqueues the jobs that are there at the start",
    DRAINER: "settles what is left at the end",
}
JUDGED: Final = Footprint(frozenset({Access(CLOCK, Mode.READ)}))
"""Of a step an invariant judges by the clock: one that begins a call, passes a checkpoint, waits or frees, answers, or
shows rows. Whether the clock moved before or after it is not the same, even if its statement did not look."""
SKIPPED: Final = "skipped: no claim"
EMPTY: Final = "(empty)"
"""A statement without text, as pools send to see whether a connection lives. It is a step like any other."""


@dataclass(frozen=True, slots=True)
class QueueExecutor:
    """Picklable: a worker process elsewhere starts its own server and keeps it for all programs."""

    queue_path: str
    options: LabOptions

    def open(self, program: Program) -> RealExecution:
        return RealExecution(_warm_stages().stage(self), program)


class _WarmStages:
    """Of one thread: a lab for each way of running one, and a stage in it for each queue."""

    def __init__(self) -> None:
        self._labs: dict[LabOptions, Lab] = {}
        self._stages: dict[QueueExecutor, Stage] = {}
        self.kept = keep(self.close, priority=5)

    def stage(self, executor: QueueExecutor) -> Stage:
        if executor not in self._stages:
            if len(self._stages) == MOST_STAGES:
                self._stages.pop(next(iter(self._stages))).put_away()
            if executor.options not in self._labs:
                self._labs[executor.options] = Lab(executor.options)
            self._stages[executor] = Stage(executor.queue_path, self._labs[executor.options])
        return self._stages[executor]

    def close(self) -> None:
        with contextlib.ExitStack() as stack:
            for lab in self._labs.values():
                stack.callback(lab.close)
            for stage in self._stages.values():
                stack.callback(stage.close)
        self._labs.clear()
        self._stages.clear()


_of_this_thread = threading.local()


def _warm_stages() -> _WarmStages:
    stages: _WarmStages | None = getattr(_of_this_thread, "stages", None)
    if stages is None or not stages.kept.still_active():
        # Not itself a threading.local: when the process ends the main thread closes those of all threads.
        stages = _of_this_thread.stages = _WarmStages()
    return stages


def close_stages() -> None:
    """Of this thread; the next program opens a new one."""
    _warm_stages().close()


def lacks(program: Program, capabilities: frozenset[Capability]) -> str | None:
    """What the queue lacks for it, in words."""
    for actor in program.actors:
        for operation in actor.operations:
            need = NEEDS[operation]
            if need is not None and need not in capabilities:
                return f"{actor.name} is to {operation}, and the queue lacks {need}"
    return None


def check_program(program: Program, capabilities: frozenset[Capability]) -> None:
    """Raises UsageError where the queue lacks an operation."""
    lacking = lacks(program, capabilities)
    if lacking is not None:
        raise UsageError(f"--ops: {lacking}.")
    for actor in program.actors:
        if actor.name in TAKEN:
            raise UsageError(f"--ops: {actor.name} {TAKEN[actor.name]}; take another name.")


@dataclass(slots=True)
class Part:
    """What one actor of the program has done so far in this order."""

    operations: tuple[str, ...]
    at: int = 0
    flight: Flight | None = None
    claim: Claim | None = None
    gone: bool = False
    answers: dict[int, str] = field(default_factory=dict)
    kinds: dict[int, tuple[Kind, str]] = field(default_factory=dict)
    acted_on: set[JobId] = field(default_factory=set)


class RealExecution:
    def __init__(self, stage: Stage, program: Program) -> None:
        check_program(program, stage.bench.capabilities)
        if any(fault.name == RESTART for fault in program.faults):
            server = stage.bench.place.server
            if ServerFault.CRASH not in server.can:
                raise UsageError(f"--faults restart: {server.refusal(ServerFault.CRASH)}")
        self._stage = stage
        self._program = program
        self._bench = stage.bench
        self._parts: dict[str, Part] = {}
        self._observation = Observation(0)
        self._broke = False
        self._at_the_end: dict[Outcome, tuple[str, ...]] = {}  # what broke by then, by how the order ended
        self._moves = {
            actor.name: tuple(
                Choice(actor.name, variant) for variant in ("", CRASH, LOSE_REPLY, LOSE_REQUEST)
            )
            for actor in sorted(program.actors, key=lambda actor: actor.name)
        }
        self._keeps_results = Capability.RESULT in self._bench.capabilities
        self._counts_tokens = Capability.CONSECUTIVE_TOKENS in self._bench.capabilities
        self._reports_checkpoints = Capability.CHECKPOINTS in self._bench.capabilities

    def close(self) -> None:
        """The stage stays, for the next program."""
        self._end_flights()

    # -- a run ------------------------------------------------------------------------------------------------

    def reset(self) -> None:
        self._end_flights()
        self._stage.reset()
        self._parts = {actor.name: Part(actor.operations) for actor in self._program.actors}
        self._faults = {fault.name: fault.times for fault in self._program.faults}
        self._invariants: tuple[Invariant, ...] = tuple(applicable(self._bench.capabilities))
        self._transactions: dict[int, Transaction] = {}
        self._names: dict[JobId, str] = {}
        self._tokens: dict[JobId, dict[int, int]] = {}
        self._claims: list[Claim] = []
        self._steps = 0
        self._calls = 0
        self._broken: set[str] = set()
        # As in the variants family: what promises no fence is judged by what became of its late writes.
        self._book = None if Capability.FENCING in self._bench.capabilities else LeaseBook()
        self._late_writes: set[Class] = set()
        self._missing: set[str] = set()
        self._changed_rows = False
        if not self._observation.at_us:
            self._observation = self._bench.observe()
        # The rows are gone, so nothing is there: as true as a look, and free.
        self._observation = Observation(self._observation.at_us)
        self._submit(self._program.jobs)
        for part in self._parts.values():
            self._skip(part)

    def _submit(self, jobs: int) -> None:
        """Before the race, so they are seen together: as steps that set each other free are."""
        calls = [self._call(PRODUCER, "enqueue", {"payload": {}}, ()) for _ in range(jobs)]
        for call in calls:
            call.reply = self._stage.producer.perform(Request("enqueue", call.arguments))
            self._note_reply(call.reply)
            if call.reply.outcome is not Answered.ACCEPTED:
                raise FencepostError(
                    f"a job could not be enqueued: {call.reply.message or call.reply.reason}"
                )
        before = self._observation
        after = self._look() if calls else before
        kind = StepKind.CALL
        for call in calls:
            self._judge(
                Step(
                    self._next(),
                    kind,
                    before,
                    after,
                    call=call,
                    status=CallStatus.ANSWERED,
                    actor=PRODUCER,
                )
            )
            kind = StepKind.FREED

    def _aside(self, name: str, call: Call) -> Reply:
        """An operation of who is no part of the race, in one step."""
        before = self._observation
        call.reply = self._stage.bystander(name).perform(Request(call.operation, call.arguments, call.claims))
        after = self._look()
        self._judge(
            Step(
                self._next(),
                StepKind.CALL,
                before,
                after,
                call=call,
                status=CallStatus.ANSWERED,
                actor=name,
            )
        )
        return call.reply

    def _end_flights(self) -> None:
        flights = [part.flight for part in self._parts.values() if part.flight is not None]
        self._parts = {}
        if self._broke:
            self._broke = False
            self._stage.abandon()
        elif flights:
            self._stage.finish(flights)

    def enabled(self) -> tuple[Choice, ...]:
        moves: list[Choice] = []
        for name, choices in self._moves.items():
            part = self._parts[name]
            if part.gone or (part.flight is None and part.at >= len(part.operations)):
                continue
            if part.flight is not None and part.flight.status is CallStatus.BLOCKED:
                continue
            moves.append(choices[0])
            if self._faults:
                moves += [choice for choice in choices[1:] if self._faults.get(choice.variant)]
        if self._faults:
            # After all actors: their names begin with a capital letter.
            moves += [choice for choice in _STRIKE_BY_THEMSELVES if self._faults.get(choice.thread)]
        return tuple(moves)

    def take(self, choice: Choice) -> StepResult:
        known = len(self._names)
        try:
            step = self._take(choice)
        except BaseException:
            self._broke = True
            raise
        if not self._stage.unsteady:
            return step
        return replace(step, footprint=self._in_names(step.footprint, known))

    def _take(self, choice: Choice) -> StepResult:
        if choice.thread == EXPIRE:
            return self._expire(choice)
        if choice.thread == RESTART:
            return self._restart(choice)
        if choice.variant == CRASH:
            return self._crash(choice)
        return self._move(choice)

    def _in_names(self, touched: Footprint, known: int) -> Footprint:
        """A row is compared with those of other runs, where the same one may have another key: it goes by its job's
        name, or it may be any. Not by one its own step gave: which of two jobs is named first is for their order."""
        unsteady = self._stage.unsteady
        names = {str(job): name for job, name in islice(self._names.items(), known)}

        def named(access: Access) -> Access:
            if access.key is None or access.thing not in unsteady:
                return access
            parts = tuple(names.get(str(part)) for part in access.key)
            return Access(access.thing, access.mode, None if None in parts else parts)

        return Footprint(frozenset(map(named, touched.accesses)), touched.unknown)

    # -- an actor moves ---------------------------------------------------------------------------------------

    def _move(self, choice: Choice) -> StepResult:
        part = self._parts[choice.thread]
        struck = NOTHING
        if choice.variant:
            self._faults[choice.variant] -= 1
            struck = _strikes(choice.variant)
        flight = part.flight
        passed = -1
        if flight is None:
            flight = self._start(choice, part)
        else:
            passed = len(flight.call.passed)
            flight.status = None
            path = flight.seated.path
            if choice.variant == LOSE_REPLY:
                path.release_and_lose_reply()
            elif choice.variant == LOSE_REQUEST:
                path.lose_parked_request()
            else:
                path.release()
        place = flight.place
        self._stage.settle([flight])
        sql, touched = self._new_statements(flight)
        if choice.variant:
            touched |= self._lost(flight)
        if len(flight.call.passed) > passed:
            touched |= JUDGED
        freed, touched = self._free(touched, flight)
        return self._record(choice, part, flight, place, sql, touched | struck, freed)

    def _start(self, choice: Choice, part: Part) -> Flight:
        operation = part.operations[part.at]
        claims = (part.claim,) if operation in UNDER_A_CLAIM and part.claim is not None else ()
        arguments: dict[str, Json] = dict(ARGUMENTS.get(operation, {}))
        if operation == ENQUEUE_OTHER:
            operation = "enqueue"
        elif operation == "enqueue" and Capability.IDEMPOTENCY_KEY not in self._bench.capabilities:
            del arguments["key"]
        if operation == "cancel":
            arguments["job"] = next(iter(self._names))
        seated = self._stage.seat(choice.thread)
        call = self._call(choice.thread, operation, arguments, claims)
        part.acted_on.update(claim.job for claim in claims)
        flight = part.flight = Flight(call, seated, part.at)
        seated.path.begin_operation(
            operation, _armed(choice.variant), step_every_statement=True, first_step=2
        )
        asked = signed(operation, arguments, choice.thread) if self._keeps_results else arguments
        seated.actor.submit(Request(operation, asked, claims))
        return flight

    def _call(
        self, name: str, operation: str, arguments: Mapping[str, Json], claims: tuple[Claim, ...]
    ) -> Call:
        self._calls += 1
        now_us = self._observation.at_us
        return Call(self._calls, name, name, operation, arguments, claims, self._steps + 1, now_us, now_us)

    def _new_statements(self, flight: Flight) -> tuple[str, Footprint]:
        """What passed since the last look, and what it touched."""
        touched = NOTHING
        headlines: list[str] = []
        for sent in flight.seated.path.statements_after(flight.told):
            if sent.fate == "at the gate":
                break  # parked: it belongs to the next step
            headlines.append(headline(sent.sql) or EMPTY)
            flight.seated.pids.add(sent.pid)
            touched |= self._touched(sent)
            if sent.answer == PENDING:
                break
            flight.told = sent.ordinal
        return "; ".join(headlines), touched

    def _touched(self, sent: Statement) -> Footprint:
        """Keeps the session's transaction up to date as well."""
        before = self._transactions.get(sent.pid, IDLE)
        if sent.fate == "request lost":
            return NOTHING
        seen, after = self._stage.memory.touched(sent, before)
        if sent.answer == PENDING:
            return seen  # it waits: what it has read and asked for counts, that it is over does not yet
        if sent.answer.startswith("error"):
            # The transaction is over for everybody else, whatever its client does next.
            open_one = Transaction(True, before.touched | seen)
            self._transactions[sent.pid] = IDLE if sent.transaction == "I" else Transaction(True)
            return seen | ended(open_one, committed=False)
        self._transactions[sent.pid] = after
        return seen

    def _lost(self, flight: Flight) -> Footprint:
        """Its connection was ended with the answer or the request: the server rolls back what is open."""
        seated = flight.seated
        seated.stale = True
        records = seated.path.statements
        pids = [
            r.pid for r in records if r.fate in ("request lost", "reply lost", "connection ended") and r.pid
        ]
        self._stage.orphan(pids)
        return self._rolled_back(pids)

    def _rolled_back(self, pids: Sequence[int]) -> Footprint:
        touched = NOTHING
        for pid in pids:
            touched |= ended(self._transactions.pop(pid, IDLE), committed=False)
        return touched

    def _free(self, touched: Footprint, mover: Flight | None) -> tuple[list[Flight], Footprint]:
        """Who waited and now does not, with what they touched by going on."""
        blocked = [
            part.flight
            for part in self._parts.values()
            if part.flight is not None
            and part.flight is not mover
            and part.flight.status is CallStatus.BLOCKED
        ]
        if not blocked or not (touched.unknown or _frees(touched.accesses)):
            return [], touched
        for flight in blocked:
            flight.status = None
        self._stage.settle(blocked)
        freed = [flight for flight in blocked if flight.status is not CallStatus.BLOCKED]
        for flight in freed:
            touched |= self._new_statements(flight)[1]
        return sorted(freed, key=lambda flight: flight.call.actor), touched

    def _record(
        self,
        choice: Choice,
        part: Part,
        flight: Flight,
        place: int,
        sql: str,
        touched: Footprint,
        freed: Sequence[Flight],
    ) -> StepResult:
        before = self._observation
        after = self._look() if _may_have_committed(touched) else before
        said = self._step(StepKind.CALL, flight, before, after)
        for other in freed:
            heard = self._step(StepKind.FREED, other, before, after)
            if heard:
                said = f"{said}; {other.call.actor}: {heard}".lstrip("; ")
        if after is not before or freed or flight.status is not CallStatus.PARKED:
            touched |= JUDGED
        return StepResult(
            choice,
            _STATUS[flight.status],
            flight.call.operation,
            place,
            sql,
            said,
            tuple(other.call.actor for other in freed),
            touched,
        )

    def _step(self, kind: StepKind, flight: Flight, before: Observation, after: Observation) -> str:
        """Let the invariants see it, and note the answer where it brought one."""
        call = flight.call
        number = self._next()
        if _rows(before) != _rows(after):
            self._changed_rows = True
        if before is not after or flight.status is CallStatus.ANSWERED:
            self._judge(Step(number, kind, before, after, call=call, status=flight.status, actor=call.actor))
        if flight.status is not CallStatus.ANSWERED:
            return ""
        assert call.reply is not None
        part = self._parts[call.actor]
        self._note_reply(call.reply)
        if call.reply.outcome is Answered.UNKNOWN:
            flight.seated.stale = True
        if call.reply.claims:
            part.claim = call.reply.claims[-1]
        said = self._said(call.reply)
        part.answers[flight.place] = said
        part.kinds[flight.place] = kind_of(call.operation, call.reply)
        part.acted_on |= _jobs_of(call, after)
        part.flight = None
        part.at = flight.place + 1
        self._skip(part)
        return said

    def _skip(self, part: Part) -> None:
        """What acts under a claim is left out by an actor that has none."""
        while part.at < len(part.operations) and (
            (part.operations[part.at] in UNDER_A_CLAIM and part.claim is None)
            or (part.operations[part.at] == "cancel" and not self._names)
        ):
            part.answers[part.at] = SKIPPED
            part.at += 1

    # -- faults -----------------------------------------------------------------------------------------------

    def _crash(self, choice: Choice) -> StepResult:
        part = self._parts[choice.thread]
        self._faults[CRASH] -= 1
        flight, place = part.flight, part.at
        operation = part.operations[place]
        touched = _strikes(CRASH) | JUDGED
        seated = flight.seated if flight is not None else self._stage.seat(choice.thread)
        pids = [view.pid for view in seated.path.connections]
        self._stage.end_connections(flight, seated)
        touched |= self._rolled_back(pids)
        part.gone, part.flight = True, None
        part.answers[place] = "crashed"
        freed, touched = self._free(touched, None)
        before = self._observation
        after = self._look()
        self._judge(Step(self._next(), StepKind.FAULT, before, after, actor=choice.thread, fault="kill"))
        if flight is not None:
            flight.call.reply = Reply(Answered.UNKNOWN, reason="killed")
            self._judge(
                Step(
                    self._next(),
                    StepKind.FREED,
                    before,
                    after,
                    call=flight.call,
                    status=CallStatus.ANSWERED,
                    actor=choice.thread,
                )
            )
        said = "; ".join(
            f"{other.call.actor}: {heard}"
            for other in freed
            if (heard := self._step(StepKind.FREED, other, before, after))
        )
        names = tuple(other.call.actor for other in freed)
        return StepResult(choice, Status.GONE, operation, place, "and its process dies", said, names, touched)

    def _expire(self, choice: Choice) -> StepResult:
        self._faults[EXPIRE] -= 1
        before = self._observation
        time = self._bench.lease_time
        if time.how == "expire":
            said = self._expire_rows(before)
        else:
            self._clock_step(before, lambda: time.advance(PAST_EVERY_LEASE_S))
            said = f"clock+{PAST_EVERY_LEASE_S:g}s"
        touched = Footprint(frozenset({Access(CLOCK, Mode.SET)}), unknown=time.how == "expire")
        nobody_held_one = all(view.state is not JobState.LEASED for view in before.jobs)
        return StepResult(
            choice,
            Status.STRUCK,
            "",
            -1,
            "the clock passes every lease's end",
            said,
            (),
            touched,
            in_vain=nobody_held_one,
        )

    def _restart(self, choice: Choice) -> StepResult:
        """Every connection is gone: who waited comes back at once, who is parked finds out when he goes on."""
        self._faults[RESTART] -= 1
        before = self._observation
        self._stage.crash_server()
        self._transactions.clear()
        freed, _ = self._free(UNKNOWN, None)
        after = self._look()
        self._judge(Step(self._next(), StepKind.FAULT, before, after, fault=ServerFault.CRASH.value))
        said = "; ".join(
            f"{other.call.actor}: {heard}"
            for other in freed
            if (heard := self._step(StepKind.FREED, other, before, after))
        )
        names = tuple(other.call.actor for other in freed)
        return StepResult(
            choice, Status.STRUCK, "", -1, "the server crashes and recovers", said, names, UNKNOWN
        )

    def _expire_rows(self, before: Observation) -> str:
        told: list[str] = []
        for number, claim in enumerate(self._claims, 1):
            view = before.by_job.get(claim.job)
            if view is None or view.state is not JobState.LEASED or view.token not in (None, claim.token):
                continue
            try:
                self._clock_step(
                    self._observation,
                    lambda claim=claim, until=view.lease_until_us: self._bench.lease_time.pass_lease(
                        claim, until
                    ),
                )
            except AdapterBroke as error:
                self._missing.add(str(error))
            told.append(f"clock>#{number}")
        return " | ".join(told)

    def _clock_step(self, before: Observation, move: object) -> None:
        assert callable(move)
        clock = move()
        after = self._look()
        self._judge(Step(self._next(), StepKind.CLOCK, before, after, clock=clock))

    # -- what is seen -----------------------------------------------------------------------------------------

    def _next(self) -> int:
        self._steps += 1
        return self._steps

    def _look(self) -> Observation:
        self._observation = self._bench.observe()
        for part in self._parts.values():
            flight = part.flight
            if flight is not None and flight.status is not CallStatus.ANSWERED and self._unjudged(flight):
                flight.call.unguarded_until_us = self._observation.at_us
        return self._observation

    def _unjudged(self, flight: Flight) -> bool:
        """Whether its write has surely not been judged yet, as the runner decides it."""
        if GUARD_PASSED in flight.call.passed:
            return False
        return flight.status is CallStatus.BLOCKED or self._reports_checkpoints

    def _judge(self, step: Step) -> None:
        for invariant in self._invariants:
            if (
                invariant.check(step) is not None
            ):  # how often it could speak is for verdicts, not for a search
                self._broken.add(invariant.name)
        if self._book is not None:
            self._late_writes.update(finding.kind for finding in self._book.read(step))

    @property
    def _all_broken(self) -> tuple[str, ...]:
        """The invariants, and the worst that became of a late write."""
        worst = max(self._late_writes - GOOD, key=SEVERITY.__getitem__, default=None)
        return tuple(sorted((*self._broken, *(() if worst is None else (worst.value,)))))

    def _note_reply(self, reply: Reply) -> None:
        for job in (reply.job, *(claim.job for claim in reply.claims)):
            if job is not None:
                self._name(job)
        self._claims.extend(reply.claims)

    def _name(self, job: JobId) -> str:
        return self._names.setdefault(job, f"j{len(self._names) + 1}")

    def _token(self, job: JobId, token: int | None) -> int | None:
        """Where a job's tokens are not 1, 2, 3 in every run, by the order in which they were seen."""
        if not token or self._counts_tokens:  # 0: of a job nobody has had
            return token
        seen = self._tokens.setdefault(job, {})
        return seen.setdefault(token, len(seen) + 1)

    def _said(self, reply: Reply) -> str:
        words = [reply.outcome.value]
        if reply.reason:
            words.append(reply.reason)
        if reply.repeated:
            words.append("repeated")
        if reply.job is not None:
            words.append(self._name(reply.job))
        words += [
            f"{self._name(claim.job)} under token {self._token(claim.job, claim.token)}"
            for claim in reply.claims
        ]
        if reply.count is not None:
            words.append(f"{reply.count} reaped")
        words += [self._said(item) for item in reply.items]
        return " ".join(words)

    def finish(self) -> Outcome:
        outcome = self._outcome()
        if outcome.failed or outcome.missing or not self._can_be_drained:
            return outcome
        if outcome not in self._at_the_end:
            # Orders that ended alike are brought to their end alike: once for each outcome is enough.
            self._drain()
            self._at_the_end[outcome] = self._all_broken
        return replace(outcome, broken=self._at_the_end[outcome])

    @property
    def _can_be_drained(self) -> bool:
        """Time must be passed for it; where only single leases can be expired, or one would really wait, it is not."""
        return self._bench.lease_time.how == "clock" and all(
            part.flight is None for part in self._parts.values()
        )

    def _drain(self) -> None:
        time = self._bench.lease_time
        settle_what_is_left(
            self._drained_by,
            lambda: self._observation,
            lambda moment_us: self._clock_step(self._observation, lambda: time.advance_to(moment_us)),
            self._bench.capabilities,
        )
        seen = self._observation
        self._judge(Step(self._next(), StepKind.END, seen, seen))

    def _drained_by(self, operation: str, arguments: Mapping[str, Json], claims: tuple[Claim, ...]) -> Reply:
        return self._aside(DRAINER, self._call(DRAINER, operation, arguments, claims))

    def _outcome(self) -> Outcome:
        seen = self._observation
        rows = tuple(
            (self._name(v.job), v.state.value, self._token(v.job, v.token), v.attempts, v.holder, v.key)
            for v in seen.jobs
        )
        ledger = tuple((self._name(e.job), self._token(e.job, e.token), e.worker) for e in seen.ledger)
        answers = tuple(
            f"{name} {operation}: {part.answers.get(place, 'never done')}"
            for name, part in self._parts.items()
            for place, operation in enumerate(part.operations)
        )
        state = (tuple(sorted(rows, key=str)), tuple(sorted(ledger, key=str)))
        return Outcome(state, answers, self._all_broken, tuple(sorted(self._missing)), self._seen())

    def _seen(self) -> Seen:
        answers = frozenset(
            ((name, place), *answered)
            for name, part in self._parts.items()
            for place, answered in part.kinds.items()
        )
        jobs = [part.acted_on for part in self._parts.values()]
        met = any(one & other for at, one in enumerate(jobs) for other in jobs[at + 1 :])
        return Seen(answers, self._changed_rows, met)


def kind_of(operation: str, reply: Reply) -> tuple[Kind, str]:
    """With the reason, where it was not done."""
    if reply.error is not None or reply.outcome is Answered.UNKNOWN:
        return Kind.ERROR, reply.error or reply.reason or ""
    items = [kind_of(operation, item) for item in reply.items]
    if reply.outcome is Answered.REFUSED or (items and all(kind is not Kind.DONE for kind, _ in items)):
        return Kind.REFUSED, reply.reason or ", ".join(sorted({reason for _, reason in items}))
    found_nothing = (operation == "claim" and not reply.claims) or (operation == "reap" and not reply.count)
    return (Kind.NOTHING if found_nothing else Kind.DONE), ""


def _jobs_of(call: Call, after: Observation) -> set[JobId]:
    """What an answered operation was about; one that found nothing had looked at all there are."""
    assert call.reply is not None
    named = {call.reply.job, call.arguments.get("job"), *(claim.job for claim in call.reply.claims)} - {None}
    looked = call.operation == "reap" or (call.operation == "claim" and not named)
    return set(after.by_job) if looked else {job for job in named if job is not None}


def _rows(seen: Observation) -> object:
    return seen.jobs, seen.ledger


_STATUS: Final[Mapping[CallStatus | None, Status]] = {
    CallStatus.ANSWERED: Status.ANSWERED,
    CallStatus.PARKED: Status.PARKED,
    CallStatus.BLOCKED: Status.BLOCKED,
}
_FREEING: Final = frozenset({Mode.PUBLISH, Mode.RELEASE})
_STRIKE_BY_THEMSELVES: Final = tuple(Choice(fault) for fault in STRIKE_BY_THEMSELVES)


def _may_have_committed(touched: Footprint) -> bool:
    return touched.unknown or _publishes(touched.accesses)


@lru_cache(maxsize=65_536)
def _publishes(accesses: frozenset[Access]) -> bool:
    return any(access.mode is Mode.PUBLISH for access in accesses)


@lru_cache(maxsize=65_536)
def _frees(accesses: frozenset[Access]) -> bool:
    return any(access.mode in _FREEING for access in accesses)


def _strikes(fault: str) -> Footprint:
    """Faults of a kind are counted for all actors together: whoever meets one takes it from the others."""
    return Footprint(frozenset({Access(f"fault {fault}", Mode.SET)}))


def _armed(variant: str) -> tuple[Rule, ...]:
    if variant == LOSE_REPLY:
        return (Rule(StatementNumber(1), LoseReply()),)
    if variant == LOSE_REQUEST:
        return (Rule(StatementNumber(1), LoseRequest()),)
    return ()


def stage_of(execution: RealExecution) -> Stage:
    return execution._stage


__all__ = [
    "FAULTS",
    "QueueExecutor",
    "RealExecution",
    "Seated",
    "check_program",
    "close_stages",
    "lacks",
    "stage_of",
]
