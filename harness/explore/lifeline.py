"""Ends worker processes with whoever started them, however that one ends.

A pipe nobody writes to: every worker watches one end, and the other closes when its owner cuts it or dies.
"""

from __future__ import annotations

import os
import threading
from multiprocessing.connection import Connection, wait
from multiprocessing.context import BaseContext


class Lifeline:
    """The owner's. `watched` is for the workers: it goes to them when they are spawned."""

    def __init__(self, context: BaseContext) -> None:
        self.watched: Connection
        self.watched, self._held = context.Pipe(duplex=False)

    def cut(self) -> None:
        self._held.close()


def end_when_cut(watched: Connection) -> None:
    """In a worker. It ends in the middle of what it does: its servers are ended by their keeper."""
    threading.Thread(target=_end_when_cut, args=(watched,), name="lifeline", daemon=True).start()


def _end_when_cut(watched: Connection) -> None:
    wait([watched])
    os._exit(1)
