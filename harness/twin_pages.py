"""What a hunt found, told as a table, a matrix, and the page docs/what-it-catches.md."""

from __future__ import annotations

from rich.table import Table
from rich.text import Text

from fencepost.harness.twins import (
    SuiteReport,
    TwinReport,
    catches_nothing,
    catching,
    first_of_several,
    only_catchers,
    rarest_of_the_others,
    scenarios_not_run,
)
from fencepost.harness.verdict import Verdict


def table(report: SuiteReport) -> Table:
    shown = Table(title=f"twins of {report.suite.original}", title_justify="left")
    for name in ("twin", "the promise taken out", "caught by", "invariant", "at step"):
        shown.add_column(name, overflow="fold")
    for entry in _to_tell(report):
        first = entry.named_catches[0] if entry.caught else None
        shown.add_row(
            entry.twin.name,
            Text(entry.twin.sentence),
            Text(first.variant.name) if first else Text("NOT CAUGHT", "red"),
            entry.twin.breaks if first else Text(f"{entry.twin.breaks} should", "red"),
            str(first.step) if first else "",
        )
    return shown


def _to_tell(report: SuiteReport) -> list[TwinReport]:
    """Where it is the scenarios that were asked for what they catch, what they do not catch is for others."""
    return [entry for entry in report.twins if entry.caught or not report.asked.of_scenarios]


def _told(twins_by_scenario: dict[str, list[str]]) -> list[str]:
    return [f"  {name}: {', '.join(twins)}" for name, twins in twins_by_scenario.items()]


def matrix(report: SuiteReport) -> str:
    """Scenario x twin as text: X caught by the named invariant, x by another, ? inconclusive, . not, - not run."""
    names = list(dict.fromkeys(variant.scenario.name for variant in report.variants))
    not_run = scenarios_not_run(report)
    width = max(map(len, names), default=0)
    lines = [f"{index:>3}  {entry.twin.name}" for index, entry in enumerate(report.twins, 1)]
    lines += ["", "X caught by the named invariant, x by another, ? inconclusive, . passed, - not run", ""]
    lines.append(" " * width + "".join(f"{index:>3}" for index in range(1, len(report.twins) + 1)))
    for name in names:
        cells = ("-" if name in not_run else _cell(entry, name) for entry in report.twins)
        lines.append(f"{name:<{width}}" + "".join(f"{cell:>3}" for cell in cells))
    lines += ["", "the only scenario that catches a twin:"]
    lines += _told(only_catchers(report))
    lines += ["", "the first that catches a twin which others catch too:"]
    lines += _told(first_of_several(report))
    lines += ["", "catch only what another has caught before, with the rarest of it and how many catch that:"]
    lines += [f"  {name}: {twin}, {count}" for name, (twin, count) in rarest_of_the_others(report).items()]
    idle = catches_nothing(report)
    lines += ["", f"scenarios that catch nothing: {', '.join(idle) if idle else 'none'}"]
    lines += [f"not hunted with: {name} ({why}; name it to do so)" for name, why in report.left_out.items()]
    lines.append(report.summary())
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
    for entry in _to_tell(report):
        scenarios = catching(entry)
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
    lines += [f"Not hunted with: `{name}` ({why})." for name, why in report.left_out.items()]
    lines += ["", f"{report.summary()[0].upper()}{report.summary()[1:]}."]
    lines += ["", "## Scenarios that catch only what another has caught before", ""]
    lines += ["Of what each catches, the twin that fewest catch, and how many do.", ""]
    rest = rarest_of_the_others(report)
    lines += [f"- `{name}`: `{twin}`, {count}" for name, (twin, count) in rest.items()] or ["There are none."]
    return "\n".join(lines)
