from __future__ import annotations

import pytest

from fencepost.harness.adapter import Claim, JobState
from fencepost.tests.histories import (
    ACCEPTED,
    NOTHING,
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


def held(ttl_s: float = 30.0, *, tokens: bool = True) -> tuple[History, Claim]:
    h = History(tokens=tokens)
    h.enqueue()
    return h, h.claim("A", ttl_s=ttl_s)


# single_holder


@CASES.breaks("single_holder", "B got it under token 2 while the lease of A was live")
def live_lease_stolen() -> History:
    h, _ = held()
    h.claim("B")
    return h


@CASES.breaks("single_holder", "B got it under token 2 while the lease of A was live")
def live_lease_stolen_seen_before_the_answer() -> History:
    h, _ = held()
    call = h.let_go("B", "claim", ttl_s=30)
    h.lease("B")
    h.park(call, "after_commit")
    return h


@CASES.breaks("single_holder", "B got it under token 2 while the lease of A was live")
def expiry_written_from_a_worker_clock_that_is_behind() -> History:
    h = History()
    h.enqueue()
    call = h.let_go("A", "claim", ttl_s=30)
    claim = h.lease("A")
    h.put("1", lease_until_us=h.now_us - 60 * US)
    h.answer(call, given(claim))
    h.claim("B")
    return h


@CASES.breaks("single_holder", "B got it under token 2 while the lease of A was live")
def lease_of_a_claim_not_answered_yet_stolen() -> History:
    h = History()
    h.enqueue()
    call = h.let_go("A", "claim", ttl_s=30)
    h.lease("A")
    h.park(call, "after_commit")
    h.claim("B")
    return h


@CASES.breaks("single_holder", "B got it under token 2 while the lease of A was live")
def stolen_from_a_heartbeat() -> History:
    h, claim = held()
    h.advance(20)
    h.heartbeat("A", claim)
    h.put("1", lease_until_us=None)
    h.advance(15)
    h.claim("B")
    return h


@CASES.breaks("single_holder", "B and A were both given it under token 1")
def selected_then_updated_without_a_lock() -> History:
    h = History()
    h.enqueue()
    slow = h.let_go("A", "claim", ttl_s=30)
    h.park(slow, "after_select")
    fast = h.claim("B")
    h.put("1", holder="A")
    h.answer(slow, given(fast))
    return h


@CASES.breaks("single_holder", "B got it under token 2 while the lease of A was live", steps_before_end=1)
def claim_that_waited_for_another_taken_all_the_same() -> History:
    h = History()
    h.enqueue()
    first = h.let_go("A", "claim", ttl_s=30)
    h.park(first, "after_claim")
    second = h.let_go("B", "claim", ttl_s=30)
    h.block(second, "A")
    mine, theirs = h.lease("A"), h.lease("B")
    h.answer(first, given(mine))
    h.freed(second, given(theirs))
    return h


@CASES.breaks("single_holder", "A got it while the lease of B was live")
def selected_then_updated_without_a_lock_or_tokens() -> History:
    h = History(tokens=False)
    h.enqueue()
    slow = h.let_go("A", "claim", ttl_s=30)
    h.park(slow, "after_select")
    h.claim("B")
    late = h.lease("A")
    h.answer(slow, given(late))
    return h


@CASES.breaks("single_holder", "A was given it twice under token 1")
def token_given_again_after_expiry() -> History:
    h, claim = held()
    h.advance(31)
    h.do("A", "claim", reply=given(claim), ttl_s=30)
    return h


@CASES.breaks("single_holder", "B got it while the lease of A was live")
def stolen_without_tokens() -> History:
    h, _ = held(tokens=False)
    h.claim("B")
    return h


@CASES.breaks("single_holder", "B got it while the lease of w was live")
def stolen_without_tokens_under_the_same_worker_name() -> History:
    h = History(tokens=False)
    h.enqueue()
    h.claim("A", worker="w")
    h.claim("B", worker="w")
    return h


@CASES.breaks("single_holder", "B got it under token 2 while the lease of A was live", job="2")
def one_of_a_batch_stolen() -> History:
    h = History()
    h.enqueue("1")
    h.enqueue("2")
    h.claim("A", "2")
    call = h.let_go("B", "claim_batch", ttl_s=30, limit=2)
    claims = h.lease("B", "1"), h.lease("B", "2")
    h.answer(call, given(*claims))
    return h


@CASES.breaks("single_holder", "B got it under token 2 while the lease of A was live", steps_before_end=1)
def stolen_although_a_refused_fail_was_in_the_same_group() -> History:
    h, _ = held()
    other = h.let_go("A", "fail", Claim("1", 0))
    h.park(other)
    taker = h.let_go("B", "claim", ttl_s=30)
    h.block(taker, "A")
    fresh = h.lease("B")
    h.answer(other, STALE)
    h.freed(taker, given(fresh))
    return h


@CASES.breaks("single_holder", "B got it under token 2 while the lease of A was live", steps_before_end=1)
def stolen_while_the_holder_failed_another_job() -> History:
    h, _ = held()
    h.enqueue("2")
    failing = h.let_go("A", "fail", h.claim("A", "2"))
    h.park(failing)
    taker = h.let_go("B", "claim", ttl_s=30)
    h.block(taker, "A")
    h.requeue("2")
    stolen = h.lease("B", "1")
    h.answer(failing)
    h.freed(taker, given(stolen))
    return h


@CASES.keeps("single_holder")
def reclaimed_at_the_very_end_of_the_lease() -> History:
    h, _ = held()
    h.do("B", "claim", reply=NOTHING, ttl_s=30)
    until_us = h.row("1").lease_until_us or 0
    h.advance((until_us - h.now_us - 2 * TICK_US) / US)
    h.complete("B", h.claim("B"))
    h.end()
    return h


@CASES.keeps("single_holder")
def nothing_to_claim_while_held() -> History:
    h, claim = held()
    h.do("B", "claim", reply=NOTHING, ttl_s=30)
    h.complete("A", claim)
    h.end()
    return h


@CASES.keeps("single_holder")
def reclaimed_by_the_clock_and_by_rewriting() -> History:
    h, _ = held()
    h.do("B", "claim", reply=NOTHING, ttl_s=30)
    h.advance(31)
    second = h.claim("B")
    h.expire(second)
    h.complete("C", h.claim("C"))
    h.end()
    return h


@CASES.keeps("single_holder")
def reclaimed_without_tokens_and_answered_out_of_order() -> History:
    h = History(tokens=False)
    h.enqueue()
    slow = h.let_go("A", "claim", ttl_s=30)
    stale = h.lease("A")
    h.park(slow, "after_commit")
    h.do("B", "claim", reply=NOTHING, ttl_s=30)
    h.advance(31)
    fresh = h.claim("B")
    h.answer(slow, given(stale))
    h.complete("B", fresh)
    h.end()
    return h


@CASES.keeps("single_holder")
def expired_while_its_answer_was_held() -> History:
    h = History()
    h.enqueue()
    slow = h.let_go("A", "claim", ttl_s=30)
    stale = h.lease("A")
    h.park(slow, "after_commit")
    h.do("B", "claim", reply=NOTHING, ttl_s=30)
    h.expire(stale)
    h.answer(slow, given(stale))
    h.complete("B", h.claim("B"))
    h.end()
    return h


@CASES.keeps("single_holder")
def failed_and_claimed_in_one_group() -> History:
    h, claim = held()
    failing = h.let_go("A", "fail", claim)
    h.park(failing)
    taker = h.let_go("B", "claim", ttl_s=30)
    h.block(taker, "A")
    fresh = h.lease("B")
    h.answer(failing)
    h.freed(taker, given(fresh))
    h.complete("B", fresh)
    h.end()
    return h


@CASES.keeps("single_holder")
def failed_held_after_commit_and_claimed_in_one_group() -> History:
    h, claim = held()
    failing = h.let_go("A", "fail", claim)
    h.park(failing)
    taker = h.let_go("B", "claim", ttl_s=30)
    h.block(taker, "A")
    fresh = h.lease("B")
    h.park(failing, "after_commit")
    h.freed(taker, given(fresh))
    h.answer(failing)
    h.complete("B", fresh)
    h.end()
    return h


@CASES.keeps("single_holder")
def fail_with_a_lost_answer_takes_effect_in_the_step_of_the_next_claim() -> History:
    h, claim = held()
    h.do("A", "fail", claim, reply=UNKNOWN)
    h.complete("B", h.claim("B"))
    h.end()
    return h


@CASES.keeps("single_holder")
def killed_while_failing_and_claimed_by_another() -> History:
    h, claim = held()
    failing = h.let_go("A", "fail", claim)
    h.park(failing)
    h.fault("kill", "A")
    h.complete("B", h.claim("B"))
    h.end()
    return h


@CASES.keeps("single_holder")
def claim_judged_before_the_clock_was_set_back() -> History:
    h, _ = held()
    h.do("B", "claim", reply=NOTHING, ttl_s=30)
    h.advance(31)
    call = h.let_go("B", "claim", ttl_s=30)
    h.park(call, "before_commit")
    h.advance(-20)
    fresh = h.lease("B")
    h.answer(call, given(fresh))
    h.complete("B", fresh)
    h.end()
    return h


@CASES.keeps("single_holder")
def batch_claims_after_expiry() -> History:
    h = History()
    h.enqueue("1")
    h.enqueue("2")
    h.claim("A", "2")
    h.do("B", "claim", reply=NOTHING, ttl_s=30)
    h.advance(31)
    call = h.let_go("B", "claim_batch", ttl_s=30, limit=2)
    claims = h.lease("B", "1"), h.lease("B", "2")
    h.answer(call, given(*claims))
    for claim in claims:
        h.finish(claim)
    h.do("B", "complete_batch", *claims, reply=items(ACCEPTED, ACCEPTED))
    h.end()
    return h


# heartbeat_honoured


@CASES.breaks(
    "heartbeat_honoured", "it became ready before the time an accepted heartbeat had promised to its holder"
)
def reaped_after_an_accepted_heartbeat() -> History:
    h, claim = held()
    reaper = h.let_go("R", "reap")
    h.park(reaper, "after_snapshot")
    h.advance(25)
    h.heartbeat("A", claim)
    h.advance(10)
    h.requeue()
    h.answer(reaper, reaped(1))
    return h


@CASES.breaks(
    "heartbeat_honoured", "it became failed before the time an accepted heartbeat had promised to its holder"
)
def ended_after_an_accepted_heartbeat() -> History:
    h, claim = held()
    h.heartbeat("A", claim)
    h.put("1", state=JobState.FAILED)
    h.do("R", "reap", reply=reaped(1))
    return h


@CASES.breaks(
    "heartbeat_honoured", "B took it before the time an accepted heartbeat had promised to its holder"
)
def claimed_after_an_accepted_heartbeat() -> History:
    h, claim = held()
    h.advance(20)
    h.heartbeat("A", claim)
    h.advance(15)
    h.claim("B")
    return h


@CASES.breaks("heartbeat_honoured", "its lease ends before the time its holder was promised")
def accepted_and_not_written() -> History:
    h, claim = held()
    h.advance(20)
    h.do("A", "heartbeat", claim, ttl_s=30)
    return h


@CASES.breaks("heartbeat_honoured", "its lease ends before the time its holder was promised")
def heartbeat_shortens() -> History:
    h, claim = held()
    h.heartbeat("A", claim, ttl_s=5)
    return h


@CASES.breaks("heartbeat_honoured", "its lease ends before the time its holder was promised")
def second_heartbeat_shortens_the_first() -> History:
    h, claim = held()
    h.heartbeat("A", claim, ttl_s=90)
    h.heartbeat("A", claim, ttl_s=60)
    return h


@CASES.breaks(
    "heartbeat_honoured", "it became ready before the time an accepted heartbeat had promised to its holder"
)
def second_heartbeat_asks_for_less_and_the_first_is_forgotten() -> History:
    h, claim = held()
    h.heartbeat("A", claim, ttl_s=90)
    h.do("A", "heartbeat", claim, ttl_s=60)
    h.advance(70)
    h.reap("1")
    return h


@CASES.breaks("heartbeat_honoured", "its lease ends before the time its holder was promised")
def lease_shortened_later() -> History:
    h, claim = held()
    h.heartbeat("A", claim, ttl_s=60)
    h.put("1", lease_until_us=h.now_us + 2 * US)
    h.do("B", "claim", reply=NOTHING, ttl_s=30)
    return h


@CASES.breaks(
    "heartbeat_honoured", "it became ready before the time an accepted heartbeat had promised to its holder"
)
def reaped_between_the_heartbeats_commit_and_its_answer() -> History:
    h, claim = held()
    call = h.let_go("A", "heartbeat", claim, ttl_s=30)
    h.put("1", lease_until_us=h.now_us + 31 * US)
    h.park(call, "after_commit")
    h.reap("1")
    h.answer(call)
    return h


@CASES.keeps("heartbeat_honoured")
def kept_until_its_time_and_then_reaped() -> History:
    h, claim = held()
    h.advance(20)
    h.heartbeat("A", claim)
    h.advance(15)
    h.do("R", "reap", reply=reaped(0))
    h.do("B", "claim", reply=NOTHING, ttl_s=30)
    h.advance(20)
    h.reap("1")
    h.complete("B", h.claim("B"))
    h.end()
    return h


@CASES.keeps("heartbeat_honoured")
def settled_by_its_holder() -> History:
    h, claim = held()
    h.heartbeat("A", claim)
    h.fail("A", claim)
    second = h.claim("B")
    h.heartbeat("B", second, ttl_s=60)
    h.complete("B", second)
    h.end()
    return h


@CASES.keeps("heartbeat_honoured")
def expired_by_rewriting_after_a_heartbeat() -> History:
    h, claim = held()
    h.heartbeat("A", claim, ttl_s=60)
    h.expire(claim)
    h.complete("B", h.claim("B"))
    h.end()
    return h


@CASES.keeps("heartbeat_honoured")
def cancelled_after_a_heartbeat() -> History:
    h, claim = held()
    h.heartbeat("A", claim, ttl_s=60)
    h.put("1", state=JobState.CANCELLED)
    h.do("P", "cancel", job="1")
    h.do("A", "complete", claim, reply=STALE)
    h.end()
    return h


@CASES.keeps("heartbeat_honoured")
def repeated_and_lost_heartbeats_promise_nothing() -> History:
    h, claim = held()
    h.heartbeat("A", claim)
    h.advance(20)
    h.do("A", "heartbeat", claim, reply=REPEATED, ttl_s=60)
    h.do("A", "heartbeat", claim, reply=UNKNOWN, ttl_s=60)
    h.advance(15)
    h.reap("1")
    h.complete("B", h.claim("B"))
    h.end()
    return h


@CASES.keeps("heartbeat_honoured")
def clock_set_back_while_the_heartbeat_was_held() -> History:
    h, claim = held(ttl_s=5)
    call = h.let_go("A", "heartbeat", claim, ttl_s=30)
    h.park(call)
    h.advance(-10)
    h.put("1", lease_until_us=h.now_us + 31 * US)
    h.answer(call)
    h.advance(32)
    h.reap("1")
    h.complete("B", h.claim("B"))
    h.end()
    return h


@CASES.keeps("single_holder")
def clock_set_back_while_the_claim_was_held() -> History:
    h = History()
    h.enqueue("2")
    h.enqueue()
    h.claim("C", "2", ttl_s=90)
    call = h.let_go("A", "claim", ttl_s=30)
    h.park(call, "after_select")
    h.advance(-10)
    claim = h.lease("A")
    h.answer(call, given(claim))
    h.advance(31)
    h.complete("B", h.claim("B"))
    h.advance(70)
    h.complete("B", h.claim("B", "2"))
    h.end()
    return h


@CASES.keeps("heartbeat_honoured")
def refused_while_the_reaper_has_the_row() -> History:
    h, claim = held()
    h.heartbeat("A", claim)
    h.advance(31)
    reaper = h.let_go("R", "reap")
    h.park(reaper, "before_requeue")
    call = h.let_go("A", "heartbeat", claim, ttl_s=30)
    h.block(call, "R")
    h.requeue()
    h.answer(reaper, reaped(1))
    h.freed(call, STALE)
    h.complete("B", h.claim("B"))
    h.end()
    return h


@CASES.keeps("heartbeat_honoured")
def batch_heartbeat_with_one_refused() -> History:
    h = History()
    h.enqueue("1")
    h.enqueue("2")
    stale = h.claim("A", "2")
    h.advance(31)
    kept = h.claim("A", "1")
    fresh = h.claim("B", "2")
    h.put("1", lease_until_us=h.now_us + 61 * US)
    h.do("A", "heartbeat_batch", kept, stale, reply=items(ACCEPTED, STALE), ttl_s=60)
    h.complete("B", fresh)
    h.complete("A", kept)
    h.end()
    return h


# requeued_once


@CASES.breaks("requeued_once", "reapers recovered 2 leases, and only 1 had been lost")
def two_reapers_answer_for_one_lease() -> History:
    h, _ = held()
    h.advance(31)
    h.reap("1", actor="R")
    h.do("S", "reap", reply=reaped(1))
    return h


@CASES.breaks("requeued_once", "S requeued it a second time for the lost lease of token 1")
def requeued_again_with_another_next_run() -> History:
    h, _ = held()
    h.advance(31)
    late = h.let_go("S", "reap")
    h.park(late, "after_snapshot")
    h.reap("1")
    h.requeue(delay_s=5)
    h.answer(late, reaped(1))
    return h


@CASES.breaks("requeued_once", "S requeued it a second time for one lost lease")
def requeued_again_without_tokens() -> History:
    h, _ = held(tokens=False)
    h.advance(31)
    h.reap("1")
    h.put("1", attempts=2)
    h.do("S", "reap", reply=reaped(0))
    return h


@CASES.breaks("requeued_once", "reapers recovered 2 leases, and only 1 had been lost")
def both_reapers_of_one_group_requeue() -> History:
    h, _ = held()
    h.advance(31)
    first = h.let_go("R", "reap")
    h.park(first, "before_commit")
    second = h.let_go("S", "reap")
    h.block(second, "R")
    h.requeue()
    h.answer(first, reaped(1))
    h.freed(second, reaped(1))
    return h


@CASES.breaks("requeued_once", "R requeued it while its lease was live")
def reaper_without_recheck_requeues_a_reclaimed_job() -> History:
    h, _ = held()
    h.advance(31)
    reaper = h.let_go("R", "reap")
    h.park(reaper, "after_snapshot")
    h.claim("B")
    h.requeue()
    h.answer(reaper, reaped(1))
    return h


@CASES.breaks("requeued_once", "R requeued it while its lease was live", steps_before_end=1)
def live_lease_requeued_beside_a_late_write_that_was_refused() -> History:
    h, stale = held()
    h.advance(31)
    h.claim("B")
    reaper = h.let_go("R", "reap")
    h.park(reaper, "before_commit")
    late = h.let_go("A", "heartbeat", stale, ttl_s=30)
    h.block(late, "R")
    h.requeue()
    h.answer(reaper, reaped(1))
    h.freed(late, STALE)
    return h


@CASES.breaks("requeued_once", "reapers recovered 1 leases, and only 0 had been lost", job="1")
def reaper_answers_for_what_the_holder_failed() -> History:
    h, claim = held()
    h.advance(29)
    failing = h.let_go("A", "fail", claim)
    h.park(failing)
    h.advance(2)
    reaper = h.let_go("R", "reap")
    h.block(reaper, "A")
    h.requeue()
    h.answer(failing)
    h.freed(reaper, reaped(1))
    return h


@CASES.keeps("requeued_once")
def each_lost_lease_requeued_once() -> History:
    h, _ = held()
    h.advance(31)
    h.reap("1")
    h.do("S", "reap", reply=reaped(0))
    h.claim("B")
    h.advance(31)
    h.reap("1")
    h.complete("C", h.claim("C"))
    h.end()
    return h


@CASES.keeps("requeued_once")
def reaper_held_after_commit() -> History:
    h, _ = held()
    h.advance(31)
    reaper = h.let_go("R", "reap")
    h.requeue()
    h.park(reaper, "after_commit")
    fresh = h.claim("B")
    h.answer(reaper, reaped(1))
    h.complete("B", fresh)
    h.end()
    return h


@CASES.keeps("requeued_once")
def reaped_and_claimed_in_one_group() -> History:
    h, _ = held()
    h.advance(31)
    reaper = h.let_go("R", "reap")
    h.park(reaper, "before_commit")
    taker = h.let_go("B", "claim", ttl_s=30)
    h.block(taker, "R")
    fresh = h.lease("B")
    h.answer(reaper, reaped(1))
    h.freed(taker, given(fresh))
    h.complete("B", fresh)
    h.end()
    return h


@CASES.keeps("requeued_once")
def a_lost_answer_is_not_counted() -> History:
    h, _ = held()
    h.advance(31)
    h.requeue()
    h.do("R", "reap", reply=UNKNOWN)
    h.claim("B")
    h.advance(31)
    h.reap("1")
    h.complete("C", h.claim("C"))
    h.end()
    return h


@CASES.keeps("requeued_once")
def a_requeued_job_becomes_due_and_ends_cancelled() -> History:
    h, _ = held()
    h.advance(31)
    h.requeue(delay_s=5)
    h.do("R", "reap", reply=reaped(1))
    h.advance(6)
    h.put("1", state=JobState.READY)
    h.do("R", "reap", reply=reaped(0))
    h.put("1", state=JobState.CANCELLED)
    h.do("P", "cancel", job="1")
    h.end()
    return h


# restart_keeps_leases


@CASES.breaks("restart_keeps_leases", "it was ready and is gone after the restart")
def job_lost_in_a_crash() -> History:
    h = History()
    h.enqueue()
    h.drop("1")
    h.fault("crash")
    return h


@CASES.breaks("restart_keeps_leases", "the restart changed its state, holder, lease")
def lease_lost_in_a_restart() -> History:
    h, _ = held()
    h.requeue()
    h.fault("fast_restart")
    return h


@CASES.breaks("restart_keeps_leases", "the restart changed its token, attempts")
def token_lost_in_a_crash() -> History:
    h, _ = held()
    h.put("1", token=0, attempts=0)
    h.fault("kill_all")
    return h


@CASES.breaks("restart_keeps_leases", "the restart changed its ledger entries")
def ledger_lost_in_a_crash() -> History:
    h, claim = held()
    h.complete("A", claim)
    h.erase_ledger()
    h.fault("crash")
    return h


@CASES.keeps("restart_keeps_leases")
def everything_is_as_it_was() -> History:
    h, claim = held()
    h.enqueue("2")
    h.complete("B", h.claim("B", "2"))
    h.fault("crash")
    h.fault("fast_restart")
    h.complete("A", claim)
    h.end()
    return h


@CASES.keeps("restart_keeps_leases")
def a_blocked_write_commits_while_the_server_dies() -> History:
    h, claim = held()
    other = h.let_go("R", "reap")
    h.park(other, "before_requeue")
    call = h.let_go("A", "complete", claim)
    h.block(call, "R")
    h.finish(claim)
    h.fault("crash")
    h.answer(other, UNKNOWN)
    h.answer(call, UNKNOWN)
    h.end()
    return h


@pytest.mark.parametrize("name", CASES.bad)
def test_breaks(name: str) -> None:
    assert_breaks(CASES.bad[name])


@pytest.mark.parametrize("name", CASES.good)
def test_keeps(name: str) -> None:
    assert_keeps(*CASES.good[name])
