"""The pytest plugin: collects scenarios, runs them, and lets nothing pass that was not checked.

Loaded in a test suite without scenarios it adds options and markers and does nothing else: no server is
started, no process pinned, before the first scenario runs.
"""

from __future__ import annotations

import os
import shlex
from collections import defaultdict
from collections.abc import Callable, Generator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from fencepost.harness.bench import OPERATION, STEP_SIZES, Run
from fencepost.harness.errors import FencepostError, UsageError
from fencepost.harness.explore.marked import exploration_of
from fencepost.harness.explore_item import ExplorationItem, end_explorations
from fencepost.harness.known import Baseline, Ran, read_known, what_failed, what_held
from fencepost.harness.known_report import (
    Collected,
    KnownReport,
    expect_known,
    known_key,
    nameable_key,
    note_for_known,
)
from fencepost.harness.lab import ACTOR_KINDS, CLOCK_MODES, LAB_OPTIONS, Lab, LabOptions
from fencepost.harness.loading import DEFAULT_QUEUE, LoadedQueue, load_queue
from fencepost.harness.machine_report import PROFILE, MachineReport
from fencepost.harness.network.base import ENGINES
from fencepost.harness.postgres.choice import PROVIDER_HELP
from fencepost.harness.postgres.connection_string import without_password
from fencepost.harness.report_link import TRACE_PROPERTY, ReportLink
from fencepost.harness.scenario import Scenario, Variant
from fencepost.harness.schedule import parse_schedule
from fencepost.harness.story import failure_text
from fencepost.harness.trace.canonical import canonical_hash
from fencepost.harness.trace.format import Trace, ensure_trace_dir, file_name, write_trace
from fencepost.harness.verdict import Verdict

if TYPE_CHECKING:
    from fencepost.harness.machine_run import Looked

FAILED_TRACES = Path(".fencepost/traces")
"""Where traces of runs that did not pass go when no --trace-dir is given."""

HASH_PROPERTY = "fencepost_canonical_hash"
FAMILY_PROPERTY = "fencepost_family"

USAGE_OUTPUT = "fencepost_usage_error"
"""Where an xdist worker leaves the sentence for its controller."""

REPEAT_MARK = "#"
"""Between a scenario's name and the number of its run, with --repeat."""

replay_problem_key = pytest.StashKey[str]()
"""Why --replay cannot be followed: said once all is collected, from wherever that was."""

lab_key = pytest.StashKey["LabOfSession"]()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("fencepost", "fencepost: replaying races on lease-based queues")
    group.addoption(
        "--queue",
        default=DEFAULT_QUEUE,
        metavar="MODULE:NAME",
        help="the queue under test (default: reference)",
    )
    group.addoption(
        "--pg",
        default="embedded",
        metavar="PROVIDER",
        help=PROVIDER_HELP,
    )
    group.addoption("--actors", default="thread", metavar="|".join(ACTOR_KINDS), help="default: thread")
    group.addoption(
        "--clock",
        default="auto",
        metavar="|".join(CLOCK_MODES),
        help="how leases are made to expire (default: the best that can be had)",
    )
    group.addoption(
        "--step",
        default=OPERATION,
        metavar="|".join(STEP_SIZES),
        help="what one step is: a whole operation, or every SQL statement, seen at the gate (default: operation)",
    )
    group.addoption(
        "--network",
        default="gate",
        metavar="|".join(ENGINES),
        help="what the paths that are to be harmed lead through (default: gate)",
    )
    group.addoption(
        "--toxiproxy",
        default=None,
        metavar="PATH",
        help="the Toxiproxy server (default: the one that is found)",
    )
    group.addoption(
        "--trace-dir",
        default=None,
        metavar="DIR",
        help=f"keep the trace of every run there (default: only of those that did not pass, in {FAILED_TRACES})",
    )
    group.addoption(
        "--repeat",
        default=1,
        type=_repeats,
        metavar="N",
        help="run every scenario N times; all traces must agree",
    )
    group.addoption(
        "--replay",
        default=None,
        metavar="SCHEDULE",
        help="of tests marked @explore, run only this order of steps (docs/schedule.md)",
    )
    group.addoption(
        "--known",
        default=None,
        metavar="FILE",
        help="a TOML file of known failures: only new ones fail the run",
    )


