"""The workflow to copy: its own command, run on a broken queue, leaves what its other steps keep."""

from __future__ import annotations

import os
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest
import yaml

from fencepost.harness.profiles import EXAMPLES, PROFILES

TEMPLATE = Path(__file__).parents[1] / "docs" / "ci" / "fencepost.yml"
TWIN = "fencepost.queue_impl.twins:steal_of_live_lease"
DEADLINE_S = 300.0


@pytest.fixture(scope="module")
def job() -> dict[str, Any]:
    return dict(yaml.safe_load(TEMPLATE.read_text())["jobs"]["invariants"])


def step(job: dict[str, Any], word: str) -> dict[str, Any]:
    (found,) = [each for each in job["steps"] if word in each.get("uses", "") + each.get("run", "")]
    return dict(found)


def test_its_command_finds_a_broken_queue_and_leaves_what_is_kept(
    job: dict[str, Any], tmp_path: Path
) -> None:
    (tmp_path / "fencepost-known.toml").write_text("")
    chosen = {"PROFILE": "quick", "QUEUE": TWIN, "KNOWN": "--known fencepost-known.toml"}
    assert set(chosen) == {*job["env"], *step(job, "pytest --pyargs")["env"]}
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    ran = subprocess.run(
        [
            "bash",
            "-euo",
            "pipefail",
            "-c",
            step(job, "pytest --pyargs")["run"],
        ],
        cwd=tmp_path,
        env={**os.environ, **chosen, "PATH": path},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert ran.returncode == 1, ran.stdout + ran.stderr
    assert "single_holder broken" in ran.stdout
    assert "fencepost: invariants: profile quick, seed " in ran.stdout
    cases = ET.parse(tmp_path / "fencepost.xml").getroot().iter("testcase")
    assert len(list(cases)) == 2

    kept = step(job, "upload-artifact")["with"]
    *_, traces = kept["path"].split()
    assert list((tmp_path / traces).glob("*.jsonl"))
    assert kept["include-hidden-files"], "else nothing under .fencepost is taken along"
    for cache in ("cache/restore", "cache/save"):
        assert step(job, cache)["with"]["path"] == str(EXAMPLES)
    assert any((tmp_path / EXAMPLES).iterdir())


def test_what_is_kept_is_kept_when_it_failed(job: dict[str, Any]) -> None:
    for word in ("cache/save", "upload-artifact"):
        assert step(job, word)["if"] == "always()"


def test_its_profiles_are_there(job: dict[str, Any]) -> None:
    assert all(f"'{name}'" in job["env"]["PROFILE"] for name in ("ci", "deep"))
    assert {"ci", "deep"} <= PROFILES.keys()
