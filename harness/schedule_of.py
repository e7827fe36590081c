"""From a trace back to the schedule that replays it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any
from urllib.parse import parse_qs, urlsplit

from fencepost.harness.errors import FencepostError
from fencepost.harness.schedule import (
    ERROR,
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
    parse_schedule,
)
from fencepost.harness.trace.format import Trace

DEFAULT_ARGUMENTS: Mapping[str, Mapping[str, Any]] = {
    "enqueue": {"payload": {}},
    "claim": {"ttl_s": 60.0},
    "claim_batch": {"ttl_s": 60.0},
    "heartbeat": {"ttl_s": 60.0},
    "fail": {"error": "boom"},
}
"""What an operation is given where its step does not say: as a scenario's words do."""

UNDER_A_CLAIM = frozenset({"heartbeat", "complete", "fail", "bypass_guard", "effect"})
"""Operations that act under the actor's latest claim where the step names none."""

_TO_JOB_OR_CLAIM = re.compile(r"[j#][1-9]\d*([+-][\d.]+s)?")
_STATEMENT = re.compile(r"(?P<when>before|after) statement (?P<number>\d+)\b")
_ORDINAL = re.compile(r"statement (\d+)")
_BEFORE_DUE = re.compile(r"(?:(?P<seconds>[\d.]+) s before )?next_run_at")


PLAIN_PATHS = ("direct", "gate", "network")
"""Those an actor is given by what its steps need."""

TERMINATE = "terminate_backend"
"""As traces tell of what a schedule calls `terminate`."""


class NoSchedule(FencepostError):
    """A trace of which something cannot be said in a schedule."""


class Names:
    """Claims and jobs by the order in which they were handed out. Claims are compared as their JSON."""

    def __init__(self) -> None:
        self.claims: list[tuple[str, Mapping[str, Any]]] = []  # who was given it, and it
        self.jobs: list[str] = []

    def note(self, actor: str, job: str | None, claims: Sequence[Mapping[str, Any]]) -> None:
        for known in [job, *(claim["job"] for claim in claims)]:
            if known is not None and known not in self.jobs:
                self.jobs.append(known)
        self.claims.extend((actor, claim) for claim in claims)

    def latest_of(self, actor: str) -> int | None:
        """The number of the actor's latest claim."""
        return next((n for n in range(len(self.claims), 0, -1) if self.claims[n - 1][0] == actor), None)

    def latest_on(self, job: str, token: int | None = None) -> int | None:
        """The number of the job's latest claim, or of its latest under this token."""
        for number in range(len(self.claims), 0, -1):
            claim = self.claims[number - 1][1]
            if claim["job"] == job and token in (None, claim["token"]):
                return number
        return None

    def ref(self, claim: Mapping[str, Any]) -> ClaimRef:
        for number in range(len(self.claims), 0, -1):
            if self.claims[number - 1][1] == claim:
                return ClaimRef(number)
        for number in range(len(self.claims), 0, -1):
            like = self.claims[number - 1][1]
            same = all(like[name] == claim[name] for name in ("token", "lease_until_us"))
            if same and claim["job"] not in self.jobs:
                return ClaimRef(number, never_was=True)
        raise NoSchedule(f"the claim of job {claim['job']} under token {claim['token']} was never handed out")

    def job(self, job: str) -> JobRef:
        if job not in self.jobs:
            raise NoSchedule(f"job {job} was never handed out")
        return JobRef(self.jobs.index(job) + 1)


def schedule_of(trace: Trace) -> Schedule:
    """The steps of the run itself, without its drain. Raises NoSchedule."""
    return schedule_of_steps(trace.header, trace.steps)


def schedule_of_steps(header: Mapping[str, Any], steps: Sequence[Mapping[str, Any]]) -> Schedule:
    told = _Telling(header, [step for step in steps if not step.get("drain")])
    made = told.schedule()
    if not made.steps:
        raise NoSchedule("the trace has no step")
    return made


