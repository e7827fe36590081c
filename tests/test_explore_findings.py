"""A finding is reported whatever becomes of it afterwards, by names of its own, with a command that shows it again."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fencepost.harness.cli import main
from fencepost.harness.explore import findings
from fencepost.harness.explore.executor import Outcome, choice
from fencepost.harness.explore.program import parse
from fencepost.harness.explore.real import QueueExecutor, close_stages
from fencepost.harness.explore.replay import nearly, replay, run
from fencepost.harness.explore.shrink import _pieces, _size, shrink
from fencepost.harness.lab import LabOptions
from fencepost.harness.loading import load_queue
from fencepost.harness.trace.format import read_trace
from fencepost.tests.fix_commands import run_fencepost

ODD = "fencepost.tests.fix_explored_queues"
TWINS = "fencepost.queue_impl.twins"
CAUGHT = ["--queue", f"{TWINS}:claim_without_lock", "--ops", "A:claim B:claim"]


@pytest.fixture(autouse=True, scope="module")
def _no_stage_is_left() -> Iterator[None]:
    yield
    close_stages()


Told = Callable[..., tuple[int, str]]


@pytest.fixture
def explore(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Told:
    def run_it(*options: str) -> tuple[int, str]:
        code = main(["explore", *options, "--trace-dir", str(tmp_path)])
        return code, capsys.readouterr().out

    return run_it


@pytest.mark.parametrize("queue", ["forgets_one", "forgets_three"])
def test_what_does_not_fail_again_is_reported_and_traced(queue: str, explore: Told, tmp_path: Path) -> None:
    """It fails in its first order, or its first three; then never, when it is to be shrunk or shrunk already."""
    code, told = explore("--queue", f"{ODD}:{queue}", "--ops", "A:claim,complete", "--strategy", "exhaustive")
    assert code == 1, told
    assert "shortest failing order: A*9" in told and "broken: " in told and "no_lost_job" in told
    if queue == "forgets_one":
        assert "did NOT when it was run again" in told
        assert "run again it broke nothing" in told
    else:
        assert "the shortest failing order" in told
        assert "which is NOT what the search saw" in told
    (path,) = tmp_path.glob("explore-forgets_*.failing.jsonl")
    assert f"trace {path}" in told and read_trace(path).header["schedule"] in told


def interrupted(*_: object, **__: object) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("where", ["in the search", "while shrinking", "looking for the nearest"])
def test_ctrl_c_leaves_what_was_found(
    where: str, explore: Told, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if where == "in the search":
        real = findings_of_search()
        monkeypatch.setattr("fencepost.harness.commands.explore.explore", real)
    elif where == "while shrinking":
        monkeypatch.setattr("fencepost.harness.explore.shrink._Shrinker.smaller", interrupted)
    else:
        monkeypatch.setattr(findings, "nearest", interrupted)
    code, told = explore(*CAUGHT)
    assert code == 130, told
    assert "interrupted: this is what was found so far" in told
    assert "breaks single_holder" in told and "replay:  fencepost replay" in told
    (path,) = tmp_path.glob("explore-claim_without_lock-single_holder-*.failing.jsonl")
    assert f"trace {path}" in told and "nearest" not in told.partition("replay:")[2]


def findings_of_search() -> Callable[..., None]:
    """The search as it is, with a Ctrl-C at its end."""
    from fencepost.harness.explore.search import explore as search

    def then_interrupted(*arguments: object, **named: object) -> None:
        search(*arguments, **named)  # type: ignore[arg-type]
        raise KeyboardInterrupt

    return then_interrupted


def test_jobs_that_are_not_needed_go_and_the_rest_is_1_minimal() -> None:
    program = parse("A:claim,complete B:claim C:reap", "expire", jobs=3)
    executor = QueueExecutor(f"{TWINS}:claim_without_lock", LabOptions())

    def alike(outcome: Outcome) -> bool:
        return "single_holder" in outcome.broken

    execution = executor.open(program)
    order = tuple(map(choice, ["A", "A", "B", "B", "A", "B"]))
    assert (outcome := run(execution, nearly(order)).outcome) is not None and alike(outcome)
    failing = run(execution, nearly(order)).schedule
    small = shrink(executor, program, failing, fails=alike)
    assert small.minimal and str(small.program) == "A:claim B:claim"
    assert replay(executor.open(small.program), small.schedule).outcome == small.run.outcome
    pieces = list(_pieces(small.program, small.run.steps))
    assert any(piece.program.jobs == 0 for piece in pieces)
    for piece in pieces:
        done = run(executor.open(piece.program), nearly(piece.schedule))
        assert done.outcome is not None
        smaller = _size(piece.program, done) < _size(small.program, small.run)
        assert not (alike(done.outcome) and smaller), piece


def test_two_findings_have_two_traces_and_one_has_the_same_names_again(explore: Told, tmp_path: Path) -> None:
    for _ in range(2):
        assert explore(*CAUGHT)[0] == 1
    first = {path.name for path in tmp_path.glob("explore-*.jsonl")}
    assert len(first) == 2, "the failing order and the nearest that holds"
    assert explore("--queue", f"{TWINS}:retry_never_claimed", "--ops", "A:claim,fail")[0] == 1
    names = {path.name for path in tmp_path.glob("explore-*.jsonl")}
    assert first < names
    assert any(name.startswith("explore-retry_never_claimed-converges-") for name in names - first)


@pytest.mark.parametrize(
    "options",
    [
        (),
        ("--clock", "expire"),
        ("--step", "statement"),
        ("--actors", "process"),
    ],
)
def test_the_printed_command_shows_the_same_again(options: tuple[str, ...], tmp_path: Path) -> None:
    search = ["--queue", f"{TWINS}:no_guard", "--ops", "A:claim,complete B:claim", "--faults", "expire"]
    done = run_fencepost("explore", *search, *options, "--first", "--json", cwd=tmp_path)
    assert done.code == 1, done
    failure = json.loads(done.out)["failure"]
    assert failure["replays"], failure
    command = read_trace(tmp_path / failure["traces"][0]).header["replay"]
    words = shlex.split(command)
    assert words[:2] == ["fencepost", "replay"]
    assert words[3:5] == ["--queue", f"{TWINS}:no_guard"]
    assert words[5:] == ([f"{options[0]}={options[1]}"] if options else [])
    again = run_fencepost(*words[1:], "--json", cwd=tmp_path)
    assert again.code == 1, again
    reasons = " ".join(json.loads(again.out)["reasons"])
    assert any(f"{name} broken" in reasons for name in failure["broken"]), (reasons, failure["broken"])


@pytest.mark.parametrize(
    ("queue", "ops", "kind"),
    [
        # docs/adapters.md: finish_job names the job by its id alone, whoever has it now.
        ("procrastinate", "A:claim,complete", "accepted"),
        ("pgqueuer", "A:claim,complete B:claim", "accepted"),
    ],
)
def test_without_a_fence_a_late_write_is_judged_as_in_the_variants_family(
    queue: str, ops: str, kind: str, tmp_path: Path
) -> None:
    search = ["--queue", queue, "--ops", ops, "--faults", "expire", "--first", "--json"]
    done = run_fencepost("explore", *search, "--budget", "60", cwd=tmp_path)
    assert done.code == 1, done
    failure = json.loads(done.out)["failure"]
    assert failure["broken"] == [kind] and failure["replays"], failure
    trace = read_trace(tmp_path / failure["traces"][0])
    again = run_fencepost(*shlex.split(trace.header["replay"])[1:], "--json", cwd=tmp_path)
    assert again.code == 1 and f"{kind} at step" in again.out, again


def test_with_a_fence_the_invariants_speak_and_not_the_class() -> None:
    queue = "fencepost.queue_impl.reference.adapter:reference"
    execution = QueueExecutor(load_queue(queue).path, LabOptions()).open(parse("A:claim,complete", "expire"))
    late = tuple(map(choice, ["A", "A", "A", "expire"]))
    outcome = run(execution, nearly(late)).outcome
    assert outcome is not None and not outcome.broken
