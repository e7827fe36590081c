"""The class of a late write, from histories written by hand."""

from __future__ import annotations

import pytest

from fencepost.harness.adapter import Claim, JobState
from fencepost.harness.classify import Class, classify, late_write
from fencepost.harness.history import Reply
from fencepost.harness.verdict import InvariantCount, Judgement, RunFacts, Verdict, WitnessSeen, judge
from fencepost.tests.histories import ACCEPTED, STALE, History, given, reaped

TTL_S = 30.0


def lost_to_b(*, tokens: bool = False) -> tuple[History, Claim, Claim]:
    """A's lease expired and B has the job."""
    history = History(tokens=tokens)
    history.enqueue()
    stale = history.claim("A")
    history.advance(TTL_S + 1)
    return history, stale, history.claim("B")


def kind_of(history: History) -> Class | None:
    found = classify(history.steps)
    return None if found is None else found.kind


def message_of(history: History) -> str:
    found = classify(history.steps)
    assert found is not None
    return found.findings[0].message


def test_where_nothing_was_late_there_is_no_class() -> None:
    history, _, fresh = lost_to_b()
    history.complete("B", fresh)
    history.end()
    assert classify(history.steps) is None


def test_refused() -> None:
    history, stale, fresh = lost_to_b()
    history.do("A", "complete", stale, reply=STALE)
    history.complete("B", fresh)
    history.end()
    assert kind_of(history) is Class.REFUSED


def test_accepted_without_effect_is_harmless() -> None:
    history, stale, fresh = lost_to_b()
    history.complete("B", fresh)
    history.do("A", "complete", stale, reply=ACCEPTED)
    history.end()
    assert kind_of(history) is Class.HARMLESS


def test_refused_with_an_effect_is_accepted_all_the_same() -> None:
    history, stale, _ = lost_to_b()
    history.put("1", state=JobState.SUCCEEDED, holder=None, lease_until_us=None)
    history.do("A", "complete", stale, reply=STALE)
    history.end()
    assert kind_of(history) is Class.ACCEPTED


def test_a_late_complete_that_counted_is_accepted() -> None:
    history, stale, fresh = lost_to_b()
    history.complete("A", stale)
    history.do("B", "complete", fresh, reply=STALE)
    history.end()
    assert kind_of(history) is Class.ACCEPTED
    assert message_of(history) == (
        "A's complete came under a lease it had lost, and counted: it was leased and is succeeded"
    )


def test_a_late_write_counts_though_it_was_committed_before_it_answered() -> None:
    """As the explorer and `--step statement` see it: its COMMIT is one step, what it does after that another."""
    history, stale, fresh = lost_to_b()
    late = history.let_go("A", "complete", stale)
    history.park(late)
    history.finish(stale)
    history.park(late, "after_commit")
    history.answer(late)
    history.do("B", "complete", fresh, reply=STALE)
    assert kind_of(history) is Class.ACCEPTED


@pytest.mark.parametrize(("outcome", "kind"), [(STALE, Class.REFUSED), (ACCEPTED, Class.HARMLESS)])
def test_what_the_holder_wrote_is_not_put_down_to_the_late_write_it_set_free(
    outcome: Reply, kind: Class
) -> None:
    history, stale, fresh = lost_to_b()
    late = history.let_go("A", "complete", stale)
    history.block(late, "B")
    history.complete("B", fresh)
    history.freed(late, outcome)
    assert kind_of(history) is kind


def test_a_late_write_that_was_set_free_and_undid_the_holders_counted() -> None:
    history, stale, fresh = lost_to_b()
    late = history.let_go("A", "complete", stale)
    history.block(late, "B")
    history.finish(stale)  # in the same step: B's heartbeat, and A's complete that waited for it
    history.do("B", "heartbeat", fresh, ttl_s=TTL_S)
    history.freed(late)
    assert kind_of(history) is Class.ACCEPTED


def test_a_complete_after_expiry_is_late_though_nobody_took_the_job() -> None:
    history = History(tokens=False)
    history.enqueue()
    claim = history.claim("A")
    history.advance(TTL_S + 1)
    history.complete("A", claim)
    history.end()
    assert kind_of(history) is Class.ACCEPTED


def test_a_lease_rewritten_as_expired_is_lost() -> None:
    history = History(tokens=False)
    history.enqueue()
    claim = history.claim("A")
    history.expire(claim)
    history.complete("A", claim)
    assert kind_of(history) is Class.ACCEPTED


def test_a_late_heartbeat_that_moved_the_lease_is_accepted() -> None:
    history, stale, _ = lost_to_b()
    history.heartbeat("A", stale, ttl_s=90.0)
    assert kind_of(history) is Class.ACCEPTED
    assert message_of(history).endswith("its lease changed")


def test_a_second_execution_beside_a_live_holder_is_corruption() -> None:
    history, stale, fresh = lost_to_b()
    history.fail("A", stale)
    history.claim("C")
    history.complete("B", fresh)
    history.end()
    assert kind_of(history) is Class.CORRUPTED
    assert message_of(history) == "C began to execute it beside B, whose lease is live"


