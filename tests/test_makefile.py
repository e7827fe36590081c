"""What `make` would do. A phony target whose recipe is lost succeeds without doing anything, and CI with it."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
MAKEFILE = (ROOT / "Makefile").read_text()
PHONY = re.findall(r"^\.PHONY: (.+)$", MAKEFILE, re.MULTILINE)[0].split()

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="there is no make here")


def dry_run(target: str, tmp_path: Path) -> str:
    """The commands, as in an environment that is set up."""
    (tmp_path / ".fencepost-setup").touch()
    made = subprocess.run(
        ["make", "--dry-run", "--always-make", target, f"VENV={tmp_path}", "PYTHON=python3"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return "\n".join(line for line in made.stdout.splitlines() if not line.startswith("make"))


@pytest.mark.parametrize("target", PHONY)
def test_every_target_does_something(target: str, tmp_path: Path) -> None:
    setting_up = set() if target == "setup" else set(dry_run("setup", tmp_path).splitlines())
    own = [line for line in dry_run(target, tmp_path).splitlines() if line not in setting_up]
    assert own, f"make {target} runs no command"


@pytest.mark.parametrize(
    "command", ["ruff check .", "ruff format --check .", "/mypy", "-m pytest -n auto", "toxiproxy_binary"]
)
def test_make_test_runs_every_check(command: str, tmp_path: Path) -> None:
    assert command in dry_run("test", tmp_path)


def test_ci_calls_make_test() -> None:
    assert (ROOT / ".ci" / "run").read_text().splitlines()[-1] == "make test"


def test_every_target_the_readme_names_is_there() -> None:
    named = set(re.findall(r"(?:^    |`)make ([a-z][a-z-]+)", (ROOT / "README.md").read_text(), re.MULTILINE))
    assert {"test", "lease-race"} <= named
    assert named <= set(PHONY)
