"""`fencepost adapter check`: an adapter on its own, before any race."""

from __future__ import annotations

import argparse
import json

from rich.table import Table
from rich.text import Text

from fencepost.harness.adapter_check import CheckResult, check_adapter
from fencepost.harness.commands.options import (
    EXIT_FAIL,
    EXIT_PASS,
    add_lab_options,
    console_for_tables,
    console_for_text,
    lab_options,
)
from fencepost.harness.lab import Lab
from fencepost.harness.loading import load_queue


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser("adapter", help="look at an adapter on its own")
    verbs = parser.add_subparsers(required=True, metavar="check")
    check = verbs.add_parser(
        "check", help="say whether an adapter does what the contract says, and what is wrong"
    )
    check.add_argument("queue", metavar="MODULE:NAME", help="the adapter, or a known queue's name")
    add_lab_options(check)
    check.add_argument("--json", action="store_true", help="print one JSON object")
    check.set_defaults(perform=perform)


def perform(arguments: argparse.Namespace) -> int:
    loaded = load_queue(arguments.queue, "adapter check")
    options = lab_options(arguments)
    with Lab(options) as lab:
        results = check_adapter(lab, loaded)
    wrong = [result for result in results if result.ok is False]
    if arguments.json:
        console_for_text().print(
            json.dumps({"queue": loaded.queue.name, "checks": [_as_json(r) for r in results]})
        )
    else:
        console_for_tables().print(_table(loaded.queue.name, results))
        told = (
            f"{len(wrong)} of {len(results)} checks found something wrong"
            if wrong
            else "nothing wrong was found"
        )
        console_for_text().print(told)
    return EXIT_FAIL if wrong else EXIT_PASS


def _as_json(result: CheckResult) -> dict[str, object]:
    return {"name": result.name, "ok": result.ok, "wrong": result.wrong, "advice": result.advice}


def _table(name: str, results: list[CheckResult]) -> Table:
    table = Table(title=f"adapter {name}", title_justify="left")
    for column in ("check", "", "what is wrong, and what to do"):
        table.add_column(column, overflow="fold")
    marks = {True: Text("ok", "green"), False: Text("wrong", "red"), None: Text("not made", "dim")}
    for result in results:
        table.add_row(
            result.name, marks[result.ok], Text(" ".join(filter(None, (result.wrong, result.advice))))
        )
    return table
