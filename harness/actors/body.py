"""What an actor does, whether it is a thread or a process: perform operations on its own worker."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import psycopg

from fencepost.harness.actors.messages import Request, Seat
from fencepost.harness.adapter import (
    Answer,
    Claim,
    IdempotencyConflict,
    Json,
    Outcome,
    Queue,
    QueueRefusal,
    missing_operations,
)
from fencepost.harness.control import ControlSession
from fencepost.harness.errors import UsageError
from fencepost.harness.history import Reply
from fencepost.harness.sink import EFFECT, call_sink


class AdapterFault(Exception):
    """The adapter did something the contract does not allow; nothing can be concluded from such a run."""


_MISTAKES = (
    AdapterFault,
    TypeError,
    AttributeError,
    LookupError,
    AssertionError,
    NameError,
    ImportError,
    NotImplementedError,
)


class ActorBody:
    """Owns one worker and one control session. All calls come from the one thread it lives in."""

    def __init__(self, queue: Queue, seat: Seat, report_passed: Callable[[str], None]) -> None:
        self._seat = seat
        self._report_passed = report_passed
        self._control = ControlSession(seat.control_dsn, application_name=f"fencepost:{seat.actor}")
        self._loop: asyncio.Runner | None = None
        self._holds: Mapping[str, int] = {}
        self.name = seat.actor
        self.worker_name = seat.worker_name
        try:
            self._worker: Any = self._resolve(queue.worker(self, seat.dsn))
        except BaseException:
            self._control.close()
            raise
        lacking = missing_operations(self._worker, queue.capabilities)
        if lacking:
            self.close()
            raise UsageError(
                f"The worker of queue '{queue.name}' has no {', '.join(lacking)}: "
                "add it, or take the capability that promises it out of `capabilities`."
            )

    def checkpoint(self, name: str) -> None:
        """Given to the queue as its hook. Waits at a barrier if the current operation is held here."""
        key = self._holds.get(name)
        if key is not None:
            self._control.wait_at_barrier(key)
        self._report_passed(name)

    def perform(self, request: Request) -> Reply:
        self._holds = request.holds
        try:
            return self._perform(request)
        except IdempotencyConflict as error:
            return Reply(Outcome.REFUSED, reason="idempotency_conflict", message=str(error))
        except QueueRefusal as error:
            return Reply(Outcome.REFUSED, reason=error.reason, message=str(error))
        except _MISTAKES as error:
            # These come from code, not from a queue's decision: the run cannot count as anything.
            raise AdapterFault(f"{request.operation} raised {type(error).__name__}: {error}") from error
        except Exception as error:  # noqa: BLE001 - any client library's error is an answer to be recorded
            return _reply_to_error(error)
        finally:
            self._holds = {}

    def _perform(self, request: Request) -> Reply:
        if request.operation == EFFECT:
            return call_sink(request.arguments["url"], self.worker_name, request.claims[0])
        operation = getattr(self._worker, request.operation)
        result = self._resolve(operation(*_positional(request), **request.arguments))
        reply = _as_reply(request.operation, result)
        for claim in reply.claims if request.race else ():  # race 0: nobody keeps a journal of it
            self._control.record_execution(request.race, self.name, claim.job, claim.token)
        return reply

    def _resolve(self, value: Any) -> Any:
        if not inspect.isawaitable(value):
            return value
        if self._loop is None:
            self._loop = asyncio.Runner()
        return self._loop.run(_await(value))

    def close(self) -> None:
        try:
            worker = getattr(self, "_worker", None)
            if worker is not None and callable(getattr(worker, "close", None)):
                self._resolve(worker.close())
        finally:
            self._control.close()
            if self._loop is not None:
                self._loop.close()


async def _await(value: Any) -> Any:
    return await value


def _positional(request: Request) -> tuple[Any, ...]:
    if request.operation.endswith("_batch") and request.claims:
        return (list(request.claims),)
    return tuple(request.claims)


def _as_reply(operation: str, result: Any) -> Reply:
    """Read what an operation returned by the contract's types."""
    match operation, result:
        case ("claim", None):
            return Reply(Outcome.ACCEPTED)
        case ("claim", Claim()):
            return Reply(Outcome.ACCEPTED, claims=(result,))
        case ("claim_batch", _) if _all(result, Claim):
            return Reply(Outcome.ACCEPTED, claims=tuple(result))
        case ("enqueue" | "requeue", str()):
            return Reply(Outcome.ACCEPTED, job=result)
        case ("reap", int()) if not isinstance(result, bool):
            return Reply(Outcome.ACCEPTED, count=result)
        case (_, Answer()):
            return _from_answer(result)
        case (_, _) if operation.endswith("_batch") and _all(result, Answer):
            items = tuple(_from_answer(answer) for answer in result)
            return Reply(Outcome.ACCEPTED, items=items)
    raise AdapterFault(f"{operation} returned {result!r}, which the adapter contract does not allow")


def _all(result: Any, kind: type) -> bool:
    return isinstance(result, list | tuple) and all(isinstance(item, kind) for item in result)


def _from_answer(answer: Answer) -> Reply:
    return Reply(
        answer.outcome,
        reason=answer.reason,
        current_token=answer.current_token,
        repeated=answer.repeated,
    )


def _reply_to_error(error: Exception) -> Reply:
    """A server's error is a refusal (the transaction is gone); a lost connection leaves the outcome unknown."""
    sqlstate: Json = getattr(error, "sqlstate", None)
    code = sqlstate if isinstance(sqlstate, str) else type(error).__name__
    connection_gone = isinstance(error, ConnectionError | psycopg.OperationalError) and not _reported(
        sqlstate
    )
    outcome = Outcome.UNKNOWN if connection_gone else Outcome.REFUSED
    return Reply(outcome, reason=code, error=code, message=str(error).strip())


def _reported(sqlstate: Json) -> bool:
    # Class 57P (shutdown, crash, terminated) ends the connection: a COMMIT under way may have happened.
    return isinstance(sqlstate, str) and not sqlstate.startswith("57P") and not sqlstate.startswith("08")
