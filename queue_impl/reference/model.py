"""What the queue takes and gives: claims, decisions, reaped jobs, dead letters, settings."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeAlias

Json: TypeAlias = Any
"""A value that `json.dumps` takes."""

MAX_BATCH = 100
"""The most jobs one claim takes: the constant LIMIT inside the `claim` statement."""

MAX_DURATION_S = 366 * 24 * 3600.0
"""The longest lease, delay or backoff: a bound on what is surely a mistake, e.g. milliseconds for seconds."""


@dataclass(frozen=True, slots=True)
class JobToken:
    """Which job, under which fencing token: all a write has to name."""

    job_id: int
    token: int


@dataclass(frozen=True, slots=True)
class Claim(JobToken):
    """A lease as it was when it was taken. `expires_at` is database time; heartbeats move it on."""

    payload: Json
    attempts: int
    max_attempts: int
    priority: int
    expires_at: datetime


@dataclass(frozen=True, slots=True)
class Decision:
    """The answer to a write by a worker, as PostgreSQL decided it under the row's lock."""

    accepted: bool
    reason: str | None = None  # why it was refused
    current_token: int | None = None  # the job's token at the decision; None where there is no such job
    repeated: bool = False  # accepted before, by the same token; nothing changed now


@dataclass(frozen=True, slots=True)
class Judgement:
    """What judging found, under the row's lock. `verdict`: accepted, repeated, or the refusal's reason."""

    verdict: str
    current_token: int
    attempts: int

    def decision(self) -> Decision:
        if self.verdict in ("accepted", "repeated"):
            return Decision(True, None, self.current_token, repeated=self.verdict == "repeated")
        return Decision(False, self.verdict, self.current_token)


@dataclass(frozen=True, slots=True)
class ReapedJob:
    """One expired lease the reaper ended. `state` is the job's new one: `ready` or `failed`."""

    job_id: int
    token: int
    state: str


@dataclass(frozen=True, slots=True)
class DeadLetter:
    job_id: int
    payload: Json
    attempts: int
    token: int
    last_error: str | None
    finished_at: datetime


@dataclass(frozen=True, slots=True)
class Settings:
    """What a deployment chooses."""

    max_attempts: int = 5  # for jobs enqueued without their own
    backoff_base_s: float = 1.0  # the wait after the first failure; it doubles with every further one ...
    backoff_cap_s: float = 300.0  # ... up to this
    reap_limit: int = 100  # the most leases one sweep ends

    def __post_init__(self) -> None:
        checked_count("max_attempts", self.max_attempts)
        checked_count("reap_limit", self.reap_limit)
        checked_duration_s("backoff_base_s", self.backoff_base_s)
        checked_duration_s("backoff_cap_s", self.backoff_cap_s)


def checked_duration_s(name: str, seconds: float, *, zero_allowed: bool = False) -> float:
    lowest_allowed = seconds >= 0 if zero_allowed else seconds > 0
    if not (math.isfinite(seconds) and lowest_allowed and seconds <= MAX_DURATION_S):
        lowest = "0" if zero_allowed else "more than 0"
        raise ValueError(f"{name} is {seconds!r}; it must be {lowest} to {MAX_DURATION_S:.0f} seconds")
    return float(seconds)


def checked_count(name: str, count: int, *, at_most: int = 2**31 - 1) -> int:
    if not 1 <= count <= at_most:
        raise ValueError(f"{name} is {count!r}; it must be 1 to {at_most}")
    return count
