"""What the gate is to do at which statement, as data with one text form: `/COMMIT/#2: lose reply`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal, TypeAlias

from fencepost.harness.errors import UsageError

CutHow: TypeAlias = Literal["fin", "rst"]
When: TypeAlias = Literal["before", "after"]


@dataclass(frozen=True, slots=True)
class StatementNumber:
    """The n-th statement of an operation, counted from 1 over all connections of the actor."""

    ordinal: int

    def __post_init__(self) -> None:
        if self.ordinal < 1:
            raise UsageError(f"statement {self.ordinal}: statements are counted from 1.")

    def __str__(self) -> str:
        return f"statement {self.ordinal}"


@dataclass(frozen=True, slots=True)
class SqlPattern:
    """The n-th statement of an operation whose SQL has this in it: a regular expression, upper and lower case alike."""

    pattern: str
    nth: int = 1

    def __post_init__(self) -> None:
        if not self.pattern or "\n" in self.pattern:
            raise UsageError("a SQL pattern is one line that is not empty.")
        if self.nth < 1:
            raise UsageError(f"/{self.pattern}/#{self.nth}: occurrences are counted from 1.")
        try:
            re.compile(self.pattern)
        except re.error as problem:
            raise UsageError(f"/{self.pattern}/ is no regular expression: {problem}.") from None

    def __str__(self) -> str:
        shown = re.sub(r"(\\.)|/", lambda found: found.group(1) or r"\/", self.pattern)
        return f"/{shown}/" + (f"#{self.nth}" if self.nth > 1 else "")

    def found_in(self, sql: str) -> bool:
        return re.search(self.pattern, sql, re.IGNORECASE) is not None  # re keeps what it has compiled


StatementAddress: TypeAlias = StatementNumber | SqlPattern


@dataclass(frozen=True, slots=True)
class ParkBefore:
    """Hold it before the server gets anything of it."""

    def __str__(self) -> str:
        return "park before"


@dataclass(frozen=True, slots=True)
class ParkAfter:
    """Hold its whole answer before the client gets anything of it."""

    def __str__(self) -> str:
        return "park after"


@dataclass(frozen=True, slots=True)
class LoseRequest:
    """The server never gets it; then the connection ends on both sides."""

    def __str__(self) -> str:
        return "lose request"


@dataclass(frozen=True, slots=True)
class LoseReply:
    """The server does it and answers in full; then the connection ends and the client got nothing of the answer."""

    def __str__(self) -> str:
        return "lose reply"


@dataclass(frozen=True, slots=True)
class Cut:
    """As losing the request (before) or the reply (after), by the chosen way a connection ends."""

    how: CutHow
    when: When

    def __str__(self) -> str:
        return f"cut {self.how} {self.when}"


@dataclass(frozen=True, slots=True)
class CutMidReply:
    """The server does it and answers in full; the client gets half of its first message, and the end."""

    def __str__(self) -> str:
        return "cut mid reply"


@dataclass(frozen=True, slots=True)
class InjectError:
    """The server never gets it, the client gets this error, and the transaction it was in has failed on both sides."""

    sqlstate: str

    def __post_init__(self) -> None:
        check_sqlstate(self.sqlstate)
        if self.sqlstate == TOO_MANY_CONNECTIONS:
            raise UsageError(
                "error 53300 answers a connection and not a statement: refuse the actor's connections instead."
            )

    def __str__(self) -> str:
        return f"error {self.sqlstate}"


@dataclass(frozen=True, slots=True)
class Delay:
    """Keep it this long, in real time, before it is sent."""

    seconds: float

    def __post_init__(self) -> None:
        if not 0 <= self.seconds <= MAX_DELAY_S:
            raise UsageError(f"delay {self.seconds:g} s: give 0 to {MAX_DELAY_S:g} seconds.")

    def __str__(self) -> str:
        return f"delay {self.seconds:g} s"


Action: TypeAlias = ParkBefore | ParkAfter | LoseRequest | LoseReply | Cut | CutMidReply | InjectError | Delay


@dataclass(frozen=True, slots=True)
class Rule:
    address: StatementAddress
    action: Action

    def __str__(self) -> str:
        return f"{self.address}: {self.action}"


MAX_DELAY_S = 3600.0
TOO_MANY_CONNECTIONS = "53300"
ADMIN_SHUTDOWN = "57P01"
MESSAGES = {
    "40001": "could not serialize access due to concurrent update",
    "40P01": "deadlock detected",
    ADMIN_SHUTDOWN: "terminating connection due to administrator command",
    TOO_MANY_CONNECTIONS: "sorry, too many clients already",
}
"""As the server words them."""

_WORDS: dict[str, Action] = {
    str(action): action
    for action in (
        ParkBefore(),
        ParkAfter(),
        LoseRequest(),
        LoseReply(),
        CutMidReply(),
        Cut("fin", "before"),
        Cut("fin", "after"),
        Cut("rst", "before"),
        Cut("rst", "after"),
    )
}
_ADDRESS = re.compile(r"statement (?P<ordinal>\d+)|/(?P<pattern>(?:[^/\\]|\\.)+)/(?:#(?P<nth>\d+))?")
_ERROR = re.compile(r"error (?P<sqlstate>\S+)")
_DELAY = re.compile(r"delay (?P<seconds>\d+(?:\.\d+)?(?:e-?\d+)?) s")


def is_before(action: Action) -> bool:
    """Whether it happens before the statement is sent, not when its answer has come."""
    match action:
        case Cut():
            return action.when == "before"
        case ParkAfter() | LoseReply() | CutMidReply():
            return False
        case _:
            return True


def check_sqlstate(sqlstate: str) -> None:
    if not re.fullmatch(r"[0-9A-Z]{5}", sqlstate) or sqlstate.startswith("00"):
        raise UsageError(f"'{sqlstate}' is no SQLSTATE of an error: give five characters such as 40001.")


def message_of(sqlstate: str) -> str:
    return MESSAGES.get(sqlstate, f"error {sqlstate} injected by the gate")


def parse_address(text: str) -> StatementAddress:
    found = _ADDRESS.fullmatch(text.strip())
    if found is None:
        raise UsageError(f"'{text}' names no statement: write 'statement 3', '/COMMIT/' or '/UPDATE/#2'.")
    return _address(found)


def parse_action(text: str) -> Action:
    words = " ".join(text.split())
    if words in _WORDS:
        return _WORDS[words]
    if found := _ERROR.fullmatch(words):
        return InjectError(found["sqlstate"])
    if found := _DELAY.fullmatch(words):
        return Delay(float(found["seconds"]))
    known = ", ".join((*_WORDS, "error SQLSTATE", "delay SECONDS s"))
    raise UsageError(f"'{text}' is nothing the gate can do: write one of {known}.")


def parse_rule(text: str) -> Rule:
    stripped = text.strip()
    found = _ADDRESS.match(stripped)
    if found is None or not stripped[found.end() :].startswith(":"):
        raise UsageError(f"'{text}' is no rule: write STATEMENT: ACTION, as in '/COMMIT/: lose reply'.")
    return Rule(_address(found), parse_action(stripped[found.end() + 1 :]))


def _address(found: re.Match[str]) -> StatementAddress:
    if found["ordinal"] is not None:
        return StatementNumber(int(found["ordinal"]))
    return SqlPattern(found["pattern"].replace(r"\/", "/"), int(found["nth"] or 1))
