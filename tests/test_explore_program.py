"""The text of a program: what it reads, and how it points at what it cannot."""

from __future__ import annotations

import pytest

from fencepost.harness.errors import UsageError
from fencepost.harness.explore.executor import Choice, choice, schedule_text
from fencepost.harness.explore.program import Actor, Fault, parse


def test_a_program_is_read_and_written() -> None:
    program = parse("A:claim,complete B:claim,complete R:reap", "expire,crash*2", jobs=2)
    assert program.actors[0] == Actor("A", ("claim", "complete"))
    assert program.faults == (Fault("expire"), Fault("crash", 2))
    assert (program.operations, program.jobs) == (5, 2)
    assert str(program) == "A:claim,complete B:claim,complete R:reap [expire,crash*2] (2 jobs)"


@pytest.mark.parametrize(
    ("operations", "faults", "column", "said"),
    [
        ("", "", 1, "no actor"),
        ("A:claim b:claim", "", 9, "'b' is no actor's name"),
        ("A", "", 2, "a colon must follow A"),
        ("A:claim,compleet", "", 9, "'compleet' is no operation"),
        ("A:claim,,complete", "", 9, "an operation is missing"),
        ("A:", "", 3, "an operation is missing"),
        ("A:claim B:claim A:reap", "", 17, "actor A is there twice"),
        ("A:claim", "expire,flood", 8, "'flood' is no fault"),
        ("A:claim", "crash,crash", 7, "for more than one write crash*2"),
        ("A:claim", "crash*none", 1, "'none' is no number of times"),
    ],
)
def test_an_error_points_at_its_column(operations: str, faults: str, column: int, said: str) -> None:
    with pytest.raises(UsageError) as error:
        parse(operations, faults)
    first, shown, caret = str(error.value).split("\n")
    assert said in first
    assert f"column {column}:" in first
    assert shown.strip() == (faults if "--faults" in first else operations)
    assert caret.index("^") == column + 1


def test_a_slip_of_the_keyboard_is_no_endless_run() -> None:
    with pytest.raises(UsageError, match="65 operations; the most is 64"):
        parse("A:" + ",".join(["claim"] * 65))


def test_an_operation_an_actor_and_a_fault_can_leave() -> None:
    program = parse("A:claim,complete B:claim", "crash*2")
    assert str(program.without_operation("A", 0)) == "A:complete B:claim [crash*2]"
    assert str(program.without_operation("B", 0)) == "A:claim,complete [crash*2]"
    assert str(program.without_actor("A")) == "B:claim [crash*2]"
    assert str(program.with_fault_less("crash")) == "A:claim,complete B:claim [crash]"
    assert str(program.with_fault_less("crash").with_fault_less("crash")) == "A:claim,complete B:claim"


def test_an_order_in_short() -> None:
    order = (Choice("A"), Choice("A"), Choice("B", "crash"), Choice("A"))
    assert schedule_text(order) == "A*2 B!crash A"
    assert choice("B!crash") == Choice("B", "crash")
