"""Leases as bars on the axis of database time, read off the observations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fencepost.reports.timeline import Timeline


@dataclass(frozen=True)
class Renewal:
    """Another expiry was seen in the same lease after step `step`."""

    step: int
    at_us: int
    until_us: int
    earlier: bool  # the lease was cut short, as by a harness that rewrites the row


@dataclass
class Lease:
    """One holder's lease of one job, from the step after which it was first seen to the one that ended it."""

    job: str
    token: int | None
    holder: str | None
    step: int
    from_us: int
    until_us: int | None
    renewals: list[Renewal] = field(default_factory=list)
    ended_step: int | None = None
    """The step after which it was no longer there; None while it is, also at the end of the run."""
    ended_us: int | None = None
    ended_how: str | None = None
    """`taken over`, the state the job went to, or `gone`."""
    first_until_us: int | None = None

    @property
    def lost_us(self) -> int | None:
        """When it stopped being live: expired, or ended before; None where it never did, or nobody can say."""
        if self.until_us is None or (self.ended_us is not None and self.ended_us < self.until_us):
            return self.ended_us
        return self.until_us

    def pieces(self, end_us: int) -> list[tuple[int, int, str]]:
        """(from, to, phase): `live`, `past` (expired and still recorded), `unused` (ended before its time)."""
        stop_us = self.ended_us if self.ended_us is not None else end_us
        if self.until_us is None:
            return [(self.from_us, stop_us, "open")]
        parts: list[tuple[int, int, str]] = []
        starts = [(self.from_us, self.first_until_us), *((r.at_us, r.until_us) for r in self.renewals)]
        for place, (from_us, until_us) in enumerate(starts):
            to_us = starts[place + 1][0] if place + 1 < len(starts) else stop_us
            if until_us is None:
                parts.append((from_us, to_us, "open"))
                continue
            if min(until_us, to_us) > from_us:
                parts.append((from_us, min(until_us, to_us), "live"))
            if until_us < to_us:
                parts.append((max(from_us, until_us), to_us, "past"))
        if self.until_us > stop_us:
            parts.append((stop_us, self.until_us, "unused" if self.ended_us is not None else "ahead"))
        return _joined(parts)


def _joined(parts: Sequence[tuple[int, int, str]]) -> list[tuple[int, int, str]]:
    """A lease renewed in time is one bar."""
    joined: list[tuple[int, int, str]] = []
    for from_us, to_us, phase in parts:
        if joined and joined[-1][1:] == (from_us, phase):
            joined[-1] = (joined[-1][0], to_us, phase)
        else:
            joined.append((from_us, to_us, phase))
    return joined


def leases(first: Mapping[str, Any], steps: Sequence[Mapping[str, Any]], timeline: Timeline) -> list[Lease]:
    """In order of acquisition. A lease is told from the next by its token and its holder."""
    found: list[Lease] = []
    open_leases: dict[str, Lease] = {}
    previous: Sequence[Mapping[str, Any]] | None = None
    for number, observation in enumerate([first, *(step["after"] for step in steps)]):
        if observation["jobs"] == previous:
            continue
        previous = observation["jobs"]
        rows = {job["job"]: job for job in observation["jobs"]}
        at_us = timeline.after(number)
        for job, lease in list(open_leases.items()):
            row = rows.get(job)
            if row is None or row["state"] != "leased":
                _end(lease, number, at_us, "gone" if row is None else str(row["state"]))
                del open_leases[job]
        for job, row in rows.items():
            if row["state"] == "leased":
                _note(found, open_leases, job, row, number, at_us, timeline)
    return found


def _note(
    found: list[Lease],
    open_leases: dict[str, Lease],
    job: str,
    row: Mapping[str, Any],
    number: int,
    at_us: int,
    timeline: Timeline,
) -> None:
    seen_us = row.get("lease_until_us")
    until_us = None if seen_us is None else timeline.seen_at(number, seen_us)
    lease = open_leases.get(job)
    if lease is not None and (lease.token, lease.holder) != (row.get("token"), row.get("holder")):
        _end(lease, number, at_us, "taken over")
        lease = None
    if lease is None:
        lease = Lease(
            job, row.get("token"), row.get("holder"), number, at_us, until_us, first_until_us=until_us
        )
        open_leases[job] = lease
        found.append(lease)
    elif until_us is not None and until_us != lease.until_us:
        earlier = lease.until_us is not None and until_us < lease.until_us
        lease.renewals.append(Renewal(number, at_us, until_us, earlier))
        lease.until_us = until_us


def _end(lease: Lease, number: int, at_us: int, how: str) -> None:
    lease.ended_step, lease.ended_us, lease.ended_how = number, at_us, how