def _repeats(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise pytest.UsageError(f"--repeat {text}: give a whole number from 1 on.")
    return int(text)


@pytest.hookimpl(tryfirst=True)  # before Hypothesis looks for the profile it was given
def pytest_configure(config: pytest.Config) -> None:
    profile = config.getoption(PROFILE, None)
    if profile is not None:
        from fencepost.harness.machine_gate import check_profile

        check_profile(profile)
    config.addinivalue_line("markers", "scenario: a race replayed by fencepost")
    config.addinivalue_line("markers", "invariants: orders made up by Hypothesis; the gate of a CI run")
    config.addinivalue_line("markers", "exploration: many orders of statements tried by fencepost")
    config.addinivalue_line("markers", "family(name): the family a scenario belongs to")
    config.stash[known_key] = _known_failures(config)
    if config.stash[known_key].known:
        collected = Collected()
        config.stash[nameable_key] = collected.nameable
        config.pluginmanager.register(collected, "fencepost-nameable")
    if hasattr(config, "workerinput"):
        return
    config.pluginmanager.register(Agreement(config), "fencepost-agreement")
    config.pluginmanager.register(KnownReport(config.stash[known_key]), "fencepost-known")
    config.pluginmanager.register(ReportLink(), "fencepost-report")
    config.pluginmanager.register(MachineReport(config), "fencepost-invariants")


def _known_failures(config: pytest.Config) -> Baseline:
    path = config.getoption("--known")
    try:
        return Baseline() if path is None else read_known(Path(path))
    except UsageError as error:
        raise pytest.UsageError(str(error)) from error


def pytest_pycollect_makeitem(collector: pytest.Module | pytest.Class, name: str, obj: object) -> Any:
    exploration = exploration_of(obj)
    if exploration is not None:
        # As with scenarios, wrong options are one sentence.
        config, session = collector.config, collector.session
        try:
            return ExplorationItem.from_parent(
                collector,
                name=name,
                exploration=exploration,
                queue=config.getoption("--queue"),
                options=lab_options(config),
                trace_dir=lambda: lab_of(session).trace_dir,
            )
        except UsageError as error:
            raise pytest.UsageError(str(error)) from error
    if not isinstance(obj, Scenario):
        return None
    repeats = collector.config.getoption("--repeat")
    return [
        ScenarioItem.from_parent(
            collector,
            name=variant.name if repeats == 1 else f"{variant.name}{REPEAT_MARK}{repeat}",
            variant=variant,
        )
        for variant in obj.variants()
        for repeat in range(1, repeats + 1)
    ]


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Generator[None, pytest.CollectReport, Any]:
    """What is wrong with a scenario or an exploration as it is written is one sentence, with its line."""
    report = yield
    call = getattr(report, "call", None)
    raised = call.excinfo if call is not None else None
    if report.failed and raised is not None and isinstance(raised.value, UsageError):
        error = raised.value
        lines = [entry.lineno + 1 for entry in raised.traceback if Path(entry.path) == Path(collector.path)]
        where = f"{os.path.relpath(collector.path)}:{lines[-1]}" if lines else os.path.relpath(collector.path)
        report.longrepr = f"{where}: {error}"
    return report


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """With --replay only what the schedule can be of is run."""
    text = config.getoption("--replay")
    if text is None:
        return
    try:
        schedule = parse_schedule(text)
    except UsageError as error:
        config.stash[replay_problem_key] = f"--replay: {error}"
        return
    explorations = [item for item in items if isinstance(item, ExplorationItem)]
    kept = [item for item in explorations if item.fits(schedule)]
    if not kept:
        of = ", ".join(item.name for item in explorations) or "there is none"
        config.stash[replay_problem_key] = (
            f"--replay: this is no order of any exploration that was collected ({of}): {text}"
        )
        return
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = kept


class ScenarioItem(pytest.Item):
    def __init__(self, *, variant: Variant, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.variant = variant
        self.add_marker(pytest.mark.scenario)
        self.add_marker(pytest.mark.family(variant.scenario.family))
        self.extra_keyword_matches.add(variant.scenario.family)
        self.user_properties.append((FAMILY_PROPERTY, variant.scenario.family))

    def runtest(self) -> None:
        session_lab = lab_of(self.session)
        lacking = session_lab.lacks(self.variant)
        if lacking:
            self._note_for_known(impossible=True)
            pytest.skip(lacking)
        run = with_replay(session_lab.run(self.variant), self._replay_command())
        self.user_properties.append((HASH_PROPERTY, canonical_hash(run.trace)))
        trace_path = session_lab.keep_trace(run, self.name)
        self.user_properties.extend(how_to_replay(run.trace, trace_path))
        self._note_for_known(held=what_held(run.facts, run.judgement))
        failed = what_failed(run.facts, run.judgement)
        expect_known(self.config.stash[known_key].explain(self.variant.name, session_lab.queue_names, failed))
        if run.judgement.verdict is not Verdict.PASS:
            raise ScenarioDidNotPass(failure_text(run.trace, self._replay_command(), trace_path))

    def _note_for_known(self, *, held: frozenset[str] = frozenset(), impossible: bool = False) -> None:
        name, variants = self.variant.name, self.variant.scenario.variant_names
        note_for_known(self, Ran(name, variants, lab_of(self.session).queue_names, held, impossible))

    def _replay_command(self) -> str:
        chosen = {name: self.config.getoption(name) for name in ("queue", *LAB_OPTIONS)}
        given = [
            f"--{name}={without_password(str(value))}" for name, value in chosen.items() if value is not None
        ]
        # A node id starts at pytest's root directory; the command is to be typed where this one was.
        _, _, inside = without_repeat(self.nodeid, self.config).partition("::")
        return shlex.join(["pytest", f"{os.path.relpath(self.path)}::{inside}", *given])

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        if isinstance(excinfo.value, FencepostError | ScenarioDidNotPass):
            return str(excinfo.value)
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Path, int, str]:
        return self.path, self.variant.scenario.body.__code__.co_firstlineno - 1, self.name


def with_replay(run: Run, command: str) -> Run:
    """The trace says how to replay it, unless it knows better."""
    return replace(run, trace=replace(run.trace, header={"replay": command, **run.trace.header}))


def how_to_replay(trace: Trace, trace_path: str | None) -> list[tuple[str, str]]:
    """Properties of a test, in pytest's reports and in its --junitxml."""
    known = [(f"fencepost_{name}", trace.header.get(name)) for name in ("replay", "schedule", "seed")]
    return [(name, str(value)) for name, value in [*known, (TRACE_PROPERTY, trace_path)] if value is not None]


class ScenarioDidNotPass(Exception):
    """Carries the failure text of a run that failed or proved nothing."""


def lab_options(config: pytest.Config) -> LabOptions:
    return LabOptions(**{name: config.getoption(f"--{name}") for name in LAB_OPTIONS})


class LabOfSession:
    """The lab of this pytest process: started by the first scenario, closed with the session."""

    def __init__(self, config: pytest.Config) -> None:
        option = config.getoption
        self._options = lab_options(config)
        self._options.check()
        self._loaded: LoadedQueue = load_queue(option("--queue"))
        given = option("--trace-dir")
        self._every_trace = given is not None
        self._trace_dir = Path(given) if given is not None else config.rootpath / FAILED_TRACES
        if self._every_trace:
            ensure_trace_dir(self._trace_dir)
        self._lab: Lab | None = None
        self._cannot_be_set_up: UsageError | None = None

    @property
    def queue_names(self) -> frozenset[str]:
        return self._loaded.names

    def lacks(self, variant: Variant) -> str | None:
        return self._set_up().bench(self._loaded).lacks(variant)

    def run(self, variant: Variant) -> Run:
        return self._set_up().run(self._loaded, variant)

    def _set_up(self) -> Lab:
        """At the first scenario. What fails here fails for every other one, and is not tried again."""
        if self._cannot_be_set_up is not None:
            raise self._cannot_be_set_up
        try:
            if self._lab is None:
                self._lab = Lab(self._options)
            self._lab.bench(self._loaded)
        except UsageError as error:
            self._cannot_be_set_up = error
            raise
        return self._lab

    def queue_and_lab(self) -> tuple[LoadedQueue, Lab]:
        """For tests that take their steps themselves."""
        return self._loaded, self._set_up()

    @property
    def trace_dir(self) -> Path:
        return self._trace_dir

    def keep_trace(self, run: Run, item_name: str) -> str | None:
        if not self._every_trace and run.judgement.verdict is Verdict.PASS:
            return None
        ensure_trace_dir(self._trace_dir)
        path = self._trace_dir / f"{run.variant.scenario.family}-{file_name(item_name)}.jsonl"
        write_trace(run.trace, path)
        if run.control is not None:
            write_trace(run.control.trace, path.with_name(f"{path.stem}.control.jsonl"))
        return os.path.relpath(path)

    def close(self) -> None:
        if self._lab is not None:
            self._lab.close()
            self._lab = None


def without_repeat(nodeid: str, config: pytest.Config) -> str:
    return nodeid.rpartition(REPEAT_MARK)[0] if config.getoption("--repeat") > 1 else nodeid


def lab_of(session: pytest.Session) -> LabOfSession:
    if lab_key not in session.stash:
        session.stash[lab_key] = LabOfSession(session.config)
    return session.stash[lab_key]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_finish(session: pytest.Session) -> None:
    """Bad options end the run here, before any scenario: one sentence instead of one error per test."""
    ours = any(
        isinstance(item, ScenarioItem | ExplorationItem) or item.get_closest_marker("invariants")
        for item in session.items
    )
    problem = session.config.stash.get(replay_problem_key, None)
    if session.config.option.collectonly or not (ours or problem):
        return
    try:
        if problem is not None:
            raise UsageError(problem)
        if any(item.get_closest_marker("invariants") for item in session.items):
            from fencepost.harness.machine_gate import check_gate

            check_gate(session.config)
        lab_of(session)
        if not session.testsfailed:  # a file that could not be collected may hold what an entry names
            _check_known_names(session.config)
    except UsageError as error:
        output = getattr(session.config, "workeroutput", None)
        if output is None:
            raise pytest.UsageError(str(error)) from error
        # An exception here would count as a crash of this worker: it leaves with nothing to run instead, and
        # the controller says why.
        output[USAGE_OUTPUT] = str(error)
        session.items.clear()


def _check_known_names(config: pytest.Config) -> None:
    known = config.stash[known_key].known
    if known:
        nameable = config.stash[nameable_key]
        nameable.add_installed()
        nameable.check(known, config.rootpath, config.invocation_params.dir)


def pytest_sessionfinish(session: pytest.Session) -> None:
    end_explorations()
    if lab_key in session.stash:
        session.stash[lab_key].close()


@pytest.fixture
def look_for_violations(request: pytest.FixtureRequest) -> Callable[[int], Looked]:
    """Runs one part of the state machine on the queue under test, by the profile and the seed that were given."""
    from fencepost.harness.machine_example import NAME
    from fencepost.harness.machine_gate import look_in_part

    def run(part: int) -> Looked:
        session_lab = lab_of(request.session)
        loaded, lab = session_lab.queue_and_lab()
        trace_path = session_lab.trace_dir / f"{NAME}-{file_name(loaded.queue.name)}-{part}.jsonl"
        return look_in_part(request.node, part, loaded, lab, trace_path)

    return run


@pytest.fixture(scope="session")
def fencepost_lab(request: pytest.FixtureRequest) -> Iterator[Lab]:
    """A lab with the command line's options, for tests that run scenarios by themselves."""
    with Lab(lab_options(request.config)) as lab:
        yield lab


@pytest.fixture(scope="session")
def fencepost_queue(request: pytest.FixtureRequest) -> LoadedQueue:
    """The queue named by --queue."""
    return load_queue(request.config.getoption("--queue"))


class Agreement:
    """Compares the canonical traces of all runs of one scenario, from every xdist worker, passing or not."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._hashes: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
        self._families: dict[str, set[str]] = defaultdict(set)
        self._passing = 0

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when != "call":
            return
        for name, value in report.user_properties:
            if name == FAMILY_PROPERTY:
                known = hasattr(report, "wasxfail")
                self._families[str(value)].add("known" if known else report.outcome)
            if name == HASH_PROPERTY and isinstance(value, str):
                # By node id: two files may each have a scenario of the same name.
                self._hashes[without_repeat(report.nodeid, self._config)][value] += 1
                self._passing += report.passed

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        told = getattr(node, "workeroutput", {}).get(USAGE_OUTPUT)
        if told is not None:
            raise pytest.UsageError(told)

    def disagreeing(self) -> dict[str, dict[str, int]]:
        return {scenario: hashes for scenario, hashes in self._hashes.items() if len(hashes) > 1}

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self.disagreeing() and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        for family, outcomes in sorted(self._families.items()):
            if outcomes == {"skipped"}:
                terminalreporter.line(
                    f"fencepost: every scenario of the family {family} was skipped", yellow=True
                )
        if not self._hashes:
            return
        runs = sum(sum(hashes.values()) for hashes in self._hashes.values())
        disagreeing = self.disagreeing()
        if disagreeing:
            terminalreporter.section("scenarios whose traces disagree", sep="=", red=True)
            for scenario, hashes in disagreeing.items():
                told = ", ".join(f"{digest[:12]} ({count} runs)" for digest, count in hashes.items())
                terminalreporter.line(f"{scenario}: {told}")
            return
        if self._config.getoption("--repeat") > 1:
            terminalreporter.section("canonical traces")
            for scenario, hashes in sorted(self._hashes.items()):
                (digest,) = hashes
                terminalreporter.line(f"{digest[:16]}  {hashes[digest]:5d} runs  {scenario}")
        told = f"{runs} passing runs" if runs == self._passing else f"{runs} runs ({self._passing} passing)"
        terminalreporter.line(f"fencepost: {told} of {len(self._hashes)} scenarios, one canonical trace each")