def copied_by_a_late_failure() -> tuple[History, Claim]:
    """A queue that makes a retry a job of its own: A's late failure made job 2 of job 1, which B has."""
    history, stale, fresh = lost_to_b()
    history.put("2")
    history.do("A", "fail", stale, reply=STALE)
    return history, fresh


def test_a_late_failure_that_made_a_new_job_counted() -> None:
    history, _ = copied_by_a_late_failure()
    assert kind_of(history) is Class.ACCEPTED
    assert message_of(history).endswith("under a lease it had lost, and counted: it made job 2")


def test_a_copy_that_runs_beside_the_holder_of_its_original_is_corruption() -> None:
    history, _ = copied_by_a_late_failure()
    history.claim("C", "2")
    assert kind_of(history) is Class.CORRUPTED
    assert message_of(history) == "C began to execute its copy, job 2, beside B, whose lease is live"


def test_a_copy_that_runs_after_its_original_was_completed_is_corruption() -> None:
    history, fresh = copied_by_a_late_failure()
    history.complete("B", fresh)
    history.claim("C", "2")
    assert kind_of(history) is Class.CORRUPTED
    assert message_of(history) == "C began to execute its copy, job 2, after B had completed it"


def test_the_copy_a_rightful_failure_makes_is_a_retry() -> None:
    history = History(tokens=False)
    history.enqueue()
    claim = history.claim("A")
    history.put("1", state=JobState.FAILED, holder=None, lease_until_us=None)
    history.put("2")
    history.do("A", "fail", claim, reply=ACCEPTED)
    history.claim("B", "2")
    assert kind_of(history) is None


def test_who_came_beside_a_live_holder_does_not_make_its_write_late() -> None:
    history, stale, fresh = lost_to_b()
    history.fail("A", stale)
    intruder = history.claim("C")
    history.complete("B", fresh)
    history.do("C", "complete", intruder, reply=STALE)
    history.end()
    found = classify(history.steps)
    assert found is not None
    assert len(found.findings) == 1


def test_who_came_beside_a_live_holder_is_owed_nothing() -> None:
    history, stale, _ = lost_to_b()
    history.fail("A", stale)
    intruder = history.claim("C")
    history.do("C", "complete", intruder, reply=STALE)
    found = classify(history.steps)
    assert found is not None
    assert [finding.message for finding in found.findings] == [
        "C began to execute it beside B, whose lease is live"
    ]


