"""Finding a queue, the twins and the scenarios by name: entry points, or MODULE:NAME."""

from __future__ import annotations

import importlib
import sys
from dataclasses import dataclass
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from fencepost.harness.adapter import Queue, missing_methods
from fencepost.harness.errors import UsageError

DEFAULT_QUEUE = "reference"


@dataclass(frozen=True, slots=True)
class LoadedQueue:
    queue: Queue
    path: str  # MODULE:NAME, importable by another process too

    @property
    def names(self) -> frozenset[str]:
        """All it goes by: its adapter's name, its MODULE:NAME and the short names given to that."""
        return frozenset({self.queue.name, self.path, *_short_names(self.path)})


@cache  # asked of every run, and the metadata of all that is installed is read for the answer
def _short_names(path: str) -> tuple[str, ...]:
    return tuple(name for name, value in queue_names().items() if value == path)


def queue_names() -> dict[str, str]:
    """Short names that installed packages give to their adapters."""
    return {point.name: point.value for point in entry_points(group="fencepost.queues")}


def load_queue(spec: str, given_as: str = "--queue") -> LoadedQueue:
    """`given_as`: what its user wrote before it, for what is said of a wrong one."""
    given = f"{given_as} {spec}"
    known = queue_names()
    path = known.get(spec, spec)
    module_name, colon, attribute = path.partition(":")
    if not colon or not module_name or not attribute:
        names = ", ".join(sorted(known)) or "none installed"
        raise UsageError(f"{given}: give MODULE:NAME or one of the known queues ({names}).")
    found = _import_attribute(given, module_name, attribute)
    queue = _instantiate(given, found) if isinstance(found, type) else found
    lacking = _missing_methods(given, queue)
    if lacking:
        raise UsageError(
            f"{given}: {attribute} is not an adapter, it lacks {', '.join(lacking)} "
            "(the contract is in docs/adapters.md)."
        )
    return LoadedQueue(queue, path)


@cache  # every trace asks, and the metadata of all that is installed is read for the answer
def twin_mark(path: str) -> dict[str, str] | None:
    """Of a twin, what it is a broken copy of and what must catch it: traces carry it. None of any other queue."""
    for point in entry_points(group="fencepost.twins"):
        if point.value.partition(":")[0] == path.partition(":")[0]:
            for twin in point.load():
                if twin.path == path:
                    return {"of": point.name, "sentence": twin.sentence, "breaks": twin.breaks}
    return None


def _import_attribute(given: str, module_name: str, attribute: str) -> Any:
    here = str(Path.cwd())
    if here not in sys.path:
        # A console script does not have the working directory on its path, and that is where a user's is.
        sys.path.append(here)
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise UsageError(f"{given}: cannot import {module_name} ({_one_line(error)}).") from error
    except (Exception, SystemExit) as error:  # a script without a main guard ends the interpreter
        raise UsageError(
            f"{given}: importing {module_name} raised {type(error).__name__}: {_one_line(error)}."
        ) from error
    try:
        found: Any = module
        for part in attribute.split("."):
            found = getattr(found, part)
    except AttributeError:
        raise UsageError(f"{given}: {module_name} has no {attribute}.") from None
    return found


def _instantiate(given: str, cls: type) -> Any:
    try:
        return cls()
    except Exception as error:
        raise UsageError(
            f"{given}: {cls.__name__}() raised {type(error).__name__}: {_one_line(error)}; "
            "name a class that takes no arguments, or an instance."
        ) from error


def _missing_methods(given: str, queue: Any) -> list[str]:
    try:
        return missing_methods(queue)
    except Exception as error:  # a name or capabilities that are worked out, and cannot be
        raise UsageError(
            f"{given}: looking at it raised {type(error).__name__}: {_one_line(error)}."
        ) from error


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())
