"""The state machine: Hypothesis makes up orders of operations, holds, clock moves and faults, and shrinks what fails.

Every step it takes is a step of a schedule, played as a replay would play it, so what it finds replays. One rule starts
an operation and leaves it held on its way, others run meanwhile, another lets it go on: interleavings are generated
like everything else. After every step the invariants are asked and the model compares; at the end of an example what
is left is drained, and answers that were lost must have an explanation.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from fencepost.harness.adapter import OPERATION_NEEDS, Capability
from fencepost.harness.bench import Bench
from fencepost.harness.machine_actions import (
    ACTIONS,
    AT_THE_START,
    ATTEMPTS,
    BY_THEME,
    KEYS,
    PAYLOADS,
    PRODUCERS,
    REAPERS,
    SETTLEMENTS,
    TTLS_S,
    WORKERS,
    WRITES,
    meanwhile,
    themes,
)
from fencepost.harness.machine_example import (
    BATCH,
    DEADLY,
    FAILURES,
    LARGEST_TOKEN,
    NEAR_ITS_END_S,
    ODD_ONE_OUT,
    Example,
)
from fencepost.harness.machine_tally import Tally
from fencepost.harness.machine_way import Crossing
from fencepost.harness.postgres import provider
from fencepost.harness.replay import replay_of
from fencepost.harness.schedule import (
    ActorFault,
    ClaimRef,
    ClockBy,
    ClockPast,
    GoOn,
    JobRef,
    ServerFault,
    Start,
    Step,
    Then,
    parse_schedule,
)


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


class QueueMachine(Example, RuleBasedStateMachine):
    """What can be done in an example. To be subclassed by `machine_on`, which gives it a queue."""

    @initialize(theme=themes, attempts=st.sampled_from(ATTEMPTS), priorities=st.sampled_from(AT_THE_START))
    def begin(self, theme: str, **given: Any) -> None:
        self._theme = theme
        opening = ("open", {"theme": theme, **given})
        self._do(opening, opening)

    def open(self, theme: str, attempts: int | None, priorities: tuple[int, ...]) -> None:
        """The theme decides what is drawn, and so which way this is."""
        for priority in priorities:
            self._enqueue("P", attempts=attempts, priority=priority)

    @rule(data=st.data())
    def act(self, data: st.DataObject) -> None:
        """One rule for all of them: Hypothesis leaves rules out of whole examples, and without claims, say, little
        would happen in one. How often each comes up is said in `machine_actions`."""
        drawn = [
            (name, data.draw(ACTIONS[name]))
            for name in (data.draw(BY_THEME[self._theme]), data.draw(meanwhile))
            if name
        ]
        # All of it is drawn before the queue is asked anything.
        self._do(drawn[0], drawn[-1])

    def submit(self, **given: Any) -> None:
        """Under a key."""
        self.enqueue(**given)

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
            if fresh:
                self._make_something_due()
            self._start(who, "claim", arguments=self._ttl(ttl_s), where=where)
        else:
            self._write(operation, pick, ttl_s, where)

    def settle(self, operation: str, fresh: bool, where: int | None) -> None:
        """Under the latest claim. `fresh`: one that is live, got for it where there is none."""
        if fresh and not self._is_live(0):
            self._make_something_due()
            self._start(self._other(WORKERS), "claim")
        if self._player.claims:
            self._write(operation, 0, TTLS_S[0], where)

    def batch(self, who: str, pick: int, how: str, fresh: bool, where: int | None) -> None:
        """Of claims, or of writes under the claims of one worker.

        `fresh`: there is more to claim than it asks for; it has just got the last claim it writes under.
        """
        if how == "claim":
            if fresh:
                self._make_something_due(BATCH + 1)
            self._start(who, "claim_batch", arguments={"limit": BATCH}, where=where)
            return
        if fresh and self._idle(who):
            self._make_something_due()
            self._start(who, "claim")
            pick = 0
        if self._player.claims:
            claim = self._claim(pick)
            self._start(
                self._acting_for(claim), "complete_batch", claims=self._batch(claim, how), where=where
            )

    def end(self, who: str, operation: str, pick: int, fresh: bool, where: int | None) -> None:
        """Cancel a job, or requeue a dead letter, where there is one. `fresh`: cancel one that somebody works on."""
        fresh = fresh and operation == "cancel"
        if fresh and not self._is_live(0):
            self._make_something_due()
            self._start(self._other(WORKERS), "claim")
        if self._player.claims:
            self._start(who, operation, job=self._to_end(operation, pick, fresh), where=where)

    def _to_end(self, operation: str, pick: int, fresh: bool) -> JobRef:
        if fresh:
            return self._ref(self._player.claims[-1].job)
        dead = [number for number, job in enumerate(self._player.jobs, 1) if self._is_dead(job)]
        return JobRef(dead[pick % len(dead)]) if operation == "requeue" and dead else self._job(pick)

    def reap(
        self, who: str, limit: int | None, lease: str | None, back: str | None, where: int | None
    ) -> None:
        """`lease`: the latest is lost by then, or nearly. `back`: what the holder of a lost one comes back with.

        With a limit, more leases are lost than it may take.
        """
        bounded = limit is not None and Capability.BOUNDED_REAP in self._has
        if bounded and lease == "lost":
            self._lease_jobs(limit or 0)
        lost = lease == "lost" and self._is_live(0)
        if lost:
            self._play(ClockPast(self._claim(0)))
        elif lease == "near":
            self._come_near_its_end(0)
        self._start(who, "reap", arguments={"limit": limit} if bounded else {}, where=where)
        if lost and back is not None:
            self._write(back, 0, TTLS_S[0])

    def pass_time(self, what: str | float, pick: int) -> None:
        """Past a lease's end, nearly to it, until a waiting job may run, or so many seconds."""
        if what == "lease" and self._player.claims:
            self._play(ClockPast(self._claim(pick)))
        elif what == "near":
            self._come_near_its_end(pick)
        elif Capability.CLOCK in self._has and isinstance(what, float):
            self._play(ClockBy(what))
        elif Capability.CLOCK in self._has and self._player.jobs and self._waits(self._job(pick)):
            self._play(ClockPast(self._job(pick)))

    def _come_near_its_end(self, pick: int) -> None:
        if Capability.CLOCK in self._has and self._is_live(pick):
            self._play(ClockPast(self._claim(pick), -NEAR_ITS_END_S))

    def go_on(self, pick: int) -> None:
        self._play(GoOn(self._held[pick % len(self._held)], Then.ANY))

    def cut(self, pick: int) -> None:
        """The connection of one that is held goes: behind the gate on its way, else in the server."""
        who = self._held[pick % len(self._held)]
        if who in self._cut_off:
            self._play(GoOn(who, Then.ANY))
        else:
            self._cut_off.add(who)
            self._play(ActorFault(who, "cut" if self._by_gate(who) else "terminate"))

    def interfere(self, pick: int, how: str, operation: str) -> None:
        """What one that is held has to fear: that somebody does the same, or changes what it has looked at."""
        who = self._held[pick % len(self._held)]
        call = self._player.call_of(who)
        match call.operation:
            case "enqueue":
                arguments = dict(call.arguments)
                if how == "settle":
                    arguments["payload"] = PAYLOADS[pick % len(PAYLOADS)]
                self._start(self._other(PRODUCERS), "enqueue", arguments=arguments)
            case "requeue":
                self._start(self._other(PRODUCERS), "requeue", job=self._ref(call.arguments["job"]))
            case "cancel":
                job = str(call.arguments["job"])
                own = [n for n, claim in enumerate(self._player.claims, 1) if claim.job == job]
                if own:  # what settles it: a heartbeat changes nothing that a cancel looks at
                    settling = operation if operation in SETTLEMENTS else SETTLEMENTS[0]
                    self._write(settling, len(self._player.claims) - own[-1], TTLS_S[0])
                else:
                    self._start(self._other(WORKERS), "claim")
            case "reap" if how in ("expire", "sweep"):
                self._start(self._other(REAPERS), "reap")
            case "reap" if how != "cancel":
                given = len(self._player.claims)
                self._start(self._other(WORKERS), "claim")
                if how == "settle" and len(self._player.claims) > given:
                    self._write(operation, 0, TTLS_S[0])
            case "claim" | "claim_batch" if how not in ("expire", "sweep"):
                self._start(self._other(WORKERS), "claim")
            case _ if how == "sweep":
                self._sweep_beside(bounded=operation == WRITES[0])
            case _:
                self.overtake(pick, how, operation)

    def _sweep_beside(self, *, bounded: bool) -> None:
        """Every lease is lost. A reaper has listed them and not locked them yet; or recovers no more than one."""
        if bounded:
            self._lease_jobs(1)
        if self._player.claims:
            self._play(ClockPast(self._claim(0)))
        bounded = bounded and Capability.BOUNDED_REAP in self._has
        self._start(
            self._other(REAPERS),
            "reap",
            arguments={"limit": 1} if bounded else {},
            where=None if bounded else 0,
        )

    def overtake(self, pick: int, how: str, operation: str, back: str | None = None) -> None:
        """The lease of a write that is held, or stalls, ends, another gets the job, and settles it; or the job is
        cancelled. `back`: what whoever was overtaken comes back with."""
        if not self._player.claims:
            return
        claim = self._threatened(pick)
        if how == "cancel":
            job = self._player.claims[claim.number - 1].job
            self._start(self._other(PRODUCERS), "cancel", job=self._ref(job))
        else:
            self._take_over(claim, how, operation)
        if back is not None:
            self._write(back, len(self._player.claims) - claim.number, TTLS_S[0])

    def _take_over(self, claim: ClaimRef, how: str, operation: str) -> None:
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
        """The claim of a write that is held, where there is one; else one that is live."""
        held = [claim for who in self._held for claim in self._player.claims_of_call(who)]
        live = [self._claim(n) for n in range(len(self._player.claims)) if self._is_live(n)]
        threatened = held or live
        return threatened[pick % len(threatened)] if threatened else self._claim(pick)

    # -- what goes wrong --------------------------------------------------------------------------------------

    def lose_an_answer(self, what: str, loss: str, pick: int, again: bool) -> None:
        """Or the request; or the COMMIT fails. A write is under a claim that is got for that, or under the latest.

        `again`: whoever got no answer asks once more.
        """
        if what in WRITES:
            if pick % 2 == 0 and self._idle(ODD_ONE_OUT):
                self._make_something_due()
                self._start(ODD_ONE_OUT, "claim")
            own = self._player.latest_of(ODD_ONE_OUT)
            if own is not None:
                self._start_and_lose(ODD_ONE_OUT, what, loss, again, claims=(ClaimRef(own),))
        elif what == "reap":
            self._start_and_lose("R2", what, loss, again)
        elif what == "claim":
            self._start_and_lose(ODD_ONE_OUT, what, loss, again)
        elif what == "cancel" and self._player.jobs:
            self._start_and_lose("P2", what, loss, again, job=self._job(pick))
        elif what == "enqueue" and self.has_room_for_a_job:
            keyed = Capability.IDEMPOTENCY_KEY in self._has and again
            self._start_and_lose("P2", what, loss, again, arguments={"key": KEYS[0]} if keyed else {})

    def _start_and_lose(self, who: str, operation: str, loss: str, again: bool, **given: Any) -> None:
        was_idle = self._idle(who)
        self._start(who, operation, loss=loss, **given)
        if again and was_idle:
            self._start(who, operation, **given)

    def die(self, how: str) -> None:
        """Once in an example, and only in some."""
        if self._died:
            return
        if how == "crash" and provider.ServerFault.CRASH in self.bench.server_faults:
            self._died = True
            self._cut_off.update(self._held)
            self._play(ServerFault("crash"))
        elif DEADLY in self._joined:
            self._died = True
            self._play(ActorFault(DEADLY, "kill"))

    def odd(self, what: str, who: str, pick: int) -> None:
        """What rarely happens by itself."""
        if self._held or not self._odd_left:
            return
        match what:
            case "bypass" if Capability.GUARD_BYPASS in self._has:
                if not self._bypass_guard(who, taken_over=pick % 2 == 0):
                    return  # later in this example, perhaps
            case "exhaust" if {Capability.TOKEN_SETTING, Capability.CANCEL} <= self._has:
                self._exhaust_a_token(who)
            case "retry" if {Capability.RETRY, Capability.BACKOFF, Capability.CLOCK} <= self._has:
                self._fail_again_and_again(who, FAILURES)
        self._odd_left -= 1

    def _bypass_guard(self, who: str, *, taken_over: bool) -> bool:
        """Under a claim that was settled, or whose job another has by now."""
        if not self._is_live(0):
            self._make_something_due()
            self._start(who, "claim")
        if self._over or not self._is_live(0):
            return False
        ref = self._claim(0)
        if taken_over:
            self._take_over(ref, "claim", WRITES[0])
        else:
            self._write(WRITES[0], 0, TTLS_S[0])
        if self._over or not self._player.is_over(ref):
            return False
        self._start(self._player.owner_of(ref.number), "bypass_guard", claims=(ref,))
        return True

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


def machine_on(
    bench: Bench, *, wanted: str | None = None, known: Collection[str] = ()
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
            "start": Crossing(),
            "wanted": wanted,
            "known": frozenset(known),
        },
    )
    return made, tally
