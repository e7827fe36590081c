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


@dataclass(frozen=True)
class Written:
    """What a format has written: the file to open (None: standard output), and what could not be read."""

    path: Path | None
    unreadable: tuple[str, ...] = ()


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


def put(path: Path, text: str) -> Path:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # A lone surrogate in a payload is no character: it is shown as one that could not be.
        path.write_bytes(text.encode("utf-8", errors="replace"))
    except OSError as error:
        raise UsageError(f"-o {path}: cannot be written ({error.strerror}); choose another place.") from error
    return path
