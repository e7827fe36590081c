from __future__ import annotations

import pytest

from fencepost.harness.adapter import Claim, JobState, Outcome
from fencepost.harness.history import Reply
from fencepost.tests.histories import (
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
    job_of,
    reaped,
)

CASES = Cases()
CONFLICT = Reply(Outcome.REFUSED, reason="idempotency_conflict", error="IdempotencyConflict")


def finished() -> tuple[History, Claim]:
    h = History()
    h.enqueue()
    claim = h.claim("A")
    h.complete("A", claim)
    return h, claim


# terminal_absorbing


@CASES.breaks("terminal_absorbing", "it was succeeded and became ready")
def reaper_overwrites_a_succeeded_job() -> History:
    h, _ = finished()
    h.reap("1")
    return h


@CASES.breaks("terminal_absorbing", "it was succeeded and became cancelled")
def cancel_overwrites_a_succeeded_job() -> History:
    h, _ = finished()
    h.put("1", state=JobState.CANCELLED)
    h.do("P", "cancel", job="1")
    return h


@CASES.breaks("terminal_absorbing", "it was failed and became leased")
def failed_and_claimed_again() -> History:
    h = History()
    h.enqueue()
    claim = h.claim("A")
    h.put("1", state=JobState.FAILED)
    h.do("A", "fail", claim)
    h.claim("B")
    return h


@CASES.breaks("terminal_absorbing", "it was cancelled and its token changed")
def token_of_a_cancelled_job_changes() -> History:
    h = History()
    h.enqueue()
    h.put("1", state=JobState.CANCELLED)
    h.do("P", "cancel", job="1")
    h.put("1", token=7)
    h.do("A", "claim", reply=NOTHING, ttl_s=30)
    return h


@pytest.mark.parametrize(
    ("field", "value", "named"),
    [("attempts", 9, "attempts"), ("holder", "Z", "holder"), ("next_run_at_us", 5, "next run")],
)
def test_terminal_absorbing_sees_every_field(field: str, value: object, named: str) -> None:
    def build() -> History:
        h, claim = finished()
        h.put("1", **{field: value})
        h.do("A", "heartbeat", claim, reply=STALE, ttl_s=30)
        return h

    cases = Cases()
    cases.breaks("terminal_absorbing", f"it was succeeded and its {named} changed")(build)
    for case in cases.bad.values():
        assert_breaks(case)


@CASES.breaks("terminal_absorbing", "it was succeeded and its ledger entries changed")
def ledger_grows_after_the_end() -> History:
    h, _ = finished()
    h.write("1", 2)
    h.do("B", "complete", Claim("1", 2))
    return h


@CASES.breaks("terminal_absorbing", "it was succeeded and its ledger entries changed")
def ledger_entry_deleted_while_the_job_stays() -> History:
    h, _ = finished()
    h.erase_ledger()
    h.do("B", "claim", reply=NOTHING, ttl_s=30)
    return h


@CASES.breaks("terminal_absorbing", "it was succeeded and its ledger entries changed")
def ledger_grows_after_the_row_was_deleted() -> History:
    h, _ = finished()
    h.drop("1")
    h.do("B", "claim", reply=NOTHING, ttl_s=30)
    h.write("1", 2)
    h.do("B", "complete", Claim("1", 2))
    return h


@CASES.breaks("terminal_absorbing", "it was succeeded and became ready")
def deleted_and_resurrected() -> History:
    h, _ = finished()
    h.drop("1")
    h.do("B", "claim", reply=NOTHING, ttl_s=30)
    h.put("1", state=JobState.READY)
    h.do("R", "reap", reply=reaped(0))
    return h


@CASES.keeps("terminal_absorbing")
def late_operations_refused() -> History:
    h, claim = finished()
    h.enqueue("2")
    h.do("A", "fail", claim, reply=STALE)
    h.do("A", "complete", claim, reply=REPEATED)
    h.do("P", "cancel", reply=STALE, job="1")
    h.put("2", state=JobState.CANCELLED)
    h.do("P", "cancel", job="2")
    h.advance(60)
    h.do("R", "reap", reply=reaped(0))
    h.end()
    return h


