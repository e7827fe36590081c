"""The invariants: predicates over what a run observed and was answered. Pure, incremental, one class each.

A run makes one instance of each that applies, and shows it every step in order.
"""

from __future__ import annotations

from collections.abc import Collection

from fencepost.harness.adapter import Capability
from fencepost.harness.errors import UsageError
from fencepost.harness.invariants.base import Invariant
from fencepost.harness.invariants.fencing import Fence, TokenMonotone
from fencepost.harness.invariants.jobs import (
    AttemptsBounded,
    Converges,
    IdempotentSubmit,
    NoLostJob,
    NotBefore,
    OnePlace,
    TerminalAbsorbing,
)
from fencepost.harness.invariants.leases import (
    HeartbeatHonoured,
    RequeuedOnce,
    RestartKeepsLeases,
    SingleHolder,
)
from fencepost.harness.invariants.ledger import LedgerOnce, LedgerUnique
from fencepost.harness.invariants.movers import FollowsMovers, Movers

__all__ = ["INVARIANTS", "Invariant", "applicable", "by_name"]

INVARIANTS: tuple[type[Invariant], ...] = (
    LedgerUnique,
    LedgerOnce,
    Fence,
    TokenMonotone,
    SingleHolder,
    TerminalAbsorbing,
    NoLostJob,
    IdempotentSubmit,
    AttemptsBounded,
    NotBefore,
    HeartbeatHonoured,
    RequeuedOnce,
    RestartKeepsLeases,
    Converges,
    OnePlace,
)
"""All of them, in the order they are judged and reported."""


def by_name(name: str) -> type[Invariant]:
    for invariant in INVARIANTS:
        if invariant.name == name:
            return invariant
    known = ", ".join(invariant.name for invariant in INVARIANTS)
    raise UsageError(f"there is no invariant {name!r}; there are: {known}")


def applicable(capabilities: frozenset[Capability], only: Collection[str] | None = None) -> list[Invariant]:
    """Fresh instances of those a queue with these capabilities can be judged by, or of `only` those."""
    wanted = None if only is None else {by_name(name) for name in only}
    chosen = [
        invariant()
        for invariant in INVARIANTS
        if invariant.needs <= capabilities and (wanted is None or invariant in wanted)
    ]
    shared = Movers()
    for each in chosen:
        if isinstance(each, FollowsMovers):
            each.follow(shared)
    return chosen
