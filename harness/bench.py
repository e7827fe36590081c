"""The bench: one queue installed in one database, its actors kept warm, scenarios run on it one after another."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from typing import Any

from psycopg.conninfo import make_conninfo

from fencepost.harness.actors.base import Actor
from fencepost.harness.adapter import Capability, Claim, Observation
from fencepost.harness.classify import classify
from fencepost.harness.control import Control
from fencepost.harness.drain import DRAINER, drain
from fencepost.harness.errors import FencepostError, UsageError
from fencepost.harness.invariants import applicable
from fencepost.harness.lease_time import LeaseTime
from fencepost.harness.loading import LoadedQueue, twin_mark
from fencepost.harness.postgres.provider import ServerFault
from fencepost.harness.race import ExpectationFailed, Race
from fencepost.harness.race_faults import Seating
from fencepost.harness.runner import InvariantBroken, Runner
from fencepost.harness.scenario import Scenario, Variant
from fencepost.harness.schedule_of import NoSchedule, schedule_of_steps
from fencepost.harness.seats import Place, Seats
from fencepost.harness.settling import DEFAULT_DEADLINE_S, Settler
from fencepost.harness.trace.format import Trace
from fencepost.harness.trace.record import (
    execution_to_json,
    observation_to_json,
    step_to_json,
    violation_to_json,
)
from fencepost.harness.verdict import (
    InvariantCount,
    Judgement,
    RunFacts,
    Unmet,
    WitnessSeen,
    judge,
)
from fencepost.harness.watch import ServerWatch

OPERATION, STATEMENT = "operation", "statement"
STEP_SIZES = (OPERATION, STATEMENT)


@dataclass(frozen=True, slots=True)
class Run:
    """One scenario's run: its verdict and its trace."""

    variant: Variant
    judgement: Judgement
    facts: RunFacts
    trace: Trace
    elapsed_s: float
    control: Run | None = None  # of a classified scenario: the same schedule without its fault, run before