CHANGES: dict[str, dict[str, object]] = {
    "token": {"token": 9},
    "attempts": {"attempts": 9},
    "holder": {"holder": "A"},
    "lease": {"lease_until_us": 1},
    "next run": {"next_run_at_us": 1},
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_late_write_counts_whatever_it_changed(name: str) -> None:
    history, stale, _ = lost_to_b()
    history.put("1", **CHANGES[name])
    history.do("A", "complete", stale, reply=STALE)
    assert kind_of(history) is Class.ACCEPTED
    assert message_of(history).endswith(f"and counted: its {name} changed")


def test_a_late_write_counts_if_only_the_ledger_has_it() -> None:
    history, stale, _ = lost_to_b()
    history.write("1", stale.token, "A")
    history.do("A", "complete", stale, reply=STALE)
    assert kind_of(history) is Class.ACCEPTED
    assert message_of(history).endswith("and counted: its ledger changed")


def test_a_job_that_came_due_meanwhile_was_changed_by_nobody() -> None:
    history, stale, fresh = lost_to_b()
    history.fail("B", fresh, delay_s=5.0)
    history.put("1", state=JobState.READY)
    history.do("A", "fail", stale, reply=STALE)
    assert kind_of(history) is Class.REFUSED


def test_a_lease_that_was_lost_stays_lost_when_the_clock_is_set_back() -> None:
    history, stale, fresh = lost_to_b()
    history.advance(-TTL_S)
    history.do("A", "complete", stale, reply=STALE)
    history.complete("B", fresh)
    assert kind_of(history) is Class.REFUSED


def test_what_came_back_is_told_once_however_many_were_freed_by_it() -> None:
    history, _, fresh = lost_to_b()
    history.complete("B", fresh)
    waiting = history.let_go("C", "claim", ttl_s=TTL_S)
    history.block(waiting, "A")
    history.requeue()
    history.do("A", "requeue")
    history.freed(waiting)
    found = classify(history.steps)
    assert found is not None
    assert [finding.message for finding in found.findings] == ["it was succeeded and came back ready"]


def test_an_acknowledgement_is_lost_when_the_job_stays_failed() -> None:
    history, stale, fresh = lost_to_b()
    history.put("1", state=JobState.FAILED, holder=None, lease_until_us=None)
    history.do("A", "fail", stale)
    history.do("B", "complete", fresh, reply=STALE)
    history.end()
    assert kind_of(history) is Class.CORRUPTED
    assert message_of(history) == (
        "B completed it under a live lease, and it is failed: the acknowledgement is lost"
    )


def test_a_job_that_runs_again_after_its_holder_completed_it_is_corruption() -> None:
    history, stale, fresh = lost_to_b()
    history.complete("B", fresh)
    history.drop("1")
    history.do("P", "reap", reply=reaped(0))
    history.put("1")
    history.do("A", "fail", stale)
    history.claim("C")
    assert kind_of(history) is Class.CORRUPTED
    assert message_of(history) == "C began to execute it after B had completed it"


def test_a_finished_job_that_comes_back_is_corruption() -> None:
    history, stale, fresh = lost_to_b()
    history.put("1", state=JobState.FAILED, holder=None, lease_until_us=None)
    history.do("B", "fail", fresh)
    history.fail("A", stale)
    assert kind_of(history) is Class.CORRUPTED
    assert message_of(history) == "it was failed and came back ready"


def test_a_job_nobody_can_end_is_corruption() -> None:
    history, stale, _ = lost_to_b()
    history.do("A", "complete", stale, reply=STALE)
    history.end()
    assert kind_of(history) is Class.CORRUPTED
    assert "stuck" in message_of(history)


def test_a_sweep_that_takes_a_live_lease_is_corruption() -> None:
    history, _, _ = lost_to_b()
    history.reap("1")
    assert kind_of(history) is Class.CORRUPTED
    assert message_of(history) == "R took it away from B, whose lease is live"


def test_a_recovery_that_leaves_a_live_lease_alone_is_refused() -> None:
    history, _, fresh = lost_to_b()
    history.do("C", "claim", reply=given(), ttl_s=TTL_S)
    history.complete("B", fresh)
    history.end()
    assert kind_of(history) is Class.REFUSED


def test_a_renewed_lease_is_live_past_its_first_end() -> None:
    history = History(tokens=False)
    history.enqueue()
    claim = history.claim("A")
    history.advance(20)
    history.heartbeat("A", claim, ttl_s=30.0)
    history.advance(20)
    history.claim("B")
    assert kind_of(history) is Class.CORRUPTED


def test_a_sweep_held_while_the_lease_ran_out_may_take_it() -> None:
    history = History(tokens=False)
    history.enqueue()
    claim = history.claim("A")
    sweep = history.let_go("R", "reap")
    history.park(sweep, "after_snapshot")
    history.advance(TTL_S + 1)
    history.requeue("1")
    history.answer(sweep, reaped(1))
    history.complete("B", history.claim("B"))
    history.end()
    assert classify(history.steps) is None
    assert claim.token is None


@pytest.mark.parametrize(("operation", "seen"), [("complete", True), ("fail", False)])
def test_the_witness_of_a_late_write(operation: str, seen: bool) -> None:
    history, stale, _ = lost_to_b()
    history.do("A", "complete", stale, reply=STALE)
    witness = late_write("A", operation)
    assert witness.seen(history.steps, ()) is seen
    assert not witness.is_asked(control=True, chosen={})


# -- the verdict ------------------------------------------------------------------------------------------


def facts(history: History, control: Verdict) -> RunFacts:
    return RunFacts(
        steps=len(history.steps),
        declared_actors=(),
        actors_that_ran=frozenset(),
        holds=(),
        faults=(),
        witnesses=(WitnessSeen("it happened", True),),
        invariants={"converges": InvariantCount(1, 1)},
        violations=(),
        unmet=(),
        obstacles=(),
        drained=True,
        classification=classify(history.steps),
        control=Judgement(control, ("B found nothing",)),
    )


def accepted_late() -> History:
    history, stale, fresh = lost_to_b()
    history.complete("A", stale)
    history.do("B", "complete", fresh, reply=STALE)
    history.end()
    return history


def refused_late() -> History:
    history, stale, fresh = lost_to_b()
    history.do("A", "complete", stale, reply=STALE)
    history.complete("B", fresh)
    history.end()
    return history


def test_a_late_write_that_counted_fails_the_run() -> None:
    judgement = judge(facts(accepted_late(), Verdict.PASS))
    assert judgement.verdict is Verdict.FAIL
    assert judgement.reasons[0].startswith("accepted at step 5: A's complete came under a lease it had lost")


def test_a_refused_one_passes() -> None:
    assert judge(facts(refused_late(), Verdict.PASS)).verdict is Verdict.PASS


@pytest.mark.parametrize("control", [Verdict.FAIL, Verdict.INCONCLUSIVE])
@pytest.mark.parametrize("history", [accepted_late(), refused_late()])
def test_without_a_control_run_that_passes_nothing_is_concluded(history: History, control: Verdict) -> None:
    judgement = judge(facts(history, control))
    assert judgement.verdict is Verdict.INCONCLUSIVE
    assert judgement.reasons[0] == (
        f"the control run, without the fault, did not pass ({control}): B found nothing"
    )
