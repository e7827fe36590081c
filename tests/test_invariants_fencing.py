from __future__ import annotations

import pytest

from fencepost.harness.adapter import Claim, JobState
from fencepost.tests.histories import (
    ACCEPTED,
    EXPIRED,
    REPEATED,
    STALE,
    TICK_US,
    UNKNOWN,
    US,
    Cases,
    History,
    assert_breaks,
    assert_keeps,
    given,
    items,
    reaped,
)

CASES = Cases()


def reclaimed() -> tuple[History, Claim, Claim]:
    """A stalled past its lease and B has the job under token 2."""
    h = History()
    h.enqueue()
    stale = h.claim("A")
    h.advance(31)
    return h, stale, h.claim("B")


@CASES.breaks("fence", "A wrote to the ledger under token 1 while 2 was current")
def no_guard_late_complete() -> History:
    h, stale, _ = reclaimed()
    h.complete("A", stale)
    return h


@CASES.breaks("fence", "A wrote under token 1 while 2 was current")
def late_complete_changes_the_row_and_is_answered_as_refused() -> History:
    h, stale, _ = reclaimed()
    h.put("1", state=JobState.SUCCEEDED)
    h.do("A", "complete", stale, reply=STALE)
    return h


@CASES.breaks("fence", "A wrote under token 1 while 2 was current")
def late_complete_took_effect_and_its_answer_was_lost() -> History:
    h, stale, _ = reclaimed()
    h.put("1", state=JobState.SUCCEEDED)
    h.do("A", "complete", stale, reply=UNKNOWN)
    return h


@CASES.breaks("fence", "A wrote under token 1 while 2 was current")
def freed_by_a_write_that_was_refused() -> History:
    """B could have made this change, and was told that it did not."""
    h, stale, fresh = reclaimed()
    late = h.let_go("A", "complete", stale)
    h.block(late, "B")
    h.put("1", state=JobState.SUCCEEDED)
    h.do("B", "complete", fresh, reply=EXPIRED)
    h.freed(late, STALE)
    return h


@CASES.breaks("fence", "A wrote under token 1 while 2 was current")
def guard_without_row_lock() -> History:
    h = History()
    h.enqueue()
    stale = h.claim("A")
    call = h.let_go("A", "complete", stale)
    h.park(call)
    h.advance(31)
    h.claim("B")
    h.put("1", state=JobState.SUCCEEDED)
    h.answer(call)
    return h


@CASES.breaks("fence", "A wrote to the ledger under token 1 while 2 was current")
def guard_without_row_lock_writes_the_ledger_first() -> History:
    h = History()
    h.enqueue()
    stale = h.claim("A")
    call = h.let_go("A", "complete", stale)
    h.park(call)
    h.advance(31)
    h.claim("B")
    h.write("1", 1, "A")
    h.park(call, "after_ledger")
    return h


@CASES.breaks("fence", "A wrote under token 1 while 2 was current")
def late_fail_requeues_what_another_holds() -> History:
    h, stale, _ = reclaimed()
    h.fail("A", stale)
    return h


@CASES.breaks("fence", "A wrote under token 1 while 2 was current")
def late_fail_ends_the_job() -> History:
    h, stale, _ = reclaimed()
    h.put("1", state=JobState.FAILED)
    h.do("A", "fail", stale)
    return h


@CASES.breaks("fence", "A wrote under token 1 while 2 was current")
def late_heartbeat_by_job_only() -> History:
    h, stale, _ = reclaimed()
    h.heartbeat("A", stale)
    return h


@CASES.breaks("fence", "A's heartbeat under token 1 was accepted while 2 was current")
def late_heartbeat_accepted_without_a_trace() -> History:
    h, stale, _ = reclaimed()
    h.do("A", "heartbeat", stale, ttl_s=30)
    return h


@CASES.breaks("fence", "A wrote under token 1 while 2 was current")
def fence_by_worker_name() -> History:
    h = History()
    h.enqueue()
    stale = h.claim("A", worker="w")
    h.advance(31)
    h.claim("B", worker="w")
    h.put("1", state=JobState.SUCCEEDED)
    h.write("1", 2, "w")
    h.do("A", "complete", stale)
    return h


@CASES.breaks("fence", "A's complete under token 1 was accepted while 2 was current")
def freed_by_the_reclaim_it_waited_for_and_accepted() -> History:
    h = History()
    h.enqueue()
    stale = h.claim("A")
    h.advance(29)
    reclaim = h.let_go("B", "claim", ttl_s=30)
    h.park(reclaim, "before_commit")
    late = h.let_go("A", "complete", stale)
    h.block(late, "B")
    fresh = h.lease("B")
    h.put("1", state=JobState.SUCCEEDED)
    h.answer(reclaim, given(fresh))
    h.freed(late)
    return h


