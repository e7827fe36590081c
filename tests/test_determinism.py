"""The canonical trace of a scenario is one and the same: thread or process actors, any clock offset, any bench."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from fencepost.harness.lab import Lab, LabOptions
from fencepost.harness.loading import LoadedQueue, load_queue
from fencepost.harness.scenario import choose, installed_scenarios
from fencepost.harness.trace import canonical
from fencepost.harness.verdict import Verdict

VARIANTS = [v for scenario in choose(installed_scenarios(), ["lease_race"]) for v in scenario.variants()]


@pytest.fixture(scope="module")
def labs() -> Iterator[dict[str, Lab]]:
    with Lab(LabOptions(actors="thread")) as threads, Lab(LabOptions(actors="process")) as processes:
        yield {"thread": threads, "process": processes}


@pytest.fixture(scope="module")
def reference() -> LoadedQueue:
    return load_queue("reference")


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda v: v.name)
def test_threads_and_processes_leave_the_same_trace(
    labs: dict[str, Lab], reference: LoadedQueue, variant: object
) -> None:
    runs = [lab.run(reference, variant) for lab in labs.values() for _ in range(3)]  # type: ignore[arg-type]
    assert all(run.judgement.verdict is Verdict.PASS for run in runs)
    assert len({canonical(run.trace) for run in runs}) == 1


def test_two_queues_on_one_lab_do_not_share_barriers_or_journals(
    labs: dict[str, Lab], reference: LoadedQueue
) -> None:
    """Keys and race numbers were once counted per queue: one queue's barrier held another's actor."""
    (held, *_) = [v for v in VARIANTS if v.scenario.name == "held_between_guard_and_commit"]
    twin = load_queue("fencepost.queue_impl.twins:guard_at_frozen_now")
    alone = labs["thread"].run(reference, held)
    other = labs["thread"].run(twin, held)
    again = labs["thread"].run(reference, held)
    assert canonical(again.trace) == canonical(alone.trace)
    assert len(other.trace.end["journal"]) == len(alone.trace.end["journal"])


def test_a_held_actor_left_behind_does_not_reach_the_next_race(
    labs: dict[str, Lab], reference: LoadedQueue
) -> None:
    """A run that ends at a broken invariant leaves its actors where they are; the next one starts clean."""
    twin = load_queue("fencepost.queue_impl.twins:ledger_before_state_change")
    held = next(v for v in VARIANTS if v.name == "held_between_guard_and_commit[after_ledger]")
    plain = VARIANTS[0]
    for lab in labs.values():
        broken = lab.run(twin, held)
        assert [v.invariant for v in broken.facts.violations] == ["ledger_once"]
        assert lab.run(twin, plain).judgement.verdict is Verdict.PASS
