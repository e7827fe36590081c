"""Adapters that keep the contract and tell little are judged rightly, and broken queues behind them are caught."""

from __future__ import annotations

from collections.abc import Iterator

import hypothesis
import pytest

from fencepost.harness.adapter import Capability
from fencepost.harness.adapter_check import check_adapter
from fencepost.harness.bench import Run
from fencepost.harness.classify import Class
from fencepost.harness.lab import Lab, LabOptions
from fencepost.harness.loading import LoadedQueue, load_queue
from fencepost.harness.machine_run import look
from fencepost.harness.machine_settings import SETTINGS
from fencepost.harness.pinning import pinned
from fencepost.harness.scenario import Variant, choose, installed_scenarios
from fencepost.harness.verdict import Verdict
from fencepost.tests import fix_small_queues
from fencepost.tests.fix_adapters import failed, not_made
from fencepost.tests.fix_small_queues import SmallQueue, Tells

FAMILIES = ["variants", "lease_race", "heartbeat", "reaper", "effects", "commit", "errors"]
QUEUES = [
    "tells_all",
    "end_in_claim",
    "end_in_claim_no_holder",
    "id_only",
    "id_and_end",
    "deletes",
    "deletes_with_ledger",
    "tells_least",
]


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with Lab(LabOptions()) as lab:
        yield lab


def small(name: str) -> LoadedQueue:
    return load_queue(f"{fix_small_queues.__name__}:{name}")


def broken(lab: Lab, tells: Tells, scenario: str) -> Run:
    """Without its judgement a write under a lost lease is applied as any other."""
    queue = SmallQueue("broken", tells, judges=False)
    (variant,) = variants(scenario)[:1]
    loaded = LoadedQueue(queue, f"{fix_small_queues.__name__}:broken-{tells}")
    try:
        return lab.run(loaded, variant)
    finally:
        lab.put_away(loaded)


def variants(*names: str) -> list[Variant]:
    return [variant for scenario in choose(installed_scenarios(), names) for variant in scenario.variants()]


@pytest.mark.parametrize("name", QUEUES)
def test_its_adapter_is_right(name: str, lab: Lab) -> None:
    results = check_adapter(lab, small(name))
    assert not failed(results)
    assert all(reason.startswith("the queue does not declare ") for reason in not_made(results).values())


@pytest.mark.parametrize("name", QUEUES)
def test_it_passes_what_it_can_take_part_in(name: str, lab: Lab) -> None:
    loaded = small(name)
    runs = [
        lab.run(loaded, variant) for variant in variants(*FAMILIES) if not lab.bench(loaded).lacks(variant)
    ]
    assert [run.judgement for run in runs if run.judgement.verdict is not Verdict.PASS] == []
    late = {run.facts.classification.kind for run in runs if run.facts.classification is not None}
    assert late == {Class.REFUSED}
    assert len(runs) >= (35 if Capability.FENCING in loaded.queue.capabilities else 9)


@pytest.mark.parametrize("name", ["end_in_claim", "id_and_end", "deletes_with_ledger", "tells_least"])
def test_the_state_machine_finds_nothing(name: str, lab: Lab) -> None:
    settings = hypothesis.settings(SETTINGS, max_examples=60, stateful_step_count=20, database=None)
    with pinned(lab.core):
        looked = look(lab, small(name), settings, seed=1)
    assert looked.found is None, looked.found
    assert looked.tally.predictions > 100


@pytest.mark.parametrize(
    "tells",
    [Tells(end_in_rows=False), Tells(end_in_rows=False, holder=False), Tells(finished=False)],
    ids=["end in the claim", "no holder", "deletes"],
)
def test_a_stale_write_is_caught_by_tokens(tells: Tells, lab: Lab) -> None:
    run = broken(lab, tells, "late_complete_while_b_runs")
    assert run.judgement.verdict is Verdict.FAIL
    assert "fence" in {violation.invariant for violation in run.facts.violations}


@pytest.mark.parametrize("scenario", ["complete_while_b_runs", "complete_after_expiry"])
@pytest.mark.parametrize(
    "tells",
    [
        Tells(tokens=False, holder=False, end_in_claim=False),
        Tells(tokens=False, holder=False, end_in_rows=False),
        Tells(tokens=False, holder=False, end_in_rows=False, finished=False),
    ],
    ids=["end in rows", "end in the claim", "tells least"],
)
def test_a_stale_write_is_seen_without_tokens(tells: Tells, scenario: str, lab: Lab) -> None:
    run = broken(lab, tells, scenario)
    assert run.judgement.verdict is Verdict.FAIL, run.judgement
    assert run.facts.classification is not None
    assert run.facts.classification.kind in (Class.ACCEPTED, Class.CORRUPTED)
    assert run.facts.control is not None
    assert run.facts.control.verdict is Verdict.PASS
