"""What pytest says at the end of a run that did not pass: where its report is, from every xdist worker's traces."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fencepost.harness.errors import FencepostError
from fencepost.harness.reporting import load_format, report_formats

TRACE_PROPERTY = "fencepost_trace"
REPORT = "report"
"""The report's folder, in the folder of the traces."""


class ReportLink:
    """Lives in the controller, to which every worker's test reports come; traces themselves lie on the disk."""

    def __init__(self) -> None:
        self._traces: list[Path] = []
        self._not_passed = 0

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when != "call":
            return
        for name, value in report.user_properties:
            if name == TRACE_PROPERTY:
                self._traces.append(Path(str(value)))
                self._not_passed += report.failed

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        if not self._not_passed or "html" not in report_formats():
            return
        try:
            link = self._write()
        except FencepostError as error:
            terminalreporter.line(f"fencepost: no report was written: {error}", yellow=True)
            return
        terminalreporter.line(f"fencepost: report of {len(self._traces)} runs: {link}")

    def _write(self) -> str:
        folder = self._traces[0].parent / REPORT
        written = load_format("html")(
            self._traces,
            output=folder / f"{self._traces[0].stem}.html" if len(self._traces) == 1 else folder,
            compare_with=None,
        )
        assert written.path is not None
        return written.path.resolve().as_uri()
