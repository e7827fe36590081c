"""Hunting twins: which scenario and invariant catches which broken copy of a queue."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from typing import Any

from rich.table import Table
from rich.text import Text

from fencepost.harness.adapter import Twin
from fencepost.harness.bench import Run
from fencepost.harness.lab import Lab
from fencepost.harness.loading import LoadedQueue, load_queue
from fencepost.harness.scenario import Variant
from fencepost.harness.verdict import Verdict

EXPECTATION = "expectation"
"""What a twin names that breaks a promise no invariant speaks of: a scenario's own expectation catches it."""


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


@dataclass
class SuiteReport:
    suite: TwinSuite
    variants: Sequence[Variant]
    twins: list[TwinReport]
    unclean: list[Catch]  # where the original queue itself did not pass
    not_run: Sequence[str] = ()  # variants the original queue or its server lacks something for

    @property
    def all_caught(self) -> bool:
        return not self.unclean and all(report.caught for report in self.twins)

    def summary(self) -> str:
        survivors = [report.twin.name for report in self.twins if not report.caught]
        told = (
            f"{len(self.twins) - len(survivors)} of {len(self.twins)} twins caught by the invariant they name"
        )
        if survivors:
            told += f"; SURVIVED: {', '.join(survivors)}"
        if self.unclean:
            names = ", ".join(f"{catch.variant.name} ({catch.verdict.value})" for catch in self.unclean)
            return f"{told}; queue '{self.suite.original}' is NOT clean: {names}"
        told += (
            f"; queue '{self.suite.original}' is clean in {len(self.variants) - len(self.not_run)} scenarios"
        )
        return f"{told}; not run: {', '.join(self.not_run)}" if self.not_run else told


def load_suites() -> list[TwinSuite]:
    return [TwinSuite(point.name, tuple(point.load())) for point in entry_points(group="fencepost.twins")]


def spread(variants: Sequence[Variant]) -> list[Variant]:
    """One variant of every scenario first, then the second of each, …: a twin is caught sooner that way.

    Those with faults come after all others, and of the server last: a crash takes as long as ten other scenarios.
    """
    turns: dict[str, int] = {}
    ranked = []
    for place, variant in enumerate(variants):
        turn = turns[variant.scenario.name] = turns.get(variant.scenario.name, -1) + 1
        scenario = variant.scenario
        ranked.append((bool(scenario.server_faults), scenario.has_faults, turn, place))
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


def table(report: SuiteReport) -> Table:
    shown = Table(title=f"twins of {report.suite.original}", title_justify="left")
    for name in ("twin", "the promise taken out", "caught by", "invariant", "at step"):
        shown.add_column(name, overflow="fold")
    for entry in report.twins:
        first = entry.named_catches[0] if entry.caught else None
        shown.add_row(
            entry.twin.name,
            Text(entry.twin.sentence),
            Text(first.variant.name) if first else Text("NOT CAUGHT", "red"),
            entry.twin.breaks if first else Text(f"{entry.twin.breaks} should", "red"),
            str(first.step) if first else "",
        )
    return shown


def catches_nothing(report: SuiteReport) -> list[str]:
    """Scenarios no twin needs: each is either redundant or waits for a twin of its own."""
    catching = {catch.variant.scenario.name for entry in report.twins for catch in entry.named_catches}
    return [name for name in dict.fromkeys(v.scenario.name for v in report.variants) if name not in catching]


def only_catchers(report: SuiteReport) -> dict[str, list[str]]:
    """By scenario, the twins that survive without it."""
    needed: dict[str, list[str]] = {}
    for entry in report.twins:
        scenarios = _catching(entry)
        if len(scenarios) == 1:
            needed.setdefault(scenarios[0], []).append(entry.twin.name)
    return needed


def first_of_several(report: SuiteReport) -> dict[str, list[str]]:
    """By scenario, the twins it is the first to catch, in the order the scenarios run, and not the only one."""
    first: dict[str, list[str]] = {}
    for entry in report.twins:
        scenarios = _catching(entry)
        if len(scenarios) > 1:
            first.setdefault(scenarios[0], []).append(entry.twin.name)
    return first


def _catching(entry: TwinReport) -> list[str]:
    return list(dict.fromkeys(catch.variant.scenario.name for catch in entry.named_catches))


def _rarest_of_the_others(report: SuiteReport) -> dict[str, tuple[str, int]]:
    """By scenario that is neither the only nor the first one for any twin: the twin that fewest catch."""
    leading = only_catchers(report).keys() | first_of_several(report).keys()
    rarest: dict[str, tuple[str, int]] = {}
    for entry in sorted(report.twins, key=lambda entry: len(_catching(entry))):
        for name in _catching(entry):
            if name not in leading:
                rarest.setdefault(name, (entry.twin.name, len(_catching(entry))))
    return dict(sorted(rarest.items()))


