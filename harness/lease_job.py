"""How one job of a lease queue with fencing tokens behaves when calls come one after another. Pure.

It says only what every such queue promises. Where a queue is free (how long a retry waits, whether a sweep comes by)
several states follow; where the moment of a call is known only between two bounds, whatever was possible between them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from fencepost.harness.adapter import Outcome
from fencepost.harness.linearize import Operation

ABSENT = "absent"
WAITING = "waiting"
LEASED = "leased"
SUCCEEDED = "succeeded"
FAILED = "failed"
CANCELLED = "cancelled"

ENDED = frozenset({SUCCEEDED, FAILED, CANCELLED})

FOR_EVER_US = 2**62


class JobNow(NamedTuple):
    """A job between two calls. A token that nobody was told is half above the last one that somebody was."""

    phase: str = ABSENT
    token: float = 0
    attempts: int = 0
    max_attempts: int | None = None  # None: not known, so any failure may be the last
    live_until_us: tuple[int, int] = (0, 0)  # the lease ends between these
    settled: tuple[float, str] | None = None  # the token and the operation of the last settlement
    entries: int = 0


@dataclass(frozen=True, slots=True)
class LeaseJob:
    """The specification `linearize.check` takes. Capabilities a queue lacks are left out of what is looked at."""

    ledger: bool = True
    repeats: bool = True
    """A complete or fail repeated under the same token is answered as before; without it, it is refused."""

    def initial(self) -> JobNow:
        return JobNow()

    def apply(self, job: JobNow, op: Operation) -> Iterable[JobNow]:
        if op.name == "read":
            return self._read(job, op)
        if op.name == "reap":
            return self._reap(job, op)
        if op.outcome is Outcome.REFUSED:
            return (job,) if self._may_refuse(job, op) else ()
        match op.name:
            case "enqueue":
                return self._enqueue(job, op)
            case "claim":
                return self._claim(job, op)
            case "heartbeat" | "complete" | "fail":
                return self._write(job, op)
            case "cancel":
                return () if job.phase in ENDED or job.phase == ABSENT else (job._replace(phase=CANCELLED),)
        raise ValueError(f"{op.name!r} is no operation of a lease queue")

    def _enqueue(self, job: JobNow, op: Operation) -> Iterable[JobNow]:
        if job.phase == ABSENT:
            return (job._replace(phase=WAITING, max_attempts=op.max_attempts),)
        return (job,) if op.may_exist else ()

    def _claim(self, job: JobNow, op: Operation) -> Iterable[JobNow]:
        if job.phase == LEASED:
            last = job.max_attempts is not None and job.attempts >= job.max_attempts
            if last or not _may_be_past(job, op):
                return ()
        elif job.phase != WAITING:
            return ()
        token = float(int(job.token)) + 0.5 if op.token is None else op.token
        if token <= job.token:
            return ()
        told = op.lease_until_us
        until = _from_now(op) if told is None else (told, told)
        return (
            job._replace(
                phase=LEASED, token=token, attempts=job.attempts + 1, live_until_us=until, settled=None
            ),
        )

    def _write(self, job: JobNow, op: Operation) -> Iterable[JobNow]:
        """An accepted one, or one of which only that is not known."""
        states: list[JobNow] = []
        settled_so = job.settled == (op.token, op.name)
        if settled_so and (op.repeated or op.outcome is Outcome.UNKNOWN):
            states.append(job)
        if op.repeated or job.phase != LEASED or job.token != op.token or not _may_be_live(job, op):
            return states
        settled = (job.token, op.name)
        match op.name:
            case "heartbeat":
                states.append(job._replace(live_until_us=_extended(job, op)))
            case "complete":
                entries = job.entries + 1
                states.append(job._replace(phase=SUCCEEDED, settled=settled, entries=entries))
            case "fail":
                if job.max_attempts is None or job.attempts < job.max_attempts:
                    states.append(job._replace(phase=WAITING, settled=settled))
                if job.max_attempts is None or job.attempts >= job.max_attempts:
                    states.append(job._replace(phase=FAILED, settled=settled))
        return states

    def _may_refuse(self, job: JobNow, op: Operation) -> bool:
        match op.name:
            case "enqueue" | "claim":
                return True  # a conflicting key, an exhausted token, an error of the server
            case "cancel":
                return job.phase in ENDED or job.phase == ABSENT
        if job.phase != LEASED or job.token != op.token:
            return not (self.repeats and job.settled == (op.token, op.name))
        if _may_be_past(job, op):
            return True
        # A heartbeat that would end the lease sooner than was promised may be refused.
        return op.name == "heartbeat" and (
            op.ttl_us is None or op.earliest_us + op.ttl_us < job.live_until_us[1]
        )

    def _reap(self, job: JobNow, op: Operation) -> Iterable[JobNow]:
        """A sweep is bounded and spares locked rows, so it may leave any job alone."""
        states = [job]
        if job.phase == LEASED and _may_be_past(job, op):
            if job.max_attempts is None or job.attempts < job.max_attempts:
                states.append(job._replace(phase=WAITING))
            if job.max_attempts is None or job.attempts >= job.max_attempts:
                states.append(job._replace(phase=FAILED))
        return states

    def _read(self, job: JobNow, op: Operation) -> Iterable[JobNow]:
        """What the rows show is so: it also says what was known only between bounds."""
        if job.phase != op.phase:
            return ()
        if self.ledger and op.entries is not None and op.entries != job.entries:
            return ()
        seen = job
        if op.token is not None and op.token != job.token:
            if job.token == int(job.token) or op.token < job.token:
                return ()
            seen = seen._replace(token=op.token)
        if op.attempts is not None and op.attempts != job.attempts:
            return ()
        if op.max_attempts is not None and job.max_attempts is None:
            seen = seen._replace(max_attempts=op.max_attempts)
        if job.phase == LEASED and op.lease_until_us is not None:
            low, high = job.live_until_us
            if not low <= op.lease_until_us <= high:
                return ()
            seen = seen._replace(live_until_us=(op.lease_until_us, op.lease_until_us))
        return (seen,)


def _latest(op: Operation) -> int:
    return FOR_EVER_US if op.latest_us is None else op.latest_us


def _may_be_live(job: JobNow, op: Operation) -> bool:
    return op.earliest_us < job.live_until_us[1]


def _may_be_past(job: JobNow, op: Operation) -> bool:
    return _latest(op) >= job.live_until_us[0]


def _from_now(op: Operation) -> tuple[int, int]:
    if op.ttl_us is None:
        return (op.earliest_us, FOR_EVER_US)
    return (op.earliest_us + op.ttl_us, min(_latest(op) + op.ttl_us, FOR_EVER_US))


def _extended(job: JobNow, op: Operation) -> tuple[int, int]:
    """Counted from its own moment; a queue may also keep a later end that was promised before."""
    low, high = _from_now(op)
    return (low, max(high, job.live_until_us[1]))
