"""How a lease is made to expire: by the server's clock, by rewriting its row, or by really waiting.

Chosen once at the start of a run, and said in its trace.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

from fencepost.harness.adapter import Claim
from fencepost.harness.clock.server_clock import ServerClock
from fencepost.harness.errors import FencepostError
from fencepost.harness.history import ClockMove

PAST_US = 1_000
"""How far past a moment the clock is put: enough to be past it at any rounding, too little to matter."""

WAIT_DEADLINE_S = 600.0
WAIT_POLL_S = 0.05


class CannotMoveTime(FencepostError):
    """This way of passing time cannot do what was asked."""


class LeaseTime(Protocol):
    how: str

    def advance(self, seconds: float) -> ClockMove: ...

    def rewind(self, seconds: float) -> ClockMove: ...

    def advance_to(self, moment_us: int) -> ClockMove: ...

    def pass_lease(self, claim: Claim, until_us: int | None) -> ClockMove: ...

    def catch_up(self) -> None:
        """Between races: no moment of the last one comes again in the next."""


class ByClock:
    """The server's clock is moved: no row is edited, no queue cooperates."""

    how = "clock"

    def __init__(self, clock: ServerClock) -> None:
        self._clock = clock

    def advance(self, seconds: float) -> ClockMove:
        self._clock.advance(seconds)
        return ClockMove(self.how, seconds)

    def rewind(self, seconds: float) -> ClockMove:
        self._clock.rewind(seconds)
        return ClockMove(self.how, -seconds)

    def advance_to(self, moment_us: int) -> ClockMove:
        now_us = self._clock.now_us()
        if moment_us + PAST_US <= now_us:
            return ClockMove(self.how, 0.0)
        return self.advance((moment_us + PAST_US - now_us) / 1e6)

    def pass_lease(self, claim: Claim, until_us: int | None) -> ClockMove:
        if until_us is None:
            raise CannotMoveTime(
                f"when the lease of job {claim.job} ends is not known: its adapter gives neither "
                "lease_until_us in the claim nor in the observation; use clock.advance(seconds)"
            )
        return self.advance_to(until_us)

    def catch_up(self) -> None:
        self._clock.catch_up()


class ByRewritingTheRow:
    """The adapter rewrites one lease as expired. Only that can be done: time itself stands."""

    how = "expire"

    def __init__(self, expire: Callable[[Claim], None]) -> None:
        self._expire = expire

    def advance(self, seconds: float) -> ClockMove:
        raise CannotMoveTime("the clock of this server cannot be moved, only single leases can be expired")

    rewind = advance

    def advance_to(self, moment_us: int) -> ClockMove:
        raise CannotMoveTime("the clock of this server cannot be moved, only single leases can be expired")

    def pass_lease(self, claim: Claim, until_us: int | None) -> ClockMove:
        self._expire(claim)
        return ClockMove(self.how, 0.0, expired_claim=claim)

    def catch_up(self) -> None:
        """Time never went back."""


class ByWaiting:
    """Nothing can be moved: the run waits until the server's clock has passed the moment. Slow."""

    how = "wait"

    def __init__(self, now_us: Callable[[], int]) -> None:
        self._now_us = now_us

    def advance(self, seconds: float) -> ClockMove:
        return self.advance_to(self._now_us() + int(seconds * 1e6))

    def rewind(self, seconds: float) -> ClockMove:
        raise CannotMoveTime("the clock of this server cannot be moved back")

    def advance_to(self, moment_us: int) -> ClockMove:
        start_us = self._now_us()
        deadline = time.monotonic() + WAIT_DEADLINE_S
        while (now_us := self._now_us()) < moment_us + PAST_US:
            if time.monotonic() > deadline:
                left_s = (moment_us - now_us) / 1e6
                raise CannotMoveTime(
                    f"waited {WAIT_DEADLINE_S:.0f} s, the moment is still {left_s:.0f} s away"
                )
            time.sleep(WAIT_POLL_S)
        return ClockMove(self.how, (now_us - start_us) / 1e6)

    def pass_lease(self, claim: Claim, until_us: int | None) -> ClockMove:
        if until_us is None:
            raise CannotMoveTime(f"when the lease of job {claim.job} ends is not known")
        return self.advance_to(until_us)

    def catch_up(self) -> None:
        """Time never went back."""
