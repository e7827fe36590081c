"""What pytest says about known failures at the end of a run, gathered from every xdist worker."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from fencepost.harness.known import Baseline

PROPERTY = "fencepost_failed"


def as_property(variant: str, queue: str, failed: Sequence[str]) -> tuple[str, str]:
    return PROPERTY, json.dumps([variant, queue, list(failed)])


class KnownReport:
    def __init__(self, baseline: Baseline) -> None:
        self._baseline = baseline

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        for name, value in report.user_properties:
            if report.when == "call" and name == PROPERTY and isinstance(value, str):
                variant, queue, failed = json.loads(value)
                self._baseline.note(variant, queue, failed)

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        gone = self._baseline.gone
        if not gone:
            return
        terminalreporter.section("known failures that are gone", sep="=", green=True)
        for entry in gone:
            terminalreporter.line(f"gone: {entry}")
        terminalreporter.line("Take them out of the --known file, so that they are news if they come back.")
