"""Pages that are written from the code say what the code says."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from fencepost.harness.twins import load_suites

ROOT = Path(__file__).resolve().parent.parent


def test_generated_pages_are_up_to_date() -> None:
    check = subprocess.run(
        [sys.executable, "docs/write.py", "--check"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert check.returncode == 0, check.stderr


def test_what_it_catches_lists_every_twin_with_its_invariant() -> None:
    text = (ROOT / "docs/what-it-catches.md").read_text()
    rows = dict(re.findall(r"^\| `(\w+)` \| .*? \| (\w+) \| `", text, re.MULTILINE))
    assert rows == {twin.name: twin.breaks for suite in load_suites() for twin in suite.twins}, (
        "run `make docs`"
    )


def test_how_often_findings_are_replayed_is_what_the_page_says() -> None:
    page = (ROOT / "docs/adapters.md").read_text()
    told = re.search(
        r"replays every finding (\d+) times, the reference queue's (\d+) times,.*?(\d+) times",
        page,
        re.DOTALL,
    )
    test = (ROOT / "tests/test_adapters_findings.py").read_text()
    done = re.search(r'"reference": (\d+)}.*"REPLAYS", "(\d+)"', test)
    soak = re.search(r"REPLAYS=(\d+) .*test_adapters_findings", (ROOT / "Makefile").read_text())
    assert told and done and soak
    assert told.groups() == (done[2], done[1], soak[1])


def test_links_between_pages_lead_somewhere() -> None:
    for page in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]:
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"
