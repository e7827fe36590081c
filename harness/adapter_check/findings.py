"""What a check can find, and the words for it."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fencepost.harness.adapter import Capability
from fencepost.harness.history import Reply

if TYPE_CHECKING:
    from fencepost.harness.adapter_check.hands import Hands


@dataclass(frozen=True, slots=True)
class CheckResult:
    """`ok` is None where the check was not made; `wrong` then says why."""

    name: str
    ok: bool | None
    wrong: str = ""
    advice: str = ""


@dataclass(frozen=True, slots=True)
class Check:
    name: str
    perform: Callable[[Hands], None]
    needs: frozenset[Capability] = frozenset()
    """All of these; one that the queue does not declare is its choice, and the check is not made."""
    after: tuple[str, ...] = ()
    """Checks whose sentence this one takes for true: where one of them failed, this one would mislead."""
    basic: bool = False
    """Every later check takes its sentence for true."""
    probes: Capability | None = None
    """The capability that this check holds the queue to: it may as well be taken back."""


class Wrong(Exception):
    """What a check found: one sentence on what is wrong, one on what to do."""

    def __init__(self, wrong: str, advice: str) -> None:
        super().__init__(wrong)
        self.wrong = wrong
        self.advice = advice


class NotMade(Exception):
    """Nothing can be said here; the message says why."""


def told(value: object) -> str:
    text = repr(value)
    if inspect.isawaitable(value):
        return "a coroutine nobody awaited"
    return f"{text[:80]} ({type(value).__name__})"


def why(reply: Reply) -> str:
    return reply.message or reply.reason or reply.outcome.value


def first_line(error: Exception) -> str:
    text = str(error).strip()
    return text.splitlines()[0].rstrip(".") if text else "no message"
