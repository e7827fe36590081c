"""Hunting twins: which scenario and invariant catches which broken copy of a queue."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from importlib.metadata import entry_points

from fencepost.harness.adapter import Twin
from fencepost.harness.bench import Run
from fencepost.harness.errors import UsageError
from fencepost.harness.lab import Lab
from fencepost.harness.loading import LoadedQueue, load_queue
from fencepost.harness.scenario import Variant, choose, installed_scenarios
from fencepost.harness.similar import what_there_is
from fencepost.harness.verdict import Verdict

EXPECTATION = "expectation"
"""What a twin names that breaks a promise no invariant speaks of: a scenario's own expectation catches it."""


SWARM = "swarm"
TOO_LONG = "it takes longer than all the others together"

NOT_PASSED = {verdict.value: verdict for verdict in Verdict if verdict is not Verdict.PASS}
"""By its word, what the verdict of a catch can be."""


@dataclass(frozen=True)
class TwinSuite:
    """The twins of one queue; the queue itself must come out clean in the same run."""

    original: str
    twins: tuple[Twin, ...]


@dataclass(frozen=True)
class Catch:
    """A scenario that did not pass on a twin, and what it broke there."""

    variant: Variant
    verdict: Verdict
    broke: tuple[str, ...]
    step: int | None


@dataclass
class TwinReport:
    twin: Twin
    catches: list[Catch] = field(default_factory=list)

    @property
    def named_catches(self) -> list[Catch]:
        return [catch for catch in self.catches if self.twin.breaks in catch.broke]

    @property
    def caught(self) -> bool:
        return bool(self.named_catches)


@dataclass(frozen=True, slots=True)
class Asked:
    """What is hunted with, by scenario or family, and which twins are hunted. Empty: all there are."""

    names: tuple[str, ...] = ()
    twins: tuple[str, ...] = ()

    @property
    def of_scenarios(self) -> bool:
        """Whether it is the scenarios that are asked for what they catch: most twins are for others."""
        return bool(self.names) and not self.twins


@dataclass
class SuiteReport:
    suite: TwinSuite
    variants: Sequence[Variant]
    twins: list[TwinReport]
    unclean: list[Catch]  # where the original queue itself did not pass
    not_run: Sequence[str] = ()  # variants the original queue or its server lacks something for
    asked: Asked = Asked()

    @property
    def left_out(self) -> dict[str, str]:
        return left_out_of(self.asked.names)

    @property
    def all_caught(self) -> bool:
        return not self.unclean and all(report.caught for report in self.twins)

    def summary(self) -> str:
        survivors = [report.twin.name for report in self.twins if not report.caught]
        told = (
            f"{len(self.twins) - len(survivors)} of {len(self.twins)} twins caught by the invariant they name"
        )
        if survivors:
            called = "not for these scenarios" if self.asked.of_scenarios else "SURVIVED"
            told += f"; {called}: {', '.join(survivors)}"
        idle = catches_nothing(self) if self.asked.of_scenarios else []
        if idle:
            told += f"; CATCH NO TWIN: {', '.join(idle)}"
        if self.unclean:
            names = ", ".join(f"{catch.variant.name} ({catch.verdict.value})" for catch in self.unclean)
            return f"{told}; queue '{self.suite.original}' is NOT clean: {names}"
        told += (
            f"; queue '{self.suite.original}' is clean in {len(self.variants) - len(self.not_run)} scenarios"
        )
        return f"{told}; not run: {', '.join(self.not_run)}" if self.not_run else told


def load_suites() -> list[TwinSuite]:
    return [TwinSuite(point.name, tuple(point.load())) for point in entry_points(group="fencepost.twins")]


def suites_of(twins: Sequence[str]) -> list[TwinSuite]:
    """Those with one of these twins, and of them only these; all without a name."""
    suites = load_suites()
    if not twins:
        return suites
    names = [twin.name for suite in suites for twin in suite.twins]
    for name in twins:
        if name not in names:
            nearest = what_there_is(name, names, "docs/what-it-catches.md lists them all")
            raise UsageError(f"--twin {name}: there is no such twin; {nearest}.")
    chosen = [
        replace(suite, twins=tuple(twin for twin in suite.twins if twin.name in twins)) for suite in suites
    ]
    return [suite for suite in chosen if suite.twins]


def variants_of(names: Sequence[str]) -> list[Variant]:
    """Of the scenarios named; of all but those left out without a name."""
    left_out = left_out_of(names)
    chosen = choose(installed_scenarios(), names)
    return [v for scenario in chosen if scenario.name not in left_out for v in scenario.variants()]


def left_out_of(names: Sequence[str]) -> dict[str, str]:
    """Scenarios that are hunted with only where they are named, and why."""
    return {} if names else {s.name: TOO_LONG for s in installed_scenarios() if s.family == SWARM}


