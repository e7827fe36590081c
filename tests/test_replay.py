"""Replaying: a scenario's own schedule gives its steps again, and one that cannot be played proves nothing."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from fencepost.harness.errors import UsageError
from fencepost.harness.lab import Lab, LabOptions
from fencepost.harness.loading import LoadedQueue, load_queue
from fencepost.harness.replay import replay_of
from fencepost.harness.scenario import Scenario, installed_scenarios
from fencepost.harness.schedule import parse_schedule
from fencepost.harness.schedule_of import schedule_of
from fencepost.harness.trace import Trace, canonical
from fencepost.harness.verdict import Verdict
from fencepost.tests.fix_commands import run_fencepost
from fencepost.tests.fix_scenarios import only

TWIN = "fencepost.queue_impl.twins:guard_without_row_lock"
STALE_WRITE = "P:enqueue | A:claim | A:complete@after_guard | clock>A | B:claim | B:complete | A>"


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with Lab(LabOptions()) as lab:
        yield lab


@pytest.fixture(scope="module")
def reference() -> LoadedQueue:
    return load_queue("reference")


def played(trace: Trace) -> list[object]:
    """The canonical steps of the run itself."""
    lines = [json.loads(line) for line in canonical(trace).splitlines()]
    return [
        {name: value for name, value in line.items() if name != "detail"}
        for line in lines
        if "n" in line and not line.get("drain")
    ]


def first_of_each_family() -> list[Scenario]:
    """All of them take minutes, and so does the swarm: `make quality` has that."""
    scenarios = [scenario for scenario in installed_scenarios() if scenario.family != "swarm"]
    return list({scenario.family: scenario for scenario in reversed(scenarios)}.values())


@pytest.mark.parametrize("scenario", first_of_each_family(), ids=lambda scenario: scenario.name)
def test_the_schedule_of_a_scenario_replays_it(lab: Lab, reference: LoadedQueue, scenario: Scenario) -> None:
    run = lab.run(reference, only(scenario))
    text = run.trace.header["schedule"]
    again = lab.run(reference, replay_of(parse_schedule(text)))
    assert again.judgement.verdict is Verdict.PASS, again.judgement.reasons
    assert again.trace.header["schedule"] == text
    assert played(again.trace) == played(run.trace)


def test_a_failure_replays(lab: Lab) -> None:
    twin = load_queue(TWIN)
    run = lab.run(twin, replay_of(parse_schedule(STALE_WRITE)))
    assert run.judgement.verdict is Verdict.FAIL
    assert "fence" in {violation.invariant for violation in run.facts.violations}
    assert str(schedule_of(run.trace)) == STALE_WRITE


def test_an_idle_worker_behind_the_gate_can_be_killed(lab: Lab, reference: LoadedQueue) -> None:
    """The gate hears that its client is gone, and passes it on: nobody else drives it meanwhile."""
    text = 'P:enqueue | B:join(path="gate", process=true) | B:claim | B:kill'
    run = lab.run(reference, replay_of(parse_schedule(text)))
    assert run.judgement.verdict is Verdict.PASS, run.judgement.reasons


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (STALE_WRITE, "B:complete: B has claimed nothing to act under"),
        ("P:enqueue | A:claim!", "A should be blocked, it is answered (accepted)"),
        ("P:enqueue | A:claim | A:complete@no_such_place", "A should be parked, it is answered (accepted)"),
        ("P:enqueue | A:claim | A:complete(#2)", "claim #2 is not there: 1 were handed out so far"),
        ("P:enqueue | P:cancel(j2)", "job j2 is not there: 1 were handed out so far"),
        ("P:enqueue | A:claim | A>", "A has nothing under way, so it cannot go on"),
        ("P:enqueue | clock>A", "A has claimed nothing"),
        ('P:enqueue | A:claim | A:join(known_as="B")', "A takes part already"),
        ("P:enqueue | A:claim@after_claim | A:claim", "A is still in claim"),
    ],
)
def test_a_schedule_that_does_not_go_as_it_says_is_inconclusive(
    lab: Lab, reference: LoadedQueue, text: str, why: str
) -> None:
    run = lab.run(reference, replay_of(parse_schedule(text)))
    assert run.judgement.verdict is Verdict.INCONCLUSIVE
    assert any(why in reason for reason in run.judgement.reasons), run.judgement.reasons
    assert any("not witnessed: each of the schedule's" in reason for reason in run.judgement.reasons)


@pytest.mark.parametrize(
    "text",
    [
        "P:enqueue | A:claim | clock>A | A:claim | A:complete_batch(#1, #2)",
        "P:enqueue | A:claim | P:cancel(j1)@before_lock | clock>A | R:reap@before_requeue | P>! | R>",
    ],
    ids=["a batch with a lost and a current claim of one job", "a cancel that waited for the reaper"],
)
def test_an_order_that_once_raised_a_false_alarm_passes(lab: Lab, reference: LoadedQueue, text: str) -> None:
    run = lab.run(reference, replay_of(parse_schedule(text)))
    assert run.judgement.verdict is Verdict.PASS, run.judgement.reasons


def test_what_is_no_operation_is_wrong_use(lab: Lab, reference: LoadedQueue) -> None:
    with pytest.raises(UsageError, match="names no operation of a queue"):
        lab.run(reference, replay_of(parse_schedule("A:clam")))


def test_the_command_replays_a_schedule_and_its_trace(tmp_path: Path) -> None:
    done = run_fencepost("replay", STALE_WRITE, "--queue", TWIN, "--repeat", "3", cwd=tmp_path)
    assert (done.code, done.err) == (1, "")
    assert "\n3 of 3: fail (ledger_once, fence, terminal_absorbing)\n" in done.out
    again = run_fencepost("replay", ".fencepost/traces/replay.jsonl", "--json", cwd=tmp_path)
    assert again.code == 1
    told = json.loads(again.out)
    assert told["schedule"] == STALE_WRITE
    assert told["queue"] == "guard_without_row_lock", "the trace's queue"
    assert (told["verdicts"], told["canonical_traces"]) == ({"fail": 1}, 1)


def test_the_command_says_where_a_schedule_is_wrong(tmp_path: Path) -> None:
    done = run_fencepost("replay", "A:claim | B", cwd=tmp_path)
    assert (done.code, done.out) == (2, "")
    assert done.err.endswith("\n  A:claim | B\n            ^\n")
    missing = run_fencepost("replay", "no.jsonl", cwd=tmp_path)
    assert (missing.code, missing.out) == (2, "")
    assert missing.err == "fencepost: no.jsonl: cannot be read (No such file or directory).\n"


@pytest.mark.parametrize(
    "text",
    [
        "P:enqueue | A:claim | clock>A | B:claim | clock>A | B:complete",
        "P:enqueue | A:claim | A:refuse_connections | A:complete",
    ],
    ids=["the lease of a claim that is long over is passed again", "refused while the server starts"],
)
def test_a_schedule_is_told_as_it_was_given(lab: Lab, reference: LoadedQueue, text: str) -> None:
    run = lab.run(reference, replay_of(parse_schedule(text)))
    assert run.judgement.verdict is Verdict.PASS, run.judgement.reasons
    assert run.trace.header["schedule"] == text


def test_a_moment_before_a_leases_end_is_told_as_such(lab: Lab) -> None:
    run = lab.run(
        load_queue("reference"), replay_of(parse_schedule("P:enqueue | A:claim | clock>A-7s | R:reap"))
    )
    assert run.trace.header["schedule"] == "P:enqueue | A:claim | clock>#1-7s | R:reap"
