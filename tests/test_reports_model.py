"""The report's model, from traces made by hand: what the page shows, as data."""

from __future__ import annotations

from typing import Any

from fencepost.harness.trace import Trace
from fencepost.reports.calls import arrows, call_spans
from fencepost.reports.compare import LARGEST_ALIGNED, compare, nearest
from fencepost.reports.leases import leases
from fencepost.reports.model import run_model
from fencepost.reports.rows import job_changes, ledger_change
from fencepost.reports.timeline import Timeline
from fencepost.reports.verdict_words import headline, opening_step
from fencepost.reports.words import answer, what
from fencepost.tests.report_traces import START_US, TTL_US, Story, broken, everything, long, survived


def lease_list(trace: Trace) -> list[Any]:
    first = trace.header["first_observation"]
    return leases(first, trace.steps, Timeline(first, trace.steps))


# -- the verdict in words ----------------------------------------------------------------------------------


def test_a_survived_race_says_which_write_was_refused() -> None:
    assert headline(survived()) == "A's late complete was refused: token 1, current 2"
    assert opening_step(survived()) == 6


def test_a_broken_race_says_the_most_telling_invariant_and_opens_there() -> None:
    told = "fence broken at step 6: A wrote to the ledger under token 1 while 2 was current"
    assert headline(broken()) == told
    assert opening_step(broken()) == 6


def test_an_inconclusive_run_says_what_is_missing() -> None:
    story = Story()
    story.enqueue()
    trace = story.trace("inconclusive", reasons=["not witnessed: B took the job"])
    assert headline(trace) == "Nothing broke, and nothing is proven: not witnessed: B took the job"


def test_an_unmet_expectation_opens_at_its_step() -> None:
    story = Story()
    for name in "123":
        story.enqueue(name)
    trace = story.trace("fail", reasons=["step 2: job 1 should be leased"])
    assert opening_step(trace) == 2
    assert headline(trace) == "step 2: job 1 should be leased"


def test_a_run_about_a_fault_opens_at_it() -> None:
    story = Story()
    story.enqueue()
    story.step("fault", fault="crash")
    story.complete("A", story.claim("A"))
    assert opening_step(story.trace()) == 2


def test_a_run_without_steps_has_a_page_too() -> None:
    model = run_model(Story().trace("inconclusive", reasons=["no step was run"]))
    assert model["opens_at"] is None
    assert model["steps"] == []


# -- steps -------------------------------------------------------------------------------------------------


def test_a_late_write_is_never_drawn_like_one_in_time() -> None:
    assert [step["look"] for step in run_model(survived())["steps"]] == [
        *("accepted", "accepted", "clock", "accepted", "accepted", "refused")
    ]
    last = run_model(broken())["steps"][-1]
    assert (last["look"], last["late"]) == ("stale", "stale")
    assert [entry["invariant"] for entry in last["broken"]] == ["ledger_once", "fence"]


def test_a_stale_write_that_changed_nothing_is_not_called_one_that_did() -> None:
    story = Story()
    story.enqueue()
    stale = story.claim("A")
    story.advance(60, "1")
    story.claim("B")
    story.call("A", "heartbeat", {"outcome": "accepted"}, claims=[stale])
    assert run_model(story.trace())["steps"][-1]["look"] == "ignored"


def test_a_write_after_its_lease_and_before_anybody_took_the_job_is_late_and_not_stale() -> None:
    story = Story()
    story.enqueue()
    stale = story.claim("A")
    story.advance(60, "1")
    story.complete("A", stale)
    last = run_model(story.trace())["steps"][-1]
    assert (last["look"], last["late"]) == ("accepted", "expired")


def test_every_optional_field_is_shown_where_it_is_there_and_nowhere_else() -> None:
    model = run_model(everything())
    facts = dict(model["facts"])
    assert (facts["network"], facts["one step is"], facts["seed"]) == ("gate", "one statement", "42")
    assert model["replay"] == "fencepost replay 'A.claim clock+60 B.claim'"
    assert model["schedule"] == "A.claim clock+60 B.claim"
    assert [step["n"] for step in model["steps"] if "statements" in step] == [2]
    assert [step["n"] for step in model["steps"] if "locks" in step] == [4]
    assert {step["look"] for step in model["steps"]} >= {
        "held",
        "blocked",
        "cut",
        "fault",
        "clock",
        "unknown",
        "error",
    }
    bare = run_model(survived())
    assert not {"network", "one step is", "seed"} & set(dict(bare["facts"]))
    assert bare["replay"] == "fencepost run told_by_hand --queue made:reference"


