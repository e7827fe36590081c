"""Random histories of one job: played on a job that behaves, then, in some, one answer is changed."""

from __future__ import annotations

import random
from dataclasses import replace

from fencepost.harness.adapter import Outcome
from fencepost.harness.lease_job import JobNow, LeaseJob
from fencepost.harness.linearize import Operation

S = 1_000_000
TTL_S = 30
NAMES = ("claim", "claim", "heartbeat", "complete", "fail", "cancel", "reap", "read")


def random_history(
    chance: random.Random,
    *,
    calls: int,
    job: str = "1",
    unknown: float = 0.25,
    overlap: float = 0.4,
    wrong: float = 0.4,
    ending: float = 1.0,
) -> list[Operation]:
    """`calls` after the enqueue. `ending`: how likely a call that would end the job is let through."""
    history = _played(chance, calls, job, unknown, overlap, ending)
    if chance.random() < wrong:
        index = chance.randrange(1, len(history))
        history[index] = _changed(chance, history[index])
    return history


def _played(
    chance: random.Random, calls: int, job: str, unknown: float, overlap: float, ending: float
) -> list[Operation]:
    spec = LeaseJob()
    state, now_us, token = JobNow(), 0, 0
    known = [0]  # tokens somebody was told; nothing is ever leased under the first
    moments: list[tuple[float, float, Operation]] = []
    number = -1
    while len(moments) <= calls:
        number += 1
        now_us += chance.choice((1, 1, 5, 20)) * S
        name = "enqueue" if number == 0 else chance.choice(NAMES)
        if name in ("complete", "fail", "cancel") and chance.random() > ending:
            name = "heartbeat"
        asked = Operation(
            job,
            name,
            0,
            0,
            token=token + 1 if name == "claim" else chance.choice(known[-2:]),
            earliest_us=now_us,
            latest_us=now_us,
            ttl_us=TTL_S * S,
            max_attempts=2 if name == "enqueue" and ending == 1.0 else None,
        )
        if name == "read":
            asked = replace(
                asked, phase=state.phase, token=int(state.token), entries=state.entries, max_attempts=None
            )
        happened = list(spec.apply(state, asked))
        if not happened and name != "claim":
            asked = replace(asked, outcome=Outcome.REFUSED)
            happened = list(spec.apply(state, asked))
        if not happened:
            continue  # a claim that finds nothing concerns no job; a queue that repeats answers has no refusal here
        state = chance.choice(happened)
        token = max(token, int(state.token))
        lost = name not in ("enqueue", "reap", "read") and chance.random() < unknown
        if name == "claim" and not lost:
            known.append(token)
        if lost:
            asked = replace(asked, outcome=Outcome.UNKNOWN, token=None if name == "claim" else asked.token)
        # It takes effect at `number`; how far it reaches before and after that is chance.
        reach = 2.0 if name != "read" and chance.random() < overlap else 0.4
        moments.append((number - chance.random() * reach, number + chance.random() * reach, asked))
    return _in_positions(moments)


def _in_positions(moments: list[tuple[float, float, Operation]]) -> list[Operation]:
    edges = sorted(edge for start, end, _ in moments for edge in (start, end))
    position = {edge: index for index, edge in enumerate(edges)}
    history = []
    for start, end, op in moments:
        lost = op.outcome is Outcome.UNKNOWN
        placed = replace(op, started=position[start], answered=None if lost else position[end])
        history.append(replace(placed, latest_us=None) if lost else placed)
    return history


def _changed(chance: random.Random, op: Operation) -> Operation:
    if op.name == "read":
        return replace(op, entries=1 - min(1, op.entries or 0))
    if op.outcome is Outcome.REFUSED:
        return replace(op, outcome=Outcome.ACCEPTED)
    if op.outcome is Outcome.ACCEPTED and op.name in ("heartbeat", "complete", "fail", "cancel"):
        return replace(op, outcome=Outcome.REFUSED)
    return replace(
        op, earliest_us=op.earliest_us + chance.randint(0, 60) * S, latest_us=op.earliest_us + 60 * S
    )
