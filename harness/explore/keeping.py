"""What a worker's process keeps open between tasks. It is closed when the process ends, or when it is let go of."""

from __future__ import annotations

from collections.abc import Callable
from multiprocessing.util import Finalize

_kept: list[tuple[int, Finalize]] = []


def keep(close: Callable[[], None], priority: int) -> Finalize:
    """Closes once. What has the higher priority is closed first."""
    finalizer = Finalize(None, close, exitpriority=priority)
    _kept.append((priority, finalizer))
    return finalizer


def let_go() -> None:
    """In a process that goes on without this search: all of its threads' servers end, and may be opened anew."""
    while _kept:
        _, close = _kept.pop(max(range(len(_kept)), key=lambda at: _kept[at][0]))
        close()