def test_steps_are_told_in_words() -> None:
    told = {step["n"]: (what(step), answer(step)) for step in everything().steps}
    assert told[3] == ("complete (job 1, token 1)", "held at after_guard")
    assert told[4] == ("claim", "waits for a lock of A")
    assert told[5] == ("C's network is paused", "")
    assert told[6][1] == "waits for its network"
    assert told[7] == ("the server crashes", "")
    assert told[9] == ("… complete (job 1, token 1) goes on", "accepted")
    assert told[10] == ("… claim, freed", "nothing there")
    assert told[12][1] == "unknown: 08006"


def test_a_statement_held_at_the_gate_is_held_before_it() -> None:
    place = "before statement 3 (COMMIT)"
    step = {"kind": "call", "operation": "claim", "status": "parked", "checkpoint": place}
    assert answer(step) == "held before statement 3 (COMMIT)"


def test_a_fault_nobody_has_words_for_is_named() -> None:
    assert what({"kind": "fault", "fault": "tip_over", "actor": "A"}) == "tip over of A"


def test_what_a_clock_move_did_to_leases_is_said() -> None:
    assert run_model(survived())["steps"][2]["answer"] == "A's lease of job 1 is past now"


# -- rows --------------------------------------------------------------------------------------------------


def test_changed_cells_are_found() -> None:
    before = {
        "jobs": [{"job": "1", "state": "ready", "token": 0}, {"job": "2", "state": "ready"}],
        "ledger": [],
    }
    after = {"jobs": [{"job": "1", "state": "leased", "token": 1, "holder": "A"}], "ledger": []}
    one, gone = job_changes(before, after)
    assert (one.job, one.fields) == ("1", ("state", "token", "holder"))
    assert (gone.job, gone.after) == ("2", None)
    assert job_changes(after, after) == ()


def test_the_same_ledger_entry_twice_is_a_change() -> None:
    entry = {"job": "1", "token": 1, "worker": "A"}
    change = ledger_change({"ledger": [entry]}, {"ledger": [entry, dict(entry)]})
    assert (change.added, change.removed) == ((entry,), ())


def test_rows_travel_as_changes_and_give_the_observation_back() -> None:
    trace = long(120, jobs=5)
    model = run_model(trace)
    jobs = {row["job"]: row for row in model["first"]["jobs"]}
    ledger = list(model["first"]["ledger"])
    removed = 0
    for step, shown in zip(trace.steps, model["steps"], strict=True):
        for job, row in shown.get("jobs", ()):
            if row is None:
                del jobs[job]
            else:
                jobs[job] = row
        for entry in shown.get("ledger_removed", ()):
            ledger.remove(entry)
            removed += 1
        ledger += shown.get("ledger_added", ())
        assert {job: row["state"] for job, row in jobs.items()} == {
            job["job"]: job["state"] for job in step["after"]["jobs"]
        }
        assert ledger == step["after"]["ledger"]
    assert removed, "nothing was ever removed: this test tried nothing"


# -- leases on the axis of database time -------------------------------------------------------------------


def test_a_lease_is_live_then_past_until_it_is_taken_over() -> None:
    first, second = lease_list(survived())
    assert (first.token, first.holder, first.step, first.ended_step, first.ended_how) == (
        1,
        "A",
        2,
        4,
        "taken over",
    )
    phases = [(phase, to_us - from_us) for from_us, to_us, phase in first.pieces(10**9)]
    assert [phase for phase, _ in phases] == ["live", "past"]
    assert first.until_us is not None
    assert abs(first.until_us - first.from_us - TTL_US) < 2_000
    assert [phase for _, _, phase in second.pieces(10**9)] == ["live", "unused"]
    assert second.ended_how == "succeeded"


def test_renewals_lengthen_one_bar() -> None:
    story = Story()
    story.enqueue()
    claim = story.claim("A")
    for _ in range(3):
        story.advance(30)
        story.heartbeat("A", claim)
    (lease,) = lease_list(story.trace())
    assert len(lease.renewals) == 3
    assert not any(renewal.earlier for renewal in lease.renewals)
    assert [phase for _, _, phase in lease.pieces(lease.renewals[-1].at_us)] == ["live", "ahead"]


