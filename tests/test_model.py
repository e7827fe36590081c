"""The model and the search for an explanation: silent on a queue that behaves, outspoken where one word is changed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from fencepost.harness.adapter import JobState, Outcome
from fencepost.harness.history import CallStatus, Reply, Step
from fencepost.harness.lab import Lab, LabOptions
from fencepost.harness.loading import load_queue
from fencepost.harness.model import Model
from fencepost.harness.outcomes import explain, groups
from fencepost.harness.pinning import pinned
from fencepost.harness.replay import replay_of
from fencepost.harness.scenario import Scenario, Variant
from fencepost.harness.schedule import parse_schedule
from fencepost.harness.verdict import Verdict
from fencepost.tests.fix_scenarios import only
from fencepost.tests.test_replay import first_of_each_family

LOST = "P:enqueue | C:claim | C:complete~lose_reply/^COMMIT/ | C:complete"


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with Lab(LabOptions()) as lab:
        yield lab


def steps_of(lab: Lab, variant: Variant, queue: str = "reference") -> list[Step]:
    with pinned(lab.core):
        bench = lab.bench(load_queue(queue))
        opened = bench.begin(variant)
        variant.perform(opened.race)
        bench.finish(opened, [], [])
    return opened.runner.steps


def complaints(steps: list[Step], lab: Lab) -> list[str]:
    model = Model(lab.bench(load_queue("reference")).capabilities)
    told = [message for group in groups(steps) for message in model.judge(group)]
    assert model.predictions, "it foretold something"
    return told


@pytest.mark.parametrize("scenario", first_of_each_family(), ids=lambda scenario: scenario.name)
def test_a_queue_that_behaves_is_as_foretold(lab: Lab, scenario: Scenario) -> None:
    steps = steps_of(lab, only(scenario))
    assert complaints(steps, lab) == []
    assert explain(steps, lab.bench(load_queue("reference")).capabilities) is None


def played(lab: Lab, text: str, queue: str = "reference") -> list[Step]:
    return steps_of(lab, replay_of(parse_schedule(text)), queue)


def test_a_lost_answer_has_an_explanation(lab: Lab) -> None:
    steps = played(lab, LOST)
    assert any(step.reply is not None and step.reply.outcome is Outcome.UNKNOWN for step in steps)
    assert explain(steps, lab.bench(load_queue("reference")).capabilities) is None


@pytest.mark.parametrize(
    "late",
    ["A:claim | A:fail@after_commit | clock>j1", "A:claim@after_commit | clock+61s"],
    ids=["settlement", "claim"],
)
def test_an_answer_that_comes_late_is_not_taken_for_what_happened_last(lab: Lab, late: str) -> None:
    steps = played(lab, f"P:enqueue | {late} | B:claim | B:complete | A> | B:complete")
    assert complaints(steps, lab) == []


def test_one_that_cannot_be_true_has_none(lab: Lab) -> None:
    """The repetition of the lost complete is told as refused, with the lease live and the job done."""
    steps = played(lab, LOST)
    (last,) = [s for s in steps if s.actor == "C" and s.reply is not None and s.reply.repeated]
    assert last.call is not None
    last.call.reply = Reply(Outcome.REFUSED, reason="token_mismatch")
    found = explain(steps, lab.bench(load_queue("reference")).capabilities)
    assert found is not None
    assert "C's complete under token 1: refused" in str(found)


def test_a_row_nobody_wrote_is_told(lab: Lab) -> None:
    steps = played(lab, "P:enqueue | A:claim | clock+5s")
    (moved,) = [step for step in steps if step.clock is not None and step.number == 3]
    (view,) = moved.after.jobs
    ended = replace(moved.after, jobs=(replace(view, state=JobState.SUCCEEDED),))
    told = complaints([*steps[:2], replace(moved, after=ended)], lab)
    assert told == [
        f"nobody changed job {view.job} in this step; it was leased, token 1, attempts 1 of 5 and is "
        "succeeded, token 1, attempts 1 of 5"
    ]


@pytest.mark.parametrize(
    ("twin", "text", "told"),
    [
        ("token_grows_by_two", "P:enqueue | A:claim", "had token 0, the next claim got 2"),
        (
            "batch_claim_takes_more_than_it_gives",
            "P:enqueue | P:enqueue | P:enqueue | A:claim_batch(limit=2)",
            "nobody changed",
        ),
        (
            "priority_lost_on_retry",
            "P:enqueue(priority=5) | P:enqueue | A:claim | A:fail | clock>j1 | A:claim",
            "comes before job",
        ),
    ],
)
def test_what_a_twin_does_is_not_as_foretold(lab: Lab, twin: str, text: str, told: str) -> None:
    variant = replay_of(parse_schedule(text))
    with pinned(lab.core):
        loaded = load_queue(f"fencepost.queue_impl.twins:{twin}")
        bench = lab.bench(loaded)
        opened = bench.begin(variant)
        variant.perform(opened.race)
        steps = list(opened.runner.steps)
        bench.finish(opened, [], [])
        lab.put_away(loaded)
    assert any(told in message for message in complaints(steps, lab)), complaints(steps, lab)


def test_a_step_that_freed_others_is_one_group(lab: Lab) -> None:
    steps = played(lab, "P:enqueue | A:claim | A:complete@after_guard | P:cancel(j1)! | A>")
    kinds = [[step.status for step in group if step.call is not None] for group in groups(steps)]
    assert [CallStatus.ANSWERED, CallStatus.ANSWERED] in kinds


def test_what_was_blocked_may_be_judged_after_the_step_that_freed_it(lab: Lab) -> None:
    """B's fail, asked again, waits for A's claim: before that it would have been the repetition of an answer."""
    text = "P:enqueue | B:claim | B:fail | clock>j1 | A:claim@after_claim | B:fail! | A>"
    assert complaints(played(lab, text), lab) == []


def test_a_write_judged_after_another_renewed_its_lease_is_no_stale_write(lab: Lab) -> None:
    """The heartbeat held the row's lock while the lease ran out, and renewed it before the complete was judged."""
    held = "P:enqueue | A:claim | A:heartbeat@after_guard | C:complete(#1)@after_guard! | clock>A | A> | C>"
    run = lab.run(load_queue("reference"), replay_of(parse_schedule(held)))
    assert run.judgement.verdict is Verdict.PASS, run.judgement.reasons
    frozen = lab.run(
        load_queue("fencepost.queue_impl.twins:guard_at_frozen_now"),
        replay_of(parse_schedule("P:enqueue | A:claim | A:complete@before_lock | clock>A | A>?")),
    )
    assert [violation.invariant for violation in frozen.facts.violations] == ["fence"]


