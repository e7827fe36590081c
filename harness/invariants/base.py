"""What every invariant is, and how the parts of a step are read."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import ClassVar

from fencepost.harness.adapter import Capability, Claim, JobId, JobView, Outcome
from fencepost.harness.history import Call, Reply, Step, Violation

US_PER_S = 1_000_000

SETTLING = frozenset({"complete", "fail", "cancel"})
"""Operations that end a lease."""


class Invariant(ABC):
    """A predicate over the history of observations and answers. One instance judges one run.

    Instances keep what they need of the past; a step costs the same however long the run is.
    """

    name: ClassVar[str]
    sentence: ClassVar[str]
    needs: ClassVar[frozenset[Capability]] = frozenset()
    """Capabilities without which it does not apply."""

    def __init__(self) -> None:
        self.evaluated = 0
        """How often it was judged on an observation with jobs in it."""
        self.exercised = 0
        """How often the situation it speaks about was there: evaluated alone may be vacuous."""

    def judge(self, step: Step) -> Violation | None:
        """To be called for every step of the run, in order. The first job found violated is reported."""
        if step.after.jobs:
            self.evaluated += 1
        return self.check(step)

    @abstractmethod
    def check(self, step: Step) -> Violation | None:
        """The predicate itself."""

    def violation(self, step: Step, job: JobId | None, message: str) -> Violation:
        return Violation(self.name, job, step.number, message)


def verb(call: Call) -> str:
    """The operation, the same for one item and for a batch of them."""
    return call.operation.removesuffix("_batch")


def ttl_us(call: Call) -> int | None:
    ttl_s = call.arguments.get("ttl_s")
    return None if ttl_s is None else int(ttl_s * US_PER_S)


def answers(step: Step) -> Iterator[tuple[Claim, Reply]]:
    """Each claim the call acted under with its own answer, once the answer is there."""
    if step.reply is not None and step.call is not None:
        yield from answers_of(step.call)


def answers_of(call: Call) -> Iterator[tuple[Claim, Reply]]:
    """As `answers`, of the call itself."""
    reply = call.reply
    if reply is None:
        return
    if reply.items:
        yield from zip(call.claims, reply.items, strict=False)
    else:
        for claim in call.claims:
            yield claim, reply


def applied(reply: Reply) -> bool:
    """It was accepted now, and is not the repetition of an answer given before."""
    return reply.outcome is Outcome.ACCEPTED and not reply.repeated


def same_token(one: int | None, other: int | None) -> bool:
    """Whether two tokens can be of one lease: a token that is not known speaks against nothing."""
    return one is None or other is None or one == other


def who(step: Step) -> str:
    actor = step.call.actor if step.call is not None else step.actor
    return actor or "somebody"


def taker(step: Step, view: JobView) -> str:
    """Who got the job the row shows as leased: the step that shows it may be that of one who let him go on."""
    claiming = step.call is not None and verb(step.call) == "claim"
    return who(step) if claiming or view.holder is None else view.holder


def token_of(view: JobView | None) -> int:
    """A row's token, below all tokens where there is none."""
    return -1 if view is None or view.token is None else view.token