def test_a_lease_revived_after_it_was_past_shows_the_gap() -> None:
    story = Story()
    story.enqueue()
    claim = story.claim("A")
    story.advance(90)
    story.heartbeat("A", claim)
    (lease,) = lease_list(story.trace())
    assert [phase for _, _, phase in lease.pieces(lease.renewals[-1].at_us)] == ["live", "past", "ahead"]


def test_time_set_back_does_not_turn_the_axis_round() -> None:
    story = Story()
    story.enqueue()
    story.advance(60)
    story.advance(-30)
    story.enqueue("2")
    trace = story.trace()
    timeline = Timeline(trace.header["first_observation"], trace.steps)
    moments = [timeline.after(number) for number in range(len(trace.steps) + 1)]
    assert moments == sorted(moments)
    assert timeline.start_us == START_US + 1_500


def test_an_actor_believes_in_its_token_until_its_last_word() -> None:
    ((actor, token, first, last, lost_us), fresh) = run_model(survived())["beliefs"]
    assert (actor, token, first, last) == ("A", 1, 2, 6)
    assert 0 < lost_us < run_model(survived())["steps"][2]["at"] + 1
    assert fresh[:4] == ["B", 2, 4, 5]


# -- operations and locks ----------------------------------------------------------------------------------


def test_a_held_operation_is_one_span_and_a_lock_is_an_arrow() -> None:
    spans = call_spans(everything().steps)
    complete = next(span for span in spans if span.operation == "complete")
    assert [(part.step, part.status) for part in complete.parts] == [(3, "parked"), (9, "answered")]
    (arrow,) = arrows(spans)
    assert (arrow.holder, arrow.blocked, arrow.step, arrow.freed_step) == ("A", "B", 4, 10)
    assert next(span for span in spans if span.operation == "heartbeat").open_end


# -- comparison --------------------------------------------------------------------------------------------


def test_two_runs_are_aligned_and_the_first_divergence_is_put_in_words() -> None:
    comparison = compare(broken(), survived())
    assert comparison.divergence == 5
    assert comparison.alike == 5
    assert comparison.words == (
        "The first 5 steps are the same. Then broken_twin: step 6, A: complete (job 1, token 1) → accepted; "
        "reference: step 6, A: complete (job 1, token 1) → refused: token_mismatch."
    )


def test_the_same_run_does_not_diverge() -> None:
    comparison = compare(survived(), survived())
    assert comparison.divergence is None
    assert comparison.words == "Both runs did the same in every step."


def test_other_ids_and_tokens_are_no_divergence() -> None:
    story = Story(queue="other_ids")
    story.enqueue("77")
    story.rows.jobs["77"]["token"] = 100
    stale = story.claim("A", "77")
    story.advance(60, "77")
    story.complete("B", story.claim("B", "77"))
    story.refuse("A", stale)
    assert compare(story.trace(), survived()).divergence is None


def test_a_step_only_one_run_has_is_aligned_to_nothing() -> None:
    story = Story()
    story.enqueue()
    stale = story.claim("A")
    story.heartbeat("A", stale)
    story.advance(60, "1")
    story.complete("B", story.claim("B"))
    story.refuse("A", stale)
    comparison = compare(story.trace(), survived())
    pairs = [(pair.left, pair.right) for pair in comparison.pairs]
    assert pairs == [(0, 0), (1, 1), (2, None), (3, 2), (4, 3), (5, 4), (6, 5)]
    assert "has no step for it" in comparison.words


def test_the_nearest_run_is_the_one_that_goes_along_longest() -> None:
    story = Story("other")
    story.enqueue()
    story.claim("B")
    found = nearest(broken(), [story.trace(), survived()])
    assert found is not None
    assert found[0] == 1
    assert nearest(broken(), []) is None


def test_runs_too_long_to_align_are_paired_by_number() -> None:
    one, other = long(LARGEST_ALIGNED + 200, jobs=3), long(LARGEST_ALIGNED + 200, jobs=3)
    other.steps[10]["operation"] = "cancel"  # type: ignore[index]
    comparison = compare(one, other)
    assert comparison.divergence == 10
    assert len(comparison.pairs) == len(one.steps)