@CASES.keeps("terminal_absorbing")
def finished_rows_are_deleted() -> History:
    h, _ = finished()
    h.enqueue("2")
    h.drop("1")
    h.erase_ledger()
    h.do("R", "reap", reply=reaped(0))
    h.complete("A", h.claim("A", "2"))
    h.end()
    return h


@CASES.keeps("terminal_absorbing")
def dead_letter_requeued_as_a_new_job() -> History:
    h = History()
    h.enqueue()
    claim = h.claim("A")
    h.put("1", state=JobState.FAILED, holder=None)
    h.do("A", "fail", claim)
    h.put("2", requeued_from="1")
    h.do("P", "requeue", reply=job_of("2"), job="1")
    h.complete("A", h.claim("A", "2"))
    h.end()
    return h


# no_lost_job


@CASES.breaks("no_lost_job", "it was enqueued, nobody ended it, and it is gone")
def gone_after_a_claim() -> History:
    h = History()
    h.enqueue()
    h.enqueue("2")
    h.drop("1")
    h.do("A", "claim", reply=NOTHING, ttl_s=30)
    return h


@CASES.breaks("no_lost_job", "it was enqueued, nobody ended it, and it is gone")
def accepted_and_never_there() -> History:
    h = History()
    h.do("P", "enqueue", reply=job_of("1"), payload=None)
    return h


@CASES.breaks("no_lost_job", "it was enqueued, nobody ended it, and it is gone", job="2")
def requeued_and_never_there() -> History:
    h = History()
    h.put("1", state=JobState.FAILED)
    h.do("P", "requeue", reply=job_of("2"), job="1")
    return h


@CASES.breaks("no_lost_job", "it was enqueued, nobody ended it, and it is gone")
def deleted_by_a_write_that_was_refused() -> History:
    h = History()
    h.enqueue()
    claim = h.claim("A")
    h.drop("1")
    h.do("A", "complete", claim, reply=STALE)
    return h


@CASES.breaks("no_lost_job", "it was enqueued, nobody ended it, and it is gone")
def deleted_by_the_reaper() -> History:
    h = History()
    h.enqueue()
    h.claim("A")
    h.advance(31)
    h.drop("1")
    h.do("R", "reap", reply=reaped(1))
    return h


@CASES.breaks("no_lost_job", "it was enqueued, nobody ended it, and it is gone")
def gone_while_its_holder_is_parked() -> History:
    h = History()
    h.enqueue()
    call = h.let_go("A", "complete", h.claim("A"))
    h.park(call)
    h.drop("1")
    h.do("B", "claim", reply=NOTHING, ttl_s=30)
    return h


@CASES.breaks("no_lost_job", "it was enqueued, nobody ended it, and it is gone", job="2")
def refused_item_of_a_batch_is_gone() -> History:
    h = History()
    h.enqueue("1")
    h.enqueue("2")
    claims = h.claim("A", "1"), h.claim("A", "2")
    h.drop("1")
    h.drop("2")
    h.do("A", "complete_batch", *claims, reply=items(REPEATED, STALE))
    return h


@CASES.keeps("no_lost_job")
def a_queue_that_deletes_what_is_done() -> History:
    h = History()
    for job in ("1", "2", "3", "4"):
        h.enqueue(job)
    done, failed = h.claim("A", "1"), h.claim("A", "2")
    h.drop("1")
    h.do("A", "complete", done)
    h.drop("2")
    h.do("A", "fail", failed, reply=UNKNOWN)
    h.drop("3")
    h.do("P", "cancel", job="3")
    held = h.let_go("A", "complete", h.claim("A", "4"))
    h.park(held)
    h.drop("4")
    h.park(held, "after_commit")
    h.answer(held)
    h.end()
    return h


@CASES.keeps("no_lost_job")
def enqueue_answered_after_the_job_is_done_and_deleted() -> History:
    h = History()
    h.enqueue("2")
    call = h.let_go("P", "enqueue", payload=None)
    h.put("1")
    h.park(call, "after_commit")
    claim = h.claim("A")
    h.drop("1")
    h.do("A", "complete", claim)
    h.answer(call, job_of("1"))
    h.complete("A", h.claim("A", "2"))
    h.end()
    return h


