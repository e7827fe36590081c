"""Bringing a run to its end: the faults are over, so every job must reach a terminal state, in bounded operations.

What is held goes on, what is leased to nobody who comes back expires, and one honest worker settles the rest.
"""

from __future__ import annotations

from collections.abc import Callable

from fencepost.harness.actors.base import Actor
from fencepost.harness.adapter import LIVE_STATES, Capability, Claim, JobState, JobView
from fencepost.harness.errors import FencepostError
from fencepost.harness.history import StepKind
from fencepost.harness.invariants.base import same_token
from fencepost.harness.lease_time import LeaseTime
from fencepost.harness.runner import Runner

DRAINER = "Z"
"""The worker that settles what is left. What it does proves nothing about the scenario's race."""

DRAIN_TTL_S = 60.0
OPERATIONS_PER_JOB = 12
OPERATIONS_AT_LEAST = 24


def drain(
    runner: Runner,
    seat_drainer: Callable[[], Actor],
    lease_time: LeaseTime,
    capabilities: frozenset[Capability],
) -> None:
    """Ends with an END step, on which `converges` speaks; the budget spent is no error of its own."""
    while runner.parked:
        runner.go_on(runner.parked[0])
    budget = OPERATIONS_AT_LEAST + OPERATIONS_PER_JOB * len(runner.last_observation.jobs)
    drainer = seat_drainer() if _live(runner) else None
    if drainer is not None and Capability.CANCEL in capabilities:
        _cancel_the_exhausted(runner, drainer)
    while drainer is not None and _live(runner) and budget > 0:
        budget -= _settle_one(runner, drainer, lease_time, capabilities)
    if runner.in_flight:
        still = ", ".join(f"{flight.name}'s {flight.call.operation}" for flight in runner.in_flight)
        raise FencepostError(f"{still} has not answered though nothing holds it any more")
    runner.note(StepKind.END, None, {}, None)


def _live(runner: Runner) -> list[JobView]:
    return [view for view in runner.last_observation.jobs if view.state in LIVE_STATES]


def _cancel_the_exhausted(runner: Runner, drainer: Actor) -> None:
    """A job whose token was set from outside, perhaps to the last there is, may be one that nobody can ever claim."""
    tampered = {
        step.call.arguments["job"]
        for step in runner.steps
        if step.call is not None and step.call.operation == "set_token" and step.reply is not None
    }
    for view in _live(runner):
        if view.job in tampered:
            runner.let_go(drainer, "cancel", {"job": view.job})


def _settle_one(
    runner: Runner, drainer: Actor, lease_time: LeaseTime, capabilities: frozenset[Capability]
) -> int:
    """One round; returns how many operations it took."""
    claimed = runner.let_go(drainer, "claim", {"ttl_s": DRAIN_TTL_S})
    claims = claimed.reply.claims if claimed.reply is not None else ()
    if claims:
        runner.let_go(drainer, "complete", {}, claims=claims)
        return 2
    _let_time_pass(runner, lease_time)
    if Capability.REAPER in capabilities:
        runner.let_go(drainer, "reap", {})
        return 2
    return 1


def _let_time_pass(runner: Runner, lease_time: LeaseTime) -> None:
    """Past every lease's end and every job's time: past one alone, real time would decide which others are over."""
    now_us = runner.last_observation.at_us
    leases = {
        view.job: _lease_end_us(runner, view, now_us) for view in _live(runner) if _is_leased(view, now_us)
    }
    dues = [
        view.next_run_at_us
        for view in _live(runner)
        if view.state is JobState.DELAYED and view.next_run_at_us is not None
    ]
    if lease_time.how != "expire" and None in leases.values():
        seconds = _longest_lease_s(runner)
        runner.move_clock(lambda: lease_time.advance(seconds), {"seconds": seconds}, None)
    elif lease_time.how == "expire":
        for job in leases:
            _pass_lease(runner, lease_time, runner.last_observation.by_job[job])
    elif leases and max(end_us for end_us in leases.values() if end_us is not None) >= max(dues, default=0):
        last = max(leases, key=lambda job: leases[job] or 0)
        _pass_lease(runner, lease_time, runner.last_observation.by_job[last])
    elif dues:
        moment_us = max(dues)
        runner.move_clock(lambda: lease_time.advance_to(moment_us), {"to": "next_run_at"}, None)


def _is_leased(view: JobView, now_us: int) -> bool:
    return view.state is JobState.LEASED and (view.lease_until_us or now_us) >= now_us


def _lease_end_us(runner: Runner, view: JobView, now_us: int) -> int | None:
    if view.lease_until_us is not None:
        return view.lease_until_us
    claim = _last_claim(runner, view)
    # One that is past, on a job that is still leased, may be of an earlier lease: the answer of this one was lost.
    known = claim is not None and claim.lease_until_us is not None and claim.lease_until_us > now_us
    return claim.lease_until_us if claim is not None and known else None


def _longest_lease_s(runner: Runner) -> float:
    """Asked for in this run."""
    asked = (step.call.arguments.get("ttl_s") for step in runner.steps if step.call is not None)
    return max([DRAIN_TTL_S, *(float(ttl_s) for ttl_s in asked if isinstance(ttl_s, int | float))])


def _pass_lease(runner: Runner, lease_time: LeaseTime, view: JobView) -> None:
    # A claim whose answer was lost is a lease nobody knows of: only the row tells of it.
    claim = _last_claim(runner, view) or Claim(view.job, view.token, view.lease_until_us)
    until_us = view.lease_until_us if view.lease_until_us is not None else claim.lease_until_us
    runner.move_clock(lambda: lease_time.pass_lease(claim, until_us), {"past_lease_of": view.job}, None)


def _last_claim(runner: Runner, view: JobView) -> Claim | None:
    for step in reversed(runner.steps):
        if step.reply is not None:
            for claim in step.reply.claims:
                if claim.job == view.job and same_token(claim.token, view.token):
                    return claim
    return None
