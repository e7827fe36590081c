"""Where tasks run: here, or in a pool of workers. A lost worker's tasks are run again."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import BrokenExecutor, wait
from concurrent.futures import Executor as Pool
from concurrent.futures import Future as PoolFuture
from dataclasses import dataclass
from functools import partial
from multiprocessing.util import Finalize
from typing import Final, Protocol

from fencepost.harness.errors import FencepostError
from fencepost.harness.explore.executor import Execution, Executor
from fencepost.harness.explore.keeping import keep
from fencepost.harness.explore.program import Program
from fencepost.harness.explore.strategy import Answer, Task

MOST_WORKERS_LOST: Final = 4
"""A task that took so many workers with it does so by itself."""
TASK_DEADLINE_S: Final = 600.0
CHECK_EVERY_S: Final = 1.0


class WorkersLost(FencepostError):
    """Workers died again and again, or a task did not come back in time."""


class Workers(Protocol):
    """Runs a batch and yields the answers in the order of the tasks."""

    def run(self, tasks: Sequence[Task]) -> Iterator[Answer]: ...

    def close(self) -> None: ...


# -- in the worker ------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Warm:
    key: tuple[Executor, Program]
    execution: Execution
    close: Finalize  # closes once: now, or when the process ends


_warm = threading.local()  # a pool of threads runs tasks side by side; each needs actors of its own


def perform(executor: Executor, program: Program, task: Task) -> Answer:
    """Run one task on this thread's execution, opened at the first task and kept warm for the next."""
    key = (executor, program)
    held: _Warm | None = getattr(_warm, "held", None)
    if held is None or held.key != key or not held.close.still_active():
        if held is not None:
            held.close()
            _warm.held = None
        execution = executor.open(program)
        held = _Warm(key, execution, keep(execution.close, priority=10))
        _warm.held = held
    return task.perform(held.execution)


def opened(executor: Executor, program: Program, _: int) -> int:
    """This worker's process, once its execution is open."""
    perform(executor, program, _Nothing())
    return os.getpid()


class _Nothing:
    def perform(self, execution: Execution) -> Answer:
        return Answer()


# -- here ---------------------------------------------------------------------------------------------------


class Here:
    """One execution, in this thread."""

    def __init__(self, executor: Executor, program: Program) -> None:
        self._execution = executor.open(program)

    def run(self, tasks: Sequence[Task]) -> Iterator[Answer]:
        for task in tasks:
            yield task.perform(self._execution)

    def close(self) -> None:
        self._execution.close()


def of_a_broken_pool(error: BaseException) -> int:
    return int(isinstance(error, BrokenExecutor))


class Pooled:
    """Any `concurrent.futures.Executor`. `open_pool` is called again when a pool broke with its worker.

    `lost` says how many workers were lost with a task that ended by this error; none: it is the task's own.
    `check` is asked from time to time while a task is waited for, and raises where nobody can perform it.
    """

    def __init__(
        self,
        executor: Executor,
        program: Program,
        open_pool: Callable[[], Pool],
        *,
        call: Callable[[Executor, Program, Task], Answer] = perform,
        lost: Callable[[BaseException], int] = of_a_broken_pool,
        check: Callable[[], None] = lambda: None,
        deadline_s: float = TASK_DEADLINE_S,
    ) -> None:
        self._call = partial(call, executor, program)
        self._open = partial(opened, executor, program)
        self._open_pool = open_pool
        self._lost = lost
        self._check = check
        self._deadline_s = deadline_s
        self._pool = open_pool()
        self.retried = 0

    def run(self, tasks: Sequence[Task]) -> Iterator[Answer]:
        futures = [self._submit(task) for task in tasks]
        for at, task in enumerate(tasks):
            name = f"task {at + 1} of {len(tasks)} ({type(task).__name__})"
            workers_lost = 0
            while (error := self._error_of(futures[at], name)) is not None:
                workers_lost += self._lost(error)
                if not self._lost(error):
                    raise error
                if workers_lost >= MOST_WORKERS_LOST:
                    raise WorkersLost(
                        f"{name} was given to {workers_lost} workers and each was lost with it: "
                        f"{error or type(error).__name__}"
                    ) from error
                self._submit_again(futures, tasks, at)
            yield futures[at].result()

    def open_all(self, workers: int) -> None:
        """Returns when so many workers have opened their execution: for who measures what comes after."""
        deadline = time.monotonic() + self._deadline_s
        seen: set[int] = set()
        while len(seen) < workers:
            seen.update(self._pool.map(self._open, range(workers), timeout=self._deadline_s))
            if time.monotonic() > deadline:
                raise WorkersLost(
                    f"waited {self._deadline_s:g} s for {workers} workers to open, and {len(seen)} did"
                )

    def _error_of(self, future: PoolFuture[Answer], name: str) -> BaseException | None:
        """What the task ended by, once it has ended."""
        deadline = time.monotonic() + self._deadline_s
        while not wait([future], CHECK_EVERY_S).done:
            self._check()
            if time.monotonic() > deadline:
                raise WorkersLost(f"{name} did not come back from its worker within {self._deadline_s:g} s")
        if future.cancelled():
            self._check()
            raise WorkersLost(f"{name} was cancelled by somebody else")
        return future.exception()

    def _submit(self, task: Task) -> PoolFuture[Answer]:
        try:
            return self._pool.submit(self._call, task)
        except BrokenExecutor as error:
            # The pool found out between two submissions; this future fails as those before it did.
            future: PoolFuture[Answer] = PoolFuture()
            future.set_exception(error)
            return future

    def _submit_again(self, futures: list[PoolFuture[Answer]], tasks: Sequence[Task], at: int) -> None:
        """This task; of a pool that is broken every task without an answer, to a new one."""
        lost = [at]
        if isinstance(futures[at].exception(), BrokenExecutor):
            self._pool.shutdown(wait=False, cancel_futures=True)
            self._pool = self._open_pool()
            lost = [later for later in range(at, len(tasks)) if not _answered(futures[later])]
        for each in lost:
            futures[each] = self._submit(tasks[each])
            self.retried += 1

    def close(self) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)


def _answered(future: PoolFuture[Answer]) -> bool:
    return future.done() and not future.cancelled() and future.exception() is None
