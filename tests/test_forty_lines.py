"""The queue of docs/adapters.md: it is short, it is right, and it can be made wrong."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest

from fencepost.adapters import forty_lines
from fencepost.harness.adapter_check import check_adapter
from fencepost.harness.lab import Lab, LabOptions
from fencepost.harness.loading import LoadedQueue, load_queue
from fencepost.harness.machine_run import look
from fencepost.harness.machine_settings import SETTINGS
from fencepost.harness.pinning import pinned
from fencepost.harness.scenario import choose, installed_scenarios
from fencepost.harness.verdict import Verdict

PATH = "fencepost.adapters.forty_lines:FortyLines"


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with Lab(LabOptions()) as lab:
        yield lab


@pytest.fixture(scope="module")
def loaded() -> LoadedQueue:
    return load_queue(PATH)


def test_the_adapter_is_right(lab: Lab, loaded: LoadedQueue) -> None:
    assert [result for result in check_adapter(lab, loaded) if result.ok is False] == []


def test_it_survives_every_lease_race_it_can_take_part_in(lab: Lab, loaded: LoadedQueue) -> None:
    variants = [v for s in choose(installed_scenarios(), ["lease_race"]) for v in s.variants()]
    runs = [lab.run(loaded, v) for v in variants if not lab.bench(loaded).lacks(v)]
    assert len(runs) >= 7
    assert {run.judgement.verdict for run in runs} == {Verdict.PASS}


def test_it_passes_every_scenario_it_can_take_part_in(lab: Lab, loaded: LoadedQueue) -> None:
    variants = [v for s in installed_scenarios() if s.family != "lease_race" for v in s.variants()]
    runs = [lab.run(loaded, v) for v in variants if not lab.bench(loaded).lacks(v)]
    assert len(runs) >= 25
    assert [run.judgement for run in runs if run.judgement.verdict is not Verdict.PASS] == []


def test_the_state_machine_asks_nothing_of_it_that_it_does_not_promise(lab: Lab, loaded: LoadedQueue) -> None:
    settings = hypothesis.settings(SETTINGS, max_examples=60, stateful_step_count=20, database=None)
    with pinned(lab.core):
        looked = look(lab, loaded, settings, seed=1)
    assert looked.found is None, looked.found
    assert looked.tally.predictions > 100


def test_without_its_token_check_it_is_caught(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forty_lines.Worker, "_settle", _settle_without_token)
    (race,) = [s for s in installed_scenarios() if s.name == "late_complete_while_b_runs"]
    run = lab.run(LoadedQueue(forty_lines.FortyLines(), f"{PATH}#without-token"), next(race.variants()))
    assert "fence" in {violation.invariant for violation in run.facts.violations}


def _settle_without_token(self: forty_lines.Worker, claim: object, update: str) -> object:
    self.db.execute(update, (claim.job,))  # type: ignore[attr-defined]
    return forty_lines.Answer.accepted()


def test_it_fits_a_page() -> None:
    source = Path(forty_lines.__file__).read_text().splitlines()
    queue = [line for line in source if line.strip()]
    assert len(queue) <= 70
