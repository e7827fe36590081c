"""What the variants family finds on the libraries: the same class, step and trace in every replay.

The classes are of the versions the adapters were written against. A new release that does better fails here, and
should: then the table and the adapter's docstring are to be brought up to date.
"""

from __future__ import annotations

import importlib
import os
from importlib.metadata import version

import pytest

from fencepost.harness.lab import Lab
from fencepost.harness.loading import load_queue
from fencepost.harness.scenario import Variant, scenarios_in
from fencepost.harness.trace.canonical import canonical_hash
from fencepost.harness.verdict import Verdict

REPLAYS = {"reference": 2} | dict.fromkeys(("procrastinate", "pgqueuer"), int(os.environ.get("REPLAYS", "4")))
"""`make soak` replays twenty times. The reference queue's determinism has a test of its own."""

VARIANTS = {
    variant.name: variant
    for scenario in scenarios_in(importlib.import_module("fencepost.scenarios.test_variants"))
    for variant in scenario.variants()
}

PATHS = {
    "reference": "reference",
    "procrastinate": "fencepost.adapters.procrastinate:ProcrastinateAdapter",
    "pgqueuer": "fencepost.adapters.pgqueuer:PgQueuerAdapter",
}

WRITTEN_AGAINST = {"procrastinate": "3.10.", "pgqueuer": "1.6."}

SKIPPED = "skipped"

FOUND = {
    "procrastinate": {
        "complete_after_b_completed": "refused",
        "fail_after_b_completed[default_attempts]": "refused",
        "fail_after_b_completed[five_attempts]": "refused",
        "fail_after_b_failed": "corrupted",
        "complete_while_b_runs": "accepted",
        "fail_while_b_runs[default_attempts]": "corrupted",
        "fail_while_b_runs[five_attempts]": "corrupted",
        "complete_after_expiry": "accepted",
        "heartbeat_after_b_claimed": "harmless",
        "two_recoverers": "corrupted",
        "recovery_meets_a_late_heartbeat": "accepted",
        "two_claimers_of_a_lost_job": "refused",
        "recovery_of_a_live_lease": "refused",
        "recovery_of_a_renewed_lease": "refused",
    },
    "pgqueuer": {
        "complete_after_b_completed": "harmless",
        "fail_after_b_completed[default_attempts]": "harmless",
        "fail_after_b_completed[five_attempts]": "harmless",
        "fail_after_b_failed": "accepted",
        "complete_while_b_runs": "accepted",
        "fail_while_b_runs[default_attempts]": "corrupted",
        "fail_while_b_runs[five_attempts]": "corrupted",
        "complete_after_expiry": "accepted",
        "heartbeat_after_b_claimed": "accepted",
        "two_recoverers": SKIPPED,
        "recovery_meets_a_late_heartbeat": SKIPPED,
        "two_claimers_of_a_lost_job": "refused",
        "recovery_of_a_live_lease": "refused",
        "recovery_of_a_renewed_lease": "refused",
    },
    "reference": dict.fromkeys(VARIANTS, "refused"),
}

CASES = [(queue, name) for queue, found in FOUND.items() for name in found]


def test_the_table_is_complete() -> None:
    assert all(found.keys() == VARIANTS.keys() for found in FOUND.values())


@pytest.mark.parametrize(("queue", "name"), CASES, ids=[f"{queue}-{name}" for queue, name in CASES])
def test_every_replay_agrees(queue: str, name: str, fencepost_lab: Lab) -> None:
    if queue in WRITTEN_AGAINST:
        pytest.importorskip(queue)
        if not version(queue).startswith(WRITTEN_AGAINST[queue]):
            pytest.skip(f"the table is of {queue} {WRITTEN_AGAINST[queue]}x, here is {version(queue)}")
    loaded = load_queue(PATHS[queue])
    variant: Variant = VARIANTS[name]
    if FOUND[queue][name] == SKIPPED:
        assert fencepost_lab.bench(loaded).lacks(variant)
        return

    runs = [fencepost_lab.run(loaded, variant) for _ in range(REPLAYS[queue])]

    expected = FOUND[queue][name]
    verdict = Verdict.PASS if expected in ("refused", "harmless") else Verdict.FAIL
    assert {run.trace.end["class"] for run in runs} == {expected}
    assert {run.judgement.verdict for run in runs} == {verdict}, runs[0].judgement.reasons
    assert len({canonical_hash(run.trace) for run in runs}) == 1
    controls = [run.control for run in runs]
    assert {control.judgement.verdict for control in controls if control is not None} == {Verdict.PASS}
    assert len({canonical_hash(control.trace) for control in controls if control is not None}) == 1
