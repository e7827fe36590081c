"""The gate as CI runs it: pytest on a queue that is broken, odd or not tried enough, and on wrong options."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from fencepost.harness.machine_settings import settings_of
from fencepost.harness.profiles import CI_SEED, PROFILES, base_seed

pytest_plugins = ["pytester"]

TWIN = "fencepost.queue_impl.twins:late_fail_requeues"
GATE = """
from fencepost.scenarios.test_invariants import test_invariants
"""
DEADLINE_S = 300.0

FEW_EXAMPLES = """
from fencepost.harness import profiles

profiles.PROFILES["quick"] = profiles.Profile(examples=1, steps=1)
"""

STEALS_NOW_AND_THEN = """
from fencepost.queue_impl.reference.adapter import ReferenceAdapter
from fencepost.queue_impl.reference.client import ReferenceQueue

claims = 0
done = False


class StealsNowAndThen(ReferenceQueue):
    def claim_batch(self, ttl_s, limit):
        global claims, done
        claims += 1
        if claims > 40 and not done:
            skip = "UPDATE lease_queue.jobs SET fencing_token = 7 WHERE state = 'ready' AND fencing_token = 0"
            done = self._session.connection.execute(skip).rowcount > 0
        return super().claim_batch(ttl_s, limit)


queue = ReferenceAdapter("steals_now_and_then", client=StealsNowAndThen)
"""

BREAKS = """
from fencepost.queue_impl.reference.adapter import ReferenceAdapter


class Breaks(ReferenceAdapter):
    looks = 0

    def observe(self, dsn):
        self.looks += 1
        if self.looks > 100:
            raise RuntimeError("the adapter lost its way")
        return super().observe(dsn)


queue = Breaks("breaks")
"""


@pytest.fixture
def gate(pytester: pytest.Pytester) -> pytest.Pytester:
    pytester.makepyfile(test_gate=GATE)
    return pytester


def run(gate: pytest.Pytester, *options: str) -> pytest.RunResult:
    return gate.runpytest_subprocess(
        "--import-mode=importlib", "-p", "no:cacheprovider", "-m", "invariants", *options, timeout=DEADLINE_S
    )


def examples_of(result: pytest.RunResult) -> list[int]:
    return [int(count) for count in re.findall(r"(\d+) examples \(", result.stdout.str())]


def test_a_broken_queue_fails_the_gate_and_is_tried_first_the_next_time(gate: pytest.Pytester) -> None:
    result = run(
        gate,
        "-k",
        "1]",
        "--queue",
        TWIN,
        "--hypothesis-profile",
        "ci",
        "--junit-xml",
        "gate.xml",
        "--trace-dir",
        "traces",
    )
    result.assert_outcomes(failed=1)
    said = result.stdout.str()
    assert f"fencepost: invariants: profile ci, seed {CI_SEED}\n" in said, (
        "before the search, which may be stopped"
    )
    assert " broken at step " in said and "fencepost replay '" in said and "    @scenario(" in said
    assert re.search(rf"part 1, profile ci, seed {CI_SEED}: \d+ examples", said)
    assert examples_of(result)[0] > 2
    assert list(Path(gate.path / "traces").glob("invariants-*.jsonl"))
    (case,) = ET.parse(gate.path / "gate.xml").getroot().iter("testcase")
    told = {each.get("name"): each.get("value") or "" for each in case.iter("property")}
    assert f"seed {CI_SEED}: " in told["fencepost_invariants"]

    # Without a seed: with one, Hypothesis keeps nothing and begins with nothing that was kept.
    again = run(gate, "-k", "1]", "--queue", TWIN, "--hypothesis-profile", "ci")
    again.assert_outcomes(failed=1)
    assert examples_of(again) == [2], "the one that is kept, and whether it fails again"
    # The other part is a search of its own.
    other = run(gate, "-k", "2]", "--queue", "reference", "--hypothesis-seed", "2")
    other.assert_outcomes(passed=1)
    assert examples_of(other)[0] > 5


def test_a_search_that_did_too_little_proves_nothing(gate: pytest.Pytester) -> None:
    gate.makeconftest(FEW_EXAMPLES)
    result = run(gate, "-k", "1]")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines("*proved nothing: *no operation was held on its way while another acted*")


def test_a_queue_that_is_not_the_same_twice_fails_the_gate(gate: pytest.Pytester) -> None:
    gate.makepyfile(now_and_then=STEALS_NOW_AND_THEN)
    result = run(gate, "-k", "1]", "--queue", "now_and_then:queue", "--hypothesis-seed", "1")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines("*an example failed, and did not when it was played again*")


def test_an_adapter_that_breaks_fails_the_gate(gate: pytest.Pytester) -> None:
    gate.makepyfile(breaks=BREAKS)
    result = run(gate, "-k", "1]", "--queue", "breaks:queue", "--hypothesis-seed", "1")
    assert result.ret == 1
    result.stdout.fnmatch_lines("*the adapter lost its way*")


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--hypothesis-profile", "nope"], "--hypothesis-profile nope: the state machine knows quick, ci, deep."),
        (["--hypothesis-profile", "default"], "--hypothesis-profile default: the state machine knows quick, ci, deep."),
        (["--hypothesis-seed", "1.5"], "--hypothesis-seed 1.5: the state machine takes a whole number from 0 on."),
        (["--step", "statement"], "--step statement: the state machine holds operations at single *"),
    ],
    ids=lambda value: "=".join(value) if isinstance(value, list) else None,
)  # fmt: skip
@pytest.mark.parametrize("workers", [[], ["-n", "1"]], ids=["here", "xdist"])
def test_a_wrong_option_is_one_sentence(
    gate: pytest.Pytester, options: list[str], sentence: str, workers: list[str]
) -> None:
    result = run(gate, *options, *workers)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(f"ERROR: {sentence}")
    assert "Traceback" not in result.stderr.str() + result.stdout.str()


def test_a_profile_of_somebody_elses_is_left_to_hypothesis(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("def test_of_mine():\n    pass\n")
    pytester.runpytest_subprocess("--hypothesis-profile", "default").assert_outcomes(passed=1)


def test_one_seed_is_for_all_parts_and_workers(gate: pytest.Pytester) -> None:
    gate.makeconftest(FEW_EXAMPLES)
    said = run(gate, "-n", "2").stdout.str()
    (told,) = re.findall(r"profile quick, seed (\d+)\n", said)
    assert re.findall(r"part \d, profile quick, seed (\d+): ", said) == [told, told]


def test_profiles_are_what_the_pages_say(tmp_path: Path) -> None:
    quick, ci, deep = (PROFILES[name] for name in ("quick", "ci", "deep"))
    assert quick.examples * 10 < ci.examples < deep.examples / 10
    assert base_seed(ci, None) == base_seed(ci, None), "a build must not fail by chance"
    assert len({base_seed(deep, None) for _ in range(3)}) > 1
    assert base_seed(ci, "77") == 77
    for profile in PROFILES.values():
        made = settings_of(profile, tmp_path, part=1)
        assert (made.max_examples, made.suppress_health_check) == (profile.examples, ())
