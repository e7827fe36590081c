"""The schedule: the order of a run's steps as one line of text that a person can read, keep in a test and replay.

    P:enqueue | A:claim | A:complete@after_guard | clock>A | B:claim | B:complete | A>

Text in, data out, and back: docs/schedule.md is the manual. What is read here depends on nothing but the text, so a
schedule kept in a test outlives versions of Python and of every library.
"""

from __future__ import annotations

import json
import math
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, TypeAlias

from fencepost.harness.errors import UsageError

SERVER_FAULTS = ("crash", "kill_postmaster", "kill_all", "fast_restart")
PATH_FAULTS = (
    "cut",
    "pause",
    "resume",
    "delay",
    "arrive",
    "half_open",
    "cut_mid_message",
    "lose_reply",
    "lose_request",
    "mend",
    "refuse_connections",
)
PROCESS_FAULTS = ("kill", "stop", "cont")
BACKEND_FAULTS = ("terminate", "kill_backend")
ACTOR_FAULTS = (*PATH_FAULTS, *PROCESS_FAULTS, *BACKEND_FAULTS)
STATEMENT_FAULTS = (
    "lose_reply",
    "lose_request",
    "cut_mid_reply",
    "cut_fin_before",
    "cut_fin_after",
    "cut_rst_before",
    "cut_rst_after",
)
ERROR = "error"
"""A statement's fault too, with the SQLSTATE behind it: `~error40001`."""
CLOCK = "clock"
JOIN = "join"
EXIT = "exit"
JOINING: Mapping[str, type | tuple[type, ...]] = {
    "known_as": str,
    "time_zone": str,
    "path": str,
    "process": bool,
    "clock_skew_s": (int, float),
}

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
_SECONDS = re.compile(r"([0-9]+)(?:\.([0-9]+))?")
_NUMBER = re.compile(r"[1-9][0-9]*")
_SQLSTATE = re.compile(r"[0-9A-Z]{5}")
_PATTERN = re.compile(r"/((?:[^/\\\n]|\\.)+)/")
_JOB = re.compile(r"j([1-9][0-9]*)(?![A-Za-z0-9_])")
_JSON_NUMBER = re.compile(r"-?[0-9][0-9.eE+-]*")
_HALF_A_CHARACTER = re.compile("[\ud800-\udfff]")

DIGITS_OF_A_NUMBER = 9
DIGITS_OF_SECONDS = 10
"""Three hundred years, which is as far as a clock can be moved."""
DECIMALS_OF_SECONDS = 6
JSON_DEPTH = 50


class ScheduleError(UsageError):
    """A schedule that cannot be read. The message has the text, and a caret below the place."""

    def __init__(self, problem: str, text: str, column: int) -> None:
        start = text.rfind("\n", 0, column) + 1
        line = text[start:].partition("\n")[0]
        super().__init__(
            f"Column {column + 1} of the schedule: {problem}.\n  {line}\n  {' ' * (column - start)}^"
        )
        self.problem = problem
        self.column = column


# -- what a step names ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ClaimRef:
    """The n-th claim that was handed out in the run: `#2`; with `?`, one of its form on a job that never was."""

    number: int
    never_was: bool = False

    def __str__(self) -> str:
        return f"#{self.number}{'?' if self.never_was else ''}"


@dataclass(frozen=True, slots=True)
class JobRef:
    """The n-th job whose id was handed out in the run: `j2`."""

    number: int

    def __str__(self) -> str:
        return f"j{self.number}"


@dataclass(frozen=True, slots=True)
class Statement:
    """A statement of one operation: by its number (`#3`), or the n-th that matches (`/COMMIT/`, `/UPDATE/#2`)."""

    pattern: str | None = None
    number: int = 1

    def __str__(self) -> str:
        if self.pattern is None:
            return f"#{self.number}"
        shown = re.sub(r"(\\.)|/", lambda found: found.group(1) or r"\/", self.pattern)
        return f"/{shown}/" + (f"#{self.number}" if self.number > 1 else "")


@dataclass(frozen=True, slots=True)
class AtCheckpoint:
    name: str

    def __str__(self) -> str:
        return f"@{self.name}"


