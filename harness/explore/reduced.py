"""Partial-order reduction: one order of each class of orders that differ only in independent steps.

Source-set DPOR with sleep sets (Abdulla, Aronsson, Jonsson, Sagonas: Optimal Dynamic Partial Order Reduction, 2014),
with what a database adds: a blocked step has happened, a step that frees others belongs to their threads as well,
and one thread's step may have variants (faults), which are always tried together.

The tree of beginnings lives here; the runs and the search for their races happen in tasks. A node hands out one
branch at a time, because a branch's sleep set needs the steps its elder siblings took. Order of hand-out is the
order of discovery, in rounds, so the set of runs is the same for any number of workers.

Preserved are final rows, answers, and every invariant that speaks of one job at a time. An invariant over two jobs
that no step touches together may see their steps in either order: only exhaustive shows it both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from fencepost.harness.explore.executor import Choice, Execution, ExecutorBroke, Schedule, StepResult
from fencepost.harness.explore.exhaustive import interleavings
from fencepost.harness.explore.footprint import Relation
from fencepost.harness.explore.happens_before import HappensBefore, steps_dependent
from fencepost.harness.explore.replay import Nondeterminism, Run, retraced, run, stay
from fencepost.harness.explore.strategy import Answer, Task
from fencepost.harness.explore.tally import Tally

TASK_BRANCHES: Final = 16
MOST_STATES: Final = 100_000
"""Of counting how many orders one run stands for; beyond it the count is left out, never the run."""

Sleep = Mapping[Choice, StepResult]


@dataclass(frozen=True, slots=True)
class Branch:
    """One run to make: this beginning, whose last choice nobody has taken there yet, and who sleeps before it."""

    schedule: Schedule = ()
    sights: tuple[str, ...] = ()
    sleep: Sleep = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Reversal:
    """At `at`, one of `initials` must be tried too; `wanted` if none of them was."""

    at: int
    initials: tuple[Choice, ...]
    wanted: Choice


@dataclass(frozen=True, slots=True)
class Explored:
    run: Run
    reversals: tuple[Reversal, ...]


@dataclass(frozen=True, slots=True)
class Branches:
    """A few branches, each run to its end or until all that could move sleeps."""

    branches: tuple[Branch, ...]
    relation: Relation

    def perform(self, execution: Execution) -> Answer:
        answer = Answer()
        explored: list[Explored] = []
        try:
            for branch in self.branches:
                done = run(execution, _Wakeful(branch, self.relation), branch.sights)
                order = HappensBefore(done.steps, self.relation)
                answer.tally.add(done, order.orders(MOST_STATES))
                explored.append(Explored(done, _reversals(order, done, len(branch.schedule))))
        except Nondeterminism as error:
            answer.tally.differences.append(error.difference)
        answer.more = tuple(explored)
        return answer


class _Wakeful:
    """Follows a branch, then lets only those move who do not sleep."""

    def __init__(self, branch: Branch, relation: Relation) -> None:
        self._schedule = branch.schedule
        self._relation = relation
        self._sleep: Sleep = branch.sleep

    def __call__(self, steps: Sequence[StepResult], enabled: tuple[Choice, ...]) -> Choice | None:
        if len(steps) < len(self._schedule):
            return retraced(self._schedule, len(steps), enabled)
        if steps:
            self._sleep = sleep_set_after(self._sleep, steps[-1], self._relation)
        awake = [choice for choice in enabled if choice not in self._sleep]
        return stay(steps, awake) if awake else None


def sleep_set_after(sleep: Sleep, step: StepResult, relation: Relation) -> Sleep:
    return {
        choice: slept
        for choice, slept in sleep.items()
        if choice != step.choice and not steps_dependent(relation, slept, step)
    }


def _reversals(order: HappensBefore, done: Run, known: int) -> tuple[Reversal, ...]:
    """What the races of a run ask for. Races among the steps before the branch were answered when those were new."""
    found = []
    for race in order.races():
        if race.second < known - 1:
            continue
        initials = [done.steps[at].choice for at in order.initials(order.unforced_by(race))]
        second = done.steps[race.second].choice
        found.append(Reversal(race.first, tuple(initials), second if second in initials else initials[0]))
    for at in range(max(known - 1, 0), len(done.steps)):
        step, after = done.steps[at], done.enabled[at + 1]
        for choice in done.enabled[at]:
            # Who was freed here could have done something else before: crash while it waited. And what is not
            # possible any more could have been done before: a crash, where only one may happen and this was it.
            if choice.thread in step.freed or (choice.thread != step.choice.thread and choice not in after):
                found.append(Reversal(at, (choice,), choice))
    return tuple(found)


@dataclass(slots=True)
class _Node:
    """A beginning. `tried` grows while the search goes on; its order is who sleeps for whom."""

    enabled: tuple[Choice, ...]
    sleep: Sleep
    tried: list[Choice] = field(default_factory=list)
    children: dict[Choice, tuple[StepResult, _Node]] = field(default_factory=dict)

    def wants(self, thread: str) -> None:
        """Try a thread here, in all its variants."""
        for choice in self.enabled:
            if choice.thread == thread and choice not in self.tried and choice not in self.sleep:
                self.tried.append(choice)

    def knows(self, choice: Choice) -> bool:
        return choice in self.sleep or any(tried.thread == choice.thread for tried in self.tried)


class Reduced:
    """The tree of beginnings and what is still to be tried in it."""

    name = "reduced"

    def __init__(self, budget: int, relation: Relation | None = None) -> None:
        self._budget = budget
        self._relation = relation or Relation()
        self._spent_learning = 0
        self._start()

    def _start(self) -> None:
        self._root: _Node | None = None
        self._open: dict[Schedule, _Node] = {}  # nodes with something left to try, in order of discovery
        self._sights: dict[Schedule, str] = {}
        self._learned: frozenset[str] = frozenset()
        self._tally = Tally()

    def batch(self) -> Sequence[Task]:
        if self._learned:
            # What was run under the smaller relation may have left orders out; its runs count against the budget.
            self._spent_learning += self._tally.runs
            self._relation = self._relation.with_revealed(self._learned)
            self._start()
        left = self._budget - self._tally.runs - self._spent_learning
        if left <= 0 or self._tally.differences:
            return []
        branches = [Branch()] if self._root is None else self._branches()[:left]
        return [
            Branches(tuple(branches[at : at + TASK_BRANCHES]), self._relation)
            for at in range(0, len(branches), TASK_BRANCHES)
        ]

    def _branches(self) -> list[Branch]:
        branches = []
        for schedule, node in list(self._open.items()):
            waiting = [choice for choice in node.tried if choice not in node.children]
            if not waiting:
                del self._open[schedule]
                continue
            elder = {choice: step for choice, (step, _) in node.children.items()}
            sights = tuple(self._sights[schedule[: at + 1]] for at in range(len(schedule)))
            branches.append(Branch((*schedule, waiting[0]), sights, {**node.sleep, **elder}))
        return branches

    def absorb(self, task: Task, answer: Answer) -> None:
        assert isinstance(task, Branches)
        assert isinstance(answer.more, tuple)
        self._tally.merge(answer.tally)
        for explored in answer.more:
            for step in explored.run.steps:
                self._learned |= step.footprint.revealed - self._relation.revealed
        if self._learned:
            return
        for branch, explored in zip(task.branches, answer.more, strict=False):
            path = self._grow(explored.run, branch)
            for reversal in explored.reversals:
                self._answer(reversal, path, explored.run.schedule)

    def _grow(self, done: Run, branch: Branch) -> list[_Node]:
        """Put a run into the tree; returns the nodes before each of its steps."""
        if self._root is None:
            self._root = _Node(done.enabled[0], {})
        node = self._root
        path = [node]
        schedule, sights = done.schedule, done.sights
        for at, step in enumerate(done.steps):
            if step.choice not in node.children:
                elder = {choice: taken for choice, (taken, _) in node.children.items()}
                asleep = sleep_set_after({**node.sleep, **elder}, step, self._relation)
                node.children[step.choice] = (step, _Node(done.enabled[at + 1], asleep))
                node.wants(step.choice.thread)
                self._open[schedule[:at]] = node
                self._sights[schedule[: at + 1]] = sights[at]
            node = node.children[step.choice][1]
            path.append(node)
        return path

    def _answer(self, reversal: Reversal, path: list[_Node], schedule: Schedule) -> None:
        node = path[reversal.at]
        if any(node.knows(choice) for choice in reversal.initials):
            return
        if not any(choice.thread == reversal.wanted.thread for choice in node.enabled):
            raise ExecutorBroke(
                f"{reversal.wanted} should be able to move after {schedule[: reversal.at]}, as nothing it needs "
                "comes later, but it is not enabled there: a step that freed it did not say so"
            )
        node.wants(reversal.wanted.thread)
        self._open[schedule[: reversal.at]] = node

    @property
    def tally(self) -> Tally:
        return self._tally

    @property
    def complete(self) -> bool:
        if self._root is None or self._learned or self._tally.differences:
            return False
        return all(choice in node.children for node in self._open.values() for choice in node.tried)

    def basis(self) -> str:
        runs = self._tally.runs
        total = interleavings(self._tally) or self._tally.stands_for
        if not self.complete:
            return f"reduced: {runs:,} runs of a budget of {self._budget:,}, not finished"
        cut = f", {self._tally.cut:,} of them cut short" if self._tally.cut else ""
        if total is None:
            return f"reduced: {runs:,} stand for all, too many to count{cut}"
        return f"reduced: {runs:,} stand for {total:,}{cut}"
