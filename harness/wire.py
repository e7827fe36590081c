"""An actor's path to the server, where it leads through the gate or a network engine, as the runner sees it.

Through the gate (`path="gate"`, or any path with `--step statement`) single statements can be held, lost or answered
with an error. Through a network engine (`path="network"`) whole connections can be paused, delayed, cut, made deaf.
With the engine `gate` both are the same path.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache

from fencepost.harness.gate import (
    Cut,
    GatePath,
    InjectError,
    LoseReply,
    LoseRequest,
    ParkAfter,
    ParkBefore,
    Rule,
    SqlPattern,
    StatementAddress,
    StatementNumber,
    StatementRecord,
)
from fencepost.harness.gate.drive import GateDrive
from fencepost.harness.history import Call, Statement
from fencepost.harness.network.base import CutBy, NetworkPath
from fencepost.harness.verdict import Fault

StatementRule = Rule
At = int | str | StatementAddress
"""A statement of an operation: its number from 1 on, a regular expression its SQL has in it, or an address."""

HEADLINE_CHARS = 40
_ENDED_FATES = frozenset({"request lost", "reply lost", "connection ended"})


def address(at: At) -> StatementAddress:
    if isinstance(at, int):
        return StatementNumber(at)
    return SqlPattern(at) if isinstance(at, str) else at


def before(at: At) -> Rule:
    """Hold the actor before this statement is sent."""
    return Rule(address(at), ParkBefore())


def after(at: At) -> Rule:
    """Hold the actor when this statement has been answered, before it gets the answer."""
    return Rule(address(at), ParkAfter())


def lose_request(at: At) -> Rule:
    """The server never gets this statement, and the connection dies."""
    return Rule(address(at), LoseRequest())


def lose_reply(at: At) -> Rule:
    """The server does this statement, and the connection dies before its answer is there."""
    return Rule(address(at), LoseReply())


def reset_before(at: At) -> Rule:
    return Rule(address(at), Cut("rst", "before"))


def reset_after(at: At) -> Rule:
    return Rule(address(at), Cut("rst", "after"))


def error(sqlstate: str, at: At) -> Rule:
    """This statement is answered with an error instead of being sent, and its transaction has failed."""
    return Rule(address(at), InjectError(sqlstate))


class Withholds(StrEnum):
    """What a path does not let through."""

    EVERYTHING = "everything"
    REPLIES = "replies"
    REQUESTS = "requests"


@dataclass(frozen=True, slots=True)
class Parked:
    """A statement the gate holds now."""

    place: str  # for people and traces: "before statement 6 (COMMIT)"
    answered: bool  # the server has done it; its answer is what is held


class Wire:
    """One actor's path. Opened once per actor and bench; the actor's connections come and go through it."""

    def __init__(
        self, path: NetworkPath, gate: GatePath | None = None, drive: GateDrive | None = None
    ) -> None:
        """`gate`: the gate's side of the path, where it leads through the gate; `drive`: how the gate is run."""
        self._path = path
        self._gate = gate
        self.drive = drive
        self._rules: tuple[Rule, ...] = ()
        self._told: dict[int, str] = {}  # ordinal: the answer last put into a step
        self.withholds: Withholds | None = None
        self.has_lost = False
        """Something the path was given is gone for good: its connections can only be cut."""
        self.last_query_us: int | None = None
        """When the actor's last statement began on the server, as seen when the path was last struck."""

    @property
    def address(self) -> dict[str, str | int]:
        """Host and port, for a connection string."""
        return {"host": self._path.host, "port": self._path.port}

    # -- statements ---------------------------------------------------------------------------------------

    def begin(self, operation: str, rules: Sequence[Rule], *, every_statement: bool) -> None:
        self._rules = tuple(rules)
        self._told = {}
        if self._gate is not None:
            self._gate.begin_operation(operation, rules, step_every_statement=every_statement)

    def lost_backends(self) -> frozenset[int]:
        """Backends whose connection ended under a statement of the operation."""
        if self._gate is None:
            return frozenset()
        return frozenset(r.pid for r in self._gate.statements if r.fate in _ENDED_FATES and r.pid)

    def end(self, call: Call) -> list[Fault]:
        """The faults that were armed at this call's statements, and whether each fired."""
        if self._gate is None:
            return []
        unfired = {str(rule) for rule in self._gate.unfired}
        records = self._gate.end_operation()
        came = ", ".join(f"{record.ordinal} {headline(record.sql)}" for record in records) or "none"
        faults = [
            Fault(
                f"{rule} of {call.actor}'s {call.operation}",
                fired=str(rule) not in unfired,
                note=f"statements that came: {came}",
            )
            for rule in self._rules
            if not is_hold(rule)
        ]
        self._rules = ()
        return faults

    @property
    def parked(self) -> Parked | None:
        statement = self._gate.parked if self._gate is not None else None
        if statement is None:
            return None
        place = f"{statement.when} statement {statement.ordinal} ({headline(statement.sql)})"
        return Parked(place, statement.when == "after")

    @property
    def held_by_rule(self) -> str | None:
        """The hold of the schedule that the parked statement is at, if it is at one."""
        statement = self._gate.parked if self._gate is not None else None
        if statement is None:
            return None
        for rule in self._rules:
            if (
                is_hold(rule)
                and when(rule) == statement.when
                and self._is_at(rule.address, statement.ordinal)
            ):
                return hold_place(rule)
        return None

    def _is_at(self, where: StatementAddress, ordinal: int) -> bool:
        if isinstance(where, StatementNumber):
            return where.ordinal == ordinal
        assert self._gate is not None
        matching = [r.ordinal for r in self._gate.statements if where.found_in(r.sql)]
        return len(matching) >= where.nth and matching[where.nth - 1] == ordinal

    def release(self) -> None:
        assert self._gate is not None
        self._gate.release()

    def take_statements(self) -> tuple[Statement, ...]:
        """Those that came or were answered since the last look."""
        if self._gate is None:
            return ()
        new = [r for r in self._gate.statements if self._told.get(r.ordinal) != r.answer]
        self._told |= {record.ordinal: record.answer for record in new}
        return tuple(_statement(record) for record in new)

    # -- harm ---------------------------------------------------------------------------------------------

    def pause(self) -> None:
        self._path.pause()
        self.withholds = Withholds.EVERYTHING

    def resume(self) -> None:
        self._path.resume()
        self.withholds = None

    def delay(self, seconds: float) -> None:
        self._path.delay(seconds)
        self.withholds = Withholds.EVERYTHING

    def arrive(self) -> None:
        """The delay is over: what was on its way arrives now."""
        self._path.no_delay()
        self.withholds = None

    def cut(self, how: CutBy) -> None:
        self._path.cut(how)
        self._clear()

    def refuse_connections(self, sqlstate: str) -> None:
        """The next connection is answered with this error; then they are let through again."""
        assert self._gate is not None
        self._gate.refuse_connections(sqlstate)

    def lose_reply(self) -> None:
        self._path.lose_reply()
        self.withholds = Withholds.REPLIES
        self.has_lost = True

    def lose_request(self) -> None:
        self._path.lose_request()
        self.withholds = Withholds.REQUESTS
        self.has_lost = True

    def half_open(self) -> None:
        self._path.half_open()
        self.withholds = Withholds.EVERYTHING
        self.has_lost = True

    def cut_mid_message(self) -> None:
        self._path.cut_mid_message()

    def end_withholding(self) -> None:
        """Let what is withheld arrive, or cut the connections where something of it is gone."""
        self._path.clean()
        self._clear()

    def clean(self) -> None:
        """Between races: no rule, no fault is left."""
        self._path.clean()
        if self._gate is not None:
            self._gate.reset()
        self._clear()

    def close(self) -> None:
        self._path.close()

    def _clear(self) -> None:
        self.withholds = None
        self.has_lost = False


def is_hold(rule: Rule) -> bool:
    return isinstance(rule.action, ParkBefore | ParkAfter)


def when(rule: Rule) -> str:
    return "before" if isinstance(rule.action, ParkBefore) else "after"


def hold_place(rule: Rule) -> str:
    return f"{when(rule)} {rule.address}"


@lru_cache(maxsize=4_096)
def headline(sql: str) -> str:
    """The beginning of a statement on one line."""
    words = " ".join(sql.split())
    return words if len(words) <= HEADLINE_CHARS else words[: HEADLINE_CHARS - 1] + "…"


def _statement(record: StatementRecord) -> Statement:
    return Statement(record.ordinal, record.sql, tuple(record.parameters), record.answer, record.pid)
