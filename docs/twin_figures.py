"""Figures about each twin, from several sources, as columns of docs/what-it-catches.md.

Each source is one file, docs/figures/NAME.json, written by the command it names (`Figures.write`):

    {"command": "make quality",
     "says": "what the figures are, in a sentence or two",
     "columns": {"examples": "the column's head", …},
     "listed": {"schedule": "the head of a list below the table", …},
     "twins": {"no_guard": {"examples": 3, "schedule": "P:enqueue | …"}, …}}

`python docs/write.py` puts them on the page: a source that is there has its columns, in the order of the files' names.
A twin a source says nothing of gets a dash.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

FIGURES = Path(__file__).resolve().parent / "figures"

OWN_COLUMNS = 6
"""Those that `fencepost twins --markdown` prints; what stands right of them is written here."""
MARK = "<!-- figures: from docs/figures -->"


@dataclass(frozen=True)
class Figures:
    command: str
    says: str
    columns: Mapping[str, str]
    twins: Mapping[str, Mapping[str, Any]]
    listed: Mapping[str, str] = field(default_factory=dict)

    def write(self, name: str, folder: Path = FIGURES) -> None:
        """One line per twin, so that a difference shows which twin changed."""
        rows = ",\n".join(
            f"  {json.dumps(twin)}: {json.dumps(dict(figures), ensure_ascii=False)}"
            for twin, figures in sorted(self.twins.items())
        )
        head = {
            "command": self.command,
            "says": self.says,
            "columns": dict(self.columns),
            "listed": dict(self.listed),
        }
        told = ",\n".join(
            f" {json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}" for key, value in head.items()
        )
        folder.mkdir(exist_ok=True)
        (folder / f"{name}.json").write_text(f'{{\n{told},\n "twins": {{\n{rows}\n }}\n}}\n')


def read_figures(folder: Path = FIGURES) -> list[Figures]:
    return [Figures(**json.loads(path.read_text())) for path in sorted(folder.glob("*.json"))]


def with_figures(page: str, sources: Sequence[Figures]) -> str:
    """The page with the columns of these sources in place of those it had."""
    page = page.partition(f"\n{MARK}")[0].rstrip("\n")
    lines = page.split("\n")
    known = {match[1] for line in lines if (match := re.match(r"\| `(\w+)` \|", line))}
    for source in sources:
        if strangers := set(source.twins) - known:
            raise SystemExit(
                f"{source.command} has figures of what is no twin: {', '.join(sorted(strangers))}"
            )
    shown = [_with_cells(line, sources) if line.startswith("|") else line for line in lines]
    return "\n".join([*shown, *_told(sources)]) + "\n"


def _with_cells(line: str, sources: Sequence[Figures]) -> str:
    own = re.split(r"(?<!\\)\|", line)[1 : OWN_COLUMNS + 1]
    name = own[0].strip()
    if name == "twin":
        cells = [f" {head} " for source in sources for head in source.columns.values()]
    elif set(name) == {"-"}:
        cells = ["---" for source in sources for _ in source.columns]
    else:
        cells = [
            f" {_cell(source.twins.get(name.strip('`'), {}).get(key))} "
            for source in sources
            for key in source.columns
        ]
    return f"|{'|'.join([*own, *cells])}|"


def _cell(figure: Any) -> str:
    if figure is None:
        return "-"
    if isinstance(figure, int) and not isinstance(figure, bool):
        return f"{figure:,}"
    return str(figure).replace("|", "\\|")


def _told(sources: Sequence[Figures]) -> list[str]:
    if not sources:
        return []
    lines = ["", MARK, "", "## The columns on the right", ""]
    for source in sources:
        heads = ", ".join(f"*{head}*" for head in source.columns.values())
        lines.append(f"- {heads}: written by `{source.command}`. {source.says}")
    for source in sources:
        for key, head in source.listed.items():
            lines += ["", f"## {head}", ""]
            lines += [
                f"- `{twin}`: `{figures[key]}`"
                for twin, figures in sorted(source.twins.items())
                if figures.get(key) is not None
            ]
    return lines
