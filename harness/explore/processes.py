"""`--jobs N`: worker processes of this machine, each with its own servers. None outlives who started it."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from functools import partial
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any, Final, ParamSpec, TypeVar

from fencepost.harness.errors import UsageError
from fencepost.harness.explore.executor import Executor
from fencepost.harness.explore.lifeline import Lifeline, end_when_cut
from fencepost.harness.explore.program import Program
from fencepost.harness.explore.scale import Pooled
from fencepost.harness.pinning import WORKER_VARIABLE

_P = ParamSpec("_P")
_T = TypeVar("_T")

_CONTEXT: Final = get_context("spawn")  # not forked: a worker must not inherit this process's connections


@contextmanager
def processes(executor: Executor, program: Program, jobs: int) -> Iterator[Pooled]:
    """What goes wrong, a Ctrl-C too, ends the workers in the middle of their runs."""
    if jobs < 1:
        raise UsageError(f"--jobs must be at least 1, and {jobs} was given")
    lifeline = Lifeline(_CONTEXT)
    workers = Pooled(executor, program, partial(_SpawningPool, jobs, lifeline))
    try:
        yield workers
    except BaseException:
        lifeline.cut()
        raise
    finally:
        workers.close()
        lifeline.cut()


class _SpawningPool(ProcessPoolExecutor):
    def __init__(self, jobs: int, lifeline: Lifeline) -> None:
        given_out = _CONTEXT.Value("i", 0)
        super().__init__(jobs, _CONTEXT, initializer=_begin, initargs=(given_out, lifeline.watched))

    def submit(self, fn: Callable[_P, _T], /, *args: _P.args, **kwargs: _P.kwargs) -> Future[_T]:
        """Spawns a worker where there are too few. Until it has begun, a Ctrl-C of the whole group waits for it."""
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            return super().submit(fn, *args, **kwargs)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


# In a worker


def _begin(given_out: Any, watched: Connection) -> None:
    """Each worker gets a number of its own, and with it a core for itself and its server."""
    end_when_cut(watched)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # who started us was interrupted as well, and ends us
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    with given_out.get_lock():
        os.environ[WORKER_VARIABLE] = str(given_out.value)
        given_out.value += 1
