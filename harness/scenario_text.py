"""A schedule as a scenario ready to paste: the same steps in the words of `race.py`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from fencepost.harness.adapter import OPERATION_NEEDS, Capability
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
    Then,
)
from fencepost.harness.schedule_of import DEFAULT_ARGUMENTS, UNDER_A_CLAIM
from fencepost.harness.trace.format import Trace

INDENT = "    "


def scenario_text(schedule: Schedule, trace: Trace, *, name: str = "found_by_invariants") -> str:
    """`trace`: of a run of the schedule; it says which step was given which claim and which job."""
    return _Writing(schedule, trace, name).text()


class _Writing:
    def __init__(self, schedule: Schedule, trace: Trace, name: str) -> None:
        self._schedule = schedule
        self._name = name
        self._given = _given_by_step(schedule, trace)
        self._claims = 0
        self._jobs = 0
        self._wire: set[str] = set()
        self._in_flight: dict[str, str] = {}
        self._joined: set[str] = set()
        self._latest: dict[str, int] = {}

    def text(self) -> str:
        body = [line for number, step in enumerate(self._schedule) for line in self._step(number, step)]
        witnesses = sorted(set(self._witnesses())) or ["was_accepted"]
        requires = ", ".join(f"Capability.{need.name}" for need in self._requires())
        imports = [
            "from fencepost.harness.adapter import Capability" if requires else None,
            "from fencepost.harness.race import Race",
            "from fencepost.harness.scenario import scenario",
            f"from fencepost.harness.wire import {', '.join(sorted(self._wire))}" if self._wire else None,
            f"from fencepost.harness.witness import {', '.join(sorted({w.partition('(')[0] for w in witnesses}))}",
        ]
        head = (
            f"@scenario({f'requires={{{requires}}}, ' if requires else ''}witnesses=[{', '.join(witnesses)}])"
        )
        lines = [
            *filter(None, imports),
            "",
            "",
            head,
            f"def {self._name}(race: Race) -> None:",
            f'{INDENT}"""{self._schedule}"""'
            if len(str(self._schedule)) < 90
            else f'{INDENT}"""Found by the state machine."""',
            *(f"{INDENT}{line}" for line in body),
        ]
        return "\n".join(lines)

    def _requires(self) -> list[Capability]:
        needs = {OPERATION_NEEDS.get(step.operation) for step in self._schedule if isinstance(step, Start)}
        if any(isinstance(p, AtCheckpoint) for s in self._schedule if isinstance(s, Start) for p in s.holds):
            needs.add(Capability.CHECKPOINTS)
        return sorted(need for need in needs if need is not None)

    def _witnesses(self) -> Iterable[str]:
        for step in self._schedule:
            if isinstance(step, Start) and step.holds:
                yield f'was_held("{step.actor}", "{step.operation}")'
            elif isinstance(step, Start) and not step.faults:
                yield f'answered("{step.actor}", "{step.operation}")'

    def _step(self, number: int, step: Step) -> list[str]:
        lines = []
        actor = getattr(step, "actor", None)
        if actor is not None and actor not in self._joined:
            self._joined.add(actor)
            lines.append(self._join(step if isinstance(step, Join) else Join(actor)))
        match step:
            case Start():
                lines += self._start(number, step)
            case GoOn():
                ended = self._names(number)
                lines.append(f"{ended}{self._in_flight[step.actor]}.go_on(){self._expect(step.then, ended)}")
            case Exit():
                lines.append(f"{_variable(step.actor)}.exit()")
            case ClockBy():
                word = "advance" if step.seconds >= 0 else "rewind"
                lines.append(f"race.clock.{word}({abs(step.seconds):g})")
            case ClockPast():
                lines.append(self._past(step))
            case ServerFault():
                lines.append(f"race.server.{step.name}({_keywords(step.arguments)})")
            case ActorFault():
                lines.append(self._fault(step))
        return lines + self._freed(number)

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

    def _start(self, number: int, step: Start) -> list[str]:
        claims = [self._claim(ref) for ref in step.claims]
        if not claims and step.operation in UNDER_A_CLAIM:
            claims = [f"claim{self._latest[step.actor]}"]
        arguments = {**DEFAULT_ARGUMENTS.get(step.operation, {}), **step.arguments}
        keywords = [*([f"job=job{step.job.number}"] if step.job is not None else [])]
        keywords += [f"{name}={value!r}" for name, value in arguments.items()]
        holds = [self._place(place) for place in step.holds if not isinstance(place, AtEveryStatement)]
        if holds:
            several = ", ".join(holds)
            keywords.append(f"hold_at={several if len(holds) == 1 else f'[{several}]'}")
        if AtEveryStatement() in step.holds:
            keywords.append("every_statement=True")
        if step.faults:
            keywords.append(f"faults=[{', '.join(map(self._statement_fault, step.faults))}]")
        inside = ", ".join([f'"{step.operation}"', *claims, *keywords])
        call = f"{_variable(step.actor)}.start({inside})"
        variable = f"{_variable(step.actor)}_{step.operation}"
        ended = self._names(number)
        if ended:
            return [f"{ended}{call}{self._expect(step.then, ended)}"]
        self._in_flight[step.actor] = variable
        return [f"{variable} = {call}{'.is_held()' if step.holds and step.then is Then.AS_HELD else ''}"]

    def _names(self, number: int) -> str:
        """Where the step itself brought an answer with a job or claims: the names they get."""
        own = [given for given in self._given[number] if given.own]
        return self._assign(own[0]) if own else ""

    def _assign(self, given: _Given) -> str:
        if given.job:
            self._jobs += 1
            return f"job{self._jobs} = "
        names = []
        for _ in range(given.claims):
            self._claims += 1
            self._latest[given.actor] = self._claims
            names.append(f"claim{self._claims}")
        return f"({', '.join(names)},) = " if names else ""

    def _freed(self, number: int) -> list[str]:
        """Answers that came to others in this step."""
        lines = []
        for given in self._given[number]:
            if not given.own:
                names = self._assign(given)
                lines.append(f"{names}{self._in_flight[given.actor]}{self._expect(Then.AS_HELD, names)}")
        return lines

    def _expect(self, then: Then, ended: str) -> str:
        if ended.startswith("job"):
            return ".reply().job"
        if ended:
            return ".reply().claims"
        return ".is_blocked()" if then is Then.BLOCKED else ""

    def _claim(self, ref: ClaimRef) -> str:
        name = f"claim{ref.number}"
        return f"race.unknown_claim(like={name})" if ref.never_was else name

    def _place(self, place: Place) -> str:
        if isinstance(place, AtCheckpoint):
            return f'"{place.name}"'
        assert isinstance(place, AtStatement)
        self._wire.add(place.when)
        return f"{place.when}({_at(place.statement)})"

    def _statement_fault(self, fault: StatementFault) -> str:
        if fault.name.startswith("error"):
            self._wire.add("error")
            return f'error("{fault.name.removeprefix("error")}", {_at(fault.statement)})'
        self._wire.add(fault.name)
        return f"{fault.name}({_at(fault.statement)})"

    def _past(self, step: ClockPast) -> str:
        if isinstance(step.target, JobRef):
            view = f"race.look(job{step.target.number})"
            offset = f" + {round(step.offset_s * 1e6)}" if step.offset_s else ""
            return f'race.clock.advance_to(({view}.lease_until_us or {view}.next_run_at_us){offset}, "{step.target}")'
        if isinstance(step.target, ClaimRef):
            return f"race.clock.advance_past(claim{step.target.number})"
        return f"race.clock.advance_past(claim{self._latest[step.target]})"

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
class _Given:
    """A job or claims that an answer brought."""

    actor: str
    job: bool
    claims: int
    own: bool  # by the step's own call, and not by one it freed


def _given_by_step(schedule: Schedule, trace: Trace) -> list[list[_Given]]:
    """By step of the schedule. Joins are no steps of a trace; freed calls are no steps of a schedule."""
    recorded = [s for s in trace.steps if not s.get("drain") and s["kind"] != "end"]
    told: list[list[_Given]] = []
    index = 0
    for step in schedule:
        told.append([])
        own = not isinstance(step, Join)
        while index < len(recorded) and (own or recorded[index]["kind"] == "freed"):
            reply = recorded[index].get("reply", {})
            if reply.get("job") is not None or reply.get("claims"):
                job, claims = reply.get("job") is not None, len(reply.get("claims", ()))
                told[-1].append(_Given(recorded[index]["actor"], job, claims, own))
            own = False
            index += 1
    return told


def _variable(actor: str) -> str:
    return actor.lower()


def _keywords(arguments: Mapping[str, object]) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in arguments.items())


def _at(statement: Statement) -> str:
    if statement.pattern is None:
        return str(statement.number)
    if statement.number == 1:
        return repr(statement.pattern)
    return f"SqlPattern({statement.pattern!r}, {statement.number})"