class _Telling:
    def __init__(self, header: Mapping[str, Any], steps: Sequence[Mapping[str, Any]]) -> None:
        self._joining = {
            told["name"]: {name: value for name, value in told.items() if name != "name"}
            for told in header.get("participants", ())
        }
        self._steps = steps
        self._by_statements = header.get("step") == "statement"
        self._before = header["first_observation"]
        self._names = Names()
        self._holds: dict[int, list[Place]] = {}
        for step in steps:
            if step.get("status") == "parked":
                self._holds.setdefault(step["call"], []).append(_place(step["checkpoint"]))

    def schedule(self) -> Schedule:
        made: list[Step] = []
        for step in self._steps:
            actor = step.get("actor", "")
            if actor in self._joining:
                made.append(Join(actor, **self._joining.pop(actor)))
            said = self._step(step)
            if said is not None:
                made.append(said)
            if "reply" in step:
                reply = step["reply"]
                self._names.note(step["actor"], reply.get("job"), reply.get("claims", ()))
            self._before = step["after"]
        return _without_needless_joins(Schedule(tuple(made)))

    def _step(self, step: Mapping[str, Any]) -> Step | None:
        match step["kind"]:
            case "call":
                then = Then.BLOCKED if step["status"] in ("blocked", "cut_off") else Then.AS_HELD
                return self._start(step, then) if step["started"] else GoOn(step["actor"], then)
            case "clock":
                return self._clock(step)
            case "fault":
                return _fault(step)
            case "exit":
                return Exit(step["actor"])
        return None  # a freed step follows from the one before it; the end from the last

    def _start(self, step: Mapping[str, Any], then: Then) -> Start:
        actor, operation = step["actor"], step["operation"]
        claims = tuple(self._names.ref(claim) for claim in step["claims"])
        latest = self._names.latest_of(actor)
        if operation in UNDER_A_CLAIM and latest is not None and claims == (ClaimRef(latest),):
            claims = ()
        arguments = dict(step["arguments"])
        job = self._names.job(arguments.pop("job")) if "job" in arguments else None
        for name, value in DEFAULT_ARGUMENTS.get(operation, {}).items():
            if name in arguments and arguments[name] == value:
                del arguments[name]
        if "url" in arguments:
            arguments["checks_tokens"] = parse_qs(urlsplit(arguments.pop("url")).query) == {
                "checks_tokens": ["1"]
            }
        holds = tuple(self._holds.get(step["call"], ()))
        if self._by_statements and holds:
            holds = (AtEveryStatement(),)
        faults = tuple(map(_statement_fault, step.get("statement_faults", ())))
        return Start(actor, operation, claims, job, arguments, holds, faults, then)

    def _clock(self, step: Mapping[str, Any]) -> Step:
        detail = step.get("detail", {})
        if "seconds" in detail:
            return ClockBy(detail["seconds"])
        if "past_lease_of" in detail:
            return self._past_lease(detail["past_lease_of"], detail.get("token"))
        to = str(detail.get("to", ""))
        if _TO_JOB_OR_CLAIM.fullmatch(to):
            (said,) = parse_schedule(f"clock>{to}")
            return said
        return self._to_due(to, step) or ClockBy(step["clock"]["moved_s"])

    def _past_lease(self, job: str, token: int | None) -> ClockPast:
        number = self._names.latest_on(job, token)
        if number is None:
            return ClockPast(self._names.job(job))
        actor = self._names.claims[number - 1][0]
        return ClockPast(actor if self._names.latest_of(actor) == number else ClaimRef(number))

    def _to_due(self, to: str, step: Mapping[str, Any]) -> ClockPast | None:
        """Which job's time was meant is not in the trace; that it was reached is."""
        meant = _BEFORE_DUE.fullmatch(to)
        if meant is None:
            return None
        offset_s = -float(meant["seconds"] or 0)
        moments = {
            view["job"]: view["next_run_at_us"] + offset_s * 1e6
            for view in self._before["jobs"]
            if view.get("next_run_at_us") is not None and view["job"] in self._names.jobs
        }
        if not moments:
            return None
        came = [job for job in moments if self._before["at_us"] < moments[job] <= step["after"]["at_us"]]
        job = min(came or moments, key=lambda job: moments[job])
        return ClockPast(self._names.job(job), offset_s)


def _without_needless_joins(schedule: Schedule) -> Schedule:
    """How an actor reaches the server is said only where its own steps need another way than they would be given."""
    kept: list[Step] = []
    for step in schedule:
        said = step
        if isinstance(step, Join) and (step.path in PLAIN_PATHS or schedule.path_of(step.actor) == "direct"):
            said = replace(step, path=None)
        if not isinstance(said, Join) or said != Join(said.actor):
            kept.append(said)
    return Schedule(tuple(kept))


def _place(text: str) -> Place:
    """A checkpoint's name, or a statement as the runner tells of it."""
    statement = _STATEMENT.match(text)
    if statement is not None:
        return AtStatement(statement["when"], Statement(None, int(statement["number"])))
    return AtCheckpoint(text)


def _fault(step: Mapping[str, Any]) -> Step:
    name, told = str(step["fault"]), dict(step.get("detail", {}))
    if told.get("how") == "fin":
        del told["how"]
    if name == "half_open":
        told.pop("notice", None)
    if "actor" in step:
        return ActorFault(step["actor"], "terminate" if name == TERMINATE else name, told)
    return ServerFault(name, told)


def _statement_fault(rule: str) -> StatementFault:
    """`/COMMIT/#2: lose reply` is how the gate tells of it."""
    address, _, action = rule.rpartition(": ")
    found = _ORDINAL.fullmatch(address)
    if found is not None:
        statement = Statement(None, int(found[1]))
    else:
        (step,) = parse_schedule(f"A:x@before{address}")
        assert isinstance(step, Start) and isinstance(step.holds[0], AtStatement)
        statement = step.holds[0].statement
    words = action.split()
    name = "".join(words) if words[0] == ERROR else "_".join(words)
    return StatementFault(name, statement)