@dataclass(frozen=True, slots=True)
class AtStatement:
    """`@before/COMMIT/`: it has not been sent. `@after#3`: its answer has come and the client has not got it."""

    when: str  # before, after
    statement: Statement

    def __str__(self) -> str:
        return f"@{self.when}{self.statement}"


@dataclass(frozen=True, slots=True)
class AtEveryStatement:
    """`@*`: held before each of its statements, so that every `A>` lets it do one."""

    def __str__(self) -> str:
        return "@*"


Place: TypeAlias = AtCheckpoint | AtStatement | AtEveryStatement


@dataclass(frozen=True, slots=True)
class StatementFault:
    """`~lose_reply/COMMIT/`, `~error40001#2`: what becomes of one statement of the operation."""

    name: str  # one of STATEMENT_FAULTS, or error with its SQLSTATE behind it
    statement: Statement

    def __str__(self) -> str:
        return f"~{self.name}{self.statement}"


class Then(Enum):
    """Where a call stands when its step is over."""

    AS_HELD = ""  # at its next hold; answered, where none is ahead of it
    BLOCKED = "!"  # in flight, waiting for what another actor holds
    ANY = "?"

    def __str__(self) -> str:
        return self.value


# -- steps ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Start:
    """`A:complete(#1, note="x")@after_guard~lose_reply/COMMIT/!`"""

    actor: str
    operation: str
    claims: tuple[ClaimRef, ...] = ()  # empty: the actor's latest claim, where the operation acts under one
    job: JobRef | None = None
    arguments: Mapping[str, Any] = field(default_factory=dict)
    holds: tuple[Place, ...] = ()
    faults: tuple[StatementFault, ...] = ()
    then: Then = Then.AS_HELD

    def __str__(self) -> str:
        refs = [*map(str, self.claims), *([str(self.job)] if self.job is not None else [])]
        inside = _inside(self.arguments, refs)
        rest = "".join(map(str, (*self.holds, *self.faults, self.then)))
        return f"{self.actor}:{self.operation}{inside}{rest}"


@dataclass(frozen=True, slots=True)
class GoOn:
    """`A>`: to its next hold, or to its end."""

    actor: str
    then: Then = Then.AS_HELD

    def __str__(self) -> str:
        return f"{self.actor}>{self.then}"


@dataclass(frozen=True, slots=True)
class Join:
    """`B:join(known_as="A", time_zone="Asia/Tokyo")`: before its first step. Without it, by its own name alone."""

    actor: str
    known_as: str | None = None  # the name it goes by in the queue
    time_zone: str | None = None  # of its sessions
    path: str | None = None  # how it reaches the server; None: as its own steps need it
    process: bool = False
    clock_skew_s: float = 0.0  # of its own clock

    def __str__(self) -> str:
        told = {name: getattr(self, name) for name in JOINING if getattr(self, name)}
        return f"{self.actor}:{JOIN}{_inside(told)}"


@dataclass(frozen=True, slots=True)
class Exit:
    """`A:exit`"""

    actor: str

    def __str__(self) -> str:
        return f"{self.actor}:{EXIT}"


@dataclass(frozen=True, slots=True)
class ActorFault:
    """`A:cut`, `A:cut(how="rst")`"""

    actor: str
    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.actor}:{self.name}{_inside(self.arguments)}"


@dataclass(frozen=True, slots=True)
class ServerFault:
    """`crash`, `crash(notice=false)`"""

    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.name}{_inside(self.arguments)}"


@dataclass(frozen=True, slots=True)
class ClockBy:
    """`clock+31s`, `clock-5s`"""

    seconds: float

    def __str__(self) -> str:
        return f"{CLOCK}{_signed(self.seconds)}"


@dataclass(frozen=True, slots=True)
class ClockPast:
    """`clock>A`: just past the lease of A's latest claim; `clock>#1`: of this one; `clock>j1`: past the job's lease,
    or past the moment a waiting job may run. `clock>j1-10s`: so long before (or after) that."""

    target: str | ClaimRef | JobRef
    offset_s: float = 0.0

    def __str__(self) -> str:
        return f"{CLOCK}>{self.target}{_signed(self.offset_s) if self.offset_s else ''}"


