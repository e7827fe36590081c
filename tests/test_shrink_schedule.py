"""A long failing schedule made small: nothing can be taken away from what is left, and it replays."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from fencepost.harness.cli import main
from fencepost.harness.foretold import names_of, run_foretold
from fencepost.harness.known import EXPECTATION
from fencepost.harness.lab import Lab, LabOptions
from fencepost.harness.loading import load_queue
from fencepost.harness.machine_example import VARIANT
from fencepost.harness.pinning import pinned
from fencepost.harness.replay import replay_of
from fencepost.harness.schedule import Schedule, parse_schedule
from fencepost.harness.shrink_schedule import Shrunk, shrink_run

TWINS = "fencepost.queue_impl.twins"
LONG = (
    "P:enqueue | A:claim | A:heartbeat | A:complete | R:reap | P:enqueue(priority=5) | P:enqueue | P:cancel(j3) | "
    "A:claim | A:complete@after_guard | clock+5s | clock>A | B:claim | P:enqueue | B:complete | R:reap | A>"
)


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with Lab(LabOptions()) as lab:
        yield lab


def shrunk(lab: Lab, twin: str, text: str, name: str, **budget: float) -> Shrunk:
    with pinned(lab.core):
        bench = lab.bench(load_queue(f"{TWINS}:{twin}"))
        found = run_foretold(bench, replay_of(parse_schedule(text)))
        assert name in names_of(found), found.judgement.reasons
        return shrink_run(bench, VARIANT, found, name, **budget)  # type: ignore[arg-type]


def breaks(lab: Lab, twin: str, schedule: Schedule) -> tuple[str, ...]:
    with pinned(lab.core):
        return names_of(run_foretold(lab.bench(load_queue(f"{TWINS}:{twin}")), replay_of(schedule)))


def schedule_of(result: Shrunk) -> Schedule:
    return parse_schedule(result.run.trace.header["schedule"])


def test_what_is_left_is_what_it_takes(lab: Lab) -> None:
    result = shrunk(lab, "guard_without_row_lock", LONG, "fence")
    assert result.minimal and result.replays
    schedule = schedule_of(result)
    assert len(schedule) <= 7, str(schedule)
    assert "fence" in breaks(lab, "guard_without_row_lock", schedule)
    for at in range(len(schedule)):
        without = Schedule((*schedule.steps[:at], *schedule.steps[at + 1 :]))
        assert "fence" not in breaks(lab, "guard_without_row_lock", without), str(without)


def test_claims_and_jobs_keep_their_meaning_when_others_go(lab: Lab) -> None:
    """Job 3 and claim #3 are the ones that count: they are job 1 and claim #1 when the others are gone."""
    text = "P:enqueue | A:claim | P:enqueue | B:claim | P:enqueue | C:claim | C:complete | P:cancel(j3)"
    result = shrunk(lab, "cancel_overwrites_succeeded", text, "terminal_absorbing")
    assert str(schedule_of(result)).endswith("P:cancel(j1)")
    assert len(schedule_of(result)) == 4, str(schedule_of(result))


def test_what_only_the_model_finds_is_shrunk_and_replays_by_it(lab: Lab) -> None:
    text = "P:enqueue | P:enqueue | A:claim | A:complete | R:reap | B:claim"
    result = shrunk(lab, "token_grows_by_two", text, EXPECTATION)
    assert str(schedule_of(result)) == "P:enqueue | A:claim"
    assert result.minimal and result.replays


def test_a_budget_that_ends_first_is_told(lab: Lab) -> None:
    result = shrunk(lab, "guard_without_row_lock", LONG, "fence", tries_at_most=1)
    assert not result.minimal and result.replays
    assert "fence" in names_of(result.run)


def test_the_command_shrinks_any_failing_trace(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    queue = ["--queue", f"{TWINS}:guard_without_row_lock"]
    assert main(["replay", LONG, *queue, "--trace-dir", str(tmp_path)]) == 1
    capsys.readouterr()
    assert main(["shrink", str(tmp_path / "replay.jsonl"), "--trace-dir", str(tmp_path)]) == 1
    told = capsys.readouterr().out
    assert "17 steps before" in told and "the same as a scenario" in told
    assert list(tmp_path.glob("shrunk-*.jsonl"))
    assert main(["replay", "P:enqueue | A:claim", "--trace-dir", str(tmp_path)]) == 0
    assert main(["shrink", str(tmp_path / "replay.jsonl"), "--trace-dir", str(tmp_path)]) == 2
    assert "nothing to shrink" in capsys.readouterr().err


def test_a_replay_by_the_model_finds_what_no_invariant_does(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    replay = [
        "replay",
        "P:enqueue | A:claim",
        "--queue",
        f"{TWINS}:token_grows_by_two",
        "--trace-dir",
        str(tmp_path),
    ]
    assert main(replay) == 0
    assert main([*replay, "--model"]) == 1
    assert "had token 0, the next claim got 2" in capsys.readouterr().out
