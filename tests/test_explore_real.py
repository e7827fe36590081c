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

from fencepost.benchmarks.explore_twins import CONCURRENCY_TWINS, SEQUENTIAL
from fencepost.harness.cli import main
from fencepost.harness.errors import UsageError
from fencepost.harness.explore.executor import Choice, Status, choice
from fencepost.harness.explore.findings import find, whole_run
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
from fencepost.harness.twins import load_suites
from fencepost.harness.verdict import Verdict

EVERY = bool(os.environ.get("EXPLORE_EVERY_TWIN"))
"""`make soak` sets it; `make test` takes a few twins."""
REFERENCE = "fencepost.queue_impl.reference.adapter:reference"
TWINS = "fencepost.queue_impl.twins"

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
    return next(t.breaks for suite in load_suites() for t in suite.twins if t.name == twin)


@pytest.mark.parametrize("twin", CONCURRENCY_TWINS if EVERY else FEW)
def test_a_concurrency_twin_is_found_with_its_operations_alone(twin: str) -> None:
    result = searched(twin, parse(*CONCURRENCY_TWINS[twin]), "reduced", first=True)
    assert not result.differences
    assert result.shortest is not None
    assert breaks(twin) in {name for failure in result.tally.failures for name in failure.outcome.broken}


def test_every_twin_is_hunted_or_said_to_need_no_hunt() -> None:
    spared = [twin for twins in SEQUENTIAL.values() for twin in twins.split()]
    assert sorted([*CONCURRENCY_TWINS, *spared]) == sorted(all_twins())


SMALL_SCOPES = (
    ("A:claim B:claim", "expire"),
    ("A:claim,complete", "expire"),
    ("A:claim,complete", "crash"),
    ("A:claim,fail", "expire"),
    ("A:claim,heartbeat", "lose-request"),
    ("A:enqueue B:enqueue-other", ""),
    ("A:claim C:cancel", ""),
)
"""All their orders can be tried on every twin."""
LARGER_SCOPES = {
    **{twin: ("A:claim R:reap", "expire") for twin in CONCURRENCY_TWINS if twin.startswith("reaper")},
    **{twin: CONCURRENCY_TWINS[twin] for twin in ("guard_without_row_lock", "key_by_check_then_insert")},
    **{twin: told for twin, told in CONCURRENCY_TWINS.items() if "C:cancel" in told[0]},
}


def all_twins() -> list[str]:
    return [twin.name for suite in load_suites() for twin in suite.twins if twin.path.startswith(f"{TWINS}:")]


def compared(queue: str, ops: str, faults: str) -> tuple[Result, Result]:
    """Both strategies to their end; they must come to the same."""
    program = parse(ops, faults)
    every = searched(queue, program, "exhaustive", budget=20_000)
    fewer = searched(queue, program, "reduced", budget=20_000)
    assert every.complete and fewer.complete, (every.lines(), fewer.lines())
    assert fewer.tally.outcomes.keys() == every.tally.outcomes.keys(), (queue, ops, faults)
    assert fewer.tally.runs <= every.tally.runs
    if every.tally.first_failure is not None:
        assert fewer.tally.first_failure is not None
        assert fewer.tally.first_failure <= every.tally.first_failure
    return every, fewer


@pytest.mark.parametrize(
    ("queue", "ops", "faults"),
    [
        (REFERENCE, "A:claim B:claim", ""),
        ("claim_without_lock", "A:claim B:claim", ""),
        (REFERENCE, "A:claim,complete", "expire,lose-reply"),
        # Its lock comes after its guard: an invariant sees the clock move between them, and no statement does.
        ("guard_before_the_lock", "A:claim,complete", "expire"),
        *(((REFERENCE, "A:claim B:claim", "crash"),) if EVERY else ()),
        *((twin, *told) for twin, told in LARGER_SCOPES.items() if EVERY),
    ],
)
def test_reduced_reaches_what_exhaustive_reaches(queue: str, ops: str, faults: str) -> None:
    every, fewer = compared(queue, ops, faults)
    sys.stdout.write(f"{queue}: {every.program}: {every.basis}; {fewer.basis}\n")