Step: TypeAlias = Start | GoOn | Join | Exit | ActorFault | ServerFault | ClockBy | ClockPast


@dataclass(frozen=True, slots=True)
class Schedule:
    steps: tuple[Step, ...]

    def __str__(self) -> str:
        return " | ".join(map(str, self.steps))

    def __len__(self) -> int:
        return len(self.steps)

    def __iter__(self) -> Iterator[Step]:
        return iter(self.steps)

    @property
    def actors(self) -> tuple[str, ...]:
        """In order of appearance."""
        named = [getattr(step, "actor", None) for step in self.steps]
        return tuple(dict.fromkeys(name for name in named if name is not None))

    def path_of(self, actor: str) -> str:
        """How this actor must reach the server for its steps to be taken, where its join does not say otherwise."""
        own = [step for step in self.steps if getattr(step, "actor", None) == actor]
        if any(isinstance(step, Start) and _names_statements(step) for step in own):
            return "gate"
        harmed = any(isinstance(step, ActorFault) and step.name in PATH_FAULTS for step in own)
        return "network" if harmed else "direct"


def _names_statements(step: Start) -> bool:
    return bool(step.faults) or not all(isinstance(place, AtCheckpoint) for place in step.holds)


def _inside(arguments: Mapping[str, Any], refs: Sequence[str] = ()) -> str:
    named = [*refs, *(f"{name}={_as_json(value)}" for name, value in arguments.items())]
    return f"({', '.join(named)})" if named else ""


def _as_json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))


def _signed(seconds: float) -> str:
    whole = int(seconds)
    digits = str(abs(whole)) if seconds == whole else f"{abs(seconds):.6f}".rstrip("0").rstrip(".")
    return f"{'-' if seconds < 0 else '+'}{digits}s"


# -- reading --------------------------------------------------------------------------------------------------


def parse_schedule(text: str) -> Schedule:
    """Raises ScheduleError, which points at the place."""
    half = _HALF_A_CHARACTER.search(text)
    if half is not None:
        raise ScheduleError("this is half a character, or no UTF-8", text, half.start())
    return Schedule(tuple(_Reader(text).schedule()))


