"""Every claim gets the next token of its job, and a token that was used is never current again."""

from __future__ import annotations

from fencepost.harness.adapter import Capability
from fencepost.harness.race import Race
from fencepost.harness.scenario import scenario
from fencepost.harness.witness import (
    found_nothing,
    lease_expired,
    reaped,
    reclaimed,
    struck,
    was_accepted,
    was_held,
    was_refused,
)

FENCING = Capability.FENCING
LEDGER = Capability.LEDGER
CHECKPOINTS = Capability.CHECKPOINTS
GUARD_BYPASS = Capability.GUARD_BYPASS

LARGEST_TOKEN = 2**63 - 1
"""The maximum of PostgreSQL's BIGINT."""


@scenario(
    requires={FENCING, Capability.CONSECUTIVE_TOKENS, Capability.REAPER, Capability.RETRY, Capability.CLOCK},
    witnesses=[
        reclaimed,
        lease_expired.where(given_back_by="expiry"),
        reaped("R").where(given_back_by="requeue"),
        was_accepted("A", "fail").where(given_back_by="retry"),
        struck("crash", times=3).where(given_back_by="restart"),
    ],
    each={"given_back_by": ("expiry", "requeue", "retry", "restart")},
)
def token_grows_by_one(race: Race, given_back_by: str) -> None:
    """The job goes through four hands: each claim's token is one more than the last, however it came back."""
    job = race.enqueue()
    r = race.worker("R") if given_back_by == "requeue" else None

    tokens = []
    for name in ("A", "B", "C"):
        worker = race.worker(name)
        lease = worker.claim(job)
        tokens.append(lease.token)
        if given_back_by == "restart":
            race.restart_server()
            race.expect(job, state="leased", token=lease.token, holder=name)
        if given_back_by == "retry":
            worker.fail(lease).accepted()
            race.clock.advance_to(race.next_run_us(job), "next_run_at")
        else:
            race.clock.advance_past(lease)
        if r is not None:
            r.reap()
    d = race.worker("D")
    last = d.claim(job)
    d.complete(last).accepted()

    tokens.append(last.token)
    first = tokens[0] or 0
    race.check(tokens == list(range(first, first + 4)), f"the claims got the tokens {tokens}")
    race.expect(job, state="succeeded", ledger=1, token=last.token)


@scenario(
    requires={FENCING, CHECKPOINTS},
    witnesses=[
        lease_expired.where(job="lost_by_another"),
        was_held("A", "claim"),
        found_nothing("B"),
    ],
    each={"checkpoint": ("after_claim", "before_commit"), "job": ("new", "lost_by_another")},
)
def two_claims_at_once(race: Race, checkpoint: str, job: str) -> None:
    """A has taken the job and not yet committed when B claims: one of them gets it, under one token."""
    wanted = race.enqueue()
    a, b = race.workers("A", "B")
    if job == "lost_by_another":
        race.clock.advance_past(race.worker("C").claim(wanted))

    first = a.start("claim", ttl_s=60.0, hold_at=checkpoint).is_held()
    second = b.start("claim", ttl_s=60.0)
    lease = first.finish().claim(wanted)
    taken = second.result().claims()
    a.complete(lease).accepted()

    race.check(not taken, "B got the job that A was about to get")
    race.expect(wanted, state="succeeded", ledger=1, token=lease.token)


@scenario(
    requires={FENCING, Capability.TOKEN_SETTING, Capability.CANCEL, Capability.CLOCK},
    witnesses=[lease_expired, was_refused("B", "claim")],
)
def token_at_its_maximum(race: Race) -> None:
    """The job's token cannot grow any more: a claim is refused with a clear error, and nothing has changed."""
    job = race.enqueue()
    a, b, operator = race.workers("A", "B", "O")

    operator.set_token(job, LARGEST_TOKEN - 1).accepted()
    lease = a.claim(job)
    race.clock.advance_past(lease)
    before = race.look(job)
    refusal = b.try_claim()
    after = race.look(job)
    operator.cancel(job).accepted()

    race.check(lease.token == LARGEST_TOKEN, f"A should get the largest token, it got {lease.token}")
    refusal.refused("token_exhausted")
    race.check(after == before, f"the refused claim changed the job from {before} to {after}")


@scenario(
    requires={FENCING, LEDGER, GUARD_BYPASS},
    witnesses=[lease_expired, reclaimed, was_refused("A", "bypass_guard")],
    each={"meanwhile": ("B_is_at_work", "B_is_done")},
)
def second_protection_against_a_stale_token(race: Race, meanwhile: str) -> None:
    """The guard is bypassed for A's stale completion: the ledger itself must refuse it, as the second protection."""
    job = race.enqueue()
    a, b = race.workers("A", "B")

    stale = a.claim(job)
    race.clock.advance_past(stale)
    race.recover()
    fresh = b.claim(job)
    if meanwhile == "B_is_done":
        b.complete(fresh).accepted()
    a.bypass_guard(stale).refused()
    if meanwhile == "B_is_at_work":
        b.complete(fresh).accepted()

    race.expect(job, state="succeeded", ledger=1, token=fresh.token)


@scenario(
    requires={FENCING, LEDGER, GUARD_BYPASS},
    witnesses=[was_refused("A", "bypass_guard")],
)
def second_protection_against_a_second_entry(race: Race) -> None:
    """The guard is bypassed for a completion A has made already: the ledger itself must refuse a second entry."""
    job = race.enqueue()
    a = race.worker("A")

    lease = a.claim(job)
    a.complete(lease).accepted()
    a.bypass_guard(lease).refused()

    race.expect(job, state="succeeded", ledger=1, token=lease.token)
