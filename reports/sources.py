"""Which traces a report is made of: files, and folders of files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fencepost.harness.errors import UsageError
from fencepost.harness.trace import Trace, TraceError, read_trace


@dataclass
class Suite:
    """Traces by file, in order; what could not be read is kept as a sentence each, and shown."""

    traces: dict[Path, Trace] = field(default_factory=dict)
    unreadable: list[str] = field(default_factory=list)


def read_suite(places: Sequence[Path]) -> Suite:
    """A file named by itself must be a trace; one found in a folder may have been cut off, and is told."""
    suite = Suite()
    for place in places:
        if not place.is_dir():
            suite.traces[place] = read_trace(place)
            continue
        for path in sorted(place.rglob("*.jsonl")):
            if any(part.startswith(".") for part in path.relative_to(place).parts):
                continue
            try:
                suite.traces[path] = read_trace(path)
            except TraceError as error:
                suite.unreadable.append(str(error))
    if not suite.traces:
        if suite.unreadable:
            raise UsageError(suite.unreadable[0])
        told = ", ".join(str(place) for place in places)
        raise UsageError(
            f"{told}: no trace (*.jsonl) there; `pytest scenarios/ --trace-dir DIR` and `fencepost run` write them."
        )
    return suite
