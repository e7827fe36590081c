"""What the runner and an actor say to each other, and its JSON form.

One protocol for every process actor, in any language: one JSON object a line, requests on stdin, answers on
stdout (docs/adapters.md). Thread actors pass the same objects without the JSON.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from fencepost.harness.adapter import Claim, Json, Outcome
from fencepost.harness.history import Reply


@dataclass(frozen=True, slots=True)
class Seat:
    """Where an actor sits: its names, its way to the queue, its way to the control server."""

    actor: str
    worker_name: str
    queue_path: str  # MODULE:NAME, for an actor that must import the queue itself
    dsn: str
    control_dsn: str
    kind: str | None = None  # thread or process; None: what the run uses, or a process where it needs one
    clock_skew_s: float = 0.0  # how far its own clock is off; the database's clock is not touched by it


@dataclass(frozen=True, slots=True)
class Request:
    """One operation to perform. `holds` maps checkpoint to the barrier that holds it there."""

    operation: str
    arguments: Mapping[str, Json] = field(default_factory=dict)
    claims: tuple[Claim, ...] = ()
    holds: Mapping[str, int] = field(default_factory=dict)
    race: int = 0  # under whose number it goes into the journal; 0: it does not


def signed(operation: str, arguments: Mapping[str, Json], name: str) -> Mapping[str, Json]:
    """A result that says whose it is, where none is given: so a later one that takes its place is seen."""
    if operation == "complete" and "result" not in arguments:
        return {**arguments, "result": {"by": name}}
    return arguments


class ProtocolError(Exception):
    """A line that is not a message of the protocol."""


def encode(message: Mapping[str, Json]) -> bytes:
    return json.dumps(message, separators=(",", ":")).encode() + b"\n"


def decode(line: bytes) -> dict[str, Any]:
    try:
        message = json.loads(line)
    except ValueError as error:
        raise ProtocolError(f"not a JSON line: {line[:200]!r}") from error
    if not isinstance(message, dict):
        raise ProtocolError(f"not a JSON object: {line[:200]!r}")
    return message


def claim_to_json(claim: Claim) -> dict[str, Json]:
    return {
        "job": claim.job,
        "token": claim.token,
        "lease_until_us": claim.lease_until_us,
        "raw": claim.raw,
    }


def claim_from_json(data: Mapping[str, Json]) -> Claim:
    return Claim(str(data["job"]), data.get("token"), data.get("lease_until_us"), data.get("raw"))


def request_to_json(request: Request) -> dict[str, Json]:
    return {
        "operation": request.operation,
        "arguments": dict(request.arguments),
        "claims": [claim_to_json(claim) for claim in request.claims],
        "holds": dict(request.holds),
        "race": request.race,
    }


def request_from_json(data: Mapping[str, Json]) -> Request:
    return Request(
        operation=data["operation"],
        arguments=data.get("arguments", {}),
        claims=tuple(claim_from_json(claim) for claim in data.get("claims", ())),
        holds=data.get("holds", {}),
        race=data.get("race", 0),
    )


def reply_to_json(reply: Reply) -> dict[str, Json]:
    data: dict[str, Json] = {"outcome": reply.outcome.value}
    for name in ("reason", "current_token", "job", "count", "error", "message"):
        value = getattr(reply, name)
        if value is not None:
            data[name] = value
    if reply.repeated:
        data["repeated"] = True
    if reply.claims:
        data["claims"] = [claim_to_json(claim) for claim in reply.claims]
    if reply.items:
        data["items"] = [reply_to_json(item) for item in reply.items]
    return data


def reply_from_json(data: Mapping[str, Json]) -> Reply:
    return Reply(
        outcome=Outcome(data["outcome"]),
        reason=data.get("reason"),
        current_token=data.get("current_token"),
        repeated=bool(data.get("repeated", False)),
        claims=tuple(claim_from_json(claim) for claim in data.get("claims", ())),
        job=data.get("job"),
        count=data.get("count"),
        items=tuple(reply_from_json(item) for item in data.get("items", ())),
        error=data.get("error"),
        message=data.get("message"),
    )


def seat_to_json(seat: Seat) -> dict[str, Json]:
    """What the process must know: not that it is one, and of its clock only if it is to be off."""
    data = asdict(seat)
    del data["kind"]
    if not seat.clock_skew_s:
        del data["clock_skew_s"]
    return data


def seat_from_json(data: Mapping[str, Json]) -> Seat:
    return Seat(**data)
