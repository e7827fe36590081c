"""Tokens: each claim's is higher, an old one's writes are refused."""

from __future__ import annotations

from fencepost.harness.adapter import Capability, Claim, JobId, Outcome
from fencepost.harness.adapter_check.findings import Check, Wrong
from fencepost.harness.adapter_check.hands import Hands


def _two_claims(hands: Hands, job: JobId) -> tuple[Claim, Claim]:
    """One that is lost, and the one that follows it."""
    stale = hands.lose("A", job)
    hands.recover()
    return stale, hands.claim("B", job)


def fencing_is_there(hands: Hands) -> None:
    job = hands.enqueue()
    stale, fresh = _two_claims(hands, job)
    if stale.token is None or fresh.token is None or fresh.token <= stale.token:
        raise Wrong(
            f"the first claim's token is {stale.token!r}, the second's {fresh.token!r}.",
            "Give each claim of a job a higher token, or take FENCING out of the capabilities.",
        )
    before = hands.view(job, "while it was leased")
    reply = hands.do("A", "complete", stale)
    if reply.outcome is not Outcome.REFUSED:
        raise Wrong(
            f"complete under an old token was {reply.outcome.value}.",
            "Answer refused where the token is not the current one, or take FENCING out of the capabilities.",
        )
    hands.unchanged([before], "complete under an old token")


def tokens_are_consecutive(hands: Hands) -> None:
    stale, fresh = _two_claims(hands, hands.enqueue())
    if stale.token is None or fresh.token != stale.token + 1:
        raise Wrong(
            f"the first claim's token is {stale.token!r}, the second's {fresh.token!r}.",
            "Give each claim of a job its last token plus one, or take CONSECUTIVE_TOKENS out of the capabilities.",
        )


def token_can_be_set(hands: Hands) -> None:
    job = hands.enqueue()
    hands.accepted("O", "set_token", job=job, token=41)
    token = hands.view(job, "after its token was set").token
    if token != 41:
        raise Wrong(f"a job's token was set to 41 and is shown as {token!r}.", "Let set_token write it.")
    claim = hands.claim("A", job)
    if claim.token is None or claim.token <= 41:
        raise Wrong(
            f"a job's token was set to 41, and the next claim carries {claim.token!r}.",
            "Let set_token write the token that claims count on from.",
        )


def guard_can_be_bypassed(hands: Hands) -> None:
    claim = hands.claim("A", hands.enqueue())
    before = hands.observe()
    hands.accepted("A", "bypass_guard", claim)
    after = hands.observe()
    if (before.jobs, before.ledger) == (after.jobs, after.ledger):
        raise Wrong(
            "bypass_guard under the current token was accepted and changed nothing that observe() shows.",
            "Let bypass_guard write the completion without the guard.",
        )


TAKEN_OVER = (
    "a live lease is kept",
    "an expired lease is recovered",
    "complete settles",
    "one write touches one job",
)
FENCED = (*TAKEN_OVER, "old tokens are refused")


def _probe(capability: Capability) -> frozenset[Capability]:
    return frozenset({capability})


TOKENS = (
    Check(
        "old tokens are refused",
        fencing_is_there,
        _probe(Capability.FENCING),
        after=TAKEN_OVER,
        probes=Capability.FENCING,
    ),
    Check(
        "tokens are consecutive",
        tokens_are_consecutive,
        _probe(Capability.CONSECUTIVE_TOKENS),
        after=FENCED,
        probes=Capability.CONSECUTIVE_TOKENS,
    ),
    Check(
        "a token can be set",
        token_can_be_set,
        _probe(Capability.TOKEN_SETTING),
        probes=Capability.TOKEN_SETTING,
    ),
    Check(
        "the guard can be bypassed",
        guard_can_be_bypassed,
        _probe(Capability.GUARD_BYPASS),
        after=("complete settles", "completions are in the ledger", "reset removes everything"),
        probes=Capability.GUARD_BYPASS,
    ),
)
