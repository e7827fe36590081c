"""How good the search is, in a part small enough for every run. `make quality` asks the same of every twin."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest

from fencepost.harness.lab import Lab, LabOptions
from fencepost.harness.loading import load_queue
from fencepost.harness.machine_run import finding_text, look
from fencepost.harness.machine_settings import SETTINGS
from fencepost.harness.replay import replay_of
from fencepost.harness.schedule import parse_schedule
from fencepost.harness.verdict import Verdict

TWINS = "fencepost.queue_impl.twins"
STALE_WRITE = "P:enqueue | A:claim | A:complete@after_guard | clock>A | B:claim | B:complete | A>"
SNAPSHOT = Path(__file__).parent / "finding.txt"


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with Lab(LabOptions()) as lab:
        yield lab


def settings(examples: int) -> hypothesis.settings:
    return hypothesis.settings(SETTINGS, max_examples=examples, stateful_step_count=20, database=None)


def test_a_twin_is_found_by_its_invariant_and_shrunk(lab: Lab) -> None:
    looked = look(
        lab, load_queue(f"{TWINS}:steal_of_live_lease"), settings(200), seed=1, wanted="single_holder"
    )
    assert looked.found is not None, str(looked.tally)
    assert "single_holder" in looked.found.names
    schedule = parse_schedule(looked.found.run.trace.header["schedule"])
    assert len(schedule) <= 4, str(schedule)
    again = lab.run(load_queue(f"{TWINS}:steal_of_live_lease"), replay_of(schedule))
    assert again.judgement.verdict is Verdict.FAIL


def test_a_finding_that_is_known_is_no_news(lab: Lab) -> None:
    twin = load_queue(f"{TWINS}:delay_ignored")
    names = {"not_before", "expectation"}
    looked = look(lab, twin, settings(60), seed=1, known=names)
    assert looked.found is None
    assert looked.tally.known, "it was there all the same"


def test_a_finding_is_told_whole(lab: Lab) -> None:
    """Snapshot. To renew it: write what the test shows to the file."""
    twin = load_queue(f"{TWINS}:guard_without_row_lock")
    run = lab.run(twin, replay_of(parse_schedule(STALE_WRITE), name="invariants", sentence="Made up."))
    told = re.sub(r"clock \+[\d.]+ s", "clock +60.0 s", finding_text(run, twin.path, None))
    assert told + "\n" == SNAPSHOT.read_text()


def test_the_shrunk_schedule_of_the_guard_without_the_row_lock_replays(lab: Lab) -> None:
    twin = load_queue(f"{TWINS}:guard_without_row_lock")
    variant = replay_of(parse_schedule(STALE_WRITE))
    broke = [
        {violation.invariant for violation in lab.run(twin, variant).facts.violations} for _ in range(100)
    ]
    assert all("fence" in names for names in broke)
    assert len(parse_schedule(STALE_WRITE)) <= 8
