"""Queues that misbehave on purpose: the reference queue, in which actor A's worker does what no worker should.

Only A's: the others, and the worker that drains a run, stay as they are. Named by `fencepost.tests.fix_queues:NAME`,
so that process actors find them too.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from fencepost.harness.adapter import ActorSeat, Answer, Capability, Claim, Observation, QueueRefusal
from fencepost.harness.drain import DRAINER
from fencepost.queue_impl.reference.adapter import CAPABILITIES, ReferenceAdapter, ReferenceWorker

ODD_ACTOR = "A"
NEVER_S = 600.0
"""Longer than any test: who waits for this is stuck."""

Instead = Callable[..., Any]


class OddWorker:
    """A worker with some operations exchanged; each of those gets the seat and the worker before its arguments."""

    def __init__(self, seat: ActorSeat, worker: ReferenceWorker, instead: dict[str, Instead | None]) -> None:
        self._seat = seat
        self._worker = worker
        self._instead = instead

    def __getattr__(self, name: str) -> Any:
        if name not in self._instead:
            return getattr(self._worker, name)
        exchanged = self._instead[name]
        return None if exchanged is None else partial(exchanged, self._seat, self._worker)


class OddQueue(ReferenceAdapter):
    def __init__(
        self, name: str, capabilities: frozenset[Capability] = CAPABILITIES, **instead: Instead | None
    ) -> None:
        super().__init__(name, capabilities=capabilities)
        self._instead = instead

    def worker(self, actor: ActorSeat, dsn: str) -> Any:
        worker = super().worker(actor, dsn)
        return OddWorker(actor, worker, self._instead) if actor.name == ODD_ACTOR else worker


def _raise(error: BaseException) -> Instead:
    def raising(seat: ActorSeat, worker: ReferenceWorker, *arguments: Any, **named: Any) -> Any:
        raise error

    return raising


def _sleep_in_the_server(seat: ActorSeat, worker: ReferenceWorker, *arguments: Any, **options: Any) -> Any:
    seat.checkpoint("before_lock")
    worker._connection.execute("SELECT pg_sleep(%s)", (NEVER_S,))


def _wait_in_the_worker(seat: ActorSeat, worker: ReferenceWorker, *arguments: Any, **options: Any) -> Any:
    threading.Event().wait(NEVER_S)


def _claim_and_print(seat: ActorSeat, worker: ReferenceWorker, **named: Any) -> Any:
    sys.stdout.write('{"reply":{"outcome":"refused","reason":"printed"}}\n')
    sys.stdout.flush()
    os.write(1, b"not a line of the protocol\n")
    return worker.claim(**named)


def _claim_once(seat: ActorSeat, worker: ReferenceWorker, *arguments: Any, **named: Any) -> Any:
    return worker.claim(**named) if seat.name in (ODD_ACTOR, DRAINER) else None


def _tell_own_time(seat: ActorSeat, worker: ReferenceWorker, claim: Claim, **options: Any) -> Answer:
    return Answer.refused(str(time.time_ns() // 1000))


def _tell_time_zone(seat: ActorSeat, worker: ReferenceWorker, claim: Claim, error: str) -> Answer:
    row = worker._connection.execute("SHOW TimeZone").fetchone()
    assert row is not None
    return Answer.refused(row[0])


raises_type_error = OddQueue("raises_type_error", complete=_raise(TypeError("no such thing")))
not_implemented = OddQueue("not_implemented", complete=_raise(NotImplementedError("one day")))
SECRET = "s3cret"
tells_its_password = OddQueue(
    "tells_its_password",
    complete=_raise(
        ConnectionError(
            f"no answer from postgresql://app:{SECRET}@db.example/jobs (tried host=db password='{SECRET} too' too)"
        )
    ),
)
returns_wrong_type = OddQueue("returns_wrong_type", complete=lambda seat, worker, claim, **options: True)
exits = OddQueue("exits", complete=_raise(SystemExit(3)))
lacks_heartbeat = OddQueue("lacks_heartbeat", heartbeat=None)
sleeps_in_the_server = OddQueue("sleeps_in_the_server", complete=_sleep_in_the_server)
waits_in_the_worker = OddQueue("waits_in_the_worker", complete=_wait_in_the_worker)
tells_the_time = OddQueue("tells_the_time", complete=_tell_own_time, fail=_tell_time_zone)
prints = OddQueue("prints", claim=_claim_and_print)
close_raises = OddQueue(
    "close_raises", CAPABILITIES - {Capability.WARM_WORKERS}, close=_raise(RuntimeError("still busy"))
)


class CannotOpen(ReferenceAdapter):
    def worker(self, actor: ActorSeat, dsn: str) -> Any:
        if ODD_ACTOR in (actor.name, actor.worker_name):
            raise ConnectionRefusedError("nobody listens")
        return super().worker(actor, dsn)


cannot_open = CannotOpen("cannot_open")


class ObserveBreaks(ReferenceAdapter):
    """Its first observations are right."""

    def __init__(self) -> None:
        super().__init__("observe_breaks")
        self._left = 4

    def observe(self, dsn: str) -> Observation:
        self._left -= 1
        if self._left < 0:
            raise ValueError("rows nobody can read")
        return super().observe(dsn)


class ResetBreaks(ReferenceAdapter):
    def reset(self, dsn: str) -> None:
        raise ValueError("never again")


class NobodyReclaims(ReferenceAdapter):
    """A lease that has expired is given to nobody but the worker that drains: the race cannot be established."""

    def worker(self, actor: ActorSeat, dsn: str) -> Any:
        return OddWorker(actor, super().worker(actor, dsn), {"claim": _claim_once})


nobody_reclaims = NobodyReclaims("nobody_reclaims")


class AsyncWorker:
    def __init__(self, worker: ReferenceWorker) -> None:
        self._worker = worker

    def __getattr__(self, name: str) -> Any:
        operation = getattr(self._worker, name)

        async def perform(*arguments: Any, **named: Any) -> Any:
            await asyncio.sleep(0)  # really suspended: who does not await it gets no answer
            return operation(*arguments, **named)

        return perform


class AsyncQueue(ReferenceAdapter):
    """Every method of the contract as `async def`."""

    async def install(self, dsn: str) -> None:  # type: ignore[override]
        await asyncio.sleep(0)
        super().install(dsn)

    async def worker(self, actor: ActorSeat, dsn: str) -> Any:  # type: ignore[override]
        await asyncio.sleep(0)
        return AsyncWorker(super().worker(actor, dsn))

    async def observe(self, dsn: str) -> Observation:  # type: ignore[override]
        await asyncio.sleep(0)
        return super().observe(dsn)

    async def reset(self, dsn: str) -> None:  # type: ignore[override]
        await asyncio.sleep(0)
        super().reset(dsn)

    async def close(self) -> None:  # type: ignore[override]
        await asyncio.sleep(0)
        super().close()


all_async = AsyncQueue("all_async")


# -- claims that come to nothing ---------------------------------------------------------------------------------


def _get_nothing(seat: ActorSeat, worker: ReferenceWorker, *arguments: Any, **named: Any) -> None:
    return None


claims_nothing = OddQueue("claims_nothing", claim=_get_nothing)
refuses_claims = OddQueue("refuses_claims", claim=_raise(QueueRefusal("maintenance")))
raises_in_claim = OddQueue("raises_in_claim", claim=_raise(RuntimeError("out of order")))
