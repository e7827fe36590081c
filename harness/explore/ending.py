"""Bringing an explored order to its end: one honest worker settles what is left, so that `converges` can be judged.

What `drain.py` does for a run of the runner, without the runner: nothing is held here and nobody else moves.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from fencepost.harness.adapter import LIVE_STATES, Capability, Claim, JobView, Json, Observation
from fencepost.harness.drain import DRAIN_TTL_S, OPERATIONS_AT_LEAST, OPERATIONS_PER_JOB
from fencepost.harness.history import Reply

Perform = Callable[[str, Mapping[str, Json], tuple[Claim, ...]], Reply]


def settle_what_is_left(
    perform: Perform,
    look: Callable[[], Observation],
    pass_moment: Callable[[int], None],
    capabilities: frozenset[Capability],
) -> None:
    """Returns when no job is live any more, or so many operations were spent that one never will be settled."""
    budget = OPERATIONS_AT_LEAST + OPERATIONS_PER_JOB * len(look().jobs)
    while (live := [view for view in look().jobs if view.state in LIVE_STATES]) and budget > 0:
        budget -= 2
        if claims := perform("claim", {"ttl_s": DRAIN_TTL_S}, ()).claims:
            perform("complete", {}, claims)
            continue
        pass_moment(max(_waits_until_us(view, look().at_us) for view in live))
        if Capability.REAPER in capabilities:
            perform("reap", {}, ())


def _waits_until_us(view: JobView, now_us: int) -> int:
    return max(view.lease_until_us or now_us, view.next_run_at_us or now_us)
