"""The adapter itself: it installs, observes, resets, and gives its workers their own connections."""

from __future__ import annotations

import json

import psycopg

from fencepost.harness.adapter import Claim, JobState, JobView
from fencepost.harness.adapter_check.findings import Check, Wrong, first_line, told
from fencepost.harness.adapter_check.hands import Hands
from fencepost.harness.adapter_check.isolation import actors_are_isolated, workers_close
from fencepost.harness.bench import AdapterBroke

CLOCK_TOLERANCE_US = 30_000_000


def observes(hands: Hands) -> None:
    observation = hands.observe()
    now_us = _server_now_us(hands.bench.dsn)
    if not isinstance(observation.at_us, int) or abs(observation.at_us - now_us) > CLOCK_TOLERANCE_US:
        raise Wrong(
            f"the observation's at_us is {observation.at_us!r}, the server's clock says {now_us}.",
            "Give the database's time, read in the same statement, in microseconds since the epoch.",
        )
    if observation.jobs:
        raise Wrong(
            f"observe() shows {len(observation.jobs)} jobs in a queue that was just reset.",
            "Let reset() remove every job, or observe() show only what is there.",
        )


def empty_queue(hands: Hands) -> None:
    claim = hands.try_claim("A")
    if claim is not None:
        raise Wrong(
            f"claim got job {claim.job} from an empty queue.", "Answer None where nothing can be claimed."
        )


def enqueued_job_is_seen(hands: Hands) -> None:
    job = hands.enqueue()
    view = hands.view(job, "after it was enqueued")
    _check_types(view)
    if view.state is not JobState.READY:
        raise Wrong(
            f"a job that was just enqueued is shown as {view.state}.",
            "Show a job that can be claimed now as ready; look at how the state is worked out.",
        )
    if view.payload not in (None, {"checked": True}):
        raise Wrong(
            f"the payload {{'checked': True}} is shown as {view.payload!r}.",
            "Show the payload as it was enqueued, or leave it None.",
        )


def resets(hands: Hands) -> None:
    waiting, leased = hands.enqueue(), hands.enqueue()
    hands.try_claim("A")
    hands.reset()
    left = sorted({waiting, leased} & hands.observe().by_job.keys())
    if left:
        raise Wrong(
            f"after reset() observe() still shows {len(left)} of two jobs.",
            "Let reset() remove waiting, leased and finished jobs, and commit.",
        )
    if hands.try_claim("B") is not None:
        raise Wrong("after reset() a job can still be claimed.", "Let reset() remove every job.")
    job = hands.enqueue()
    hands.claim("B", job)


def claim_is_seen(hands: Hands) -> None:
    job = hands.enqueue()
    claim = hands.claim("A", job)
    _check_claim(claim)
    view = hands.view(job, "after it was claimed")
    _check_types(view)
    if view.state is not JobState.LEASED:
        raise Wrong(
            f"a job that was just claimed is shown as {view.state}.",
            "Show it as leased, and commit the claim before answering.",
        )
    if claim.token != view.token:
        raise Wrong(
            f"the claim carries token {claim.token!r}, the rows show {view.token!r}.",
            "Give the same token in both, or None in both.",
        )
    if view.lease_until_us is None and claim.lease_until_us is None:
        raise Wrong(
            "neither the claim nor the observation says until when the lease lasts.",
            "Give lease_until_us in one of them: without it no lease can be made to expire.",
        )


def raw_is_json(hands: Hands) -> None:
    claim = hands.claim("A", hands.enqueue())
    try:
        again = json.loads(json.dumps(claim.raw))
    except (TypeError, ValueError) as error:
        raise Wrong(
            f"the claim's raw is not JSON: {error}.",
            "Keep live objects in the adapter, in a table keyed by something in raw.",
        ) from error
    if again != claim.raw:
        raise Wrong(
            f"the claim's raw is {claim.raw!r} and comes back from JSON as {again!r}.",
            "Use lists, not tuples, and text for the keys of dictionaries.",
        )


def installs_twice(hands: Hands) -> None:
    job = hands.enqueue()
    try:
        hands.bench.ask("install", hands.bench.dsn)
    except AdapterBroke as error:
        raise Wrong(
            f"In a database that has the queue, {first_line(error)}.",
            "Let install() leave what is there alone: create if not exists, or look first.",
        ) from error
    if job not in hands.observe().by_job:
        raise Wrong(
            "install() in a database that has the queue lost its jobs.",
            "Let install() leave what is there alone.",
        )


_NUMBERS = ("token", "attempts", "max_attempts", "lease_until_us", "next_run_at_us")
_TEXTS = ("holder", "key", "requeued_from")


def _check_types(view: JobView) -> None:
    if not isinstance(view.state, JobState):
        raise Wrong(f"the state of a job is {told(view.state)}.", "Give it as a JobState.")
    for names, kind in ((_NUMBERS, int), (_TEXTS, str)):
        for name in names:
            value = getattr(view, name)
            if value is not None and (not isinstance(value, kind) or isinstance(value, bool)):
                raise Wrong(f"{name} of a job is {told(value)}.", f"Give {name} as {kind.__name__}, or None.")


def _check_claim(claim: Claim) -> None:
    for name in ("token", "lease_until_us"):
        value = getattr(claim, name)
        if value is not None and (not isinstance(value, int) or isinstance(value, bool)):
            raise Wrong(f"{name} of a claim is {told(value)}.", f"Give {name} as int, or None.")


def _server_now_us(dsn: str) -> int:
    with psycopg.connect(dsn, autocommit=True) as connection:
        row = connection.execute(
            "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint"
        ).fetchone()
    assert row is not None
    return int(row[0])


BASICS = (
    Check("observes", observes, basic=True),
    Check("actors are isolated", actors_are_isolated, basic=True),
    Check("an empty queue claims nothing", empty_queue, basic=True),
    Check("an enqueued job is seen", enqueued_job_is_seen, basic=True),
    Check("reset resets", resets, basic=True),
    Check("a claim is seen", claim_is_seen, basic=True),
    Check("raw is JSON", raw_is_json),
    Check("installs twice", installs_twice),
    Check("workers close", workers_close),
)
