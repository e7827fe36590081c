"""A small database in memory under an explorer's control: rows, transactions, row locks with queues, a heap, a clock.

Its operations are one statement each: `read-x`, `write-x`, `lock-x`, `skip-x` (try the lock), `scan`, `clock`, `begin`,
`commit`, `rollback`. A written value names its writer and all it had read before, so every difference in what
somebody saw ends up in the rows. Faults: `expire` (a thread of its own) and `crash` (a variant, also of a blocked
actor).
"""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from fencepost.harness.explore.executor import Choice, Execution, Outcome, Status, StepResult
from fencepost.harness.explore.footprint import NOTHING, UNKNOWN, Access, Footprint, Mode, footprint
from fencepost.harness.explore.program import Actor, Fault, Program

TABLE = "rows"
CLOCK = "clock"


@dataclass
class Seat:
    """An actor: where it is in its program and what its open transaction did."""

    operations: tuple[str, ...]
    at: int = 0
    in_transaction: bool = False
    aborted: bool = False
    gone: bool = False
    waits_for: str | None = None
    wrote: dict[str, str] = field(default_factory=dict)
    locked: list[str] = field(default_factory=list)
    heard: list[str] = field(default_factory=list)


Judge = Callable[[dict[str, str], tuple[str, ...]], tuple[str, ...]]
Falsify = Callable[[Footprint], Footprint]


