"""Exhaustive tries all orders, reduced one of each class, and both end alike; break the relation and they do not."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import pytest

from fencepost.harness.explore.executor import (
    Choice,
    Executor,
    Outcome,
    Schedule,
    Status,
    StepResult,
    schedule_text,
)
from fencepost.harness.explore.exhaustive import Exhaustive, multinomial
from fencepost.harness.explore.footprint import Access, Footprint, Mode
from fencepost.harness.explore.program import Program
from fencepost.harness.explore.reduced import Reduced
from fencepost.harness.explore.result import Result
from fencepost.harness.explore.scale import Here
from fencepost.harness.explore.search import explore
from fencepost.harness.explore.strategy import Strategy
from fencepost.tests.fix_toy_executor import (
    FickleExecutor,
    RecordingExecutor,
    ToyExecution,
    ToyExecutor,
    lost_update,
    random_program,
    toy,
)

BUDGET = 5_000
PROGRAMS = 200

THREE_JOBS = toy("A:begin,write-x,commit B:begin,write-y,commit C:begin,write-z,commit")
ONE_ROW = toy("A:begin,write-x,commit B:begin,write-x,commit C:begin,write-x,commit")
DEADLOCK = toy("A:begin,write-x,write-y,commit B:begin,write-y,write-x,commit")
SCANNED = toy("A:write-x,scan B:write-y")
BY_HAND = (THREE_JOBS, ONE_ROW, DEADLOCK, SCANNED)
"""What random programs of this size rarely have."""


def explored(strategy: Strategy, program: Program, executor: Executor | None = None) -> Result:
    workers = Here(executor or ToyExecutor(), program)
    try:
        return explore(program, strategy, workers)
    finally:
        workers.close()


Made = list[tuple[Schedule, Outcome]]


def in_sequence(strategy: Strategy, program: Program) -> tuple[Result, Made]:
    executor = RecordingExecutor()
    result = explored(strategy, program, executor)
    assert result.complete, f"{program} is too large for this test"
    (execution,) = executor.opened
    made = [(tuple(order), outcome) for order, outcome in execution.runs if outcome is not None]
    assert len(made) == len(execution.runs), "a run was cut short"
    return result, made


@cache
def every_order(program: Program) -> tuple[Result, Made]:
    return in_sequence(Exhaustive(BUDGET), program)


@cache
def fewer_orders(program: Program) -> tuple[Result, Made]:
    return in_sequence(Reduced(BUDGET, program.faults), program)


def exhausted(program: Program) -> Result:
    return every_order(program)[0]


def test_exhaustive_tries_every_order_once() -> None:
    result = exhausted(THREE_JOBS)
    assert result.basis == "exhaustive: 1,680 of 1,680"
    assert len(result.tally.distinct) == result.tally.runs == 1_680
    assert multinomial((("A", 3), ("B", 3), ("C", 3))) == 1_680


def test_exhaustive_knows_what_it_left_out() -> None:
    result = explored(Exhaustive(100), THREE_JOBS)
    assert result.basis == "exhaustive: 100 of 1,680"
    assert result.tally.runs == 100
    assert not result.complete
    assert not result.conclusive


def test_different_jobs_need_a_twentieth_at_most() -> None:
    result = explored(Reduced(BUDGET), THREE_JOBS)
    assert result.basis == "reduced: 1 stand for 1,680"
    assert result.tally.runs <= 0.05 * exhausted(THREE_JOBS).tally.runs


def test_on_one_row_it_saves_less() -> None:
    result = explored(Reduced(BUDGET), ONE_ROW)
    assert result.basis == "reduced: 30 stand for 636"
    assert set(result.tally.outcomes) == set(exhausted(ONE_ROW).tally.outcomes)


def test_a_deadlock_is_reached_from_both_sides() -> None:
    result = explored(Reduced(BUDGET), DEADLOCK)
    victims = {name for outcome in result.tally.outcomes for name in outcome.answers if "deadlock" in name}
    assert {name[0] for name in victims} == {"A", "B"}
    assert result.tally.stands_for == exhausted(DEADLOCK).tally.runs == 42


@pytest.mark.parametrize("program", BY_HAND, ids=str)
def test_both_reach_the_same_outcomes(program: Program) -> None:
    every, reduced = exhausted(program), fewer_orders(program)[0]
    assert set(reduced.tally.outcomes) == set(every.tally.outcomes)
    assert reduced.tally.stands_for == every.tally.runs


@pytest.mark.parametrize("start", range(0, PROGRAMS, 25))
def test_both_reach_the_same_outcomes_on_random_programs(start: int) -> None:
    saved = 0
    for seed in range(start, start + 25):
        program = random_program(seed)
        every, reduced = exhausted(program), fewer_orders(program)[0]
        assert reduced.complete
        assert set(reduced.tally.outcomes) == set(every.tally.outcomes), program
        # Stronger: every order belongs to exactly one of the classes that were run.
        assert reduced.tally.stands_for == every.tally.runs, program
        assert reduced.tally.runs <= every.tally.runs
        saved += every.tally.runs - reduced.tally.runs
    assert saved > 0


def first_seen(made: Made) -> dict[Outcome, int]:
    seen: dict[Outcome, int] = {}
    for number, (_, outcome) in enumerate(made, 1):
        seen.setdefault(outcome, number)
    return seen


def is_selection_of(few: list[Schedule], many: list[Schedule]) -> bool:
    following = iter(many)
    return all(schedule in following for schedule in few)


@pytest.mark.parametrize("start", range(0, PROGRAMS, 25))
def test_reduced_runs_a_selection_of_exhaustive_and_needs_no_more_for_any_outcome(start: int) -> None:
    earlier = 0
    for program in (*BY_HAND, *map(random_program, range(start, start + 25))):
        every, fewer = every_order(program)[1], fewer_orders(program)[1]
        assert is_selection_of([order for order, _ in fewer], [order for order, _ in every]), program
        needed, needed_at_most = first_seen(fewer), first_seen(every)
        assert needed.keys() == needed_at_most.keys()
        assert all(needed[outcome] <= needed_at_most[outcome] for outcome in needed), program
        earlier += sum(needed[outcome] < needed_at_most[outcome] for outcome in needed)
    assert earlier > 0


def test_orders_with_fewer_deviations_come_first() -> None:
    made = [order for order, _ in every_order(toy("A:read-x,read-x B:read-y,read-y"))[1]]
    assert [schedule_text(order) for order in made] == [
        "A*2 B*2",
        "A B*2 A",
        "B*2 A*2",
        "A B A B",
        "B A*2 B",
        "B A B A",
    ]


def test_the_random_programs_are_worth_the_name() -> None:
    results = [exhausted(random_program(seed)) for seed in range(PROGRAMS)]
    assert sum(result.tally.blocked > 0 for result in results) > PROGRAMS // 10
    assert sum(len(result.tally.outcomes) > 1 for result in results) > PROGRAMS // 3


def without(*modes: Mode) -> Callable[[Footprint], Footprint]:
    def falsify(seen: Footprint) -> Footprint:
        return Footprint(frozenset(a for a in seen.accesses if a.mode not in modes), seen.unknown)

    return falsify


def rows_confused(seen: Footprint) -> Footprint:
    """Takes a scan for a read of one row nobody else touches."""
    return Footprint(frozenset(map(_of_one_row, seen.accesses)), seen.unknown)


def _of_one_row(access: Access) -> Access:
    is_scan = access.key is None and access.mode is Mode.READ
    return Access(access.thing, access.mode, ("nobody",)) if is_scan else access


FALSIFIED = {
    "commits are not seen": without(Mode.PUBLISH),
    "locks are not seen": without(Mode.LOCK, Mode.WRITE),
    "clock moves are not seen": without(Mode.SET),
    "the order of writes is not seen": without(Mode.MARK),
    "that a scan shows the order of writes is not seen": without(Mode.REVEAL),
    "scans are not seen": rows_confused,
}


@pytest.mark.parametrize("name", FALSIFIED)
def test_with_a_broken_relation_the_comparison_goes_red(name: str) -> None:
    assert differs(ToyExecutor(falsify=FALSIFIED[name])), f"{name}, and nothing noticed"


def test_without_waits_the_search_says_that_it_was_misled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StepResult, "changes_waits", property(lambda step: False))
    result = explored(Reduced(BUDGET), DEADLOCK)
    assert not result.complete and not result.conclusive
    (difference,) = result.differences
    assert str(difference).startswith("an order like others that were run gave something else at step 6")
    assert "[blocked]" in difference.expected and "deadlock" in difference.seen


def differs(executor: ToyExecutor) -> bool:
    for program in (*BY_HAND, *map(random_program, range(PROGRAMS))):
        reduced = explored(Reduced(BUDGET, program.faults), program, executor)
        if set(reduced.tally.outcomes) != set(exhausted(program).tally.outcomes):
            return True
    return False


def test_a_failure_is_numbered_and_the_shortest_comes_first() -> None:
    program = toy("A:read-x,write-x B:write-x,read-y C:write-y")
    every = explored(Exhaustive(BUDGET), program, ToyExecutor(lost_update))
    reduced = explored(Reduced(BUDGET, program.faults), program, ToyExecutor(lost_update))
    for result in (every, reduced):
        assert result.shortest is not None
        assert result.shortest.outcome.broken == ("lost_update",)
        assert result.tally.first_failure is not None
    assert reduced.tally.runs < every.tally.runs
    ranks = [failure.rank for failure in every.tally.failures]
    assert ranks == sorted(ranks)


def test_a_result_in_words() -> None:
    program = toy("A:read-x,write-x B:write-x")
    result = explored(Exhaustive(BUDGET), program, ToyExecutor(lost_update))
    assert result.lines() == [
        "A:read-x,write-x B:write-x",
        "  exhaustive: 3 of 3",
        "  3 distinct outcomes, 1 failing run",
        "  the first failure was run 2",
        "  shortest failing order: A B A",
        "  broken: lost_update",
    ]


@pytest.mark.parametrize("strategy", [Exhaustive, Reduced])
@pytest.mark.parametrize("loses_b", [False, True])
def test_a_run_that_does_not_repeat_is_reported(strategy: type[Exhaustive | Reduced], loses_b: bool) -> None:
    """The 8th step is the 2nd of the 2nd run, which begins as the 1st did."""
    program = toy("A:read-x,write-x,read-x B:write-x,read-x,write-x")
    result = explored(strategy(BUDGET), program, FickleExecutor(8, loses_b))
    assert not result.complete
    assert not result.conclusive
    (difference,) = result.differences
    text = "\n".join(result.lines())
    assert "nondeterminism: the same order gave something else at step 2" in text
    assert ("next: A" in difference.seen) if loses_b else ("something else" in difference.seen)
    assert difference.expected != difference.seen


def test_blocked_is_a_step_and_freed_ones_belong_to_the_step_that_freed_them() -> None:
    execution = ToyExecution(ONE_ROW, None)
    for name in ("A", "A", "B"):
        execution.take(Choice(name))
    blocked = execution.take(Choice("B"))
    assert blocked.status is Status.BLOCKED
    assert Choice("B") not in execution.enabled()
    commit = execution.take(Choice("A"))
    assert commit.freed == ("B",)
    assert commit.threads == {"A", "B"}
    assert Choice("B") in execution.enabled()