@dataclass(frozen=True, slots=True)
class OpenRun:
    """A run that has begun and is not over."""

    variant: Variant
    race: Race
    runner: Runner
    race_number: int
    started: float


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a bench stands on, said in every trace header."""

    provider: str
    server_version: str
    actor_kind: str
    step: str = OPERATION
    network: str = "gate"


class AdapterBroke(FencepostError):
    """A method of the adapter itself raised: nothing can be concluded from such a run."""


class Bench:
    def __init__(
        self,
        loaded: LoadedQueue,
        *,
        place: Place,
        control: Control,
        make_lease_time: Callable[[ServerWatch, Bench], LeaseTime],
        surroundings: Surroundings,
        deadline_s: float = DEFAULT_DEADLINE_S,
    ) -> None:
        self.queue = loaded.queue
        self.place = place
        self._loaded = loaded
        # The adapter's own statements wait for a lock no longer than a step may take: whoever holds it is stuck.
        self._dsn = make_conninfo(
            place.dsn_for("fencepost-observer"), options=f"-c lock_timeout={round(deadline_s * 1000)}"
        )
        self._server = place.server
        self._deadline_s = deadline_s
        self._surroundings = surroundings
        self._loop: asyncio.Runner | None = None
        self._watch = self.watch = ServerWatch(place.dsn_for("fencepost-runner"))
        self._control = control
        self.seats = Seats(
            place, self._watch, control, deadline_s, every_statement=surroundings.step == STATEMENT
        )
        self._settler = Settler(
            control, self._watch.waits, self._watch.describe, self.seats.is_cut_off, deadline_s
        )
        self.lease_time = make_lease_time(self._watch, self)
        self._install()

    # -- what it can do -----------------------------------------------------------------------------------

    @property
    def capabilities(self) -> frozenset[Capability]:
        """The queue's, less what cannot be had on this server."""
        if self.lease_time.how == "expire":
            return self.queue.capabilities - {Capability.CLOCK}
        return self.queue.capabilities

    @property
    def server_faults(self) -> frozenset[ServerFault]:
        """Those that can be had on this server."""
        return self._server.can

    def lacks(self, variant: Variant) -> str | None:
        """What is missing here for this scenario, in words; None where nothing is."""
        lacking = variant.requires - self.capabilities
        if lacking - self.queue.capabilities:
            return f"queue '{self.queue.name}' lacks {', '.join(sorted(lacking - self.queue.capabilities))}"
        if lacking:
            return (
                f"this server's clock cannot be moved ({', '.join(sorted(lacking))}; see `fencepost doctor`)"
            )
        impossible = variant.scenario.server_faults - self._server.can
        if impossible:
            return "; ".join(str(self._server.refusal(fault)) for fault in sorted(impossible))
        return None

    def expire(self, claim: Claim) -> None:
        self._ask("expire", self._dsn, claim)

    # -- the adapter on its own ---------------------------------------------------------------------------

    @property
    def dsn(self) -> str:
        return self._dsn

    @property
    def deadline_s(self) -> float:
        """Of one step."""
        return self._deadline_s

    def reset(self) -> None:
        self._reset()

    def observe(self) -> Observation:
        return self._observe()

    def ask(self, method: str, *arguments: Any) -> Any:
        """Call a method of the adapter; it may be `async def`."""
        return self._ask(method, *arguments)

    def open_actor(
        self,
        name: str,
        *,
        time_zone: str | None = None,
        kind: str | None = None,
        clock_skew_s: float = 0.0,
    ) -> Actor:
        """An actor of the caller's own: to be closed, or abandoned, by the caller."""
        seating = Seating(name, time_zone, kind=kind, clock_skew_s=clock_skew_s)
        return self.seats.open(name, seating)

    def end_backends(self, name: str) -> None:
        self._watch.end_backends([name])

    # -- running ------------------------------------------------------------------------------------------

    def run(
        self,
        variant: Variant,
        *,
        compare: Callable[[Runner], list[Unmet]] = lambda _: [],
        look_back: Callable[[Runner], list[Unmet]] = lambda _: [],
    ) -> Run:
        """`compare` speaks when the scenario's own part is over, `look_back` on the whole of a drained run."""
        control = self._run(variant, control=True) if variant.scenario.classified else None
        return self._run(variant, after=control, compare=compare, look_back=look_back)

    def _run(
        self,
        variant: Variant,
        *,
        control: bool = False,
        after: Run | None = None,
        compare: Callable[[Runner], list[Unmet]] = lambda _: [],
        look_back: Callable[[Runner], list[Unmet]] = lambda _: [],
    ) -> Run:
        opened = self.begin(variant, control=control)
        try:
            unmet, obstacles = self._perform(variant, opened.race, opened.runner)
        except BaseException as stopped:
            # A Ctrl-C too: an actor at a barrier would keep the bench from closing.
            self._clear_after(stopped, opened.runner)
            raise
        unmet += compare(opened.runner)
        return self.finish(opened, unmet, obstacles, after=after, look_back=look_back)

    def begin(self, variant: Variant, *, control: bool = False) -> OpenRun:
        """A run whose steps the caller takes himself, on its race; to be brought to its end by `finish`."""
        started = time.perf_counter()
        self.lease_time.catch_up()
        self._reset()
        race_number = self._control.next_race()
        runner = Runner(
            race=race_number,
            control=self._control,
            settler=self._settler,
            observe=self._observe,
            invariants=applicable(self.capabilities),
            reports_checkpoints=Capability.CHECKPOINTS in self.capabilities,
            orphan=lambda pids: self._watch.orphan(pids, self._deadline_s),
            locks=self._watch.locks,
            every_statement=self._surroundings.step == STATEMENT,
            keeps_results=Capability.RESULT in self.capabilities,
        )
        self.seats.begin(runner)
        race = Race(
            runner,
            self.seats,
            self.lease_time,
            self.capabilities,
            variant.scenario.file,
            path=variant.scenario.path,
            control=control,
        )
        return OpenRun(variant, race, runner, race_number, started)

    def finish(
        self,
        opened: OpenRun,
        unmet: list[Unmet],
        obstacles: list[str],
        *,
        after: Run | None = None,
        look_back: Callable[[Runner], list[Unmet]] = lambda _: [],
    ) -> Run:
        """Drain it, clear the track and judge it. `look_back` speaks last, on the whole of a drained run."""
        variant, race, runner = opened.variant, opened.race, opened.runner
        scenario_steps = len(runner.steps)
        try:
            drained = self._drain(runner, obstacles)
        except BaseException as stopped:
            self._clear_after(stopped, runner)
            raise
        obstacles += self._clear_the_track(runner)
        unmet += look_back(runner) if drained else []
        facts = self._facts(
            variant, race, runner, scenario_steps, opened.race_number, unmet, obstacles, drained
        )
        by_late_writes = variant.scenario.classified or (
            variant.scenario.classified_without_fence and Capability.FENCING not in self.capabilities
        )
        if by_late_writes:
            facts = replace(
                facts,
                classification=classify(runner.steps),
                control=after.judgement if after is not None else None,
            )
        judgement = judge(facts)
        elapsed_s = time.perf_counter() - opened.started
        trace = self._trace(
            variant,
            race,
            runner,
            facts,
            judgement,
            scenario_steps,
            opened.race_number,
            elapsed_s,
            control=race.control,
        )
        return Run(variant, judgement, facts, trace, elapsed_s, control=after)

    def abandon(self, opened: OpenRun) -> None:
        self._clear_the_track(opened.runner)

    def _clear_after(self, stopped: BaseException, runner: Runner) -> None:
        try:
            self._clear_the_track(runner)
        except Exception as problem:  # noqa: BLE001 - a Ctrl-C in a query may cost its connection
            stopped.add_note(f"the track could not be cleared: {problem}")

    def _perform(self, variant: Variant, race: Race, runner: Runner) -> tuple[list[Unmet], list[str]]:
        """The scenario's own part. What stops it is either the queue's fault, or leaves nothing to conclude."""
        try:
            variant.perform(race)
        except InvariantBroken:
            pass  # the runner keeps the violations
        except ExpectationFailed as error:
            return [Unmet(len(runner.steps), str(error))], []
        except UsageError:
            raise  # the adapter or the scenario is not what the contract wants: no run would be better
        except FencepostError as error:
            return [], [str(error)]
        except Exception as error:  # noqa: BLE001 - a scenario that breaks is inconclusive, never a crash
            return [], [f"the scenario raised {type(error).__name__}: {error}"]
        return [], []

    def _drain(self, runner: Runner, obstacles: list[str]) -> bool:
        if runner.violations:
            return False
        try:
            self.seats.end_faults(runner)
            drain(
                runner, lambda: self.seats.seat(DRAINER, Seating(DRAINER)), self.lease_time, self.capabilities
            )
        except InvariantBroken:
            return False
        except UsageError:
            raise
        except FencepostError as error:
            obstacles.append(f"while draining: {error}")
            return False
        return True

    def _facts(
        self,
        variant: Variant,
        race: Race,
        runner: Runner,
        scenario_steps: int,
        race_number: int,
        unmet: list[Unmet],
        obstacles: list[str],
        drained: bool,
    ) -> RunFacts:
        executions = [e for e in self._control.executions(race_number) if e.actor != DRAINER]
        steps = runner.steps[:scenario_steps]
        ran = frozenset(step.actor for step in steps if step.reply is not None and step.actor is not None)
        return RunFacts(
            steps=scenario_steps,
            declared_actors=race.declared_actors,
            actors_that_ran=ran,
            holds=runner.holds(),
            faults=race.faults,
            witnesses=tuple(
                WitnessSeen(witness.sentence, witness.seen(steps, executions))
                for witness in variant.scenario.witnesses
                if witness.is_asked(control=race.control, chosen=variant.chosen)
            ),
            invariants={i.name: InvariantCount(i.evaluated, i.exercised) for i in runner.invariants},
            violations=tuple(runner.violations),
            unmet=tuple(unmet),
            obstacles=tuple(obstacles),
            drained=drained,
        )

    def _trace(
        self,
        variant: Variant,
        race: Race,
        runner: Runner,
        facts: RunFacts,
        judgement: Judgement,
        scenario_steps: int,
        race_number: int,
        elapsed_s: float,
        *,
        control: bool,
    ) -> Trace:
        scenario = variant.scenario
        part = {"part": "control"} if control else {}
        source = {"source": dict(scenario.source)} if scenario.source is not None else {}
        twin = twin_mark(self._loaded.path)
        header = {
            "tool": f"fencepost {version('fencepost')}",
            "scenario": {
                "name": variant.name,
                "family": scenario.family,
                "sentence": scenario.sentence,
                "chosen": dict(variant.chosen),
                **part,
                **source,
            },
            "queue": {
                "name": self.queue.name,
                "path": self._loaded.path,
                "capabilities": sorted(c.value for c in self.capabilities),
                **({"twin": twin} if twin is not None else {}),
            },
            "server": {
                "provider": self._surroundings.provider,
                "version": self._surroundings.server_version,
            },
            "actors": self._surroundings.actor_kind,
            "network": self._network_of(scenario),
            "step": self._surroundings.step,
            "clock": self.lease_time.how,
            "participants": race.participants_told,
            "first_observation": observation_to_json(runner.first_observation),
        }
        steps = tuple(
            step_to_json(
                step,
                drain=index >= scenario_steps,
                exercised=runner.exercised[index],
                violated=[v for v in runner.violations if v.step == step.number],
            )
            for index, step in enumerate(runner.steps)
        )
        end = {
            "verdict": judgement.verdict.value,
            "reasons": list(judgement.reasons),
            "violations": [violation_to_json(v) for v in facts.violations],
            "invariants": {
                name: {"evaluated": count.evaluated, "exercised": count.exercised}
                for name, count in facts.invariants.items()
            },
            "witnesses": [{"sentence": w.sentence, "seen": w.seen} for w in facts.witnesses],
            "journal": [execution_to_json(e) for e in self._control.executions(race_number)],
            "elapsed_ms": round(elapsed_s * 1000, 3),
            **_class_to_json(facts),
        }
        return Trace({**header, "schedule": _schedule(header, steps)}, steps, end)

    def _network_of(self, scenario: Scenario) -> str:
        """What the scenario's participants reach the server through."""
        if scenario.path.startswith("network"):
            return self._surroundings.network
        if scenario.path == "gate" or self._surroundings.step == STATEMENT:
            return "gate"
        return "direct"

    # -- the queue ----------------------------------------------------------------------------------------

    def _install(self) -> None:
        try:
            self._ask("install", self._dsn)
        except AdapterBroke as error:
            self.close()
            raise UsageError(f"Queue '{self.queue.name}' could not be installed: {error}.") from error

    def _reset(self) -> None:
        self._ask("reset", self._dsn)

    def _observe(self) -> Observation:
        observation = self._ask("observe", self._dsn)
        if not isinstance(observation, Observation):
            raise UsageError(
                f"observe() of queue '{self.queue.name}' returned {observation!r}: "
                "the contract wants an Observation (docs/adapters.md)."
            )
        return observation

    def _ask(self, method: str, *arguments: Any) -> Any:
        """Call a method of the adapter; it may be `async def`."""
        try:
            return self._resolve(getattr(self.queue, method)(*arguments))
        except Exception as error:
            raise AdapterBroke(
                f"{method}() of queue '{self.queue.name}' raised {type(error).__name__}: {error}"
            ) from error

    def _resolve(self, value: Any) -> Any:
        if not inspect.isawaitable(value):
            return value
        if self._loop is None:
            self._loop = asyncio.Runner()

        async def wait() -> Any:
            return await value

        return self._loop.run(wait())

    # -- the actors ---------------------------------------------------------------------------------------

    def disconnect(self) -> None:
        """Before the server is restarted: every session of this bench is closed, and reopened when needed."""
        failures = self.seats.close_all()
        if failures:
            raise FencepostError("; ".join(failures))
        self._close_queue()

    def reconnect(self) -> None:
        self._watch.reconnect()
        self._close_queue()

    def _close_queue(self) -> None:
        closing = getattr(self.queue, "close", None)
        if callable(closing):
            self._resolve(closing())

    def _clear_the_track(self, runner: Runner) -> list[str]:
        """Nothing of a run reaches the next one: stuck actors are ended, others kept if the queue allows it.

        Returns what went wrong on the way.
        """
        self.seats.clear(runner)
        if Capability.WARM_WORKERS in self.queue.capabilities:
            return []
        return self.seats.close_all()

    def close(self) -> None:
        failures = self.seats.close_all()
        self.seats.close_wires()
        self._watch.close()
        self._close_queue()
        if self._loop is not None:
            self._loop.close()
        if failures:
            raise FencepostError("; ".join(failures))


def _schedule(header: Mapping[str, Any], steps: Sequence[Mapping[str, Any]]) -> str | None:
    try:
        return str(schedule_of_steps(header, steps))
    except NoSchedule:
        return None  # nothing was run, or a scenario did something that has no word in a schedule


def _class_to_json(facts: RunFacts) -> dict[str, Any]:
    """Only on traces of classified scenarios: the class, what it rests on, and how the control run went."""
    told: dict[str, Any] = {}
    if facts.classification is not None:
        told["class"] = facts.classification.kind.value
        told["class_findings"] = [
            {"step": finding.step, "job": finding.job, "message": finding.message}
            for finding in facts.classification.findings
        ]
    if facts.control is not None:
        told["control"] = {"verdict": facts.control.verdict.value, "reasons": list(facts.control.reasons)}
    return told
