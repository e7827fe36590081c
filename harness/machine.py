"""The state machine: Hypothesis makes up orders of operations, holds, clock moves and faults, and shrinks what fails.

Every step it takes is a step of a schedule, played as a replay would play it, so what it finds replays. One rule starts
an operation and leaves it held on its way, others run meanwhile, another lets it go on: interleavings are generated
like everything else. After every step the invariants are asked and the model compares; at the end of an example what
is left is drained, and answers that were lost must have an explanation.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from fencepost.harness.adapter import LIVE_STATES, OPERATION_NEEDS, Capability, JobId, JobState, Observation
from fencepost.harness.bench import Bench, OpenRun, Run
from fencepost.harness.errors import FencepostError, UsageError
from fencepost.harness.history import CallStatus
from fencepost.harness.known import what_failed
from fencepost.harness.lease_time import CannotMoveTime
from fencepost.harness.model import Model
from fencepost.harness.outcomes import explain, groups
from fencepost.harness.race import NotEstablished, Race
from fencepost.harness.replay import Player, replay_of
from fencepost.harness.runner import InvariantBroken, Runner
from fencepost.harness.scenario import Scenario, Variant
from fencepost.harness.schedule import (
    ActorFault,
    AtCheckpoint,
    AtStatement,
    ClaimRef,
    ClockBy,
    ClockPast,
    GoOn,
    JobRef,
    Join,
    Place,
    ServerFault,
    Start,
    Statement,
    StatementFault,
    Step,
    Then,
    parse_schedule,
)
from fencepost.harness.verdict import Unmet
from fencepost.harness.witness import Witness

NAME = "invariants"

WORKERS = ("A", "B", "C")
REAPERS = ("R", "R2")
PRODUCERS = ("P", "P2")
ODD_ONE_OUT = "C"
"""Goes by A's name in the queue, in another time zone, and through the gate."""
BEHIND_THE_GATE = (ODD_ONE_OUT, "R2", "P2")
DEADLY = "B"
"""In some examples a process, which can be killed."""

EXAMPLES_THAT_SHOW_ALL = 200
"""In so many examples every operation comes up; in a few, one may not."""

IN_FLIGHT_AT_MOST = 3
JOBS_AT_MOST = 6
SHORT_WAIT_S = 10.0
FAILURES = 13
LARGEST_TOKEN = 2**63 - 1

KEYS = ("key-1", "key_1", "KEY-1", "key-1-long", "key-1-longer")
"""Two of them are the same to a queue that compares patterns, ignores case or cuts keys short."""
PAYLOADS: tuple[Any, ...] = ({}, {"n": 1})
TTLS_S = (60.0, 20.0, 600.0)
MOVES_S = (45.0, 5.0, 400.0)
DELAYS_S = (0.0, 30.0)
ATTEMPTS = (None, 1, 2)
PRIORITIES = (0, 5)
STATEMENTS_AT_MOST = 8
WRITES = ("complete", "fail", "heartbeat")
LOST = (*WRITES, "claim", "reap", "enqueue")
LOSSES = ("lose_reply", "lose_request", "error40001")
OVERTAKINGS = ("expire", "claim", "settle", "cancel")
BATCHES = ("twice", "never_was", "others", "claim")
ENDS = ("cancel", "requeue")


class Found(AssertionError):
    """An example that failed. One subclass per name, so that shrinking keeps to what it began with."""

    names: tuple[str, ...] = ()
    run: Run


class ProvedNothing(AssertionError):
    """An example that could not be played to its end."""


_FOUND: dict[str, type[Found]] = {}


def _found_as(name: str) -> type[Found]:
    return _FOUND.setdefault(name, type(f"Found_{re.sub(r'[^a-z_]', '_', name)}", (Found,), {}))