@CASES.breaks("fence", "A's complete was accepted under a lease that had expired before it was judged")
def expired_and_nobody_reclaimed() -> History:
    h = History()
    h.enqueue()
    stale = h.claim("A")
    h.advance(31)
    h.complete("A", stale)
    return h


@CASES.breaks("fence", "A's complete was accepted under a lease that had expired before it was judged")
def expired_by_rewriting_the_row() -> History:
    h = History()
    h.enqueue()
    stale = h.claim("A")
    h.expire(stale)
    h.complete("A", stale)
    return h


@CASES.breaks("fence", "A's complete was accepted under a lease that had expired before it was judged")
def judged_before_it_waited_for_the_row() -> History:
    h = History()
    h.enqueue()
    claim = h.claim("A")
    other = h.let_go("B", "reap")
    h.park(other, "before_requeue")
    call = h.let_go("A", "complete", claim)
    h.block(call, "B")
    h.advance(31)
    h.finish(claim)
    h.answer(other, reaped(0))
    h.freed(call)
    return h


@CASES.breaks("fence", "A's heartbeat was accepted under a lease that had expired before it was judged")
def heartbeat_revives_and_is_held_after_commit() -> History:
    h = History()
    h.enqueue()
    claim = h.claim("A")
    h.advance(31)
    call = h.let_go("A", "heartbeat", claim, ttl_s=30)
    h.put("1", lease_until_us=h.now_us + 30 * US)
    h.park(call, "after_commit")
    h.answer(call)
    return h


@CASES.breaks("fence", "A's complete was accepted under a lease that had expired before it was judged")
def rows_do_not_date_leases() -> History:
    h = History()
    h.enqueue()
    call = h.let_go("A", "claim", ttl_s=30)
    claim = h.lease("A")
    h.put("1", lease_until_us=None)
    h.answer(call, given(claim))
    h.advance(31)
    h.complete("A", claim)
    return h


@CASES.breaks("fence", "A's complete was accepted under a lease that had expired before it was judged")
def expired_at_this_very_moment() -> History:
    h = History()
    h.enqueue()
    claim = h.claim("A")
    h.put("1", lease_until_us=h.now_us + TICK_US)
    h.advance(0)
    h.complete("A", claim)
    return h


@CASES.breaks("fence", "A wrote to the ledger under token 1 while 2 was current")
def late_complete_deletes_the_row() -> History:
    h, stale, _ = reclaimed()
    h.drop("1")
    h.write("1", 1, "A")
    h.do("A", "complete", stale, reply=UNKNOWN)
    return h


@CASES.breaks("fence", "A wrote to the ledger under token 1 while 2 was current", steps_before_end=1)
def freed_by_the_reclaim_it_waited_for_and_in_the_ledger() -> History:
    h = History()
    h.enqueue()
    stale = h.claim("A")
    h.advance(31)
    reclaim = h.let_go("B", "claim", ttl_s=30)
    h.park(reclaim, "before_commit")
    late = h.let_go("A", "complete", stale)
    h.block(late, "B")
    fresh = h.lease("B")
    h.write("1", 1, "A")
    h.answer(reclaim, given(fresh))
    h.freed(late, UNKNOWN)
    return h


@pytest.mark.parametrize("field", ["attempts", "holder", "lease_until_us", "next_run_at_us"])
def test_fence_sees_every_field_a_stale_write_changes(field: str) -> None:
    def build() -> History:
        h, stale, _ = reclaimed()
        h.put("1", **{field: "Z" if field == "holder" else 7})
        h.do("A", "fail", stale, reply=STALE)
        return h

    cases = Cases()
    cases.breaks("fence", "A wrote under token 1 while 2 was current")(build)
    for case in cases.bad.values():
        assert_breaks(case)


@CASES.breaks("fence", "A wrote under token 1 while 2 was current", job="2")
def one_stale_item_of_a_batch_accepted() -> History:
    h = History()
    for job in ("1", "2"):
        h.enqueue(job)
    stale = h.claim("A", "2")
    h.advance(31)
    fresh = h.claim("A", "1")
    h.claim("B", "2")
    h.finish(fresh)
    h.put("2", state=JobState.SUCCEEDED)
    h.do("A", "complete_batch", fresh, stale, reply=items(ACCEPTED, ACCEPTED))
    return h