class _Reader:
    """Reads from left to right and never goes back."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0

    def schedule(self) -> Sequence[Step]:
        steps = [self._step()]
        while self._skip("|"):
            steps.append(self._step())
        self._blank()
        if self._at < len(self._text):
            raise self._wrong("'|' or the end should stand here")
        return steps

    def _step(self) -> Step:
        self._blank()
        start = self._at
        name = self._match(_NAME)
        if name is None:
            raise self._wrong("a step should stand here: A:claim, A>, clock+31s, crash")
        word = name.group()
        if word == CLOCK:
            return self._clock()
        if self._skip(":"):
            return self._of_actor(word)
        if self._skip(">"):
            return GoOn(word, self._then())
        if word in SERVER_FAULTS:
            return ServerFault(word, self._only_named())
        faults = ", ".join(SERVER_FAULTS)
        self._at = start if not self._peek() else self._at
        raise self._wrong(f"after an actor's name ':' or '>' should stand, or this is one of {faults}")

    def _clock(self) -> Step:
        if self._skip(">"):
            target = self._clock_target()
            return ClockPast(target, self._seconds() if self._peek() in ("+", "-") else 0.0)
        if self._peek() not in ("+", "-"):
            raise self._wrong("after 'clock' one of +, - and > should stand")
        return ClockBy(self._seconds())

    def _clock_target(self) -> str | ClaimRef | JobRef:
        claim = self._claim_ref()
        if claim is not None:
            return claim
        job = self._job_ref()
        if job is not None:
            return job
        actor = self._match(_NAME)
        if actor is None:
            raise self._wrong("an actor, a claim (#1) or a job (j1) should stand here")
        return actor.group()

    def _seconds(self) -> float:
        sign = -1 if self._take() == "-" else 1
        digits = self._match(_SECONDS)
        if digits is None or not self._skip("s"):
            raise self._wrong("seconds should stand here, as in +31s")
        whole, decimals = digits.groups(default="")
        if len(whole) > DIGITS_OF_SECONDS or len(decimals) > DECIMALS_OF_SECONDS:
            raise self._wrong(
                f"seconds have at most {DIGITS_OF_SECONDS} digits and {DECIMALS_OF_SECONDS} decimals",
                digits.start(),
            )
        return sign * float(digits.group())

    def _of_actor(self, actor: str) -> Step:
        self._blank()
        place = self._at
        name = self._match(_NAME)
        if name is None:
            raise self._wrong(f"what {actor} does should stand here")
        word = name.group()
        if word in ACTOR_FAULTS:
            return ActorFault(actor, word, self._only_named())
        if word == EXIT:
            return Exit(actor)
        if word == JOIN:
            return self._join(actor, place)
        claims, job, arguments = self._arguments()
        holds: list[Place] = []
        faults: list[StatementFault] = []
        while (mark := self._peek()) in ("@", "~"):
            self._take()
            if mark == "@":
                holds.append(self._place())
            else:
                faults.append(self._statement_fault())
        return Start(actor, word, claims, job, arguments, tuple(holds), tuple(faults), self._then())

    def _join(self, actor: str, place: int) -> Join:
        told = self._only_named()
        wrong = [name for name, value in told.items() if not _is_joining(name, value)]
        if wrong:
            known = ", ".join(JOINING)
            raise ScheduleError(
                f"join takes {known}, and {wrong[0]} is none or not of its kind", self._text, place
            )
        return Join(actor, **told)

    def _only_named(self) -> dict[str, Any]:
        place = self._at
        claims, job, arguments = self._arguments()
        if claims or job is not None:
            raise ScheduleError("no claim and no job is named here", self._text, place)
        return arguments

    def _arguments(self) -> tuple[tuple[ClaimRef, ...], JobRef | None, dict[str, Any]]:
        claims: list[ClaimRef] = []
        job: JobRef | None = None
        arguments: dict[str, Any] = {}
        if not self._skip("("):
            return (), None, arguments
        while not self._skip(")"):
            if claims or job is not None or arguments:
                self._expect(",", "',' or ')' should stand here")
                self._blank()
            claim = None if job is not None or arguments else self._claim_ref()
            found = None if claim or job is not None or arguments else self._job_ref()
            if claim is not None:
                claims.append(claim)
            elif found is not None:
                job = found
            else:
                self._named(arguments)
        return tuple(claims), job, arguments

    def _named(self, arguments: dict[str, Any]) -> None:
        self._blank()
        name = self._match(_NAME)
        if name is None:
            raise self._wrong("a claim (#1), a job (j1) or name=value should stand here")
        if name.group() in arguments:
            raise self._wrong(f"{name.group()} is given twice", name.start())
        self._expect("=", "'=' and a JSON value should stand here")
        arguments[name.group()] = self._json()

    def _json(self) -> Any:
        self._blank()
        number = _JSON_NUMBER.match(self._text, self._at)
        try:
            value, end = _JSON.raw_decode(self._text, self._at)
            _check_portable(value)
        except (ValueError, RecursionError):
            raise self._wrong('a JSON value should stand here, as 5 or "text"') from None
        if number is not None and end < number.end():
            raise self._wrong("this is no JSON number")
        self._at = end
        return value

    def _claim_ref(self) -> ClaimRef | None:
        self._blank()
        if self._peek() != "#":
            return None
        self._take()
        return ClaimRef(self._number(), self._skip("?"))

    def _number(self) -> int:
        number = self._match(_NUMBER)
        if number is None:
            raise self._wrong("a number from 1 on should stand here")
        return self._countable(number.group(), number.start())

    def _job_ref(self) -> JobRef | None:
        job = self._match(_JOB)
        return None if job is None else JobRef(self._countable(job.group(1), job.start(1)))

    def _countable(self, digits: str, place: int) -> int:
        if len(digits) > DIGITS_OF_A_NUMBER:
            raise self._wrong(f"a number has at most {DIGITS_OF_A_NUMBER} digits", place)
        return int(digits)

    def _place(self) -> Place:
        if self._skip("*"):
            return AtEveryStatement()
        name = self._match(_NAME)
        if name is None:
            raise self._wrong("a checkpoint, before or after a statement, or * should stand here")
        if name.group() in ("before", "after") and self._peek() in ("/", "#"):
            return AtStatement(name.group(), self._statement())
        return AtCheckpoint(name.group())

    def _statement_fault(self) -> StatementFault:
        place = self._at
        name = self._match(_NAME)
        word = name.group() if name is not None else ""
        sqlstate = word.removeprefix(ERROR)
        if word not in STATEMENT_FAULTS and not (word.startswith(ERROR) and _SQLSTATE.fullmatch(sqlstate)):
            known = ", ".join((*STATEMENT_FAULTS, "error and an SQLSTATE"))
            raise self._wrong(f"one of {known} should stand here", place)
        return StatementFault(word, self._statement())

    def _statement(self) -> Statement:
        if self._peek() == "#":
            self._take()
            return Statement(None, self._number())
        found = self._match(_PATTERN)
        if found is None:
            raise self._wrong("a statement should stand here: #3, /COMMIT/ or /UPDATE/#2")
        pattern = found.group(1).replace(r"\/", "/")
        problem = _problem_of(pattern)
        if problem is not None:
            raise self._wrong(f"this is no regular expression ({problem})", found.start())
        if self._peek() == "#":
            self._take()
            return Statement(pattern, self._number())
        return Statement(pattern)

    def _then(self) -> Then:
        for then in (Then.BLOCKED, Then.ANY):
            if self._skip(then.value):
                return then
        return Then.AS_HELD

    # -- characters -------------------------------------------------------------------------------------------

    def _blank(self) -> None:
        while self._at < len(self._text) and self._text[self._at].isspace():
            self._at += 1

    def _peek(self) -> str:
        return self._text[self._at : self._at + 1]

    def _take(self) -> str:
        self._at += 1
        return self._text[self._at - 1]

    def _skip(self, character: str) -> bool:
        at = self._at
        self._blank()
        if self._peek() == character:
            self._at += 1
            return True
        if self._at < len(self._text):
            self._at = at
        return False

    def _expect(self, character: str, problem: str) -> None:
        if not self._skip(character):
            raise self._wrong(problem)

    def _match(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        found = pattern.match(self._text, self._at)
        if found is not None:
            self._at = found.end()
        return found

    def _wrong(self, problem: str, column: int | None = None) -> ScheduleError:
        at = self._at if column is None else column
        found = self._text[at : at + 12].split("|")[0].strip()
        told = problem if column is not None else f"{problem}, not {found!r}" if found else f"{problem}"
        return ScheduleError(told, self._text, at)


def _is_joining(name: str, value: Any) -> bool:
    kind = JOINING.get(name, ())
    is_flag = isinstance(value, bool)
    return isinstance(value, kind) and is_flag == (kind is bool) and value != ""


def _problem_of(pattern: str) -> str | None:
    """Why this is no regular expression, or none that every version of Python reads alike."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            re.compile(pattern)
        except RecursionError:
            return "nested too deep"
        except (re.error, ValueError, OverflowError, Warning) as error:
            return str(error)
    return None


def _refuse_constant(name: str) -> Any:
    raise ValueError(name)


def _finite(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise ValueError(digits)
    return value


_JSON = json.JSONDecoder(parse_constant=_refuse_constant, parse_float=_finite)


def _check_portable(value: Any, depth: int = JSON_DEPTH) -> None:
    """Raises ValueError for what Python's decoder takes and others would not."""
    match value:
        case str():
            value.encode()
        case list() | dict() if depth == 0:
            raise ValueError("nested too deep")
        case list():
            for item in value:
                _check_portable(item, depth - 1)
        case dict():
            for name, item in value.items():
                _check_portable(name, depth)
                _check_portable(item, depth - 1)
