"""A finding as a scenario to paste: it fails on the queue it was found on, by the same name, and passes once mended."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path

import pytest

from fencepost.harness.foretold import names_of, run_foretold
from fencepost.harness.known import EXPECTATION
from fencepost.harness.lab import Lab, LabOptions
from fencepost.harness.loading import load_queue
from fencepost.harness.pinning import pinned
from fencepost.harness.replay import replay_of
from fencepost.harness.scenario import Scenario, scenarios_in
from fencepost.harness.scenario_text import scenario_text
from fencepost.harness.schedule import parse_schedule
from fencepost.harness.verdict import Verdict

TWINS = "fencepost.queue_impl.twins"

FINDINGS = {
    "a race": (
        "guard_without_row_lock",
        "P:enqueue | A:claim | A:complete@after_guard | clock>A | B:claim",
        "fence",
    ),
    "the last step brings what it should not": (
        "failed_claimable_again",
        "P:enqueue(max_attempts=1) | A:claim | clock>A | R:reap | B:claim",
        "terminal_absorbing",
    ),
    "the last step does not wait as it should": (
        "key_by_check_then_insert",
        'P2:enqueue(key="key-1")@before_commit | P:enqueue(key="key-1")',
        "idempotent_submit",
    ),
    "only the model sees it": ("token_grows_by_two", "P:enqueue | A:claim", EXPECTATION),
    "shortly before a lease ends": (
        "reaper_comes_early",
        "P:enqueue | B:claim | clock>#1-7s | R:reap",
        "requeued_once",
    ),
    "a batch of which one claim is used": (
        "heartbeat_revives_expired_lease",
        "P:enqueue | P:enqueue | A:claim_batch(limit=2) | clock>#2 | A:heartbeat(#2)",
        "fence",
    ),
    "a job that a second key answers with": (
        "cancel_overwrites_succeeded",
        'P:enqueue(key="k") | P:enqueue(key="k") | P:enqueue | A:claim | A:complete | P:cancel(j1)',
        "terminal_absorbing",
    ),
    "one waits for another": (
        "heartbeat_at_frozen_now",
        "P:enqueue | A:claim | A:fail@after_lock | C:heartbeat(#1)! | clock>A | A>",
        "fence",
    ),
    "another's answer comes when it need not wait any more": (
        "heartbeat_revives_expired_lease",
        'P:enqueue(key="k")@before_commit | P2:enqueue(key="k")! | P> | A:claim | clock>j1 | A:heartbeat',
        "fence",
    ),
    "held at the second of its kind": (
        "heartbeat_revives_expired_lease",
        'P:enqueue | A:join(path="gate") | A:claim@before/./#2 | A> | clock>A | A:heartbeat',
        "fence",
    ),
    "an answer is lost": (
        "heartbeat_revives_expired_lease",
        "P:enqueue | A:claim | B:heartbeat(#1)~lose_reply/COMMIT/ | clock>A | A:heartbeat",
        "fence",
    ),
    "the server crashes": ("unlogged_tables", "P:enqueue | A:claim | crash", "restart_keeps_leases"),
    "a retry comes due": (
        "backoff_from_the_old_next_run_at",
        "P:enqueue | B:claim | clock+5s | B:fail",
        EXPECTATION,
    ),
}


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with Lab(LabOptions()) as lab:
        yield lab


def written(lab: Lab, twin: str, text: str, name: str, directory: Path) -> Scenario:
    with pinned(lab.core):
        found = run_foretold(lab.bench(load_queue(f"{TWINS}:{twin}")), replay_of(parse_schedule(text)))
    assert name in names_of(found), found.judgement.reasons
    schedule = parse_schedule(found.trace.header["schedule"])
    source = scenario_text(schedule, found.trace, by_the_model=not found.facts.violations)
    return pasted(source, directory)


def pasted(source: str, directory: Path) -> Scenario:
    path = directory / "test_pasted.py"
    path.write_text(source + "\n")
    spec = importlib.util.spec_from_file_location("test_pasted", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    (scenario,) = scenarios_in(module)
    return scenario


@pytest.mark.parametrize("finding", FINDINGS)
def test_it_fails_where_it_was_found_and_passes_on_the_mended_queue(
    lab: Lab, finding: str, tmp_path: Path
) -> None:
    twin, text, name = FINDINGS[finding]
    scenario = written(lab, twin, text, name, tmp_path)
    (variant,) = scenario.variants()

    again = lab.run(load_queue(f"{TWINS}:{twin}"), variant)
    assert again.judgement.verdict is Verdict.FAIL, again.judgement.reasons
    assert name in names_of(again)

    mended = lab.run(load_queue("reference"), variant)
    assert mended.judgement.verdict is Verdict.PASS, mended.judgement.reasons


def test_where_a_mended_queue_goes_another_way_it_is_said_and_proves_nothing(
    lab: Lab, tmp_path: Path
) -> None:
    longer = f"{FINDINGS['a race'][1]} | B:complete | A>"
    (variant,) = written(lab, "guard_without_row_lock", longer, "fence", tmp_path).variants()
    mended = lab.run(load_queue("reference"), variant)
    assert mended.judgement.verdict is Verdict.INCONCLUSIVE
    assert "B's claim found nothing to claim" in mended.judgement.reasons


def test_what_the_model_found_is_not_found_without_it(lab: Lab, tmp_path: Path) -> None:
    """Else `foretold=True` would be an empty word."""
    twin, text, name = FINDINGS["only the model sees it"]
    written(lab, twin, text, name, tmp_path)
    source = (tmp_path / "test_pasted.py").read_text()
    assert ", foretold=True" in source
    (variant,) = pasted(source.replace(", foretold=True", ""), tmp_path).variants()
    assert lab.run(load_queue(f"{TWINS}:{twin}"), variant).judgement.verdict is Verdict.PASS


def test_it_says_what_it_needs(lab: Lab, tmp_path: Path) -> None:
    needs = written(lab, *FINDINGS["the server crashes"], tmp_path)
    assert {fault.name for fault in needs.server_faults} == {"CRASH"}