@pytest.mark.parametrize("twin", all_twins() if EVERY else ["no_guard"])
def test_reduced_reaches_what_exhaustive_reaches_on_every_twin(twin: str) -> None:
    results = [compared(twin, *scope) for scope in SMALL_SCOPES]
    told = [f"{every.tally.runs}/{fewer.tally.runs}" for every, fewer in results]
    sys.stdout.write(f"{twin}: orders of exhaustive/reduced {' '.join(told)}\n")


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


def test_the_server_restarts_under_who_is_parked_and_who_waits() -> None:
    program = parse("A:claim,heartbeat C:cancel", "restart")
    queue = executor(REFERENCE)
    execution = queue.open(program)
    order = tuple(map(choice, ["A", "A", "A", "A", "A", "C", "C", "restart"]))
    seen = replay(execution, order)
    assert seen.steps[6].status is Status.BLOCKED
    assert seen.steps[7].freed == ("C",)  # its connection is gone, and with it what it waited for
    assert seen.outcome is not None and not seen.outcome.broken
    assert "'leased', 1, 1, 'A'" in str(seen.outcome.state)
    assert seen.outcome.answers[1].startswith("A heartbeat: unknown")
    assert seen.outcome.answers[2].startswith("C cancel: unknown")
    assert replay(execution, seen.schedule, seen.sights).outcome == seen.outcome
    text, by_the_runner = whole_run(queue, program, seen, "the server restarts")
    assert text.endswith("C>! | crash | A>")
    assert by_the_runner.judgement.verdict is Verdict.PASS


@pytest.mark.parametrize(
    ("twin", "ops", "faults", "breaks_too"),
    [
        ("unlogged_tables", "A:claim", "restart", ("no_lost_job",)),
        ("retry_never_claimed", "A:claim,fail", "", ()),
    ],
)
def test_what_a_restart_loses_and_what_never_ends_is_found(
    twin: str, ops: str, faults: str, breaks_too: tuple[str, ...]
) -> None:
    """The same is sound on the reference queue: `converges` is judged on an end that is drained."""
    program = parse(ops, faults)
    result = searched(twin, program, "reduced", first=True)
    assert result.shortest is not None
    assert result.shortest.outcome.broken == tuple(sorted((breaks(twin), *breaks_too)))
    sound = searched(REFERENCE, program, "reduced")
    assert sound.conclusive and not sound.tally.failed


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
    with pytest.raises(UsageError, match="settles what is left"):
        check_program(parse("Z:claim"), frozenset())
    with pytest.raises(UsageError, match="lacks IDEMPOTENCY_KEY"):
        check_program(parse("A:enqueue-other"), frozenset())
    with pytest.raises(UsageError, match="'earthquake' is no fault"):
        parse("A:claim", "earthquake", known_faults=FAULTS)


def test_the_command_tells_and_replays(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    queue = ["--queue", f"{TWINS}:claim_without_lock", "--trace-dir", str(tmp_path)]
    assert main(["explore", "--ops", "A:claim B:claim", "--json", *queue]) == 1
    told = json.loads(capsys.readouterr().out)
    assert told["complete"] and told["failure"]["broken"] == ["single_holder"] and told["failure"]["replays"]
    assert main(["replay", told["failure"]["schedule"], *queue]) == 1
    assert "single_holder" in capsys.readouterr().out
    failing, held = told["failure"]["traces"]
    assert main(["shrink", failing, "--trace-dir", str(tmp_path)]) == 1
    assert told["failure"]["schedule"] in capsys.readouterr().out
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
    # Where the variable CI is set, pytest's summary repeats the whole message.
    (line,) = {line for line in failed.stdout.splitlines() if " --replay " in line}
    again = pytest_on(path, *shlex.split(line.partition("::")[2])[1:])
    assert again.returncode == 1 and "single_holder broken" in again.stdout, again.stdout
    sound = pytest_on(path)
    assert sound.returncode == 0 and "1 passed" in sound.stdout, sound.stdout
