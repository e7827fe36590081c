"""What a step did to the rows: the changed job rows and ledger entries between two observations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Row = Mapping[str, Any]

FIELDS = (
    "state",
    "token",
    "holder",
    "lease_until_us",
    "attempts",
    "max_attempts",
    "next_run_at_us",
    "key",
    "payload",
    "result",
    "requeued_from",
    "places",
)


@dataclass(frozen=True)
class JobChange:
    """A job's row before and after one step; None where there was no such row."""

    job: str
    before: Row | None
    after: Row | None

    @property
    def fields(self) -> tuple[str, ...]:
        old, new = self.before or {}, self.after or {}
        known = [*FIELDS, *(name for name in new if name not in FIELDS and name != "job")]
        return tuple(name for name in known if old.get(name) != new.get(name))


@dataclass(frozen=True)
class LedgerChange:
    added: tuple[Row, ...]
    removed: tuple[Row, ...]

    def __bool__(self) -> bool:
        return bool(self.added or self.removed)


def job_changes(before: Row, after: Row) -> tuple[JobChange, ...]:
    if before["jobs"] == after["jobs"]:
        return ()
    old = {job["job"]: job for job in before["jobs"]}
    new = {job["job"]: job for job in after["jobs"]}
    changed = [JobChange(job, old.get(job), row) for job, row in new.items() if old.get(job) != row]
    gone = [JobChange(job, row, None) for job, row in old.items() if job not in new]
    return (*changed, *gone)


def ledger_change(before: Row, after: Row) -> LedgerChange:
    if before["ledger"] == after["ledger"]:
        return LedgerChange((), ())
    left = list(before["ledger"])
    added = []
    for entry in after["ledger"]:
        if entry in left:
            left.remove(entry)
        else:
            added.append(entry)
    return LedgerChange(tuple(added), tuple(left))


def change_words(jobs: Sequence[JobChange], ledger: LedgerChange) -> list[str]:
    """One short line per changed job and ledger entry, as the database lane shows them."""
    told = [_job_words(change) for change in jobs]
    told += [f"ledger + {_entry(entry)}" for entry in ledger.added]
    told += [f"ledger - {_entry(entry)}" for entry in ledger.removed]
    return told


def _job_words(change: JobChange) -> str:
    if change.after is None:
        return f"job {change.job} is gone"
    after, fields = change.after, change.fields
    parts = [str(after["state"])] if "state" in fields or change.before is None else []
    if after["state"] == "leased" and {"token", "holder", "state"} & set(fields):
        parts += [f"token {after['token']}"] if after.get("token") is not None else []
        parts += [str(after["holder"])] if after.get("holder") is not None else []
    elif "token" in fields and after.get("token"):
        parts.append(f"token {after['token']}")
    if not parts and "lease_until_us" in fields:
        parts.append("lease moved")
    if not parts:
        parts.append(f"{', '.join(fields)} changed")
    return f"job {change.job}: {', '.join(parts)}"


def _entry(entry: Row) -> str:
    token = "" if entry.get("token") is None else f", token {entry['token']}"
    worker = "" if entry.get("worker") is None else f", {entry['worker']}"
    return f"(job {entry['job']}{token}{worker})"
