"""Finding what writes reports: the harness runs without it, an installed format is an entry point."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import entry_points
from pathlib import Path
from typing import Protocol, cast

from fencepost.harness.errors import UsageError

GROUP = "fencepost.reports"


class Written(Protocol):
    """What a format hands back."""

    @property
    def path(self) -> Path | None:
        """The file to open; None where it went to standard output."""

    @property
    def unreadable(self) -> Sequence[str]:
        """A sentence for every file of a folder that is no whole trace."""


class WriteReport(Protocol):
    def __call__(
        self, traces: Sequence[Path], *, output: Path | None, compare_with: Path | None
    ) -> Written: ...


def report_formats() -> list[str]:
    return sorted(point.name for point in entry_points(group=GROUP))


def load_format(name: str) -> WriteReport:
    for point in entry_points(group=GROUP):
        if point.name == name:
            return cast(WriteReport, point.load())
    known = ", ".join(report_formats()) or "none is installed"
    raise UsageError(f"--format {name}: no such format ({known}).")