@dataclass(slots=True)
class Tally:
    """What all examples of one test did, together: a machine that did nothing found nothing."""

    examples: int = 0
    steps: int = 0
    answered: int = 0
    in_flight: int = 0
    """Calls that were held on their way while somebody else acted."""
    unknown: int = 0
    predictions: int = 0
    faults: int = 0
    evaluated: Counter[str] = field(default_factory=Counter)
    operations: Counter[str] = field(default_factory=Counter)
    known: Counter[str] = field(default_factory=Counter)
    """Findings that are no news."""
    found_at: int | None = None
    """The example that first showed it."""

    def missing(self, bench: Bench) -> list[str]:
        """What had to happen in some example and did not."""
        lacking = []
        if not self.answered:
            lacking.append("no operation was answered")
        if not self.in_flight:
            lacking.append("no operation was held on its way while another acted")
        lacking += [
            f"invariant {name} was never evaluated" for name, count in self.evaluated.items() if not count
        ]
        lacking += [
            f"no {operation} was answered"
            for operation in ("enqueue", "claim", "complete", "fail", "heartbeat", "reap", "cancel")
            if OPERATION_NEEDS[operation] in (None, *bench.capabilities) and not self.operations[operation]
        ]
        return lacking

    def __str__(self) -> str:
        return (
            f"{self.examples} examples, {self.steps} steps, {self.answered} operations answered, "
            f"{self.in_flight} of them in flight while others acted, {self.unknown} with their answer lost, "
            f"{self.faults} faults, {self.predictions} answers foretold"
        )

    def take(self, run: Run, opened: OpenRun, model: Model) -> None:
        steps = opened.runner.steps
        self.steps += len(steps)
        self.predictions += model.predictions
        self.faults += sum(step.fault is not None or bool(step.call and step.call.faults) for step in steps)
        held_since: dict[int, int] = {}
        for index, step in enumerate(steps):
            if step.call is None:
                continue
            number = step.call.number
            if number in held_since and any(
                s.call is not None for s in steps[held_since[number] + 1 : index]
            ):
                self.in_flight += 1
            held_since.pop(number, None)
            if step.status is CallStatus.PARKED:
                held_since[number] = index
            if step.reply is not None:
                self.answered += 1
                self.operations[step.call.operation] += 1
                self.unknown += step.reply.outcome.value == "unknown"
        for name, count in run.facts.invariants.items():
            self.evaluated[name] += count.evaluated


def checkpoints_of(bench: Bench) -> Mapping[str, tuple[str, ...]]:
    """The checkpoints each operation passes, found out by performing each of them once or twice."""
    if Capability.CHECKPOINTS not in bench.capabilities:
        return {}
    steps = [
        'P:enqueue(key="probe")' if Capability.IDEMPOTENCY_KEY in bench.capabilities else "P:enqueue",
        "P:enqueue(max_attempts=1)",
        "P:enqueue",
        "P:enqueue",
        "A:claim?",
        "B:claim?",
        "A:heartbeat?",
        "A:complete?",
        "B:fail?",
        "P:cancel(j3)?",
        "R:reap?",
        "P:requeue(j2)?",
        "A:claim_batch(limit=1)?",
        "A:complete_batch(#3)?",
    ]
    able = [step for step in steps if _able(bench, parse_schedule(step).steps[0])]
    run = bench.run(replay_of(parse_schedule(" | ".join(able)), name="probe"))
    passed: dict[str, dict[str, None]] = {}
    for step in run.trace.steps:
        if "passed" in step and not step.get("drain"):
            passed.setdefault(step["operation"], {}).update(dict.fromkeys(step["passed"]))
    return {operation: tuple(names) for operation, names in passed.items() if names}


def _able(bench: Bench, step: Step) -> bool:
    assert isinstance(step, Start)
    need = OPERATION_NEEDS[step.operation]
    return need is None or need in bench.capabilities


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

picks = st.integers(0, 5)
"""Which of those there are, counted from the latest."""

places = st.none() | st.integers(0, STATEMENTS_AT_MOST)
"""Whether an operation is to be left held on its way, and at which of its places."""


workers = st.sampled_from(WORKERS)
producers = st.sampled_from(PRODUCERS)
ttls_s = st.sampled_from(TTLS_S)
writes = st.sampled_from(WRITES)