class ToyExecution:
    def __init__(self, program: Program, judge: Judge | None, falsify: Falsify | None = None) -> None:
        self._program = program
        self._judge = judge
        self._falsify = falsify
        self.takes = 0
        self.reset()

    def reset(self) -> None:
        self._seats = {actor.name: Seat(actor.operations) for actor in self._program.actors}
        self._faults = {fault.name: fault.times for fault in self._program.faults}
        self._rows: dict[str, str] = {}  # in heap order: a committed write moves to the end
        self._queues: dict[str, list[str]] = {}  # per row, the holder and who waits
        self._time = 0

    def close(self) -> None:
        pass

    def enabled(self) -> tuple[Choice, ...]:
        moves = []
        for name, seat in self._seats.items():
            if seat.gone or seat.at >= len(seat.operations):
                continue
            if seat.waits_for is None:
                moves.append(Choice(name))
            if self._faults.get("crash"):
                moves.append(Choice(name, "crash"))
        if self._faults.get("expire"):
            moves.append(Choice("expire"))
        return tuple(sorted(moves))

    def take(self, choice: Choice) -> StepResult:
        self.takes += 1
        if choice.thread == "expire":
            self._faults["expire"] -= 1
            self._time += 1
            print_ = footprint([Access(CLOCK, Mode.SET)])
            return self._result(choice, Status.STRUCK, "", -1, "", (), print_)
        seat = self._seats[choice.thread]
        operation, place = seat.operations[seat.at], seat.at
        if choice.variant == "crash":
            self._faults["crash"] -= 1
            seat.gone = True
            waited = set() if seat.waits_for is None else {Access(TABLE, Mode.LOCK, (seat.waits_for,))}
            if seat.waits_for is not None:
                self._queues[seat.waits_for].remove(choice.thread)
                seat.waits_for = None
            freed, print_ = self._end(choice.thread, publish=False)
            print_ |= footprint({*waited, Access("crashes", Mode.SET)})
            return self._result(choice, Status.GONE, operation, place, "gone", freed, print_)
        before = len(seat.heard)
        freed, print_ = self._execute(choice.thread)
        status = Status.BLOCKED if seat.waits_for is not None else Status.ANSWERED
        said = "" if status is Status.BLOCKED else " ".join(seat.heard[before:])
        return self._result(choice, status, operation, place, said, freed, print_)

    def _result(
        self,
        choice: Choice,
        status: Status,
        operation: str,
        place: int,
        said: str,
        freed: tuple[str, ...],
        print_: Footprint,
    ) -> StepResult:
        if self._falsify is not None:
            print_ = self._falsify(print_)
        return StepResult(choice, status, operation, place, operation, said, tuple(sorted(freed)), print_)

    # -- one statement ----------------------------------------------------------------------------------------

    def _execute(self, name: str) -> tuple[tuple[str, ...], Footprint]:
        seat = self._seats[name]
        operation, _, row = seat.operations[seat.at].partition("-")
        if seat.aborted and operation not in ("commit", "rollback"):
            return self._answer(name, "aborted")
        if operation == "begin":
            seat.in_transaction = True
            return self._answer(name, "")
        if operation in ("commit", "rollback"):
            done, print_ = self._end(name, publish=operation == "commit" and not seat.aborted)
            freed, _ = self._answer(name, "")
            return (*done, *freed), print_
        if operation == "read":
            value = seat.wrote.get(row, self._rows.get(row, f"{row}0"))
            freed, _ = self._answer(name, value)
            return freed, footprint([Access(TABLE, Mode.READ, (row,))])
        if operation == "scan":
            self._answer(name, ",".join(self._rows))
            return (), footprint([Access(TABLE, Mode.READ), Access(TABLE, Mode.REVEAL)])
        if operation == "clock":
            self._answer(name, f"t{self._time}")
            return (), footprint([Access(CLOCK, Mode.READ)])
        if operation == "odd":
            self._answer(name, "odd")
            return (), UNKNOWN
        return self._with_lock(name, operation, row)

    def _with_lock(self, name: str, operation: str, row: str) -> tuple[tuple[str, ...], Footprint]:
        seat = self._seats[name]
        queue = self._queues.setdefault(row, [])
        asked = footprint([Access(TABLE, Mode.LOCK, (row,))])
        if queue and queue[0] != name:
            if operation == "skip":
                self._answer(name, "skipped")
                return (), asked
            seat.waits_for = row
            queue.append(name)
            if self._deadlocked(name):
                queue.remove(name)
                seat.waits_for = None
                freed, print_ = self._end(name, publish=False)
                seat.aborted = seat.in_transaction = True
                self._answer(name, "deadlock")
                return freed, asked | print_
            return (), asked
        if not queue:
            queue.append(name)
        freed, print_ = self._locked(name, operation, row)
        return freed, asked | print_

    def _locked(self, name: str, operation: str, row: str) -> tuple[tuple[str, ...], Footprint]:
        """The row is ours: do what the lock was for. Alone it is a transaction of its own."""
        seat = self._seats[name]
        seat.locked.append(row)
        print_ = NOTHING
        said = "locked"
        if operation == "write":
            seat.wrote[row] = f"{name}{seat.at}({' '.join(seat.heard)})"
            said = f"wrote {row}"
            print_ = footprint([Access(TABLE, Mode.WRITE, (row,)), Access(TABLE, Mode.MARK)])
        self._answer(name, said)
        if seat.in_transaction:
            return (), print_
        freed, ended = self._end(name, publish=True)
        return freed, print_ | ended

    def _answer(self, name: str, said: str) -> tuple[tuple[str, ...], Footprint]:
        seat = self._seats[name]
        seat.heard.append(said)
        seat.at += 1
        return (), NOTHING

    def _end(self, name: str, *, publish: bool) -> tuple[tuple[str, ...], Footprint]:
        """End the transaction; whoever its locks held up goes on at once."""
        seat = self._seats[name]
        accesses = set()
        if publish:
            for row, value in seat.wrote.items():
                self._rows.pop(row, None)
                self._rows[row] = value
                accesses |= {Access(TABLE, Mode.PUBLISH, (row,)), Access(TABLE, Mode.MARK)}
        accesses |= {Access(TABLE, Mode.RELEASE, (row,)) for row in seat.locked}
        locked, seat.locked, seat.wrote = list(dict.fromkeys(seat.locked)), [], {}
        seat.in_transaction = seat.aborted = False
        freed: list[str] = []
        print_ = footprint(accesses)
        for row in locked:
            self._queues[row].remove(name)
        for row in sorted(locked):
            queue = self._queues[row]
            if queue and (waiting := self._seats[queue[0]]).waits_for == row:
                follower = queue[0]
                waiting.waits_for = None
                operation = waiting.operations[waiting.at].partition("-")[0]
                further, more = self._locked(follower, operation, row)
                freed += [follower, *further]
                print_ |= more | footprint([Access(TABLE, Mode.LOCK, (row,))])
        return tuple(freed), print_

    def _deadlocked(self, name: str) -> bool:
        seen = set()
        at = name
        while (row := self._seats[at].waits_for) is not None:
            at = self._queues[row][0]
            if at in seen or at == name:
                return True
            seen.add(at)
        return False

    def finish(self) -> Outcome:
        answers = tuple(f"{name}: {' | '.join(seat.heard)}" for name, seat in sorted(self._seats.items()))
        broken = self._judge(self._rows, answers) if self._judge is not None else ()
        return Outcome(tuple(sorted(self._rows.items())), answers, broken)


@dataclass(frozen=True)
class ToyExecutor:
    """Picklable where `judge` and `falsify` are functions of a module."""

    judge: Judge | None = None
    falsify: Falsify | None = None

    def open(self, program: Program) -> Execution:
        return ToyExecution(program, self.judge, self.falsify)


class RecordingExecution(ToyExecution):
    """Keeps every run in the sequence they were made in: its order and its outcome, none if it was cut short."""

    def __init__(self, program: Program) -> None:
        self.runs: list[tuple[list[Choice], Outcome | None]] = []
        super().__init__(program, None)
        self.runs.clear()

    def reset(self) -> None:
        super().reset()
        self.runs.append(([], None))

    def take(self, choice: Choice) -> StepResult:
        self.runs[-1][0].append(choice)
        return super().take(choice)

    def finish(self) -> Outcome:
        outcome = super().finish()
        self.runs[-1] = (self.runs[-1][0], outcome)
        return outcome


