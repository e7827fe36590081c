"""Wrong adapters to be made of the reference queue's, one thing overridden, and what the check finds in them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fencepost.harness.adapter import ActorSeat, Capability, JobView, Observation
from fencepost.harness.adapter_check import CheckResult, check_adapter
from fencepost.harness.lab import Lab
from fencepost.harness.loading import LoadedQueue
from fencepost.queue_impl.reference.adapter import ReferenceAdapter, ReferenceWorker


class Worker:
    """The reference queue's worker; a wrong one overrides what it gets wrong."""

    def __init__(self, inner: ReferenceWorker, actor: ActorSeat, dsn: str) -> None:
        self.inner = inner
        self.actor = actor
        self.dsn = dsn

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


class Adapter(ReferenceAdapter):
    """The reference queue's adapter; a wrong one overrides what it gets wrong."""

    worker_class: type[Worker] = Worker

    def worker(self, actor: ActorSeat, dsn: str) -> Any:
        return self.worker_class(super().worker(actor, dsn), actor, dsn)


def with_worker(worker: type[Worker]) -> Adapter:
    adapter = Adapter()
    adapter.worker_class = worker
    return adapter


def seen_through(change: Callable[[JobView], JobView]) -> Adapter:
    class ChangedView(Adapter):
        def observe(self, dsn: str) -> Observation:
            seen = super().observe(dsn)
            return Observation(seen.at_us, tuple(change(view) for view in seen.jobs), seen.ledger)

    return ChangedView()


def declaring(*more: Capability, without: frozenset[Capability] = frozenset()) -> Adapter:
    adapter = Adapter()
    adapter.capabilities = (adapter.capabilities | frozenset(more)) - without
    return adapter


def check_of(lab: Lab, adapter: Adapter, name: str) -> list[CheckResult]:
    loaded = LoadedQueue(adapter, f"tests.fix_adapters:{name}")
    try:
        return check_adapter(lab, loaded)
    finally:
        lab.put_away(loaded)


def failed(results: list[CheckResult]) -> dict[str, CheckResult]:
    return {result.name: result for result in results if result.ok is False}


def not_made(results: list[CheckResult]) -> dict[str, str]:
    """By name, why."""
    return {result.name: result.wrong for result in results if result.ok is None}
