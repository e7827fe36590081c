from __future__ import annotations

import pytest

from fencepost.harness.adapter import Claim, JobState
from fencepost.tests.histories import (
    ACCEPTED,
    REPEATED,
    STALE,
    Cases,
    History,
    assert_breaks,
    assert_keeps,
    items,
)

CASES = Cases()


@CASES.breaks("ledger_unique", "the ledger holds the same completion twice under token 1")
def one_completion_twice() -> History:
    h = History()
    h.enqueue()
    claim = h.claim("A")
    h.finish(claim)
    h.complete("A", claim)
    return h


@CASES.breaks("ledger_unique", "the ledger holds the same completion twice")
def one_completion_twice_without_tokens() -> History:
    h = History(tokens=False)
    h.enqueue()
    claim = h.claim("A")
    h.finish(claim)
    h.complete("A", claim)
    return h


@CASES.keeps("ledger_unique")
def two_jobs_completed_under_one_token_each() -> History:
    h = History()
    h.enqueue("1")
    h.enqueue("2")
    first, second = h.claim("A", "1"), h.claim("B", "2")
    h.complete("A", first)
    h.complete("B", second)
    h.end()
    return h


@CASES.breaks("ledger_once", "it succeeded and has no ledger entry")
def succeeded_without_an_entry() -> History:
    h = History()
    h.enqueue()
    claim = h.claim("A")
    h.put("1", state=JobState.SUCCEEDED)
    h.do("A", "complete", claim)
    return h


@CASES.breaks("ledger_once", "it succeeded and has 2 ledger entries")
def succeeded_with_two_entries() -> History:
    h = History()
    h.enqueue()
    claim = h.claim("A")
    h.write("1", 0)
    h.complete("A", claim)
    return h


@CASES.breaks("ledger_once", "its ledger entry is under token 1, its final token is 2")
def entry_under_an_earlier_token() -> History:
    h = History()
    h.enqueue()
    h.claim("A")
    h.advance(31)
    fresh = h.claim("B")
    h.put("1", state=JobState.SUCCEEDED)
    h.write("1", 1)
    h.do("B", "complete", fresh)
    return h


@CASES.breaks("ledger_once", "it is leased and has a ledger entry under token 1")
def ledger_committed_before_the_state() -> History:
    h = History()
    h.enqueue()
    claim = h.claim("A")
    call = h.let_go("A", "complete", claim)
    h.write("1", 1)
    h.park(call, "after_ledger")
    return h


@CASES.breaks("ledger_once", "it is failed and has a ledger entry under token 1")
def entry_for_a_failed_job() -> History:
    h = History()
    h.enqueue()
    claim = h.claim("A")
    h.put("1", state=JobState.FAILED)
    h.write("1", 1)
    h.do("A", "fail", claim)
    return h


@CASES.breaks(
    "ledger_once", "A's complete_batch of it under token 1 was accepted and is not in the ledger", job="2"
)
def batch_that_stopped_half_way_and_says_otherwise() -> History:
    h = History()
    h.enqueue("1")
    h.enqueue("2")
    first, second = h.claim("A", "1"), h.claim("A", "2")
    h.finish(first)
    h.do("A", "complete_batch", first, second, reply=items(ACCEPTED, ACCEPTED))
    return h


@CASES.breaks("ledger_once", "A's complete of it under token 1 was accepted and is not in the ledger")
def lost_acknowledgement() -> History:
    h = History()
    h.enqueue()
    h.do("A", "complete", h.claim("A"))
    return h


@CASES.keeps("ledger_once")
def batch_with_a_refused_a_repeated_and_an_unknown_item() -> History:
    h = History()
    for job in ("1", "2"):
        h.enqueue(job)
    done, stale = h.claim("A", "1"), h.claim("A", "2")
    h.advance(31)
    fresh = h.claim("B", "2")
    done = h.claim("A", "1")
    h.finish(done)
    unknown = Claim("3", 1)
    h.do("A", "complete_batch", done, stale, done, unknown, reply=items(ACCEPTED, STALE, REPEATED, STALE))
    h.complete("B", fresh)
    h.end()
    return h


@CASES.keeps("ledger_once")
def finished_job_is_deleted_with_its_entry() -> History:
    h = History()
    h.enqueue()
    claim = h.claim("A")
    h.drop("1")
    h.do("A", "complete", claim)
    h.enqueue("2")
    h.complete("A", h.claim("A", "2"))
    h.end()
    return h


@CASES.keeps("ledger_once")
def completed_after_a_reclaim() -> History:
    h = History()
    h.enqueue()
    h.claim("A")
    h.advance(31)
    h.complete("B", h.claim("B"))
    h.end()
    return h


@CASES.keeps("ledger_once")
def completed_without_tokens() -> History:
    h = History(tokens=False)
    h.enqueue()
    h.complete("A", h.claim("A"))
    h.end()
    return h


@pytest.mark.parametrize("name", CASES.bad)
def test_breaks(name: str) -> None:
    assert_breaks(CASES.bad[name])


@pytest.mark.parametrize("name", CASES.good)
def test_keeps(name: str) -> None:
    assert_keeps(*CASES.good[name])