@CASES.keeps("no_lost_job")
def enqueue_with_a_lost_answer_owes_nothing() -> History:
    h = History()
    h.enqueue("1")
    h.do("P", "enqueue", reply=UNKNOWN, payload=None)
    h.complete("A", h.claim("A"))
    h.end()
    return h


# idempotent_submit


@CASES.breaks("idempotent_submit", "key 'k' has two jobs", job="2")
def checked_then_inserted() -> History:
    h = History()
    h.enqueue("1", key="k", payload=1)
    h.enqueue("2", actor="Q", key="k", payload=1)
    return h


@CASES.breaks("idempotent_submit", "Q submitted key 'k' again and got another job", job="2")
def rows_without_keys_and_another_job() -> History:
    h = History()
    h.enqueue("1")
    h.do("P", "enqueue", reply=job_of("1"), key="k", payload=1)
    h.put("2")
    h.do("Q", "enqueue", reply=job_of("2"), key="k", payload=1)
    return h


@CASES.breaks("idempotent_submit", "Q submitted key 'k' with another payload and was accepted")
def other_payload_accepted() -> History:
    h = History()
    h.enqueue("1", key="k", payload=1)
    h.do("Q", "enqueue", reply=job_of("1"), key="k", payload=2)
    return h


@CASES.breaks("idempotent_submit", "Q submitted key 'k' with another payload and was accepted")
def other_payload_than_the_row_accepted_after_a_lost_answer() -> History:
    h = History()
    h.put("1", key="k", payload=1)
    h.do("P", "enqueue", reply=UNKNOWN, key="k", payload=1)
    h.do("Q", "enqueue", reply=job_of("1"), key="k", payload=2)
    return h


@CASES.breaks("idempotent_submit", "Q submitted key 'K' and got the job of key 'k'")
def two_keys_taken_for_one() -> History:
    h = History()
    h.enqueue("1", key="k", payload=1)
    h.do("Q", "enqueue", reply=job_of("1"), key="K", payload=1)
    return h


@CASES.keeps("idempotent_submit")
def same_key_gives_the_same_job_and_another_payload_a_conflict() -> History:
    h = History()
    h.enqueue("1", key="k", payload={"n": 1})
    h.do("Q", "enqueue", reply=job_of("1"), key="k", payload={"n": 1})
    h.do("Q", "enqueue", reply=CONFLICT, key="k", payload={"n": 2})
    h.enqueue("2", key="other", payload={"n": 2})
    h.complete("A", h.claim("A", "1"))
    h.do("Q", "enqueue", reply=job_of("1"), key="k", payload={"n": 1})
    h.complete("A", h.claim("A", "2"))
    h.end()
    return h


@CASES.keeps("idempotent_submit")
def key_of_a_deleted_job_is_free_again() -> History:
    h = History()
    h.enqueue("1", key="k", payload=1)
    claim = h.claim("A")
    h.drop("1")
    h.do("A", "complete", claim)
    h.enqueue("2", key="k", payload=2)
    h.complete("A", h.claim("A", "2"))
    h.end()
    return h


# attempts_bounded


@CASES.breaks("attempts_bounded", "it has had 2 attempts of at most 1")
def more_attempts_than_allowed() -> History:
    h = History()
    h.enqueue(max_attempts=1)
    h.fail("A", h.claim("A"))
    h.claim("B")
    return h


@CASES.breaks("attempts_bounded", "its attempts went down from 1 to 0")
def attempts_reset_on_requeue() -> History:
    h = History()
    h.enqueue()
    h.claim("A")
    h.advance(31)
    h.put("1", attempts=0)
    h.reap("1")
    return h


@CASES.breaks("attempts_bounded", "it was claimed 2 times and only 1 attempts were spent")
def expiry_spends_no_attempt() -> History:
    h = History()
    h.enqueue()
    h.claim("A")
    h.advance(31)
    call = h.let_go("B", "claim", ttl_s=30)
    claim = h.lease("B")
    h.put("1", attempts=1)
    h.answer(call, given(claim))
    return h


