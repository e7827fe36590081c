"""A schedule as a scenario ready to paste: the same steps in the words of `race.py`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from fencepost.harness.adapter import OPERATION_NEEDS, Capability
from fencepost.harness.postgres import provider
from fencepost.harness.replay import faults_of_the_server
from fencepost.harness.schedule import (
    BACKEND_FAULTS,
    PATH_FAULTS,
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
    StatementFault,
    Step,
)
from fencepost.harness.schedule_of import DEFAULT_ARGUMENTS, UNDER_A_CLAIM, Names
from fencepost.harness.trace.format import Trace

INDENT = "    "
WIDTH = 110


def scenario_text(
    schedule: Schedule, trace: Trace, *, name: str = "found_by_invariants", by_the_model: bool = False
) -> str:
    """`trace`: of a run of the schedule; it says which step was given which claim and which job.

    What the last step comes to is left to the invariants, or to the model where it was the model that found it: on a
    queue that has been mended it comes to something else.
    """
    return _Writing(schedule, trace, name, by_the_model).text()


class _Writing:
    def __init__(self, schedule: Schedule, trace: Trace, name: str, by_the_model: bool) -> None:
        self._schedule = schedule
        self._name = name
        self._by_the_model = by_the_model
        self._given = _given_by_step(schedule, trace)
        self._meant = _what_is_meant(schedule, self._given)
        self._wire: set[str] = set()
        self._in_flight: dict[str, str] = {}
        self._joined: set[str] = set()

    def text(self) -> str:
        body = [line for number, step in enumerate(self._schedule) for line in self._step(number, step)]
        if self._given[-1].in_flight:
            body.append("race.finish()")
        witnesses = list(dict.fromkeys(self._witnesses())) or ["was_accepted"]
        requires = ", ".join(f"Capability.{need.name}" for need in self._requires())
        faults = ", ".join(f"ServerFault.{fault.name}" for fault in _server_faults(self._schedule))
        names = {witness.partition("(")[0] for witness in witnesses}
        imports = [
            "from fencepost.harness.adapter import Capability" if requires else None,
            "from fencepost.harness.postgres.provider import ServerFault" if faults else None,
            "from fencepost.harness.race import Race",
            "from fencepost.harness.scenario import scenario",
            f"from fencepost.harness.wire import {', '.join(sorted(self._wire))}" if self._wire else None,
            f"from fencepost.harness.witness import {', '.join(sorted(names))}",
        ]
        given = [
            f"requires={{{requires}}}" if requires else None,
            f"witnesses=[{', '.join(witnesses)}]",
            f"server_faults={{{faults}}}" if faults else None,
            "foretold=True" if self._by_the_model else None,
        ]
        lines = [
            *filter(None, imports),
            "",
            "",
            *_call("@scenario", list(filter(None, given))),
            f"def {self._name}(race: Race) -> None:",
            f'{INDENT}"""{self._sentence()}"""',
            *(f"{INDENT}{line}" for line in body),
        ]
        return "\n".join(lines)

    def _sentence(self) -> str:
        told = str(self._schedule)
        short = len(told) + len(INDENT) + 6 <= WIDTH and "\\" not in told and not told.endswith('"')
        return told if short else "Found by the state machine."

    def _requires(self) -> list[Capability]:
        needs = {OPERATION_NEEDS.get(step.operation) for step in self._schedule if isinstance(step, Start)}
        if any(isinstance(p, AtCheckpoint) for s in self._schedule if isinstance(s, Start) for p in s.holds):
            needs.add(Capability.CHECKPOINTS)
        return sorted(need for need in needs if need is not None)

    def _witnesses(self) -> Iterator[str]:
        for number, step in enumerate(self._schedule):
            if isinstance(step, Start) and self._given[number].status == "parked":
                yield f'was_held("{step.actor}", "{step.operation}")'
        answered = [who for given in self._given for who in given.answered]
        if answered:
            yield f'answered("{answered[-1][0]}", "{answered[-1][1]}")'

    def _step(self, number: int, step: Step) -> list[str]:
        lines = []
        actor = getattr(step, "actor", None)
        if actor is not None and actor not in self._joined:
            self._joined.add(actor)
            lines.append(self._join(step if isinstance(step, Join) else Join(actor)))
        match step:
            case Start():
                lines.append(self._start(number, step))
            case GoOn():
                lines.append(self._answer(number, f"{self._in_flight[step.actor]}.go_on()"))
            case Exit():
                lines.append(f"{_variable(step.actor)}.exit()")
            case ClockBy():
                word = "advance" if step.seconds >= 0 else "rewind"
                lines.append(f"race.clock.{word}({abs(step.seconds):g})")
            case ClockPast():
                lines.append(self._past(number, step))
            case ServerFault():
                lines.append(f"race.server.{step.name}({_keywords(step.arguments)})")
            case ActorFault():
                lines.append(self._fault(step))
        return [*lines, *self._handed_out(number)]

    def _join(self, told: Join) -> str:
        path = told.path or (self._schedule.path_of(told.actor) if self._needs_path(told.actor) else None)
        given = {
            "known_as": told.known_as,
            "time_zone": told.time_zone,
            "path": path,
            "process": told.process,
            "clock_skew_s": told.clock_skew_s,
        }
        options = _keywords({name: value for name, value in given.items() if value})
        return f'{_variable(told.actor)} = race.worker("{told.actor}"{f", {options}" if options else ""})'

    def _needs_path(self, actor: str) -> bool:
        return self._schedule.path_of(actor) != "direct"

    def _start(self, number: int, step: Start) -> str:
        claims = [self._claim(ref) for ref in self._meant.claims_of[number]]
        arguments = {**DEFAULT_ARGUMENTS.get(step.operation, {}), **step.arguments}
        keywords = [*([f"job=job{step.job.number}"] if step.job is not None else [])]
        keywords += [f"{name}={_literal(value)}" for name, value in arguments.items()]
        holds = [self._place(place) for place in step.holds if not isinstance(place, AtEveryStatement)]
        if holds:
            several = ", ".join(holds)
            keywords.append(f"hold_at={several if len(holds) == 1 else f'[{several}]'}")
        if AtEveryStatement() in step.holds:
            keywords.append("every_statement=True")
        if step.faults:
            keywords.append(f"faults=[{', '.join(map(self._statement_fault, step.faults))}]")
        inside = ", ".join([f'"{step.operation}"', *claims, *keywords])
        call = self._answer(number, f"{_variable(step.actor)}.start({inside})")
        if number not in self._meant.looked_at_again:
            return call
        self._in_flight[step.actor] = f"{_variable(step.actor)}_{step.operation}"
        return f"{self._in_flight[step.actor]} = {call}"

    def _answer(self, number: int, call: str) -> str:
        """With what is expected of it, and names for what it brings that is used later."""
        given = self._given[number]
        own = given.own
        if own is not None and self._uses(own):
            return self._named(own, call)
        last = number == len(self._given) - 1
        expected = {"parked": ".is_held()", "blocked": ".is_blocked()", "cut_off": ".is_cut_off()"}
        return call + ("" if last else expected.get(given.status or "", ""))

    def _handed_out(self, number: int) -> list[str]:
        """Names for what came to others in this step, and for jobs that came with a claim."""
        given = self._given[number]
        lines = [
            self._named(other, self._in_flight[other.actor]) for other in given.freed if self._uses(other)
        ]
        for brought in filter(None, (given.own, *given.freed)):
            lines += [f"job{job} = claim{claim}.job" for job, claim in self._with_claims(brought)]
        return lines

    def _uses(self, brought: Brought) -> bool:
        used = self._meant.claims.intersection(brought.claims)
        return bool(used) or brought.job in self._meant.jobs or bool(self._with_claims(brought))

    def _with_claims(self, brought: Brought) -> list[tuple[int, int]]:
        return [(job, claim) for job, claim in brought.jobs_of_claims if job in self._meant.jobs]

    def _named(self, brought: Brought, call: str) -> str:
        if brought.job is not None:
            return f"job{brought.job} = {call}.job()"
        if len(brought.claims) == 1:
            return f"claim{brought.claims[0]} = {call}.claim()"
        used = {*self._meant.claims, *(claim for _, claim in self._with_claims(brought))}
        names = ", ".join(f"claim{n}" if n in used else "_" for n in brought.claims)
        return f"{names} = {call}.claims({len(brought.claims)})"

    def _claim(self, ref: ClaimRef) -> str:
        name = f"claim{ref.number}"
        return f"race.unknown_claim(like={name})" if ref.never_was else name

    def _place(self, place: Place) -> str:
        if isinstance(place, AtCheckpoint):
            return f'"{place.name}"'
        assert isinstance(place, AtStatement)
        self._wire.add(place.when)
        return f"{place.when}({self._at(place.statement)})"

    def _statement_fault(self, fault: StatementFault) -> str:
        if fault.name.startswith("error"):
            self._wire.add("error")
            return f'error("{fault.name.removeprefix("error")}", {self._at(fault.statement)})'
        self._wire.add(fault.name)
        return f"{fault.name}({self._at(fault.statement)})"

    def _at(self, statement: Statement) -> str:
        if statement.pattern is None:
            return str(statement.number)
        if statement.number == 1:
            return repr(statement.pattern)
        self._wire.add("SqlPattern")
        return f"SqlPattern({statement.pattern!r}, {statement.number})"

    def _past(self, number: int, step: ClockPast) -> str:
        offset = f" {'-' if step.offset_s < 0 else '+'} {abs(round(step.offset_s * 1e6)):_}"
        if isinstance(step.target, JobRef):
            moment = f"race.due_us(job{step.target.number})"
            return f'race.clock.advance_to({moment}{offset if step.offset_s else ""}, "{str(step)[len("clock>") :]}")'
        (ref,) = self._meant.claims_of[number]
        if step.offset_s:
            told = str(replace(step, target=ref)).removeprefix("clock>")
            return f'race.clock.advance_to(race.lease_until_us(claim{ref.number}){offset}, "{told}")'
        return f"race.clock.advance_past(claim{ref.number})"

    def _fault(self, step: ActorFault) -> str:
        who = _variable(step.actor)
        if step.name in BACKEND_FAULTS:
            word = "terminate_backend" if step.name == "terminate" else step.name
            options = _keywords(step.arguments)
            return f'race.server.{word}("{step.actor}"{f", {options}" if options else ""})'
        if step.name == "refuse_connections" and not step.arguments:
            return f"{who}.is_refused_while_the_server_starts()"
        if step.name == "refuse_connections":
            return f"{who}.is_refused_a_connection({step.arguments['sqlstate']!r})"
        path = ".path" if step.name in PATH_FAULTS else ""
        return f"{who}{path}.{step.name}({_keywords(step.arguments)})"


@dataclass(frozen=True, slots=True)
class Brought:
    """What an answer brought: a job, or claims, by their numbers."""

    actor: str
    job: int | None  # a new one
    claims: tuple[int, ...]
    jobs_of_claims: tuple[tuple[int, int], ...]  # new jobs that came with a claim


@dataclass(slots=True)
class _Given:
    """What became of a step in the run."""

    status: str | None = None
    own: Brought | None = None
    freed: list[Brought] = field(default_factory=list)
    answered: list[tuple[str, str]] = field(default_factory=list)
    in_flight: frozenset[str] = frozenset()


def _given_by_step(schedule: Schedule, trace: Trace) -> list[_Given]:
    """By step of the schedule. Joins are no steps of a trace; freed calls are no steps of a schedule."""
    recorded = [s for s in trace.steps if not s.get("drain") and s["kind"] != "end"]
    told: list[_Given] = []
    names = Names()
    in_flight: set[str] = set()
    index = 0
    for step in schedule:
        given = _Given()
        own = not isinstance(step, Join)
        while index < len(recorded) and (own or recorded[index]["kind"] == "freed"):
            now = recorded[index]
            brought = _note(names, now)
            if own:
                given.own, given.status = brought, now.get("status")
            elif brought is not None:
                given.freed.append(brought)
            if now.get("status") == "answered":
                in_flight.discard(now["actor"])
                if now["reply"]["outcome"] != "unknown":
                    given.answered.append((now["actor"], now["operation"]))
            elif "status" in now:
                in_flight.add(now["actor"])
            own = False
            index += 1
        given.in_flight = frozenset(in_flight)
        told.append(given)
    return told


def _note(names: Names, step: Mapping[str, Any]) -> Brought | None:
    reply = step.get("reply")
    if reply is None:
        return None
    claims = reply.get("claims", ())
    jobs_known, claims_known = len(names.jobs), len(names.claims)
    names.note(step["actor"], reply.get("job"), claims)
    new = range(jobs_known + 1, len(names.jobs) + 1)
    numbers = tuple(range(claims_known + 1, len(names.claims) + 1))
    if reply.get("job") is not None:
        return Brought(step["actor"], next(iter(new), None), (), ())
    with_claims = tuple(
        (names.jobs.index(claim["job"]) + 1, number)
        for number, claim in zip(numbers, claims, strict=True)
        if names.jobs.index(claim["job"]) + 1 in new
    )
    return Brought(step["actor"], None, numbers, with_claims)


@dataclass(slots=True)
class _Meant:
    """What the steps of a schedule name, so that nothing else gets a name."""

    claims: set[int] = field(default_factory=set)
    jobs: set[int] = field(default_factory=set)
    claims_of: dict[int, tuple[ClaimRef, ...]] = field(default_factory=dict)  # by step
    looked_at_again: set[int] = field(default_factory=set)  # starts whose call a later step goes on with


def _what_is_meant(schedule: Schedule, given: Sequence[_Given]) -> _Meant:
    meant = _Meant()
    latest: dict[str, int] = {}
    for number, step in enumerate(schedule):
        refs: tuple[ClaimRef, ...] = ()
        if isinstance(step, Start):
            refs = step.claims
            if not refs and step.operation in UNDER_A_CLAIM:
                refs = (ClaimRef(latest[step.actor]),)
        elif isinstance(step, ClockPast) and not isinstance(step.target, JobRef):
            refs = (step.target if isinstance(step.target, ClaimRef) else ClaimRef(latest[step.target]),)
        meant.claims_of[number] = refs
        meant.claims.update(ref.number for ref in refs)
        if isinstance(step, Start) and step.job is not None:
            meant.jobs.add(step.job.number)
        elif isinstance(step, ClockPast) and isinstance(step.target, JobRef):
            meant.jobs.add(step.target.number)
        for brought in filter(None, (given[number].own, *given[number].freed)):
            if brought.claims:
                latest[brought.actor] = brought.claims[-1]
    started: dict[str, int] = {}
    for number, step in enumerate(schedule):
        if isinstance(step, Start):
            started[step.actor] = number
        elif isinstance(step, GoOn):
            meant.looked_at_again.add(started[step.actor])
        for brought in given[number].freed:
            if brought.job in meant.jobs or meant.claims.intersection(brought.claims):
                meant.looked_at_again.add(started[brought.actor])
    return meant


def _server_faults(schedule: Schedule) -> list[provider.ServerFault]:
    return sorted(faults_of_the_server(schedule), key=lambda fault: fault.name)


def _call(name: str, arguments: Sequence[str]) -> list[str]:
    """On one line where it fits."""
    line = f"{name}({', '.join(arguments)})"
    if len(line) <= WIDTH:
        return [line]
    return [f"{name}(", *(f"{INDENT}{argument}," for argument in arguments), ")"]


def _variable(actor: str) -> str:
    return actor.lower()


def _keywords(arguments: Mapping[str, object]) -> str:
    return ", ".join(f"{name}={_literal(value)}" for name, value in arguments.items())


def _literal(value: object) -> str:
    return json.dumps(value) if isinstance(value, str) else repr(value)
