"""Reading and writing trace files. Schema: docs/trace.md."""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fencepost.harness.errors import UsageError
from fencepost.harness.trace.redact import redacted

FORMAT_VERSION = 1

HEADER_FIELDS = frozenset({"scenario", "queue", "server", "actors", "clock", "first_observation"})
STEP_FIELDS = frozenset({"n", "kind", "after"})
END_FIELDS = frozenset({"verdict", "reasons", "violations", "invariants", "witnesses", "journal"})


class TraceError(UsageError):
    """A trace file that cannot be used; the message names the file, the line and what is wrong."""


@dataclass(frozen=True, slots=True)
class Trace:
    """One run as its file holds it: a header line, a line per step, an end line."""

    header: Mapping[str, Any]
    steps: tuple[Mapping[str, Any], ...]
    end: Mapping[str, Any]


def write_trace(trace: Trace, path: Path) -> None:
    """Whole or not at all: a reader never sees half a file."""
    lines = [
        {"type": "header", "fencepost_trace": FORMAT_VERSION, **trace.header},
        *({"type": "step", **step} for step in trace.steps),
        {"type": "end", **trace.end},
    ]
    text = "".join(json.dumps(redacted(line), separators=(",", ":")) + "\n" for line in lines)
    try:
        descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
        Path(temporary).chmod(0o644)
        Path(temporary).replace(path)
    except OSError as error:
        raise TraceError(
            f"Cannot write the trace {path} ({error.strerror}): choose another --trace-dir."
        ) from error


def file_name(name: str) -> str:
    """The name of an item, of a variant or of a queue, as it can be part of a file's."""
    return re.sub(r"[^A-Za-z0-9_.#-]+", "-", name).strip("-").replace("#", ".")


def ensure_trace_dir(directory: Path) -> Path:
    """Found out before the first race, not after the last."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=directory, prefix=".writable-"):
            pass
    except OSError as error:
        raise UsageError(
            f"--trace-dir {directory}: cannot write there ({error.strerror}); choose another directory."
        ) from error
    return directory


def read_trace(path: Path) -> Trace:
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise TraceError(f"{path}: cannot be read ({error.strerror}).") from error
    except UnicodeDecodeError as error:
        raise TraceError(f"{path}: not a trace, it is not UTF-8 text.") from error
    return parse_trace(text, str(path))


def parse_trace(text: str, name: str = "trace") -> Trace:
    lines = [_parse_line(line, name, number) for number, line in enumerate(text.splitlines(), 1)]
    if not lines:
        raise TraceError(f"{name}: empty; a trace has a header, steps and an end.")
    header, *rest = lines
    if "fencepost_trace" not in header:
        raise TraceError(f"{name}, line 1: not a trace header, it has no field 'fencepost_trace'.")
    if header["fencepost_trace"] != FORMAT_VERSION:
        raise TraceError(
            f"{name}: trace format {header['fencepost_trace']!r}, this fencepost reads format {FORMAT_VERSION}; "
            "use the fencepost that wrote it, or record the run again."
        )
    _require(header, "header", HEADER_FIELDS, name, 1)
    if not rest or rest[-1].get("type") != "end":
        raise TraceError(f"{name}: cut off after line {len(lines)}, the end line is missing.")
    *steps, end = rest
    for number, step in enumerate(steps, 1):
        _require(step, "step", STEP_FIELDS, name, number + 1)
        if step["n"] != number:
            raise TraceError(f"{name}, line {number + 1}: step {step['n']!r} where step {number} should be.")
    _require(end, "end", END_FIELDS, name, len(lines))
    return Trace(header, tuple(steps), end)


def _parse_line(line: str, name: str, number: int) -> dict[str, Any]:
    try:
        data = json.loads(line)
    except ValueError as error:
        raise TraceError(f"{name}, line {number}: not JSON ({error}).") from None
    if not isinstance(data, dict):
        raise TraceError(f"{name}, line {number}: not a JSON object.")
    found: dict[str, Any] = redacted(data)
    return found


def _require(line: Mapping[str, Any], kind: str, fields: frozenset[str], name: str, number: int) -> None:
    if line.get("type") != kind:
        raise TraceError(f"{name}, line {number}: a {kind} line should be here, found {line.get('type')!r}.")
    lacking = sorted(fields - line.keys())
    if lacking:
        raise TraceError(f"{name}, line {number}: the {kind} line lacks {', '.join(lacking)}.")