@CASES.breaks("fence", "A wrote under token 1 while 2 was current", steps_before_end=2)
def stale_fail_whose_answer_is_lost_frees_the_holder_who_is_refused() -> History:
    h, stale, fresh = reclaimed()
    late = h.let_go("A", "fail", stale)
    h.park(late)
    rightful = h.let_go("B", "fail", fresh)
    h.block(rightful, "A")
    h.requeue()
    h.answer(late, UNKNOWN)
    h.freed(rightful, STALE)
    h.end()
    return h


@CASES.keeps("fence")
def renewed_while_the_complete_waited_for_the_row() -> History:
    """The heartbeat was judged in time, so the complete it let go found a live lease."""
    h = History()
    h.enqueue()
    claim = h.claim("A")
    beat = h.let_go("A", "heartbeat", claim, ttl_s=90)
    h.park(beat)
    done = h.let_go("A2", "complete", claim, worker="A")
    h.block(done, "A")
    h.advance(31)
    h.finish(claim)
    last_seen_blocked_us = done.unguarded_until_us
    h.answer(beat)
    done.unguarded_until_us = last_seen_blocked_us
    h.freed(done)
    h.end()
    return h


@CASES.keeps("fence")
def late_writes_refused() -> History:
    h, stale, fresh = reclaimed()
    h.do("A", "complete", stale, reply=STALE)
    h.do("A", "fail", stale, reply=STALE)
    h.do("A", "heartbeat", stale, reply=STALE, ttl_s=30)
    h.complete("B", fresh)
    h.do("A", "complete", stale, reply=STALE)
    h.end()
    return h


@CASES.keeps("fence")
def lease_expires_after_the_guard_and_the_write_is_accepted() -> History:
    h = History()
    h.enqueue()
    claim = h.claim("A")
    call = h.let_go("A", "complete", claim)
    h.park(call)
    h.advance(31)
    h.do("B", "claim", ttl_s=30)
    h.finish(claim)
    h.answer(call)
    h.end()
    return h


@CASES.keeps("fence")
def refused_late_write_frees_the_holder_who_completes() -> History:
    h, stale, fresh = reclaimed()
    late = h.let_go("A", "complete", stale)
    h.park(late, "before_guard", guarded=False)
    rightful = h.let_go("B", "complete", fresh)
    h.block(rightful, "A")
    h.finish(fresh, "B")
    h.answer(late, STALE)
    h.freed(rightful)
    h.end()
    return h


@CASES.keeps("fence")
def holder_fails_and_frees_a_late_write_and_a_claim() -> History:
    h, stale, fresh = reclaimed()
    rightful = h.let_go("B", "fail", fresh)
    h.park(rightful)
    late = h.let_go("A", "complete", stale)
    h.block(late, "B")
    third = h.let_go("C", "claim", ttl_s=30)
    h.block(third, "B")
    last = h.lease("C")
    h.answer(rightful)
    h.freed(late, STALE)
    h.freed(third, given(last))
    h.complete("C", last)
    h.end()
    return h


@CASES.keeps("fence")
def write_waits_behind_an_uncommitted_reclaim() -> History:
    h = History()
    h.enqueue()
    stale = h.claim("A")
    h.advance(31)
    reclaim = h.let_go("B", "claim", ttl_s=30)
    h.park(reclaim, "before_commit")
    late = h.let_go("A", "complete", stale)
    h.block(late, "B")
    fresh = h.lease("B")
    h.answer(reclaim, given(fresh))
    h.freed(late, STALE)
    h.complete("B", fresh)
    h.end()
    return h


@CASES.keeps("fence")
def renewed_where_rows_do_not_date_leases() -> History:
    h = History()
    h.enqueue()
    call = h.let_go("A", "claim", ttl_s=30)
    claim = h.lease("A")
    h.put("1", lease_until_us=None)
    h.answer(call, given(claim))
    h.advance(20)
    h.do("A", "heartbeat", claim, ttl_s=30)
    h.advance(20)
    h.complete("A", claim)
    h.do("A", "complete", claim, reply=REPEATED)
    h.advance(20)
    h.do("A", "complete", claim, reply=REPEATED)
    h.end()
    return h


@CASES.keeps("fence")
def completes_behind_its_own_heartbeat_that_passed_its_guard_in_time() -> History:
    h = History()
    h.enqueue()
    claim = h.claim("A")
    renewal = h.let_go("A2", "heartbeat", claim, ttl_s=60)
    h.park(renewal)
    call = h.let_go("A", "complete", claim)
    h.block(call, "A2")
    h.advance(31)
    h.finish(claim)
    h.answer(renewal)
    h.freed(call)
    h.end()
    return h