def test_a_batch_with_an_old_and_a_new_claim_of_one_job_is_as_foretold(lab: Lab) -> None:
    steps = played(lab, "P:enqueue | B:claim | clock>B | B:claim | B:complete_batch(#1, #2)")
    assert steps[-1].after.jobs[0].state is JobState.SUCCEEDED
    assert complaints(steps, lab) == []


@pytest.mark.parametrize(
    "text",
    [
        "P:enqueue | A:claim | A:fail@after_commit | C:fail(#1) | A>",
        "P:enqueue | A:claim | A:complete@after_commit | C:complete_batch(#1) | A>",
        'P:enqueue | P:enqueue(key="k", priority=5)@after_commit | P2:enqueue(key="k") | A:claim | P>',
        "P:enqueue(max_attempts=1) | A:claim | A:fail | P:requeue(j1)@after_commit | P2:requeue(j1) | P>",
        "P:enqueue(max_attempts=1) | A:claim | A:fail | C:requeue(j1)~lose_reply/^COMMIT/ | P:requeue(j1)",
    ],
    ids=["fail", "complete", "enqueue", "requeue", "requeue with its answer lost"],
)
def test_what_another_did_and_was_not_told_yet_is_known(lab: Lab, text: str) -> None:
    assert complaints(played(lab, text), lab) == []