def _told(twins_by_scenario: dict[str, list[str]]) -> list[str]:
    return [f"  {name}: {', '.join(twins)}" for name, twins in twins_by_scenario.items()]


def matrix(report: SuiteReport) -> str:
    """Scenario x twin as text: X caught by the named invariant, x by another, ? inconclusive, . not."""
    names = list(dict.fromkeys(variant.scenario.name for variant in report.variants))
    width = max(map(len, names), default=0)
    lines = [f"{index:>3}  {entry.twin.name}" for index, entry in enumerate(report.twins, 1)]
    lines += ["", "X caught by the named invariant, x by another, ? inconclusive, . passed", ""]
    lines.append(" " * width + "".join(f"{index:>3}" for index in range(1, len(report.twins) + 1)))
    for name in names:
        lines.append(f"{name:<{width}}" + "".join(f"{_cell(entry, name):>3}" for entry in report.twins))
    lines += ["", "the only scenario that catches a twin:"]
    lines += _told(only_catchers(report))
    lines += ["", "the first that catches a twin which others catch too:"]
    lines += _told(first_of_several(report))
    lines += ["", "catch only what another has caught before, with the rarest of it and how many catch that:"]
    lines += [f"  {name}: {twin}, {count}" for name, (twin, count) in _rarest_of_the_others(report).items()]
    idle = catches_nothing(report)
    lines += ["", f"scenarios that catch nothing: {', '.join(idle) if idle else 'none'}", report.summary()]
    return "\n".join(lines)


def _cell(entry: TwinReport, scenario: str) -> str:
    catches = [catch for catch in entry.catches if catch.variant.scenario.name == scenario]
    if any(entry.twin.breaks in catch.broke for catch in catches):
        return "X"
    if any(catch.verdict is Verdict.FAIL for catch in catches):
        return "x"
    return "?" if catches else "."


def markdown(report: SuiteReport) -> str:
    lines = [
        "# What it catches",
        "",
        "Written by `make docs` (`fencepost twins --markdown`): every twin is a copy of the reference queue with one",
        "promise taken out; beside it the scenarios that catch it by the invariant it names, and the step at which",
        "the first of them does.",
        "",
        "| twin | the promise taken out | invariant | caught by | step | stands for |",
        "|---|---|---|---|---|---|",
    ]
    for entry in report.twins:
        scenarios = _catching(entry)
        step = entry.named_catches[0].step if entry.caught else "NOT CAUGHT"
        lines.append(
            f"| `{entry.twin.name}` | {entry.twin.sentence} | {entry.twin.breaks} | "
            f"{', '.join(f'`{name}`' for name in scenarios)} | {step} | {entry.twin.stands_for or ''} |"
        )
    idle = catches_nothing(report)
    lines += [
        "",
        f"Scenarios that catch no twin: {', '.join(f'`{name}`' for name in idle) if idle else 'none'}.",
    ]
    lines += ["", f"{report.summary()[0].upper()}{report.summary()[1:]}."]
    return "\n".join(lines)


def as_json(report: SuiteReport) -> dict[str, Any]:
    return {
        "clean": not report.unclean,
        "not_run": list(report.not_run),
        "unclean": [_catch_as_json(catch) for catch in report.unclean],
        "all_caught": report.all_caught,
        "catches_nothing": catches_nothing(report),
        "twins": [
            {
                "name": entry.twin.name,
                "sentence": entry.twin.sentence,
                "breaks": entry.twin.breaks,
                "stands_for": entry.twin.stands_for,
                "caught": entry.caught,
                "catches": [_catch_as_json(catch) for catch in entry.catches],
            }
            for entry in report.twins
        ],
    }


def from_json(told: Mapping[str, Any], suite: TwinSuite, variants: Sequence[Variant]) -> SuiteReport:
    """What `as_json` told of an earlier hunt with these scenarios; KeyError where twins or scenarios have changed."""
    by_name = {variant.name: variant for variant in variants}
    twins = {entry["name"]: entry for entry in told["twins"]}

    def catches(entries: Sequence[Mapping[str, Any]]) -> list[Catch]:
        return [
            Catch(by_name[c["scenario"]], NOT_PASSED[c["verdict"]], tuple(c["broke"]), c["step"])
            for c in entries
        ]

    return SuiteReport(
        suite,
        variants,
        [TwinReport(twin, catches(twins[twin.name]["catches"])) for twin in suite.twins],
        catches(told["unclean"]),
        told["not_run"],
    )


def _catch_as_json(catch: Catch) -> dict[str, Any]:
    return {
        "scenario": catch.variant.name,
        "verdict": catch.verdict.value,
        "broke": list(catch.broke),
        "step": catch.step,
    }