def _action(name: str, **arguments: st.SearchStrategy[Any]) -> st.SearchStrategy[tuple[str, Any]]:
    return st.fixed_dictionaries(arguments).map(lambda given: (name, given))


actions = st.one_of(
    *(
        _action(
            "work",
            who=workers,
            operation=st.sampled_from(("claim", *WRITES)),
            pick=picks,
            ttl_s=ttls_s,
            fresh=st.booleans(),
            where=places,
        )
        for _ in range(4)
    ),
    *(_action("settle", operation=writes, where=places) for _ in range(2)),
    *(_action("overtake", pick=picks, how=st.sampled_from(OVERTAKINGS), operation=writes) for _ in range(3)),
    *(_action("pass_time", what=st.sampled_from(("lease", "wait", *MOVES_S)), pick=picks) for _ in range(2)),
    *(
        _action("reap", who=st.sampled_from(REAPERS), limit=st.sampled_from((None, 1)), where=places)
        for _ in range(2)
    ),
    *(
        _action(
            "enqueue",
            who=producers,
            key=st.none() | st.sampled_from(KEYS),
            payload=st.sampled_from(PAYLOADS),
            delay_s=st.sampled_from(DELAYS_S),
            attempts=st.sampled_from(ATTEMPTS),
            priority=st.sampled_from(PRIORITIES),
            where=places,
        )
        for _ in range(2)
    ),
    _action("end", who=producers, operation=st.sampled_from(ENDS), pick=picks, where=places),
    *(
        _action("batch", who=workers, pick=picks, how=st.sampled_from(BATCHES), where=places)
        for _ in range(2)
    ),
    _action(
        "lose_an_answer",
        what=st.sampled_from((*WRITES, "claim", "reap", "enqueue")),
        loss=st.sampled_from(LOSSES),
    ),
)
"""What can be done, as often as it stands here."""


