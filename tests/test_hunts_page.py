"""docs/hunts.md says what its commands print: each is run again, and all but the speed is compared."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from fencepost.tests.fix_commands import run_fencepost

PAGE = Path(__file__).resolve().parent.parent / "docs" / "hunts.md"
COMMAND = re.compile(r"^    (fencepost .+)\n\n((?:    .*\n|\n(?=    ))+)", re.MULTILINE)
HUNTS = [(found[1], found[2]) for found in COMMAND.finditer(PAGE.read_text())]
OF_THE_MACHINE = re.compile(r"[\d,]+ schedules/s")


def stable(text: str) -> list[str]:
    return [OF_THE_MACHINE.sub("… schedules/s", line).strip() for line in text.strip().splitlines()]


def test_the_page_has_hunts() -> None:
    assert len(HUNTS) >= 6
    assert {block.strip().splitlines()[-1].strip() for _, block in HUNTS} == {"exit code 0", "exit code 1"}


@pytest.mark.parametrize(("command", "block"), HUNTS, ids=[command[18:60] for command, _ in HUNTS])
def test_a_hunt_comes_to_what_the_page_says(command: str, block: str, tmp_path: Path) -> None:
    done = run_fencepost(*shlex.split(command)[1:], cwd=tmp_path)
    assert done.err == ""
    assert stable(f"{done.out.rstrip()}\nexit code {done.code}") == stable(block), "run `make hunts`"