@CASES.breaks("attempts_bounded", "R spent an attempt without a claim")
def reaper_spends_a_second_attempt() -> History:
    h = History()
    h.enqueue(max_attempts=5)
    h.claim("A")
    h.advance(31)
    h.put("1", attempts=2)
    h.reap("1")
    return h


@CASES.keeps("attempts_bounded")
def out_of_attempts() -> History:
    h = History()
    h.enqueue(max_attempts=2)
    h.fail("A", h.claim("A"))
    h.claim("B")
    h.advance(31)
    h.put("1", state=JobState.FAILED, holder=None, lease_until_us=None)
    h.do("R", "reap", reply=reaped(1))
    h.end()
    return h


@CASES.keeps("attempts_bounded")
def an_attempt_nobody_heard_of() -> History:
    h = History()
    h.enqueue(max_attempts=2)
    h.lease("A")
    h.do("A", "claim", reply=UNKNOWN, ttl_s=30)
    h.advance(31)
    h.complete("B", h.claim("B"))
    h.end()
    return h


# not_before


@CASES.breaks("not_before", "B claimed it before its next run was due")
def claim_ignores_next_run() -> History:
    h = History()
    h.enqueue()
    h.fail("A", h.claim("A"), delay_s=10)
    h.advance(5)
    h.claim("B")
    return h


@CASES.breaks("not_before", "A claimed it before the delay it was enqueued with", steps_before_end=1)
def delay_not_written() -> History:
    h = History()
    h.put("2", next_run_at_us=h.now_us + 90 * US, state=JobState.DELAYED)
    h.put("1")
    h.do("P", "enqueue", reply=job_of("1"), payload=None, delay_s=60.0)
    h.advance(5)
    h.claim("A")
    h.end()
    return h


@CASES.breaks("not_before", "A claimed it before the delay it was enqueued with", steps_before_end=2)
def delayed_job_claimed_while_its_enqueue_was_still_in_flight() -> History:
    h = History()
    h.put("2", next_run_at_us=h.now_us + 90 * US, state=JobState.DELAYED)
    call = h.let_go("P", "enqueue", payload=None, delay_s=60.0)
    h.put("1")
    h.park(call, "after_commit")
    taker = h.let_go("A", "claim", ttl_s=30)
    claim = h.lease("A")
    h.park(taker, "after_commit")
    h.answer(call, job_of("1"))
    h.answer(taker, given(claim))
    h.end()
    return h


@CASES.breaks("not_before", "B claimed it before its next run was due")
def claim_ignores_next_run_of_a_job_shown_as_ready() -> History:
    h = History()
    h.enqueue()
    claim = h.claim("A")
    h.requeue(delay_s=10)
    h.put("1", state=JobState.READY)
    h.do("A", "fail", claim)
    h.claim("B")
    return h


@CASES.keeps("not_before")
def claimed_at_the_very_moment() -> History:
    h = History()
    h.enqueue(delay_s=10)
    h.do("A", "claim", reply=NOTHING, ttl_s=30)
    due_us = h.row("1").next_run_at_us or 0
    h.advance((due_us - h.now_us - 2 * TICK_US) / US)
    h.complete("A", h.claim("A"))
    h.end()
    return h


@CASES.keeps("not_before")
def leased_until_its_next_run() -> History:
    """A queue may hide what is leased by putting its next run at the lease's end: that is nobody's claim."""
    h = History()
    h.enqueue(delay_s=10)
    h.do("B", "claim", reply=NOTHING, ttl_s=30)
    h.advance(10)
    claim = h.claim("A")
    h.put("1", next_run_at_us=h.row("1").lease_until_us)
    h.exit("P")
    h.do("B", "claim", reply=NOTHING, ttl_s=30)
    h.complete("A", claim)
    h.end()
    return h


@CASES.keeps("not_before")
def claimed_at_its_time() -> History:
    h = History()
    h.enqueue(delay_s=10)
    h.do("A", "claim", reply=NOTHING, ttl_s=30)
    h.advance(10)
    h.fail("A", h.claim("A"), delay_s=20)
    h.do("A", "claim", reply=NOTHING, ttl_s=30)
    h.advance(20)
    h.advance(-10)
    h.do("A", "claim", reply=NOTHING, ttl_s=30)
    h.advance(11)
    h.complete("A", h.claim("A"))
    h.end()
    return h