class QueueMachine(RuleBasedStateMachine):
    """To be subclassed by `machine_on`, which gives it a queue."""

    bench: ClassVar[Bench]
    tally: ClassVar[Tally]
    checkpoints: ClassVar[Mapping[str, tuple[str, ...]]]
    tell: ClassVar[Callable[[Run], str]]
    wanted: ClassVar[str | None]
    """Only a finding by this name counts: for measuring what is found by what."""
    known: ClassVar[frozenset[str]]
    """Findings by these names alone are no news."""

    def __init__(self) -> None:
        super().__init__()
        self.tally.examples += 1
        self._has = self.bench.capabilities
        self._opened = self.bench.begin(VARIANT)
        self._player = Player(self._opened.race)
        self._model = Model(self._has)
        self._judged = 0
        self._unmet: list[Unmet] = []
        self._over = False
        self._joined: set[str] = set()
        self._cut_off: set[str] = set()
        """Whose connection is gone, under a call that is still held."""
        self._deadly = False
        self._odd = False
        self._crashed = False

    # -- rules ------------------------------------------------------------------------------------------------

    @initialize(rare=st.integers(0, 15), attempts=st.sampled_from(ATTEMPTS))
    def begin(self, rare: int, attempts: int | None) -> None:
        self._deadly = rare == 15
        self._odd = rare >= 12
        self._enqueue("P", attempts=attempts)

    @rule(action=actions)
    def act(self, action: tuple[str, Mapping[str, Any]]) -> None:
        """One rule for all of them: Hypothesis leaves rules out of whole examples, and without claims, say, little
        would happen in one. How often each comes up is said in `actions`."""
        name, given = action
        getattr(self, name)(**given)

    def enqueue(
        self,
        who: str,
        key: str | None,
        payload: Any,
        delay_s: float,
        attempts: int | None,
        priority: int,
        where: int | None,
    ) -> None:
        if not self.has_room_for_a_job:
            return
        self._enqueue(
            who,
            key=KEYS[0] if where is not None else key,
            payload=payload,
            delay_s=delay_s,
            attempts=attempts,
            priority=priority,
            where=where,
        )

    def work(self, who: str, operation: str, pick: int, ttl_s: float, fresh: bool, where: int | None) -> None:
        """A claim; or a write under any claim, the latest or one that was lost, by whoever was given it.

        `fresh`: a claim that would find nothing is preceded by an enqueue.
        """
        if operation == "claim" or not self._player.claims:
            if fresh and not self._something_due and self.has_room_for_a_job:
                self._enqueue(PRODUCERS[0])
            self._start(who, "claim", arguments=self._ttl(ttl_s), where=where)
        else:
            self._write(operation, pick, ttl_s, where)

    def settle(self, operation: str, where: int | None) -> None:
        """Under the latest claim."""
        if not self._player.claims:
            return
        self._write(operation, 0, TTLS_S[0], where)

    def batch(self, who: str, pick: int, how: str, where: int | None) -> None:
        if how == "claim":
            self._start(who, "claim_batch", arguments={"limit": 2}, where=where)
        elif self._player.claims:
            claim = self._claim(pick)
            owner = self._player.owner_of(claim.number)
            self._start(owner, "complete_batch", claims=self._batch(claim, how), where=where)

    def end(self, who: str, operation: str, pick: int, where: int | None) -> None:
        if not self._player.claims:
            return
        self._start(who, operation, job=self._job(pick), where=where)

    def reap(self, who: str, limit: int | None, where: int | None) -> None:
        bounded = limit is not None and Capability.BOUNDED_REAP in self._has
        self._start(who, "reap", arguments={"limit": limit} if bounded else {}, where=where)

    def pass_time(self, what: str | float, pick: int) -> None:
        """Past a lease's end, until a waiting job may run, or so many seconds."""
        if what == "lease" and self._player.claims:
            self._play(ClockPast(self._claim(pick)))
        elif Capability.CLOCK in self._has and isinstance(what, float):
            self._play(ClockBy(what))
        elif Capability.CLOCK in self._has and self._player.jobs and self._waits(self._job(pick)):
            self._play(ClockPast(self._job(pick)))

    @precondition(lambda self: bool(self._held))
    @rule(pick=picks, fate=st.sampled_from(("go_on", "go_on", "go_on", "cut")))
    def go_on(self, pick: int, fate: str) -> None:
        """One that is held; or its connection goes: behind the gate on its way, else in the server."""
        who = self._held[pick % len(self._held)]
        if fate == "go_on" or who in self._cut_off:
            self._play(GoOn(who, Then.ANY))
        else:
            self._cut_off.add(who)
            self._play(ActorFault(who, "cut" if self._by_gate(who) else "terminate"))

    def overtake(self, pick: int, how: str, operation: str) -> None:
        """What one that is held has to fear, or that stalls: its job is cancelled; or its lease ends, another gets the
        job, and settles it."""
        if not self._player.claims:
            return
        claim = self._threatened(pick)
        if how == "cancel":
            job = self._player.claims[claim.number - 1].job
            self._start(self._other(PRODUCERS), "cancel", job=JobRef(self._player.jobs.index(job) + 1))
            return
        self._play(ClockPast(claim))
        if Capability.DEFERRED_RECLAIM in self._has:
            self._start(REAPERS[0], "reap")
        given = len(self._player.claims)
        if how in ("claim", "settle"):
            owner = self._player.owner_of(claim.number)
            self._start(self._other([who for who in WORKERS if who != owner]), "claim")
        if how == "settle" and len(self._player.claims) > given:
            self._write(operation, 0, TTLS_S[0])

    def _threatened(self, pick: int) -> ClaimRef:
        """The claim of a write that is held, where there is one."""
        held = [claim for who in self._held for claim in self._player.claims_of_call(who)]
        return held[pick % len(held)] if held else self._claim(pick)

    def _other(self, actors: Sequence[str]) -> str:
        """The first that is free."""
        return next((who for who in actors if self._idle(who)), actors[0])

    # -- what goes wrong --------------------------------------------------------------------------------------

    def lose_an_answer(self, what: str, loss: str) -> None:
        """Or the request; or the COMMIT fails. Of a write: under a claim it gets for that, where it has none."""
        if what in WRITES:
            if self._player.latest_of(ODD_ONE_OUT) is None:
                self._start(ODD_ONE_OUT, "claim")
            own = self._player.latest_of(ODD_ONE_OUT)
            if own is not None:
                self._start(ODD_ONE_OUT, what, claims=(ClaimRef(own),), loss=loss)
        elif what == "reap":
            self._start("R2", what, loss=loss)
        elif what == "claim":
            self._start(ODD_ONE_OUT, what, loss=loss)
        elif self.has_room_for_a_job:
            self._enqueue("P2", loss=loss)

    @precondition(lambda self: self._deadly and not self._crashed)
    @rule(fault=st.sampled_from(("crash", "kill")))
    def crash(self, fault: str) -> None:
        """Once in an example, and only in some: it takes as long as a hundred other steps."""
        if fault == "crash":
            self._crashed = True
            self._cut_off.update(self._held)
            self._play(ServerFault("crash"))
        elif DEADLY in self._joined:
            self._crashed = True
            self._play(ActorFault(DEADLY, "kill"))

    @precondition(lambda self: self._odd and not self._held)
    @rule(what=st.sampled_from(("bypass", "exhaust", "retry")), who=st.sampled_from(WORKERS), pick=picks)
    def odd(self, what: str, who: str, pick: int) -> None:
        """What rarely happens by itself."""
        match what:
            case "bypass" if self._player.claims and Capability.GUARD_BYPASS in self._has:
                self._bypass_guard(self._claim(pick))
            case "exhaust" if {Capability.TOKEN_SETTING, Capability.CANCEL} <= self._has:
                self._exhaust_a_token(who)
            case "retry" if {Capability.RETRY, Capability.BACKOFF, Capability.CLOCK} <= self._has:
                self._fail_again_and_again(who, FAILURES)

    def _bypass_guard(self, ref: ClaimRef) -> None:
        """Under a claim that is over: the ledger must have a protection of its own."""
        claim = self._player.claims[ref.number - 1]
        view = self._rows.by_job.get(claim.job)
        if view is not None and (view.token != claim.token or view.state is JobState.SUCCEEDED):
            self._start(self._player.owner_of(ref.number), "bypass_guard", claims=(ref,))

    def _exhaust_a_token(self, who: str) -> None:
        """A job of its own, with the last token there is, and away with it: nothing after it could be claimed."""
        if not self._idle("P") or not self._idle(who) or not self.has_room_for_a_job:
            return
        self._enqueue("P", priority=9)
        job = JobRef(len(self._player.jobs))
        self._start("P", "set_token", job=job, arguments={"token": LARGEST_TOKEN})
        self._start(who, "claim")
        self._start("P", "cancel", job=job)

    def _fail_again_and_again(self, who: str, times: int) -> None:
        """A job of its own that fails, waits for its retry and fails: nothing else would get so far in an example."""
        if not self._idle("P") or not self._idle(who) or not self.has_room_for_a_job:
            return
        self._enqueue("P", attempts=times + 1, priority=9)
        job = JobRef(len(self._player.jobs))
        for _ in range(times):
            given = len(self._player.claims)
            self._start(who, "claim")
            if self._over or len(self._player.claims) == given:
                return
            self._play(ClockBy(5.0))
            self._start(who, "fail", claims=(ClaimRef(len(self._player.claims)),))
            if self._over or not self._waits(job):
                return
            self._play(ClockPast(job))

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
        owner = self._player.owner_of(claim.number)
        self._start(owner, operation, claims=(claim,), where=where, arguments=arguments)

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
        if self._over or not self._idle(who) or (need is not None and need not in self._has):
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
        process = who == DEADLY and self._deadly
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
        self._take(step)
        for number, job in enumerate(self._player.jobs, 1):
            if not self._over and self._comes_due_soon(job):
                self._take(ClockPast(JobRef(number)))

    def _comes_due_soon(self, job: JobId) -> bool:
        """A wait of about a step's length: real time would decide who gets the job, and no example would replay."""
        view = self._rows.by_job.get(job)
        if view is None or view.next_run_at_us is None or view.state is JobState.LEASED:
            return False
        waits_s = (view.next_run_at_us - self._rows.at_us) / 1e6
        return view.state in LIVE_STATES and 0 <= waits_s < SHORT_WAIT_S and Capability.CLOCK in self._has

    def _take(self, step: Step) -> None:
        if self._over:
            return
        try:
            self._player.play(step)
        except InvariantBroken:
            self._conclude()
            return
        except (NotEstablished, CannotMoveTime):
            pass  # the step is not to be had here; what was recorded of it is looked at all the same
        except UsageError:
            raise
        except FencepostError as error:
            self._conclude(obstacles=[str(error)])
            return
        self._compare()

    def _compare(self) -> None:
        steps = self._opened.runner.steps
        for group in groups(steps[self._judged :]):
            for message in self._model.judge(group):
                self._unmet.append(Unmet(group[0].number, message))
        self._judged = len(steps)
        if self._unmet and self.wanted in (None, EXPECTATION):
            self._conclude()

    # -- the end ----------------------------------------------------------------------------------------------

    def teardown(self) -> None:
        if not self._over:
            self._conclude()

    def _conclude(self, obstacles: list[str] | None = None) -> None:
        """Bring the example to its end; raise what it found."""
        self._over = True
        opened = self._opened
        opened.runner.forget_what_never_came()
        run = self.bench.finish(opened, self._unmet, list(obstacles or ()), look_back=self._explained)
        self.tally.take(run, opened, self._model)
        names = what_failed(run.facts, run.judgement)
        if run.facts.unmet and EXPECTATION not in names:
            names = (*names, EXPECTATION)
        if names and self.known.issuperset(names):
            self.tally.known.update(names)
            return
        if names and (self.wanted is None or self.wanted in names):
            if self.tally.found_at is None:
                self.tally.found_at = self.tally.examples
            raised = _found_as(self.wanted or names[0])(type(self).tell(run))
            raised.names = names
            raised.run = run
            raise raised
        if run.facts.obstacles and not names:
            raise ProvedNothing(type(self).tell(run))

    def _explained(self, runner: Runner) -> list[Unmet]:
        unexplained = explain(runner.steps, self._has)
        return [] if unexplained is None else [Unmet(len(runner.steps), str(unexplained))]

    # -- what there is ----------------------------------------------------------------------------------------

    @property
    def _held(self) -> list[str]:
        return sorted(who for who in self._joined if self._player.status_of(who) is CallStatus.PARKED)

    @property
    def _may_hold(self) -> bool:
        return len([who for who in self._joined if not self._idle(who)]) < IN_FLIGHT_AT_MOST

    def _idle(self, who: str) -> bool:
        return who not in self._joined or self._player.status_of(who) is None

    @property
    def has_room_for_a_job(self) -> bool:
        return len(self._player.jobs) < JOBS_AT_MOST

    @property
    def _rows(self) -> Observation:
        return self._opened.runner.last_observation

    @property
    def _something_due(self) -> bool:
        now_us = self._rows.at_us
        return any(
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

    def _job(self, pick: int) -> JobRef:
        count = len(self._player.jobs)
        return JobRef(count - pick % count)


EXPECTATION = "expectation"


def machine_on(
    bench: Bench, tell: Callable[[Run], str], *, wanted: str | None = None, known: Collection[str] = ()
) -> tuple[type[QueueMachine], Tally]:
    """The machine on this queue, and the tally of all it will do."""
    tally = Tally()
    made = type(
        "QueueMachine",
        (QueueMachine,),
        {
            "bench": bench,
            "tally": tally,
            "checkpoints": checkpoints_of(bench),
            "tell": staticmethod(tell),
            "wanted": wanted,
            "known": frozenset(known),
        },
    )
    return made, tally
