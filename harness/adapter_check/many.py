"""Operations on several jobs at once."""

from __future__ import annotations

from fencepost.harness.adapter import Capability, Claim, JobState, Outcome
from fencepost.harness.adapter_check.findings import Check, Wrong
from fencepost.harness.adapter_check.hands import Hands
from fencepost.harness.race import DEFAULT_TTL_S


def batch_is_claimed(hands: Hands) -> None:
    jobs = {hands.enqueue() for _ in range(3)}
    reply = hands.accepted("A", "claim_batch", ttl_s=DEFAULT_TTL_S, limit=2)
    got = [claim.job for claim in reply.claims]
    if len(set(got)) != 2 or len(got) != 2 or not set(got) <= jobs:
        raise Wrong(
            f"claim_batch with a limit of 2 got {', '.join(got) or 'nothing'} of {', '.join(sorted(jobs))}.",
            "Let claim_batch claim as many jobs as there are, up to the limit, and each once.",
        )
    seen = hands.observe().by_job
    leased = {job for job in jobs if job in seen and seen[job].state is JobState.LEASED}
    if leased != set(got):
        raise Wrong(
            f"claim_batch gave {', '.join(sorted(got))}, and {', '.join(sorted(leased)) or 'none'} are leased.",
            "Lease the jobs that claim_batch returns, no others, and commit before answering.",
        )


def batch_is_completed(hands: Hands) -> None:
    stale = _stale(hands)
    live = [hands.claim("A", hands.enqueue()), hands.claim("A", hands.enqueue())]
    claims = live if stale is None else [stale, *live]
    reply = hands.do("A", "complete_batch", *claims)
    wanted = [Outcome.REFUSED if claim is stale else Outcome.ACCEPTED for claim in claims]
    got = [item.outcome for item in reply.items]
    if got != wanted:
        raise Wrong(
            f"complete_batch answered {_listed(got)} where {_listed(wanted)} was right"
            f"{', the first being lost' if stale is not None else ''}.",
            "Judge each of the claims on its own, and answer in their order.",
        )
    seen = hands.observe().by_job
    for claim in claims:
        view = seen.get(claim.job)
        if claim is stale:
            over = view is None or view.state is not JobState.LEASED
        else:
            over = view is not None and view.state is not JobState.SUCCEEDED
        if over:
            raise Wrong(
                f"after complete_batch a job whose claim was {'refused' if claim is stale else 'accepted'} is "
                f"{'not shown any more' if view is None else f'shown as {view.state}'}.",
                "Complete what was accepted and nothing else, and commit before answering.",
            )


def _stale(hands: Hands) -> Claim | None:
    """A claim that a queue with tokens must refuse; its job is another's now."""
    if Capability.FENCING not in hands.capabilities:
        return None
    job = hands.enqueue()
    stale = hands.lose("A", job)
    hands.recover()
    hands.claim("B", job)
    return stale


def _listed(outcomes: list[Outcome]) -> str:
    return ", ".join(outcomes) or "nothing"


def _probe(capability: Capability) -> frozenset[Capability]:
    return frozenset({capability})


MANY = (
    Check(
        "a batch is claimed",
        batch_is_claimed,
        _probe(Capability.BATCH),
        after=("a live lease is kept",),
        probes=Capability.BATCH,
    ),
    Check(
        "a batch is completed",
        batch_is_completed,
        _probe(Capability.BATCH_COMPLETE),
        after=("complete settles", "old tokens are refused"),
        probes=Capability.BATCH_COMPLETE,
    ),
)
