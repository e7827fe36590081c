"""Orders run on a real queue: what is found with the operations alone given, and that it fails again when replayed."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fencepost.harness.cli import main
from fencepost.harness.errors import UsageError
from fencepost.harness.explore.executor import Choice, Status, choice
from fencepost.harness.explore.findings import find
from fencepost.harness.explore.order_text import replay_text
from fencepost.harness.explore.program import Program, parse
from fencepost.harness.explore.real import FAULTS, QueueExecutor, check_program, close_stages, stage_of
from fencepost.harness.explore.replay import replay, run, stay
from fencepost.harness.explore.result import Result
from fencepost.harness.explore.scale import Here
from fencepost.harness.explore.search import explore
from fencepost.harness.explore.strategies import make_strategy
from fencepost.harness.lab import LabOptions
from fencepost.harness.loading import load_queue
from fencepost.harness.replay import replay_of
from fencepost.harness.schedule import parse_schedule
from fencepost.harness.verdict import Verdict

EVERY = bool(os.environ.get("EXPLORE_EVERY_TWIN"))
"""`make soak` sets it; `make test` takes a few twins."""
REFERENCE = "fencepost.queue_impl.reference.adapter:reference"
TWINS = "fencepost.queue_impl.twins"

CONCURRENCY_TWINS = {
    "claim_without_lock": ("A:claim B:claim", ""),
    "guard_without_row_lock": ("A:claim,complete B:claim", "expire"),
    "guard_before_the_lock": ("A:claim,complete C:cancel", ""),
    "cancel_without_row_lock": ("A:claim,complete C:cancel", ""),
    "key_by_check_then_insert": ("A:enqueue B:enqueue", ""),
    "key_checked_in_the_insert": ("A:enqueue B:enqueue", ""),
    "reaper_double_requeue": ("A:claim R:reap S:reap", "expire"),
    "reaper_without_recheck": ("A:claim,heartbeat R:reap", "expire"),
    "reaper_overwrites_succeeded": ("A:claim,complete R:reap", "expire"),
    "guard_in_where": ("A:claim,complete", "expire"),
    "guard_at_frozen_now": ("A:claim,complete", "expire"),
    "heartbeat_at_frozen_now": ("A:claim,heartbeat", "expire"),
    "ledger_before_state_change": ("A:claim,complete B:claim", "expire"),
}
"""The operations alone; nothing says in which order they break what the twin names."""
FEW = ("claim_without_lock", "key_by_check_then_insert", "heartbeat_at_frozen_now", "cancel_without_row_lock")


@pytest.fixture(autouse=True, scope="module")
def _no_stage_is_left() -> Iterator[None]:
    yield
    close_stages()


def executor(queue: str) -> QueueExecutor:
    path = queue if ":" in queue else f"{TWINS}:{queue}"
    return QueueExecutor(path, LabOptions())


def searched(
    queue: str, program: Program, strategy: str, *, first: bool = False, budget: int = 4_000
) -> Result:
    here = Here(executor(queue), program)
    try:
        made = make_strategy(strategy, program, budget=budget)
        return explore(program, made, here, stop_at_first=first)
    finally:
        here.close()


def breaks(twin: str) -> str:
    from fencepost.harness.twins import load_suites

    return next(t.breaks for suite in load_suites() for t in suite.twins if t.name == twin)


@pytest.mark.parametrize("twin", CONCURRENCY_TWINS if EVERY else FEW)
def test_a_concurrency_twin_is_found_with_its_operations_alone(twin: str) -> None:
    result = searched(twin, parse(*CONCURRENCY_TWINS[twin]), "reduced", first=True)
    assert not result.differences
    assert result.shortest is not None
    assert breaks(twin) in {name for failure in result.tally.failures for name in failure.outcome.broken}


@pytest.mark.parametrize(
    ("queue", "ops", "faults"),
    [
        (REFERENCE, "A:claim B:claim", ""),
        ("claim_without_lock", "A:claim B:claim", ""),
        (REFERENCE, "A:claim,complete", "expire,lose-reply"),
        *(((REFERENCE, "A:claim B:claim", "crash"),) if EVERY else ()),
        *((twin, *told) for twin, told in CONCURRENCY_TWINS.items() if EVERY),
    ],
)
def test_reduced_reaches_what_exhaustive_reaches(queue: str, ops: str, faults: str) -> None:
    program = parse(ops, faults)
    every = searched(queue, program, "exhaustive", budget=20_000)
    fewer = searched(queue, program, "reduced", budget=20_000)
    assert every.complete and fewer.complete, (every.lines(), fewer.lines())
    assert fewer.tally.outcomes.keys() == every.tally.outcomes.keys()
    assert fewer.tally.runs <= every.tally.runs


def test_a_failing_order_is_shrunk_replayed_and_has_a_passing_neighbour() -> None:
    with_a_bystander = parse("A:claim B:claim C:reap")
    here = executor("claim_without_lock")
    result = searched("claim_without_lock", with_a_bystander, "reduced", first=True)
    assert result.shortest is not None
    finding = find(here, with_a_bystander, result.shortest.schedule, result.shortest.outcome)
    assert [actor.name for actor in finding.shrunk.program.actors] == ["A", "B"]
    assert finding.shrunk.minimal
    assert finding.replays
    assert finding.failing.judgement.verdict is Verdict.FAIL
    assert finding.passing is not None and finding.passing.judgement.verdict is Verdict.PASS
    stage = stage_of(here.open(finding.shrunk.program))
    variant = replay_of(parse_schedule(finding.text))
    again = [stage.lab.run(load_queue(here.queue_path), variant) for _ in range(20)]
    assert [run.judgement.verdict for run in again] == [Verdict.FAIL] * 20
    assert {v.invariant for run in again for v in run.facts.violations} == {"single_holder"}


def test_a_statement_that_waits_is_a_step_and_goes_on_with_the_one_that_frees_it() -> None:
    program = parse("A:claim,heartbeat C:cancel")
    execution = executor(REFERENCE).open(program)
    # A claims and locks its row for the heartbeat; C's cancel must wait for that lock.
    order = tuple(map(choice, ["A", "A", "A", "A", "A", "C", "C"]))
    seen = run(
        execution,
        lambda steps, enabled: order[len(steps)] if len(steps) < len(order) else stay(steps, enabled),
    )
    blocked = seen.steps[6]
    assert blocked.status is Status.BLOCKED
    assert Choice("C") not in seen.enabled[7]
    (freeing,) = [step for step in seen.steps if "C" in step.freed]
    assert freeing.choice.thread == "A" and "COMMIT" in freeing.statement
    assert replay(execution, seen.schedule, seen.sights).outcome == seen.outcome
    assert "C>!" in replay_text(program, seen.steps)


def test_a_lost_reply_and_a_crash_are_met_and_others_go_on() -> None:
    program = parse("A:claim,complete B:claim", "lose-reply,crash")
    execution = executor(REFERENCE).open(program)
    seen = replay(execution, tuple(map(choice, ["A", "A", "A!lose-reply", "B!crash"])))
    assert seen.steps[2].said.startswith("unknown")
    assert seen.steps[3].status is Status.GONE
    assert seen.outcome is not None
    # The lost COMMIT happened: the row is A's; A does not know of its claim, and has nothing to complete.
    assert "'leased', 1, 1, 'A'" in str(seen.outcome.state)
    assert seen.outcome.answers[1:] == ("A complete: skipped: no claim", "B claim: crashed")
    assert not seen.outcome.broken


def test_a_run_that_is_cut_short_leaves_nothing_behind() -> None:
    execution = executor(REFERENCE).open(parse("A:claim B:claim"))
    first = run(execution, stay)
    cut = run(execution, lambda steps, enabled: stay(steps, enabled) if len(steps) < 2 else None)
    assert cut.outcome is None
    assert run(execution, stay).outcome == first.outcome


def test_what_the_queue_lacks_and_who_is_taken_is_one_sentence() -> None:
    with pytest.raises(UsageError, match="lacks REAPER"):
        check_program(parse("A:reap"), frozenset())
    with pytest.raises(UsageError, match="take another name"):
        check_program(parse("P:claim"), frozenset())
    with pytest.raises(UsageError, match="'restart' is no fault"):
        parse("A:claim", "restart", known_faults=FAULTS)


def test_the_command_tells_and_replays(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    queue = ["--queue", f"{TWINS}:claim_without_lock", "--trace-dir", str(tmp_path)]
    assert main(["explore", "--ops", "A:claim B:claim", "--json", *queue]) == 1
    told = json.loads(capsys.readouterr().out)
    assert told["complete"] and told["failure"]["broken"] == ["single_holder"] and told["failure"]["replays"]
    assert main(["replay", told["failure"]["schedule"], *queue]) == 1
    assert "single_holder" in capsys.readouterr().out
    assert main(["shrink", str(tmp_path / "explore-failing.jsonl"), "--trace-dir", str(tmp_path)]) == 1
    assert told["failure"]["schedule"] in capsys.readouterr().out
    held = str(tmp_path / "explore-nearest-passing.jsonl")
    assert main(["shrink", held, "--trace-dir", str(tmp_path)]) == 2
    assert main(["explore", "--ops", "A:claim B:claim", "--budget", "2"]) == 3


MARKED = """
from fencepost.harness.explore.marked import explore

@explore("A:claim B:claim")
def test_two_claims(result):
    '''One job, two claims: one of them gets it.'''
    assert result.tally.runs > 1
"""


def pytest_on(path: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", path.name, *options]
    return subprocess.run(command, cwd=path.parent, capture_output=True, text=True, timeout=300)


def test_an_exploration_is_one_item_and_prints_its_replay(tmp_path: Path) -> None:
    path = tmp_path / "test_marked.py"
    path.write_text(MARKED)
    twin = f"--queue={TWINS}:claim_without_lock"
    failed = pytest_on(path, twin)
    assert failed.returncode == 1 and "1 failed" in failed.stdout, failed.stdout
    assert "breaks single_holder" in failed.stdout
    (line,) = [line for line in failed.stdout.splitlines() if " --replay " in line]
    again = pytest_on(path, *shlex.split(line.partition("::")[2])[1:])
    assert again.returncode == 1 and "single_holder broken" in again.stdout, again.stdout
    sound = pytest_on(path)
    assert sound.returncode == 0 and "1 passed" in sound.stdout, sound.stdout
