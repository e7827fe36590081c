"""The model asks of a queue only what it promises: each of these is wrong with the capability and right without it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from fencepost.harness.adapter import Capability
from fencepost.harness.model import Model
from fencepost.harness.outcomes import explain, groups
from fencepost.tests.histories import ACCEPTED, EXPIRED, STALE, History, given, reaped

TTL_S = 30.0
ALL = frozenset(Capability) - {Capability.DEFERRED_RECLAIM}


def complaints(history: History, capabilities: frozenset[Capability]) -> list[str]:
    model = Model(capabilities)
    return [message for group in groups(history.steps) for message in model.judge(group)]


def gap_in_the_tokens() -> History:
    history = History()
    history.enqueue()
    history.put("1", token=6)
    history.claim("A")
    return history


def repetition_refused() -> History:
    history = History()
    history.enqueue()
    claim = history.claim("A")
    history.complete("A", claim)
    history.do("A", "complete", claim, reply=EXPIRED)
    return history


def younger_job_claimed_first() -> History:
    history = History()
    history.enqueue("1")
    history.enqueue("2")
    history.claim("A", "2")
    return history


def stale_heartbeat_accepted() -> History:
    history = History(tokens=False)
    history.enqueue()
    stale = history.claim("A")
    history.advance(TTL_S + 1)
    history.claim("B")
    history.do("A", "heartbeat", stale, reply=ACCEPTED, ttl_s=TTL_S)
    return history


def stale_complete_refused() -> History:
    """Without tokens A's claim looks like B's."""
    history = History(tokens=False)
    history.enqueue()
    stale = history.claim("A")
    history.advance(TTL_S + 1)
    history.claim("B")
    history.do("A", "complete", stale, reply=STALE)
    return history


def attempt_counted_by_the_sweep() -> History:
    history = History()
    history.enqueue()
    history.claim("A")
    history.advance(TTL_S + 1)
    attempts = history.row("1").attempts or 0
    history.requeue("1")
    history.put("1", attempts=attempts + 1)
    history.do("R", "reap", reply=reaped(1))
    return history


@pytest.mark.parametrize(
    ("told", "capability", "words"),
    [
        (gap_in_the_tokens, Capability.CONSECUTIVE_TOKENS, "had token"),
        (repetition_refused, Capability.REPEATS, "should be accepted before, it was refused"),
        (younger_job_claimed_first, Capability.OLDEST_FIRST, "job 1 comes before job 2"),
        (stale_complete_refused, Capability.FENCING, "should be accepted, it was refused"),
        (attempt_counted_by_the_sweep, Capability.RETRY, "its token or attempts changed"),
    ],
)
def test_a_promise_is_asked_of_who_made_it(
    told: Callable[[], History], capability: Capability, words: str
) -> None:
    found = complaints(told(), ALL)
    assert [message for message in found if words in message], found
    assert complaints(told(), ALL - {capability}) == []


def test_a_lost_lease_may_be_tidied_away() -> None:
    """As where a library forgets a worker that beats no more: the token and the lease's end go with it."""
    history = History()
    history.enqueue()
    history.claim("A")
    history.advance(TTL_S + 1)
    history.put("1", lease_until_us=0, token=None)
    history.enqueue("2")
    assert complaints(history, ALL) == []


def test_a_live_lease_may_not() -> None:
    history = History()
    history.enqueue()
    history.claim("A")
    history.put("1", lease_until_us=0, token=None)
    history.enqueue("2")
    (told,) = complaints(history, ALL)
    assert told.startswith("nobody changed job 1 in this step")


def test_a_token_that_does_not_grow_is_wrong_also_where_tokens_have_gaps() -> None:
    history = History()
    history.enqueue()
    claim = history.claim("A")
    history.advance(TTL_S + 1)
    taken = history.let_go("B", "claim", worker="B", ttl_s=TTL_S)
    again = history.lease("B", "1", TTL_S, worker="B")
    history.put("1", token=claim.token)
    history.answer(taken, given(replace(again, token=claim.token)))
    assert "had token" in "".join(complaints(history, ALL - {Capability.CONSECUTIVE_TOKENS}))


def test_without_tokens_a_late_write_may_be_answered_either_way() -> None:
    without = ALL - {Capability.FENCING}
    assert complaints(stale_heartbeat_accepted(), without) == []


def test_without_tokens_the_rightful_holder_is_served_all_the_same() -> None:
    history = History(tokens=False)
    history.enqueue()
    claim = history.claim("A")
    history.do("A", "complete", claim, reply=STALE)
    found = complaints(history, ALL - {Capability.FENCING})
    assert found == [
        "A's complete on job 1 (leased, attempts 1) should be accepted, it was refused (token_mismatch)"
    ]


def test_without_tokens_what_the_rightful_holder_did_must_be_there() -> None:
    history = History(tokens=False)
    history.enqueue()
    claim = history.claim("A")
    history.do("A", "complete", claim, reply=ACCEPTED)
    (message, *_) = complaints(history, ALL - {Capability.FENCING})
    assert message == "job 1 was completed and shows leased, attempts 1"


def test_a_repetition_is_explained_only_where_the_queue_does_not_promise_its_answer() -> None:
    steps = repetition_refused().steps
    assert "no order of the calls" in str(explain(steps, ALL))
    assert explain(steps, ALL - {Capability.REPEATS}) is None