@dataclass(frozen=True)
class RecordingExecutor:
    opened: list[RecordingExecution] = field(default_factory=list)

    def open(self, program: Program) -> Execution:
        self.opened.append(RecordingExecution(program))
        return self.opened[-1]


def toy(text: str, **faults: int) -> Program:
    """`toy("A:begin,write-x,commit B:read-x", expire=1)`."""
    actors = []
    for word in text.split():
        name, _, listed = word.partition(":")
        actors.append(Actor(name, tuple(listed.split(","))))
    return Program(tuple(actors), tuple(Fault(name, times) for name, times in faults.items()))


# -- what is planted -------------------------------------------------------------------------------------------


def lost_update(rows: dict[str, str], answers: tuple[str, ...]) -> tuple[str, ...]:
    """Breaks where A read x as it was at first and wrote it last, and B wrote it too: it must have been between."""
    told = rows.get("x", "")
    b_wrote = any(answer.startswith("B:") and "wrote x" in answer for answer in answers)
    return ("lost_update",) if told.startswith("A") and "x0" in told and "B" not in told and b_wrote else ()


def there_and_back(rows: dict[str, str], answers: tuple[str, ...]) -> tuple[str, ...]:
    """Breaks where B saw A's first x and not its second, A then B's y, and B then A's q: A, B, A, B in turn."""
    told = rows.get("w", "")
    return ("there_and_back",) if all(seen in told for seen in ("A0()", "B1(", "A3(")) else ()


# -- executors that misbehave ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class DyingExecutor:
    """The first of all its workers to get that far is killed in the middle of a run; the file says that it was."""

    died: Path
    after_takes: int

    def open(self, program: Program) -> Execution:
        return _DyingExecution(program, self)


class _DyingExecution(ToyExecution):
    def __init__(self, program: Program, of: DyingExecutor) -> None:
        super().__init__(program, None)
        self._of = of

    def take(self, choice: Choice) -> StepResult:
        if self.takes >= self._of.after_takes and not self._of.died.exists():
            self._of.died.touch(exist_ok=False)
            os.kill(os.getpid(), signal.SIGKILL)
        return super().take(choice)


@dataclass(frozen=True)
class DeadlyExecutor:
    """Every worker that opens it is killed; each leaves a file in `died`, named by its process."""

    died: Path

    def open(self, program: Program) -> Execution:
        (self.died / str(os.getpid())).touch()
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError("killed")


@dataclass(frozen=True)
class FailingExecutor:
    """What it raises is its own, and looks like a wait that was too long."""

    def open(self, program: Program) -> Execution:
        raise TimeoutError("the queue did not answer")


@dataclass(frozen=True)
class FickleExecutor:
    """One step of one run differs: the `at`th step it takes says something else, or cannot be followed by B."""

    at: int
    loses_b: bool = False

    def open(self, program: Program) -> Execution:
        return _FickleExecution(program, self)


class _FickleExecution(ToyExecution):
    def __init__(self, program: Program, of: FickleExecutor) -> None:
        super().__init__(program, None)
        self._of = of

    def take(self, choice: Choice) -> StepResult:
        step = super().take(choice)
        if self.takes == self._of.at and not self._of.loses_b:
            return StepResult(step.choice, step.status, step.operation, step.place, "SELECT something else")
        return step

    def enabled(self) -> tuple[Choice, ...]:
        moves = super().enabled()
        if self.takes == self._of.at and self._of.loses_b:
            return tuple(choice for choice in moves if choice.thread != "B")
        return moves


# -- programs --------------------------------------------------------------------------------------------------

STATEMENTS = (
    *("read", "write", "write", "write", "lock", "skip", "scan", "scan", "clock"),
    *("begin", "commit", "rollback", "odd"),
)


def random_program(seed: int) -> Program:
    """Small enough that all its orders can be tried."""
    chance = random.Random(f"toy/{seed}")
    while True:
        program = _random_program(chance)
        if program.operations + 2 * len(program.faults) <= (9 if len(program.actors) == 2 else 7):
            return program


def _random_program(chance: random.Random) -> Program:
    actors = []
    for name in "ABC"[: chance.choice([2, 2, 2, 3])]:
        operations = []
        for _ in range(chance.randint(1, 4)):
            statement = chance.choice(STATEMENTS)
            if statement in ("read", "write", "lock", "skip"):
                statement += "-" + chance.choice("xy")
            operations.append(statement)
        if chance.random() < 0.7:
            operations = ["begin", *operations, "commit"]
        actors.append(Actor(name, tuple(operations)))
    faults = [Fault(name) for name in ("expire", "crash") if chance.random() < 0.2]
    return Program(tuple(actors), tuple(faults))