@CASES.keeps("not_before")
def delay_of_an_enqueue_that_found_its_job_there() -> History:
    h = History()
    h.enqueue("1", key="k")
    h.enqueue("2", delay_s=10)
    h.do("P", "enqueue", reply=job_of("1"), key="k", payload=None, delay_s=60.0)
    claim = h.claim("A")
    h.complete("A", claim)
    h.advance(11)
    h.complete("A", h.claim("A", "2"))
    h.end()
    return h


@CASES.keeps("not_before")
def two_enqueues_of_one_key_in_flight() -> History:
    h = History()
    h.enqueue("2", delay_s=10)
    late = h.let_go("P", "enqueue", key="k", payload=None, delay_s=60.0)
    h.park(late, "after_lookup")
    h.enqueue("1", actor="Q", key="k")
    claim = h.claim("A")
    h.answer(late, job_of("1"))
    h.complete("A", claim)
    h.advance(11)
    h.complete("A", h.claim("A", "2"))
    h.end()
    return h


@CASES.keeps("not_before")
def cancelled_before_its_time() -> History:
    h = History()
    h.enqueue(delay_s=60)
    h.do("A", "claim", reply=NOTHING, ttl_s=30)
    h.put("1", state=JobState.CANCELLED)
    h.do("P", "cancel", job="1")
    h.end()
    return h


# converges


@CASES.breaks("converges", "at the end 1 is leased, 3 is delayed")
def live_at_the_end() -> History:
    h = History()
    h.enqueue("1")
    h.enqueue("2")
    h.enqueue("3", delay_s=60)
    h.claim("A", "1")
    h.complete("B", h.claim("B", "2"))
    h.end()
    return h


@CASES.keeps("converges")
def all_finished_at_the_end() -> History:
    h, _ = finished()
    h.end()
    return h


# one_place


@CASES.breaks("one_place", "it is leased and ready at the same time")
def ready_and_leased() -> History:
    h = History()
    h.put("1", places=frozenset({JobState.READY, JobState.LEASED}))
    h.do("P", "enqueue", reply=job_of("1"), payload=None)
    return h


@CASES.breaks("one_place", "it is nowhere")
def nowhere() -> History:
    h = History()
    h.put("1", places=frozenset())
    h.do("P", "enqueue", reply=job_of("1"), payload=None)
    return h


@CASES.breaks("one_place", "it is ready and succeeded at the same time")
def finished_and_still_ready() -> History:
    h = History()
    h.put("1", state=JobState.SUCCEEDED, places=frozenset({JobState.SUCCEEDED, JobState.READY}))
    h.do("P", "enqueue", reply=job_of("1"), payload=None)
    return h


@CASES.breaks("one_place", "it is succeeded and shown as ready")
def live_by_its_state_and_finished_by_its_place() -> History:
    h = History()
    h.put("1", state=JobState.READY, places=frozenset({JobState.SUCCEEDED}))
    h.do("P", "enqueue", reply=job_of("1"), payload=None)
    return h


@CASES.keeps("one_place")
def moved_from_place_to_place() -> History:
    h = History()
    h.put("1", places=frozenset({JobState.READY}))
    h.do("P", "enqueue", reply=job_of("1"), payload=None)
    h.put("1", places=frozenset({JobState.LEASED}))
    claim = h.claim("A")
    h.put("1", places=frozenset({JobState.SUCCEEDED}))
    h.complete("A", claim)
    h.end()
    return h


@CASES.keeps("one_place")
def one_table() -> History:
    h, _ = finished()
    h.end()
    return h


@pytest.mark.parametrize("name", CASES.bad)
def test_breaks(name: str) -> None:
    assert_breaks(CASES.bad[name])


@pytest.mark.parametrize("name", CASES.good)
def test_keeps(name: str) -> None:
    assert_keeps(*CASES.good[name])
