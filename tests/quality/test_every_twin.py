"""How many examples each twin takes, and how small its counterexample gets. Minutes: run by `make quality`."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest

from fencepost.harness.adapter import Twin
from fencepost.harness.bench import Run
from fencepost.harness.foretold import names_of
from fencepost.harness.lab import Lab, LabOptions
from fencepost.harness.loading import load_queue
from fencepost.harness.machine_run import look
from fencepost.harness.machine_settings import SETTINGS
from fencepost.harness.profiles import PROFILES, base_seed
from fencepost.harness.replay import replay_of
from fencepost.harness.scenario import Variant, installed_scenarios
from fencepost.harness.scenario_text import scenario_text
from fencepost.harness.schedule import parse_schedule
from fencepost.harness.twins import load_suites
from fencepost.harness.verdict import Verdict
from fencepost.scenarios.test_invariants import PARTS
from fencepost.tests.test_replay import played
from fencepost.tests.test_scenario_text import pasted

RESULTS = Path(__file__).resolve().parents[2] / ".fencepost" / "quality"

EXAMPLES_AT_MOST = len(PARTS) * PROFILES["ci"].examples
A_FEW = 20
STEPS_AT_MOST = 16
LONGER = {"backoff_not_capped": 60, "backoff_does_not_grow": 60, "lost_last_attempt_never_ends": 20}

pytestmark = pytest.mark.skipif(
    "FENCEPOST_QUALITY" not in os.environ, reason="takes minutes; `make quality` runs it"
)


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with Lab(LabOptions()) as lab:
        yield lab


@pytest.mark.parametrize(
    "twin", [t for suite in load_suites() for t in suite.twins], ids=lambda twin: twin.name
)
def test_the_state_machine_finds_the_twin(lab: Lab, twin: Twin, tmp_path: Path) -> None:
    ci = PROFILES["ci"]
    settings = hypothesis.settings(
        SETTINGS, max_examples=ci.examples, stateful_step_count=ci.steps, database=None
    )
    loaded = load_queue(twin.path)
    looked_at = 0
    for part in PARTS:
        looked = look(lab, loaded, settings, base_seed(ci, None) + part, wanted=twin.breaks)
        if looked.found is not None:
            break
        looked_at += looked.tally.examples
    assert looked.found is not None, f"not found by {twin.breaks}: {looked.proved_nothing or looked.tally}"
    assert looked.tally.found_at is not None
    examples = looked_at + looked.tally.found_at
    assert looked.tally.in_flight or examples < A_FEW, "operations in flight are part of every search"
    schedule = parse_schedule(looked.found.run.trace.header["schedule"])
    RESULTS.mkdir(parents=True, exist_ok=True)
    told = {"twin": twin.name, "examples": examples, "steps": len(schedule), "schedule": str(schedule)}
    (RESULTS / f"{twin.name}.json").write_text(json.dumps(told))
    assert looked.found.replays, str(looked.found)
    assert_it_can_be_pasted(lab, twin, looked.found.run, tmp_path)
    assert examples <= EXAMPLES_AT_MOST
    assert len(schedule) <= LONGER.get(twin.name, STEPS_AT_MOST), str(schedule)


def assert_it_can_be_pasted(lab: Lab, twin: Twin, found: Run, directory: Path) -> None:
    """As a scenario it fails by the same name, and passes on the queue that keeps the promise."""
    schedule = parse_schedule(found.trace.header["schedule"])
    scenario = pasted(
        scenario_text(schedule, found.trace, by_the_model=not found.facts.violations), directory
    )
    (variant,) = scenario.variants()
    loaded = load_queue(twin.path)
    again = lab.run(loaded, variant)
    lab.put_away(loaded)
    assert twin.breaks in names_of(again), again.judgement.reasons
    mended = lab.run(load_queue("reference"), variant)
    assert mended.judgement.verdict is Verdict.PASS, f"{schedule}: {mended.judgement.reasons}"


def every_variant() -> list[Variant]:
    return [variant for scenario in installed_scenarios() for variant in scenario.variants()]


@pytest.mark.parametrize("variant", every_variant(), ids=lambda variant: variant.name)
def test_the_schedule_of_every_variant_replays_it(lab: Lab, variant: Variant) -> None:
    reference = load_queue("reference")
    run = lab.run(reference, variant)
    text = run.trace.header["schedule"]
    again = lab.run(reference, replay_of(parse_schedule(text)))
    assert again.judgement.verdict is Verdict.PASS, again.judgement.reasons
    assert again.trace.header["schedule"] == text
    assert len(played(again.trace)) == len(played(run.trace))
