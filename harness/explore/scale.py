"""Where tasks run: here, in processes of this machine, or on a Dask cluster. A lost worker's tasks are run again."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import BrokenExecutor, CancelledError
from concurrent.futures import Executor as Pool
from concurrent.futures import Future as PoolFuture
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from multiprocessing.util import Finalize
from typing import Any, Final, Protocol

from fencepost.harness.errors import FencepostError, UsageError
from fencepost.harness.explore.executor import Execution, Executor
from fencepost.harness.explore.program import Program
from fencepost.harness.explore.strategy import Answer, Task
from fencepost.harness.pinning import WORKER_VARIABLE

MOST_ATTEMPTS: Final = 4
"""A task that took its worker with it this often does so by itself."""
TASK_DEADLINE_S: Final = 600.0
CONNECT_S = 5.0


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


_warm = threading.local()  # a Dask worker runs tasks in several threads; each needs actors of its own


def perform(executor: Executor, program: Program, task: Task) -> Answer:
    """Run one task on this thread's execution, opened at the first task and kept warm for the next."""
    key = (executor, program)
    held: _Warm | None = getattr(_warm, "held", None)
    if held is None or held.key != key:
        if held is not None:
            held.close()
            _warm.held = None
        execution = executor.open(program)
        held = _Warm(key, execution, Finalize(None, execution.close, exitpriority=10))
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


class Pooled:
    """Any `concurrent.futures.Executor`. `open_pool` is called again when a pool broke with its worker."""

    def __init__(
        self,
        executor: Executor,
        program: Program,
        open_pool: Callable[[], Pool],
        *,
        call: Callable[[Executor, Program, Task], Answer] = perform,
        lost: tuple[type[Exception], ...] = (BrokenExecutor,),
        deadline_s: float = TASK_DEADLINE_S,
    ) -> None:
        self._call = partial(call, executor, program)
        self._open = partial(opened, executor, program)
        self._open_pool = open_pool
        self._lost: tuple[type[Exception], ...] = (*lost, CancelledError)
        self._deadline_s = deadline_s
        self._pool = open_pool()
        self.retried = 0

    def run(self, tasks: Sequence[Task]) -> Iterator[Answer]:
        futures = [self._submit(task) for task in tasks]
        for at, task in enumerate(tasks):
            for attempt in range(1, MOST_ATTEMPTS + 1):
                try:
                    yield futures[at].result(timeout=self._deadline_s)
                    break
                except TimeoutError as error:
                    raise WorkersLost(
                        f"task {at + 1} of {len(tasks)} ({type(task).__name__}) did not come back from its worker "
                        f"within {self._deadline_s:g} s"
                    ) from error
                except self._lost as error:
                    if attempt == MOST_ATTEMPTS:
                        raise WorkersLost(
                            f"task {at + 1} of {len(tasks)} ({type(task).__name__}) was given to {attempt} workers "
                            f"and each was lost with it: {error or type(error).__name__}"
                        ) from error
                    self._replace(futures, tasks, at)

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

    def _submit(self, task: Task) -> PoolFuture[Answer]:
        try:
            return self._pool.submit(self._call, task)
        except self._lost:
            # The pool found out between two submissions; the future below fails as those before it did.
            future: PoolFuture[Answer] = PoolFuture()
            future.set_exception(BrokenExecutor("the pool broke before the task was submitted"))
            return future

    def _replace(self, futures: list[PoolFuture[Answer]], tasks: Sequence[Task], at: int) -> None:
        """A new pool if this one is broken, and every task without an answer submitted again."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._pool = self._open_pool()
        for later in range(at, len(tasks)):
            if not _answered(futures[later]):
                futures[later] = self._submit(tasks[later])
                self.retried += 1

    def close(self) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)


def _answered(future: PoolFuture[Answer]) -> bool:
    return future.done() and not future.cancelled() and future.exception() is None


def _perform_on_dask(executor: Executor, program: Program, task: Task) -> Answer:
    """Workers of a local cluster are numbered: each gets a core for itself and its server."""
    from distributed import get_worker

    worker: Any = get_worker()
    if isinstance(worker.name, int):
        os.environ.setdefault(WORKER_VARIABLE, str(worker.name))
    return perform(executor, program, task)


@contextmanager
def dask(
    executor: Executor, program: Program, address: str | None, jobs: int = 2, connect_s: float | None = None
) -> Iterator[Pooled]:
    """`--engine dask`: the cluster at `address`, or a local one of `jobs` processes that ends with this."""
    try:
        import distributed
    except ImportError as error:
        raise UsageError("--engine dask needs distributed: pip install 'fencepost[dask]'") from error

    library: Any = distributed  # its classes are not typed
    if address is not None:
        try:
            library.comm.get_address_host_port(address, strict=True)
        except ValueError as error:
            raise UsageError(f"--address {address}: {error}; give one as tcp://127.0.0.1:8786.") from error

    def connect(target: Any) -> Any:
        try:
            return library.Client(target, timeout=connect_s or CONNECT_S, set_as_default=False)
        except OSError as error:
            raise UsageError(f"no Dask scheduler answers at {address}: {error}") from error

    def pooled(client: Any) -> Pooled:
        # pure=False: the same task twice is two runs, which a retry and a check of determinism both need.
        pool = partial(client.get_executor, pure=False)
        lost = (BrokenExecutor, library.KilledWorker)
        return Pooled(executor, program, pool, call=_perform_on_dask, lost=lost)

    if address is not None:
        with connect(address) as client:
            yield pooled(client)
        return
    with (
        library.LocalCluster(
            n_workers=jobs, threads_per_worker=1, host="127.0.0.1", dashboard_address=None, silence_logs=50
        ) as cluster,
        connect(cluster) as client,
    ):
        yield pooled(client)
