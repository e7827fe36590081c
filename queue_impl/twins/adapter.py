"""How a twin is shown to the harness: the promise taken out, and the invariant that must catch it."""

from __future__ import annotations

from fencepost.harness.adapter import Twin
from fencepost.queue_impl.reference.adapter import ReferenceAdapter
from fencepost.queue_impl.reference.client import ReferenceQueue
from fencepost.queue_impl.reference.model import Settings
from fencepost.queue_impl.reference.sql import REFERENCE_SCHEMA


def reference_twin(
    name: str,
    sentence: str,
    *,
    breaks: str,
    client: type[ReferenceQueue] = ReferenceQueue,
    schema: str = REFERENCE_SCHEMA,
    settings: Settings | None = None,
    stands_for: str | None = None,
) -> Twin:
    """The reference queue with another client class, another schema, or both."""
    queue = ReferenceAdapter(name, client=client, schema=schema, settings=settings)
    return Twin(name, sentence, breaks, queue, path=f"{__package__}:{name}", stands_for=stands_for)
