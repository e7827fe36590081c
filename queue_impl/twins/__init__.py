"""Deliberately broken copies of the reference queue: one promise taken out each, in as few lines as possible.

A module per part of the queue that is broken; each ends with its `TWINS`. The adapter of a single twin is
`fencepost.queue_impl.twins:NAME`.
"""

from __future__ import annotations

from fencepost.harness.adapter import Queue

from . import (
    answers,
    batches,
    durability,
    guards,
    heartbeats,
    leases,
    ledgers,
    reapers,
    retries,
    submissions,
    terminals,
    tokens,
)

TWINS = (
    *answers.TWINS,
    *batches.TWINS,
    *durability.TWINS,
    *guards.TWINS,
    *heartbeats.TWINS,
    *leases.TWINS,
    *ledgers.TWINS,
    *reapers.TWINS,
    *retries.TWINS,
    *submissions.TWINS,
    *terminals.TWINS,
    *tokens.TWINS,
)

__all__ = ["TWINS"]


def __getattr__(name: str) -> Queue:
    for twin in TWINS:
        if twin.name == name:
            return twin.queue
    raise AttributeError(f"no twin is called {name}; there are: {', '.join(twin.name for twin in TWINS)}")
