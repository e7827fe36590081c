"""One pytest item of many orders."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import Any

import pytest

from fencepost.harness.errors import FencepostError
from fencepost.harness.explore.executor import Outcome, Schedule
from fencepost.harness.explore.findings import find
from fencepost.harness.explore.marked import Exploration
from fencepost.harness.explore.real import QueueExecutor, close_stages, stage_of
from fencepost.harness.explore.result import Result
from fencepost.harness.explore.scale import Here
from fencepost.harness.explore.search import explore
from fencepost.harness.explore.strategies import make_strategy
from fencepost.harness.explore.telling import told
from fencepost.harness.invariants import applicable
from fencepost.harness.known import KnownFailure, Ran
from fencepost.harness.known_report import expect_known, known_key, note_for_known
from fencepost.harness.lab import LabOptions
from fencepost.harness.loading import load_queue
from fencepost.harness.replay import replay_of
from fencepost.harness.schedule import parse_schedule
from fencepost.harness.story import failure_text
from fencepost.harness.verdict import Verdict


class OrdersDidNotHold(Exception):
    """Carries what an item shows of an order that failed, or of a search that proved nothing."""


class ExplorationItem(pytest.Item):
    def __init__(self, *, exploration: Exploration, queue: str, options: LabOptions, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._exploration = exploration
        self._executor = QueueExecutor(queue, options)
        self.add_marker(pytest.mark.exploration)

    def runtest(self) -> None:
        schedule = self.config.getoption("--replay")
        if schedule is not None:
            self._replay(schedule)
            return
        asked = self._exploration
        strategy = make_strategy(asked.strategy, asked.program, budget=asked.budget, seed=asked.seed)
        here = Here(self._executor, asked.program)
        # A failure that is known may come before one that is not.
        to_its_end = bool(self.config.stash[known_key].speaking_of(self.name, self._queue_names))
        try:
            result = explore(asked.program, strategy, here, stop_at_first=not to_its_end)
        finally:
            here.close()
        self._raise_unless_it_held(result)
        if to_its_end:
            self._compare_with_known(result)
        asked.body(result)

    @property
    def _queue_names(self) -> frozenset[str]:
        return load_queue(self._executor.queue_path).names

    def _raise_unless_it_held(self, result: Result) -> None:
        """What is known counts as held, if all the other orders were tried."""
        failure = self._first_new_failure(result)
        if failure is not None:
            finding = find(self._executor, self._exploration.program, *failure)
            lines = [*result.lines(), "", *told(finding, self._replay_command(finding.text))]
            raise OrdersDidNotHold("\n".join(lines))
        tried = result.complete and not result.differences and not result.missing
        if not (result.conclusive and tried):
            left = (
                "" if result.complete else "\n  inconclusive: not every order was tried; give a larger budget"
            )
            raise OrdersDidNotHold("\n".join(result.lines()) + left)

    def _first_new_failure(self, result: Result) -> tuple[Schedule, Outcome] | None:
        """The shortest there is; only the shortest of all were kept, so of others the first that ended like this."""
        kept = [(failure.schedule, failure.outcome) for failure in result.tally.failures]
        others = [(schedule, outcome) for outcome, schedule in result.tally.examples.items()]
        failing = (one for one in [*kept, *others] if one[1].failed)
        return next((one for one in failing if not self._explain(one[1])), None)

    def _explain(self, outcome: Outcome) -> tuple[KnownFailure, ...]:
        return self.config.stash[known_key].explain(self.name, self._queue_names, outcome.broken)

    def _compare_with_known(self, result: Result) -> None:
        execution = self._executor.open(self._exploration.program)
        judged = {invariant.name for invariant in applicable(stage_of(execution).bench.capabilities)}
        execution.close()
        broken = {name for outcome in result.tally.outcomes for name in outcome.broken}
        held = frozenset(judged - broken)
        note_for_known(self, Ran(self.name, frozenset({self.name}), self._queue_names, held))
        entries = [entry for outcome in result.tally.outcomes for entry in self._explain(outcome)]
        expect_known(tuple(dict.fromkeys(entries)))

    def _replay(self, text: str) -> None:
        stage = stage_of(self._executor.open(self._exploration.program))
        variant = replay_of(parse_schedule(text), sentence=self._exploration.sentence)
        lacking = stage.bench.lacks(variant)
        if lacking:
            pytest.skip(lacking)
        run = stage.lab.run(load_queue(self._executor.queue_path), variant)
        if run.judgement.verdict is not Verdict.PASS:
            raise OrdersDidNotHold(failure_text(run.trace, self._replay_command(text), None))

    def _replay_command(self, text: str) -> str:
        _, _, inside = self.nodeid.partition("::")
        where = f"{os.path.relpath(self.path)}::{inside}"
        return shlex.join(["pytest", where, f"--queue={self._executor.queue_path}", "--replay", text])

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        if isinstance(excinfo.value, FencepostError | OrdersDidNotHold):
            return str(excinfo.value)
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Path, int, str]:
        return self.path, self._exploration.body.__code__.co_firstlineno - 1, self.name


def end_explorations() -> None:
    close_stages()
