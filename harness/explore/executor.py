"""What an exploration needs of whoever really runs the steps.

An *execution* is one run under control: everything stands still, the explorer looks at what could move
(`enabled`), lets one thing move (`take`), and everything stands still again.

What an executor promises, and what the reduction rests on:

- Deterministic: the same choices from a reset give the same steps. What differs is reported, not smoothed over.
- Threads. A thread is what has an order of its own: an actor, or a fault that strikes by itself (the clock). Only a
  thread's own step, or a step that names it in `freed`, changes what the thread can do next.
- Variants. Ways the same thread's next step can go wrong (its process crashes here, this reply is lost) are choices
  with the same thread. One that is not enabled now is never enabled later by another thread's step.
- A fault that strikes by itself is a thread with the fault's name. Its step is always enabled until taken: a fault
  that does not happen is one that strikes after everything else, where it changes nothing.
- A blocked step *was taken*: it stands in the lock's queue and has read what it read. Its thread is not enabled until
  another's step frees it; that step's footprint then holds what the freed step did as well.
- A run goes on to its end after an invariant broke: cut short, it would hide the orders of what comes later.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol, runtime_checkable

from fencepost.harness.explore.footprint import NOTHING, Footprint
from fencepost.harness.explore.program import Program


@dataclass(frozen=True, slots=True, order=True)
class Choice:
    """Who moves next. `variant` is the fault its step meets; empty: none."""

    thread: str
    variant: str = ""

    def __str__(self) -> str:
        return f"{self.thread}!{self.variant}" if self.variant else self.thread


def choice(text: str) -> Choice:
    thread, _, variant = text.partition("!")
    return Choice(thread, variant)


Schedule = tuple[Choice, ...]


def schedule_text(schedule: Schedule) -> str:
    """Run-length text of an order, as people read it: `A*3 B A!crash`."""
    words: list[str] = []
    at = 0
    while at < len(schedule):
        same = at
        while same < len(schedule) and schedule[same] == schedule[at]:
            same += 1
        count = same - at
        words.append(str(schedule[at]) if count == 1 else f"{schedule[at]}*{count}")
        at = same
    return " ".join(words)


class Status(StrEnum):
    ANSWERED = "answered"  # the operation is over
    PARKED = "parked"  # before the thread's next statement
    BLOCKED = "blocked"  # waits for a lock
    STRUCK = "struck"  # a fault happened
    GONE = "gone"  # the thread is dead and moves no more


@dataclass(frozen=True, slots=True)
class StepResult:
    """One step, once everything stands still again. `said` is a stable form of the answer, without times or ids."""

    choice: Choice
    status: Status
    operation: str = ""  # which of the thread's operations it belongs to
    place: int = -1  # that operation's place in the thread's list; -1: a fault of its own
    statement: str = ""
    said: str = ""
    freed: tuple[str, ...] = ()  # in actor order
    footprint: Footprint = field(default=NOTHING, compare=False)
    in_vain: bool = field(default=False, compare=False)  # a fault that met nothing it could harm

    @property
    def threads(self) -> frozenset[str]:
        """Who took part: who moved, and who was set free by it."""
        return frozenset((self.choice.thread, *self.freed))

    @property
    def changes_waits(self) -> bool:
        """Whether it changed who waits for whom, which is what a deadlock is decided by."""
        return self.status is Status.BLOCKED or bool(self.freed)

    def __str__(self) -> str:
        did = " ".join(word for word in (self.operation, self.statement) if word)
        freed = f", frees {', '.join(self.freed)}" if self.freed else ""
        said = f" → {self.said}" if self.said else ""
        return f"{self.choice}: {did or self.status} [{self.status}]{said}{freed}"


Operation = tuple[str, int]
"""An actor, and the place in its list of operations."""


class Kind(StrEnum):
    """How an operation was answered."""

    DONE = "done"
    NOTHING = "nothing"  # a claim without a job, a sweep that recovered no lease
    REFUSED = "refused"
    ERROR = "error"  # it raised, or its answer was lost


@dataclass(frozen=True, slots=True)
class Seen:
    """What one run of a queue showed; true once nothing can move any more."""

    answers: frozenset[tuple[Operation, Kind, str]]  # with the reason of what was not done
    changed_rows: bool  # some operation of the program did
    met: bool  # two actors acted on one job, or one looked for it while it was another's


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a run ended, in a form that is equal for two runs that ended alike; true once nothing can move any more."""

    state: Hashable  # final rows, without times
    answers: tuple[str, ...] = ()  # per operation, in program order
    broken: tuple[str, ...] = ()  # the invariants that did not hold, sorted
    missing: tuple[str, ...] = ()  # why nothing can be concluded from it
    seen: Seen | None = field(default=None, compare=False)  # what happened on the way; None: nobody looked

    @property
    def failed(self) -> bool:
        return bool(self.broken)


class Execution(Protocol):
    """One run under control. Kept warm: `reset` is called before each of many runs."""

    def reset(self) -> None: ...

    def enabled(self) -> tuple[Choice, ...]:
        """What can move next, sorted. Empty: the run is over."""
        ...

    def take(self, choice: Choice) -> StepResult: ...

    def finish(self) -> Outcome: ...

    def close(self) -> None: ...


@runtime_checkable
class Executor(Protocol):
    """Makes executions. Picklable and hashable: a worker process elsewhere opens its own and keeps it warm."""

    def open(self, program: Program) -> Execution: ...