@CASES.keeps("fence")
def repeated_answer_after_the_job_is_finished() -> History:
    h, stale, fresh = reclaimed()
    h.complete("B", fresh)
    h.do("B", "complete", fresh, reply=REPEATED)
    h.advance(60)
    h.do("B", "complete", fresh, reply=REPEATED)
    h.do("A", "complete", stale, reply=STALE)
    h.end()
    return h


@CASES.keeps("fence")
def lost_answers_of_a_late_and_of_the_rightful_write() -> History:
    h, stale, fresh = reclaimed()
    h.do("A", "complete", stale, reply=UNKNOWN)
    h.do("B", "complete", fresh, reply=UNKNOWN)
    h.finish(fresh, "B")
    h.do("A", "fail", stale, reply=STALE)
    h.end()
    return h


@CASES.keeps("fence")
def batch_with_one_stale_item() -> History:
    h = History()
    for job in ("1", "2"):
        h.enqueue(job)
    stale = h.claim("A", "2")
    h.advance(31)
    first = h.claim("A", "1")
    second = h.claim("B", "2")
    h.finish(first)
    h.do("A", "complete_batch", first, stale, reply=items(ACCEPTED, STALE))
    h.complete("B", second)
    h.end()
    return h


@CASES.keeps("fence")
def refused_after_expiry_and_reaped() -> History:
    h = History()
    h.enqueue()
    stale = h.claim("A")
    h.expire(stale)
    h.do("A", "complete", stale, reply=EXPIRED)
    h.reap("1")
    h.do("A", "heartbeat", stale, reply=STALE, ttl_s=30)
    h.complete("B", h.claim("B"))
    h.end()
    return h


@CASES.keeps("fence")
def judged_in_time_after_the_clock_was_set_back() -> History:
    h, stale, fresh = reclaimed()
    h.do("A", "complete", stale, reply=STALE)
    h.advance(40)
    h.advance(-35)
    h.complete("B", fresh)
    h.end()
    return h


@CASES.breaks("token_monotone", "its token went down from 1 to 0")
def token_reset_on_requeue() -> History:
    h = History()
    h.enqueue()
    claim = h.claim("A")
    h.put("1", token=0)
    h.fail("A", claim)
    return h


@CASES.breaks("token_monotone", "B claimed it under token 1 after 2 had been used")
def lower_token_given() -> History:
    h = History()
    h.enqueue()
    h.put("1", token=1)
    h.claim("A")
    h.advance(31)
    call = h.let_go("B", "claim", ttl_s=30)
    h.answer(call, given(Claim("1", 1)))
    return h


@CASES.breaks("token_monotone", "token 1 was given to two claims")
def token_not_raised_on_reclaim() -> History:
    h = History()
    h.enqueue()
    h.claim("A")
    h.advance(31)
    h.put("1", token=0)
    fresh = h.lease("B")
    h.do("B", "claim", reply=given(fresh), ttl_s=30)
    return h


@CASES.breaks("token_monotone", "B claimed it under token 1 after 1 had been used")
def token_of_a_claim_nobody_heard_of_used_again() -> History:
    h = History()
    h.enqueue()
    h.lease("A")
    h.do("A", "claim", reply=UNKNOWN, ttl_s=30)
    h.advance(31)
    h.put("1", token=0)
    fresh = h.lease("B")
    h.do("B", "claim", reply=given(fresh), ttl_s=30)
    return h


@CASES.keeps("token_monotone")
def answer_held_after_commit_arrives_after_a_later_claim() -> History:
    h = History()
    h.enqueue()
    call = h.let_go("A", "claim", ttl_s=30)
    stale = h.lease("A")
    h.park(call, "after_commit")
    h.advance(31)
    fresh = h.claim("B")
    h.answer(call, given(stale))
    h.do("A", "complete", stale, reply=STALE)
    h.complete("B", fresh)
    h.end()
    return h


@CASES.keeps("token_monotone")
def token_rises_with_every_claim() -> History:
    h = History()
    h.enqueue()
    for actor in ("A", "B", "C"):
        claim = h.claim(actor)
        h.fail(actor, claim)
    h.complete("A", h.claim("A"))
    h.end()
    return h


@pytest.mark.parametrize("name", CASES.bad)
def test_breaks(name: str) -> None:
    assert_breaks(CASES.bad[name])


@pytest.mark.parametrize("name", CASES.good)
def test_keeps(name: str) -> None:
    assert_keeps(*CASES.good[name])
