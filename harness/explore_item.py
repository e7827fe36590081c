"""One pytest item of many orders."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fencepost.harness.adapter import Capability
from fencepost.harness.errors import FencepostError, UsageError
from fencepost.harness.explore.executor import Outcome
from fencepost.harness.explore.executor import Schedule as Order
from fencepost.harness.explore.findings import find, write_traces
from fencepost.harness.explore.marked import Exploration
from fencepost.harness.explore.order_text import fits
from fencepost.harness.explore.real import RESTART, QueueExecutor, close_stages, lacks, stage_of
from fencepost.harness.explore.result import Result
from fencepost.harness.explore.scale import Here
from fencepost.harness.explore.search import explore
from fencepost.harness.explore.strategies import make_strategy
from fencepost.harness.explore.telling import told
from fencepost.harness.invariants import applicable
from fencepost.harness.known import BAD_CLASSES, KnownFailure, Ran
from fencepost.harness.known_report import expect_known, known_key, note_for_known
from fencepost.harness.lab import LabOptions
from fencepost.harness.loading import load_queue
from fencepost.harness.postgres.provider import ServerFault
from fencepost.harness.replay import replay_of
from fencepost.harness.report_link import TRACE_PROPERTY
from fencepost.harness.schedule import Schedule, parse_schedule
from fencepost.harness.story import failure_text
from fencepost.harness.trace.format import ensure_trace_dir, file_name, write_trace
from fencepost.harness.verdict import Verdict


class OrdersDidNotHold(Exception):
    """Carries what an item shows of an order that failed, or of a search that proved nothing."""


class ExplorationItem(pytest.Item):
    def __init__(
        self,
        *,
        exploration: Exploration,
        queue: str,
        options: LabOptions,
        trace_dir: Callable[[], Path],
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self._exploration = exploration
        self._executor = QueueExecutor(queue, options)
        self._trace_dir = trace_dir
        self.add_marker(pytest.mark.exploration)
        for mark in getattr(exploration.body, "pytestmark", ()):
            if mark.name in ("parametrize", "usefixtures"):
                raise UsageError(f"{self.name}: @explore is one search, without {mark.name}")
            self.own_markers.append(mark)
            self.keywords[mark.name] = mark

    @property
    def obj(self) -> object:
        """Where pytest looks for the names in a condition of skipif and xfail."""
        return self._exploration.body

    def fits(self, schedule: Schedule) -> bool:
        """Whether --replay SCHEDULE is for this item."""
        return fits(self._exploration.program, schedule)

    def runtest(self) -> None:
        self._skip_what_is_lacking()
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

    def _skip_what_is_lacking(self) -> None:
        program = self._exploration.program
        lacking = lacks(program, load_queue(self._executor.queue_path).queue.capabilities)
        if lacking is None and any(fault.name == RESTART for fault in program.faults):
            stage = stage_of(self._executor.open(replace(program, faults=())))
            refusal = stage.bench.place.server.refusal(ServerFault.CRASH)
            lacking = None if refusal is None else f"restart: {refusal}"
        if lacking is not None:
            note_for_known(self, Ran(self.name, frozenset({self.name}), self._queue_names, impossible=True))
            pytest.skip(lacking)

    @property
    def _queue_names(self) -> frozenset[str]:
        return load_queue(self._executor.queue_path).names

    def _raise_unless_it_held(self, result: Result) -> None:
        """What is known counts as held, if all the other orders were tried."""
        failure = self._first_new_failure(result)
        if failure is not None:
            finding = find(self._executor, self._exploration.program, *failure)
            paths = write_traces(finding, ensure_trace_dir(self._trace_dir()), self._replay_command)
            self._note_for_report(finding.text, paths[0])
            lines = [*result.lines(), "", *told(finding, self._replay_command(finding.text)), ""]
            text = "\n".join([*lines, *(f"trace:   {os.path.relpath(path)}" for path in paths)])
            raise KeyboardInterrupt(text) if finding.interrupted else OrdersDidNotHold(text)
        tried = result.complete and not result.differences and not result.missing
        if not (result.conclusive and tried):
            left = (
                "" if result.complete else "\n  inconclusive: not every order was tried; give a larger budget"
            )
            raise OrdersDidNotHold("\n".join(result.lines()) + left)

    def _note_for_report(self, text: str, path: Path) -> None:
        """Where the end of the run finds the trace, as of a scenario; in --junitxml too."""
        told_of = {"fencepost_replay": self._replay_command(text), "fencepost_schedule": text}
        self.user_properties += [*told_of.items(), (TRACE_PROPERTY, os.path.relpath(path))]

    def _first_new_failure(self, result: Result) -> tuple[Order, Outcome] | None:
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
        if Capability.FENCING not in load_queue(self._executor.queue_path).queue.capabilities:
            judged |= BAD_CLASSES
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
            path = ensure_trace_dir(self._trace_dir()) / f"explore-{file_name(self.name)}-replayed.jsonl"
            header = {"replay": self._replay_command(text), **run.trace.header}
            write_trace(replace(run.trace, header=header), path)
            self._note_for_report(text, path)
            raise OrdersDidNotHold(failure_text(run.trace, self._replay_command(text), os.path.relpath(path)))

    def _replay_command(self, text: str) -> str:
        _, _, inside = self.nodeid.partition("::")
        where = f"{os.path.relpath(self.path)}::{inside}"
        given = [f"--queue={self._executor.queue_path}", *self._executor.options.typed_again()]
        return shlex.join(["pytest", where, *given, "--replay", text])

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        if isinstance(excinfo.value, FencepostError | OrdersDidNotHold):
            return str(excinfo.value)
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Path, int, str]:
        return self.path, self._exploration.body.__code__.co_firstlineno - 1, self.name


def end_explorations() -> None:
    close_stages()
