"""What is explored: who does which operations, which faults may strike, and what is there at the start."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Final

from fencepost.harness.errors import UsageError

ENQUEUE_OTHER: Final = "enqueue-other"
"""The key `enqueue` submits under, with another payload."""
OPERATIONS: Final = frozenset(
    {"enqueue", ENQUEUE_OTHER, "claim", "heartbeat", "complete", "complete_batch", "fail", "reap", "cancel"}
)
FAULTS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "expire": "the clock passes every lease's end, once",
        "crash": "an actor's process dies before its next statement",
        "lose-reply": "the next statement is executed and its reply lost",
        "lose-request": "the next statement is lost on its way",
        "restart": "the server crashes and recovers, once",
    }
)
UNDER_A_CLAIM: Final = frozenset({"heartbeat", "complete", "complete_batch", "fail"})
"""Left out by an actor that has none."""
MAX_JOBS: Final = 1_000
MAX_OPERATIONS: Final = 64
"""More than any search could try, and few enough that a slip of the keyboard is an error and not an endless run."""

_ACTOR: Final = re.compile(r"[A-Z][A-Za-z0-9_]*")
_WORD: Final = re.compile(r"[a-z][a-z-]*")


@dataclass(frozen=True, slots=True)
class Actor:
    name: str
    operations: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault that may strike, at most `times` in one run."""

    name: str
    times: int = 1


@dataclass(frozen=True, slots=True)
class Program:
    """Checked at the door: an actor twice or an unknown operation is an error when it is made by `parse`."""

    actors: tuple[Actor, ...]
    faults: tuple[Fault, ...] = ()
    jobs: int = 1  # enqueued before the first step
    settings: tuple[tuple[str, str], ...] = field(default=())  # what more the executor is told

    @property
    def operations(self) -> int:
        return sum(len(actor.operations) for actor in self.actors)

    def without_operation(self, name: str, place: int) -> Program:
        """The same without one operation; an actor without operations leaves."""
        actors = []
        for actor in self.actors:
            if actor.name != name:
                actors.append(actor)
                continue
            left = actor.operations[:place] + actor.operations[place + 1 :]
            if left:
                actors.append(Actor(name, left))
        return replace(self, actors=tuple(actors))

    def without_actor(self, name: str) -> Program:
        return replace(self, actors=tuple(actor for actor in self.actors if actor.name != name))

    def with_fault_less(self, name: str) -> Program:
        """The same with a fault striking once less."""
        fewer = (replace(fault, times=fault.times - (fault.name == name)) for fault in self.faults)
        return replace(self, faults=tuple(fault for fault in fewer if fault.times))

    def with_a_job_less(self) -> Program:
        return replace(self, jobs=self.jobs - 1)

    def __str__(self) -> str:
        actors = " ".join(f"{actor.name}:{','.join(actor.operations)}" for actor in self.actors)
        faults = ",".join(f.name if f.times == 1 else f"{f.name}*{f.times}" for f in self.faults)
        words = [
            actors,
            f"[{faults}]" if faults else "",
            "" if self.jobs == 1 else f"({self.jobs or 'no'} jobs)",
        ]
        return " ".join(word for word in words if word)


def parse(
    operations: str,
    faults: str = "",
    *,
    jobs: int = 1,
    known_operations: frozenset[str] = OPERATIONS,
    known_faults: frozenset[str] = frozenset(FAULTS),
    called: tuple[str, str] = ("--ops", "--faults"),
) -> Program:
    """Read `--ops "A:claim,complete B:claim R:reap"` and `--faults expire,crash*2`; `called` is what errors say."""
    if jobs < 0:
        raise UsageError(f"the number of jobs must not be negative, and {jobs} was given")
    if jobs > MAX_JOBS:
        raise UsageError(f"{jobs} jobs at the start are too many: the most is {MAX_JOBS}")
    actors: dict[str, Actor] = {}
    for word in re.finditer(r"\S+", operations):
        actor = _actor(called[0], operations, word.start(), word.group(), known_operations)
        if actor.name in actors:
            raise _error(called[0], operations, word.start(), f"actor {actor.name} is there twice")
        actors[actor.name] = actor
    if not actors:
        raise _error(called[0], operations, 0, 'no actor: write for example "A:claim,complete B:claim"')
    program = Program(tuple(actors.values()), _faults(called[1], faults, known_faults), jobs)
    if program.operations > MAX_OPERATIONS:
        raise UsageError(f"{called[0]}: {program.operations} operations; the most is {MAX_OPERATIONS}")
    return program


def _actor(option: str, text: str, start: int, word: str, known: frozenset[str]) -> Actor:
    name, colon, listed = word.partition(":")
    if not _ACTOR.fullmatch(name):
        raise _error(
            option, text, start, f"{name!r} is no actor's name: it begins with a capital letter, as A"
        )
    if not colon:
        raise _error(
            option, text, start + len(name), f"a colon must follow {name}, as in {name}:claim,complete"
        )
    at = start + len(name) + 1
    operations = []
    for operation in listed.split(","):
        if operation not in known:
            said = f"{operation!r} is no operation" if operation else "an operation is missing"
            raise _error(option, text, at, f"{said}; there are: {', '.join(sorted(known))}")
        operations.append(operation)
        at += len(operation) + 1
    return Actor(name, tuple(operations))


def _faults(option: str, text: str, known: frozenset[str]) -> tuple[Fault, ...]:
    if not text.strip():
        return ()
    faults: dict[str, Fault] = {}
    at = 0
    for word in text.split(","):
        name, star, count = word.strip().partition("*")
        if name not in known:
            said = f"{name!r} is no fault" if name else "a fault is missing"
            raise _error(option, text, at, f"{said}; there are: {', '.join(sorted(known))}")
        if name in faults:
            raise _error(option, text, at, f"{name} is there twice; for more than one write {name}*2")
        if star and not re.fullmatch(r"[1-9]", count):
            raise _error(option, text, at, f"{count!r} is no number of times between 1 and 9")
        faults[name] = Fault(name, int(count) if star else 1)
        at += len(word) + 1
    return tuple(faults.values())


def _error(option: str, text: str, column: int, said: str) -> UsageError:
    return UsageError(f"{option}, column {column + 1}: {said}\n  {text}\n  {' ' * column}^")
