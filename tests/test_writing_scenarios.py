"""The scenario in docs/writing-scenarios.md: it passes, a twin fails it, and each of its steps is needed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from fencepost.harness.lab import Lab, LabOptions
from fencepost.harness.loading import load_queue
from fencepost.harness.scenario import scenario
from fencepost.harness.verdict import Verdict
from fencepost.tests.test_scenario_text import pasted

PAGE = Path(__file__).parents[1] / "docs" / "writing-scenarios.md"
NEEDED = ("advance_past", '"claim", ttl_s', "go_on", '"complete", stale')


def source() -> str:
    (found,) = re.findall(r"```python\n(.+?)```", PAGE.read_text(), re.DOTALL)
    return str(found)


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with Lab(LabOptions()) as lab:
        yield lab


def verdict(lab: Lab, queue: str, text: str, directory: Path) -> Verdict:
    (variant,) = pasted(text, directory).variants()
    return lab.run(load_queue(queue), variant).judgement.verdict


def test_it_passes_on_the_reference_queue_and_not_on_a_twin(lab: Lab, tmp_path: Path) -> None:
    assert verdict(lab, "reference", source(), tmp_path) is Verdict.PASS
    assert verdict(lab, "fencepost.queue_impl.twins:no_guard", source(), tmp_path) is Verdict.FAIL


@pytest.mark.parametrize("word", NEEDED)
def test_none_of_its_steps_can_be_left_out(lab: Lab, word: str, tmp_path: Path) -> None:
    kept = [line for line in source().splitlines() if word not in line]
    assert len(kept) == len(source().splitlines()) - 1
    assert verdict(lab, "reference", "\n".join(kept), tmp_path) is not Verdict.PASS


def test_every_option_is_in_the_table() -> None:
    told = set(re.findall(r"^\| `(\w+)` \|", PAGE.read_text(), re.MULTILINE))
    assert told == set(scenario.__annotations__) - {"return"}
