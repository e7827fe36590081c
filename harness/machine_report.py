"""What pytest says about the state machine at the end of a run, gathered from every xdist worker."""

from __future__ import annotations

from typing import Any

import pytest

PROPERTY = "fencepost_invariants"


class MachineReport:
    def __init__(self) -> None:
        self._lines: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call":
            self._lines += [str(value) for name, value in report.user_properties if name == PROPERTY]

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        for line in self._lines:
            terminalreporter.line(f"fencepost: {line}")
