"""Which of the names there are was probably meant."""

from __future__ import annotations

from collections.abc import Collection
from difflib import get_close_matches


def nearest_of(name: str, names: Collection[str]) -> str | None:
    near = get_close_matches(name, sorted(names), n=1)
    return near[0] if near else None


def what_there_is(name: str, names: Collection[str], otherwise: str | None = None) -> str:
    """The end of a sentence that refuses `name`: the nearest, and where none is near `otherwise`, or all of them."""
    near = nearest_of(name, names)
    if near is not None:
        return f"the nearest is {near!r}"
    return otherwise if otherwise is not None else f"there are {', '.join(names)}"
