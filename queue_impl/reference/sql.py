"""The queue's SQL, read from `.sql` files: every statement has a name, and each can be replaced by name.

A copy of the queue that differs in one statement says so in one line:
`STATEMENTS.edited("claim", "jobs.fencing_token + 1", "jobs.fencing_token")`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib.resources import files

NAME_HEADER = "-- name: "


class SqlError(ValueError):
    """A statement file, a statement name or an edit that is not right."""


class Statements(Mapping[str, str]):
    """Statement texts by name. Immutable: `replaced` and `edited` give a changed copy."""

    def __init__(self, texts: Mapping[str, str]) -> None:
        self._texts = dict(texts)

    def __getitem__(self, name: str) -> str:
        try:
            return self._texts[name]
        except KeyError:
            raise SqlError(f"no statement is named {name!r}; there are: {', '.join(self._texts)}") from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._texts)

    def __len__(self) -> int:
        return len(self._texts)

    def __contains__(self, name: object) -> bool:
        return name in self._texts

    def replaced(self, name: str, text: str) -> Statements:
        """With another text under an existing name: a misspelt name must not add a statement nobody runs."""
        return Statements({**self._texts, name: self._existing(name, text)})

    def edited(self, name: str, old: str, new: str) -> Statements:
        """With the one occurrence of `old` in that statement changed to `new`."""
        return self.replaced(name, replace_once(self[name], old, new))

    def _existing(self, name: str, text: str) -> str:
        self[name]
        return text


def replace_once(text: str, old: str, new: str) -> str:
    """`text` with its single `old` changed. An edit that hits nothing, or two places, is an error."""
    occurrences = text.count(old)
    if occurrences != 1:
        raise SqlError(f"the text to change must occur exactly once, it occurs {occurrences} times: {old!r}")
    return text.replace(old, new)


def parse_statements(source: str) -> Statements:
    """Split a file into its named statements, without comments: they would travel with every Parse."""
    texts: dict[str, list[str]] = {}
    lines_of_current: list[str] | None = None
    for number, line in enumerate(source.splitlines(), start=1):
        if line.startswith(NAME_HEADER):
            name = line.removeprefix(NAME_HEADER).strip()
            if not name.isidentifier():
                raise SqlError(f"line {number}: {name!r} is not a statement name")
            if name in texts:
                raise SqlError(f"line {number}: the statement {name!r} is there twice")
            lines_of_current = texts[name] = []
        elif line.strip() and not line.lstrip().startswith("--"):
            if lines_of_current is None:
                raise SqlError(f"line {number}: SQL before the first '{NAME_HEADER}' header: {line!r}")
            lines_of_current.append(line.rstrip())
    empty = [name for name, lines in texts.items() if not lines]
    if empty:
        raise SqlError(f"statements without a text: {', '.join(empty)}")
    return Statements({name: "\n".join(lines) for name, lines in texts.items()})


def read_sql(file_name: str) -> str:
    return files(__package__).joinpath(file_name).read_text(encoding="utf-8")


REFERENCE_SCHEMA = read_sql("schema.sql")
STATEMENTS = parse_statements(read_sql("statements.sql"))
