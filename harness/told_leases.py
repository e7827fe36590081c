"""When leases end on queues whose rows do not say so: as their holders were told. Pure.

A contract that asks for the end in one place leaves it out of the other; whoever compares observations needs it there.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from fencepost.harness.adapter import Claim, JobId, JobState, JobView, Observation, Outcome
from fencepost.harness.history import Call
from fencepost.harness.invariants.base import answers_of, ttl_us, verb

EXPIRED_US = 0
"""The end of a lease whose row was rewritten as expired."""


@dataclass(slots=True)
class _Told:
    claim: Claim
    until_us: int


class ToldLeases:
    def __init__(self) -> None:
        self._told: dict[tuple[JobId, int | None], _Told] = {}
        self._noted: set[int] = set()

    def note(self, call: Call, at_us: int) -> None:
        """A call that has answered by `at_us`, the time of the observation that follows."""
        reply = call.reply
        if reply is None or call.number in self._noted:
            return
        self._noted.add(call.number)
        for claim in reply.claims:
            if claim.lease_until_us is not None:
                self._told[claim.job, claim.token] = _Told(claim, claim.lease_until_us)
        if verb(call) == "claim" and reply.outcome is Outcome.UNKNOWN:
            self._forget_what_may_be_anothers(at_us)
        if verb(call) in ("heartbeat", "keep_alive"):
            self._note_heartbeat(call, at_us)

    def _note_heartbeat(self, call: Call, at_us: int) -> None:
        """Counted from its latest moment: what is past this end is surely over."""
        ttl = ttl_us(call)
        for claim, item in answers_of(call):
            told = self._told.get((claim.job, claim.token))
            if ttl is None or told is None or told.claim != claim or not item.accepted:
                continue
            if told.until_us > call.started_us:
                told.until_us = max(told.until_us, at_us + ttl)

    def _forget_what_may_be_anothers(self, at_us: int) -> None:
        self._told = {
            (job, token): told
            for (job, token), told in self._told.items()
            if token is not None or told.until_us > at_us
        }

    def expired(self, claim: Claim) -> None:
        told = self._told.get((claim.job, claim.token))
        if told is not None and told.claim == claim:
            told.until_us = EXPIRED_US

    def fill_in(self, seen: Observation) -> Observation:
        """The observation, with the ends that its rows do not show."""
        if not self._told:
            return seen
        for view in seen.jobs:
            if view.state is not JobState.LEASED:
                self._told.pop((view.job, None), None)  # the next lease of it looks the same
        jobs = tuple(self._with_its_end(view) for view in seen.jobs)
        return seen if jobs == seen.jobs else Observation(seen.at_us, jobs, seen.ledger)

    def _with_its_end(self, view: JobView) -> JobView:
        if view.state is not JobState.LEASED or view.lease_until_us is not None:
            return view
        told = self._told.get((view.job, view.token))
        return view if told is None else replace(view, lease_until_us=told.until_us)
