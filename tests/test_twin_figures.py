"""Figures about twins, from whatever source, become columns of one page."""

from __future__ import annotations

from pathlib import Path

import pytest

from fencepost.docs.twin_figures import Figures, read_figures, with_figures

PAGE = """# What it catches

| twin | the promise taken out | invariant | caught by | step | stands for |
|---|---|---|---|---|---|
| `one` | It does a \\| b. | fence | `x` | 3 |  |
| `two` | It does. | fence | `x`, `y` | 4 | a thing |

Two of two.
"""

MACHINE = Figures(
    command="make quality",
    says="Looked for.",
    columns={"examples": "examples", "steps": "steps"},
    listed={"schedule": "Schedules"},
    twins={"one": {"examples": 1200, "steps": 3, "schedule": "A:claim | B:claim"}},
)
STRESS = Figures(
    command="make stress", says="Hit.", columns={"rate": "stress"}, twins={"two": {"rate": "1|2"}}
)


def test_a_page_without_sources_is_as_it_was() -> None:
    assert with_figures(PAGE, []) == PAGE


def test_every_source_has_its_columns_and_says_where_they_come_from() -> None:
    lines = with_figures(PAGE, [MACHINE, STRESS]).splitlines()
    assert lines[2].endswith("| stands for | examples | steps | stress |")
    assert lines[3] == "|---|---|---|---|---|---|---|---|---|"
    assert lines[4] == "| `one` | It does a \\| b. | fence | `x` | 3 |  | 1,200 | 3 | - |"
    assert lines[5] == "| `two` | It does. | fence | `x`, `y` | 4 | a thing | - | - | 1\\|2 |"
    assert "- *examples*, *steps*: written by `make quality`. Looked for." in lines
    assert "- *stress*: written by `make stress`. Hit." in lines
    assert "- `one`: `A:claim | B:claim`" in lines


def test_columns_are_replaced_and_not_added_to() -> None:
    once = with_figures(PAGE, [MACHINE, STRESS])
    assert with_figures(once, [MACHINE, STRESS]) == once
    assert with_figures(once, []) == PAGE


def test_what_is_written_is_read(tmp_path: Path) -> None:
    MACHINE.write("machine", tmp_path)
    STRESS.write("stress", tmp_path)
    assert read_figures(tmp_path) == [MACHINE, STRESS]


def test_figures_of_a_twin_that_is_gone_are_not_passed_over() -> None:
    gone = Figures(command="make quality", says="", columns={}, twins={"three": {}})
    with pytest.raises(SystemExit, match="three"):
        with_figures(PAGE, [gone])
