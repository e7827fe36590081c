"""`fencepost list`: every scenario with its sentence, family and needed capabilities."""

from __future__ import annotations

import argparse
import json

from rich.table import Table
from rich.text import Text

from fencepost.harness.commands.options import EXIT_PASS, console_for_tables, console_for_text
from fencepost.harness.scenario import Scenario, choose, installed_scenarios


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser("list", help="show every scenario")
    parser.add_argument("names", nargs="*", metavar="NAME", help="scenarios or families (default: all)")
    shape = parser.add_mutually_exclusive_group()
    shape.add_argument("--json", action="store_true", help="print one JSON object")
    shape.add_argument("--markdown", action="store_true", help="print docs/scenarios.md")
    parser.set_defaults(perform=perform)


def perform(arguments: argparse.Namespace) -> int:
    scenarios = choose(installed_scenarios(), arguments.names)
    if arguments.json:
        console_for_text().print(json.dumps({"scenarios": [_as_json(scenario) for scenario in scenarios]}))
    elif arguments.markdown:
        console_for_text().print(markdown(scenarios))
    else:
        console_for_tables().print(_table(scenarios))
    return EXIT_PASS


def _as_json(scenario: Scenario) -> dict[str, object]:
    return {
        "name": scenario.name,
        "family": scenario.family,
        "sentence": scenario.sentence,
        "requires": sorted(scenario.requires),
        "requires_where": [
            {"requires": sorted(need.capabilities), **need.chosen} for need in scenario.needs_where
        ],
        "witnesses": [witness.sentence for witness in scenario.witnesses],
        "variants": [variant.name for variant in scenario.variants()],
    }


def _table(scenarios: list[Scenario]) -> Table:
    table = Table()
    for name in ("family", "scenario", "what happens", "needs"):
        table.add_column(name, overflow="fold")
    for scenario in scenarios:
        variants = len(list(scenario.variants()))
        name = scenario.name + (f" x{variants}" if variants > 1 else "")
        table.add_row(scenario.family, name, Text(scenario.sentence), _needs(scenario))
    return table


def _needs(scenario: Scenario) -> str:
    always = ", ".join(sorted(scenario.requires))
    return "; ".join(filter(None, [always, *map(str, scenario.needs_where)]))


def markdown(scenarios: list[Scenario]) -> str:
    lines = [
        "# Scenarios",
        "",
        "Written by `make docs` from the code in `scenarios/`.",
        "A scenario runs on any adapter that has the capabilities it needs; on others it is skipped and says why.",
        "A pass needs every witness: what proves that the race happened.",
    ]
    for family in dict.fromkeys(scenario.family for scenario in scenarios):
        lines += ["", f"## {family}"]
        for scenario in scenarios:
            if scenario.family == family:
                lines += ["", f"### {scenario.name}", "", scenario.sentence, ""]
                for name, values in scenario.each.items():
                    lines.append(f"- {name}: {', '.join(f'`{value}`' for value in values)}")
                lines.append(f"- needs: {_needs(scenario) or 'nothing beyond the contract'}")
                lines.append(f"- witnesses: {'; '.join(w.sentence for w in scenario.witnesses)}")
    return "\n".join(lines)
