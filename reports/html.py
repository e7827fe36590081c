"""HTML pages: one self-contained file a run, and an index for a suite of them."""

from __future__ import annotations

import base64
import functools
import hashlib
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from fencepost.harness.errors import UsageError
from fencepost.harness.trace import Trace, read_trace
from fencepost.reports.compare import Comparison, as_json, compare
from fencepost.reports.glyphs import GLYPHS
from fencepost.reports.model import run_model
from fencepost.reports.sources import Suite, Written, put, read_suite
from fencepost.reports.suite import PageLinks, comparisons, suite_model

DEFAULT_OUTPUT = Path(".fencepost/report")


def write(traces: Sequence[Path], *, output: Path | None = None, compare_with: Path | None = None) -> Written:
    """One trace file becomes one page; a folder, or several, become an index and a folder of pages."""
    suite = read_suite(traces)
    if len(traces) == 1 and not traces[0].is_dir():
        ((path, trace),) = suite.traces.items()
        page = _one_page(trace, compare_with)
        return Written(put(output or DEFAULT_OUTPUT / f"{path.stem}.html", page))
    if compare_with is not None:
        raise UsageError("--compare: give one trace to compare with it; a suite compares by itself.")
    return Written(write_suite(suite, output or DEFAULT_OUTPUT), tuple(suite.unreadable))


def _one_page(trace: Trace, compare_with: Path | None) -> str:
    if compare_with is None:
        return run_page(trace)
    other = read_trace(compare_with)
    return run_page(trace, other=(other, compare(trace, other)))


def write_suite(suite: Suite, output: Path) -> Path:
    """`NAME.html` gets its pages in `NAME_files/` beside it; anything else is a folder with `index.html`."""
    if output.suffix == ".html":
        index, folder = output, output.with_name(f"{output.stem}_files")
    else:
        index, folder = output / "index.html", output / "runs"
    links = PageLinks(list(suite.traces), folder.name)
    beside = comparisons(suite)
    for path, trace in suite.traces.items():
        found = beside.get(path)
        other = (suite.traces[found[0]], found[1]) if found else None
        put(folder / links.file_of(path), run_page(trace, other=other, index=f"../{index.name}"))
    return put(index, index_page(suite_model(suite, links)))


def run_page(trace: Trace, *, other: tuple[Trace, Comparison] | None = None, index: str | None = None) -> str:
    run = run_model(trace)
    data: dict[str, Any] = {"run": run}
    beside = None
    if other is not None:
        other_trace, comparison = other
        data["other"] = run_model(other_trace)
        left, right = _sides(trace, other_trace)
        beside = as_json(comparison, right) | {"alike": comparison.alike, "left": left, "right": right}
        data["comparison"] = beside
    return _render("run.html.j2", run=run, data=data, comparison=beside, index=index)


def _sides(left: Trace, right: Trace) -> tuple[str, str]:
    """What tells the two runs apart: the queue, else the scenario's variant, else the verdict."""
    for part in ("queue", "scenario"):
        names = left.header[part]["name"], right.header[part]["name"]
        if names[0] != names[1]:
            return names
    return f"this run ({left.end['verdict']})", f"the other run ({right.end['verdict']})"


def index_page(model: Mapping[str, Any]) -> str:
    return _render("index.html.j2", suite=model)


@functools.cache
def _static(name: str) -> tuple[str, str]:
    """Its text, and the hash by which the page's own policy lets it in."""
    text = (files("fencepost.reports") / "static" / name).read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return text, f"sha256-{digest}"


@functools.cache
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(
            lambda name: (files("fencepost.reports") / "templates" / name).read_text(encoding="utf-8")
        ),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":"), "sort_keys": False}
    return environment


def _render(template: str, **values: Any) -> str:
    style, style_hash = _static("report.css")
    script, script_hash = _static("report.js")
    return (
        _environment()
        .get_template(template)
        .render(
            style=Markup(style),
            style_hash=style_hash,
            script=Markup(script),
            script_hash=script_hash,
            glyphs=GLYPHS,
            **values,
        )
    )