def is_as_it_should_be(reports: Sequence[SuiteReport]) -> bool:
    """Every queue is clean and every twin caught; or, if scenarios were asked for, each of them catches some twin."""
    if not any(report.twins for report in reports) or any(report.unclean for report in reports):
        return False
    if not reports[0].asked.of_scenarios:
        return all(entry.caught for report in reports for entry in report.twins)
    idle = set.intersection(*(set(catches_nothing(report)) for report in reports))
    return not idle and any(entry.caught for report in reports for entry in report.twins)


def spread(variants: Sequence[Variant]) -> list[Variant]:
    """One variant of every scenario first, then the second of each, …: a twin is caught sooner that way.

    Those with faults come after the others of their turn. Those with processes come after all the others, and with
    faults of the server last: to start a process, or a server after a crash, takes as long as ten other scenarios.
    """
    turns: dict[str, int] = {}
    ranked = []
    for place, variant in enumerate(variants):
        turn = turns[variant.scenario.name] = turns.get(variant.scenario.name, -1) + 1
        scenario = variant.scenario
        slow = (bool(scenario.server_faults), scenario.processes)
        ranked.append((slow, turn, scenario.has_faults, place))
    return [variants[place] for *_, place in sorted(ranked)]


def clean(lab: Lab, original: str, variants: Sequence[Variant]) -> tuple[list[Catch], list[str]]:
    """Where the queue itself does not pass: nowhere, or its twins prove nothing. And what could not be run on it."""
    loaded = load_queue(original)
    not_run = [variant.name for variant in variants if lab.bench(loaded).lacks(variant)]
    return [catch for variant in variants if (catch := _try(lab, loaded, variant)) is not None], not_run


def hunt(lab: Lab, twin: Twin, variants: Sequence[Variant], *, thorough: bool) -> TwinReport:
    """Run the scenarios on a twin: until one catches it or, if `thorough`, every scenario until it does."""
    report = TwinReport(twin)
    loaded = LoadedQueue(twin.queue, twin.path)
    done: set[str] = set()
    for variant in spread(variants):
        if variant.scenario.name in done:
            continue
        if variant.scenario.server_faults:
            # One variant must do: with all of them a hunt takes several times as long.
            done.add(variant.scenario.name)
        catch = _try(lab, loaded, variant)
        if catch is not None:
            report.catches.append(catch)
            if twin.breaks in catch.broke:
                done.add(variant.scenario.name)
        if report.caught and not thorough:
            break
    lab.put_away(loaded)
    return report


def _try(lab: Lab, loaded: LoadedQueue, variant: Variant) -> Catch | None:
    if lab.bench(loaded).lacks(variant):
        return None
    run = lab.run(loaded, variant)
    if run.judgement.verdict is Verdict.PASS:
        return None
    return Catch(variant, run.judgement.verdict, what_broke(run), _first_step(run))


def what_broke(run: Run) -> tuple[str, ...]:
    violated = tuple(violation.invariant for violation in run.facts.violations)
    if violated:
        return violated
    return (EXPECTATION,) if run.judgement.verdict is Verdict.FAIL else ()


def _first_step(run: Run) -> int | None:
    steps = [v.step for v in run.facts.violations] or [u.step for u in run.facts.unmet]
    return min(steps, default=None)


def catches_nothing(report: SuiteReport) -> list[str]:
    """Scenarios that ran and no twin needs: each is either redundant or waits for a twin of its own."""
    catching = {catch.variant.scenario.name for entry in report.twins for catch in entry.named_catches}
    names = dict.fromkeys(variant.scenario.name for variant in report.variants)
    return [name for name in names if name not in catching | scenarios_not_run(report)]


def scenarios_not_run(report: SuiteReport) -> set[str]:
    """In none of their variants."""
    ran = {variant.scenario.name for variant in report.variants if variant.name not in report.not_run}
    return {variant.scenario.name for variant in report.variants} - ran


def only_catchers(report: SuiteReport) -> dict[str, list[str]]:
    """By scenario, the twins that survive without it."""
    needed: dict[str, list[str]] = {}
    for entry in report.twins:
        scenarios = catching(entry)
        if len(scenarios) == 1:
            needed.setdefault(scenarios[0], []).append(entry.twin.name)
    return needed


def first_of_several(report: SuiteReport) -> dict[str, list[str]]:
    """By scenario, the twins it is the first to catch, in the order the scenarios run, and not the only one."""
    first: dict[str, list[str]] = {}
    for entry in report.twins:
        scenarios = catching(entry)
        if len(scenarios) > 1:
            first.setdefault(scenarios[0], []).append(entry.twin.name)
    return first


def catching(entry: TwinReport) -> list[str]:
    return list(dict.fromkeys(catch.variant.scenario.name for catch in entry.named_catches))


def rarest_of_the_others(report: SuiteReport) -> dict[str, tuple[str, int]]:
    """By scenario that is neither the only nor the first one for any twin: the twin that fewest catch."""
    leading = only_catchers(report).keys() | first_of_several(report).keys()
    rarest: dict[str, tuple[str, int]] = {}
    for entry in sorted(report.twins, key=lambda entry: len(catching(entry))):
        for name in catching(entry):
            if name not in leading:
                rarest.setdefault(name, (entry.twin.name, len(catching(entry))))
    return dict(sorted(rarest.items()))
