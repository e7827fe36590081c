"""What `enqueue` takes: keys, delays, priorities, and the order in which jobs are claimed."""

from __future__ import annotations

from fencepost.harness.adapter import Capability, JobState
from fencepost.harness.adapter_check.findings import Check, Wrong, why
from fencepost.harness.adapter_check.hands import Hands

DELAY_S = 30.0
OTHER_PAYLOAD = {"checked": "otherwise"}
KEY = "fencepost-adapter-check"


def key_names_one_job(hands: Hands) -> None:
    before = hands.observe().by_job.keys()
    first = hands.enqueue(key=KEY)
    again = hands.enqueue(key=KEY)
    jobs = len(hands.observe().by_job.keys() - before)
    if again != first or jobs != 1:
        raise Wrong(
            f"two jobs were enqueued with one key and one payload: they are job {first} and job {again}, "
            f"and observe() shows {jobs}.",
            "Give the same job to the same key and payload.",
        )
    conflict = hands.do("P", "enqueue", payload=OTHER_PAYLOAD, key=KEY)
    if conflict.accepted:
        raise Wrong(
            "a taken key with another payload was accepted.",
            "Raise IdempotencyConflict where the key's job has another payload.",
        )
    if conflict.reason != "idempotency_conflict":
        raise Wrong(
            f"a taken key with another payload was refused with {why(conflict)}.",
            "Raise IdempotencyConflict where the key's job has another payload.",
        )
    other = hands.enqueue(key=f"{KEY}-2")
    if other == first:
        raise Wrong(f"two keys got one job, {first}.", "Make a job for every key.")


def reset_frees_keys(hands: Hands) -> None:
    hands.enqueue(key=KEY)
    hands.reset()
    again = hands.do("P", "enqueue", payload=OTHER_PAYLOAD, key=KEY)
    if again.job is None or again.job not in hands.observe().by_job:
        raise Wrong(
            f"after reset() a key used before it with another payload makes no new job ({why(again)}).",
            "Let reset() remove the keys as well, wherever the queue keeps them.",
        )


def delayed_job_waits(hands: Hands) -> None:
    job = hands.enqueue(delay_s=DELAY_S)
    view = hands.view(job, "after it was enqueued for later")
    if view.state is not JobState.DELAYED:
        raise Wrong(
            f"a job enqueued for in {DELAY_S:.0f} s is shown as {view.state}.",
            "Show it as delayed while it is not due, by the time of the same snapshot.",
        )
    if hands.try_claim("A") is not None:
        raise Wrong(
            f"a job enqueued for in {DELAY_S:.0f} s was claimed at once.",
            "Let claim leave alone what is not due.",
        )
    if not hands.can_move_the_clock:
        return
    hands.bench.lease_time.advance(DELAY_S + 1.0)
    if hands.try_claim("A") is None:
        raise Wrong(
            f"a job enqueued for in {DELAY_S:.0f} s cannot be claimed after them by the database's clock.",
            "Let the database's clock decide when a job is due.",
        )


def higher_priority_comes_first(hands: Hands) -> None:
    hands.enqueue(priority=0)
    urgent = hands.enqueue(priority=10)
    hands.enqueue(priority=5)
    claim = hands.try_claim("A")
    if claim is None or claim.job != urgent:
        got = "nothing" if claim is None else f"job {claim.job}"
        raise Wrong(
            f"of jobs with the priorities 0, 10 and 5 the first claim got {got}, not job {urgent} with 10.",
            "Let a higher number come first; where the queue counts the other way, turn it round in the adapter.",
        )


def oldest_comes_first(hands: Hands) -> None:
    jobs = [hands.enqueue() for _ in range(3)]
    got = [claim.job for _ in jobs if (claim := hands.try_claim("A")) is not None]
    if got != jobs:
        raise Wrong(
            f"jobs enqueued as {', '.join(jobs)} were claimed as {', '.join(got) or 'none'}.",
            "Let claim take first what has waited longest.",
        )


def _probe(capability: Capability) -> frozenset[Capability]:
    return frozenset({capability})


ENQUEUING = (
    Check(
        "a key names one job",
        key_names_one_job,
        _probe(Capability.IDEMPOTENCY_KEY),
        probes=Capability.IDEMPOTENCY_KEY,
    ),
    Check(
        "reset frees keys",
        reset_frees_keys,
        _probe(Capability.IDEMPOTENCY_KEY),
        after=("a key names one job",),
    ),
    Check("a delayed job waits", delayed_job_waits, _probe(Capability.DELAY), probes=Capability.DELAY),
    Check(
        "a higher priority comes first",
        higher_priority_comes_first,
        _probe(Capability.PRIORITY),
        after=("a live lease is kept",),
        probes=Capability.PRIORITY,
    ),
    Check(
        "the oldest comes first",
        oldest_comes_first,
        _probe(Capability.OLDEST_FIRST),
        after=("a live lease is kept",),
        probes=Capability.OLDEST_FIRST,
    ),
)
