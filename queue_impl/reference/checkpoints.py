"""The named places inside the queue's operations where a test can hold it.

A queue calls its hook at each; the default does nothing. Wherever two statements could be torn apart, one of
these lies between them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

Checkpoint: TypeAlias = Callable[[str], None]

_GUARD = ("before_lock", "after_lock", "after_guard")
_COMMIT = ("before_commit", "after_commit")

CHECKPOINTS: Mapping[str, tuple[str, ...]] = {
    # `between_lookup_and_insert` is passed only with an idempotency key that the look-up did not find.
    "enqueue": ("between_lookup_and_insert", *_COMMIT),
    # After `after_claim` the job is leased in a transaction that is still open.
    "claim": ("before_claim", "after_claim", *_COMMIT),
    # A refused or repeated write ends at `after_guard`; one for an unknown job before `after_lock`.
    "complete": (*_GUARD, "before_ledger", "after_ledger", *_COMMIT),
    "fail": (*_GUARD, *_COMMIT),
    "heartbeat": (*_GUARD, *_COMMIT),
    "cancel": (*_GUARD, *_COMMIT),
    # `after_guard` to `after_ledger` once per accepted item; `after_guard` alone for the others.
    "complete_batch": (*_GUARD, "before_ledger", "after_ledger", *_COMMIT),
    # A sweep that finds nothing passes all of them as well.
    "reap": ("after_snapshot", "after_recheck", "before_requeue", *_COMMIT),
    "requeue": _COMMIT,
    # Once per heartbeat, in the thread that sends them; each heartbeat's own come after it.
    "keep_alive": ("before_heartbeat", *_GUARD, *_COMMIT),
}


def no_checkpoint(_name: str) -> None:
    """The hook of a queue that is not under test."""
