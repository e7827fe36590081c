"""`--engine dask`: tasks on a Dask cluster, one the user has or one of this machine that ends with the search."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Executor as Pool
from concurrent.futures import Future as PoolFuture
from typing import Any, Final, ParamSpec, TypeVar

from fencepost.harness.errors import UsageError
from fencepost.harness.explore.executor import Executor
from fencepost.harness.explore.keeping import let_go
from fencepost.harness.explore.program import Program
from fencepost.harness.explore.scale import Pooled, WorkersLost, perform
from fencepost.harness.explore.strategy import Answer, Task
from fencepost.harness.pinning import WORKER_VARIABLE

_P = ParamSpec("_P")
_T = TypeVar("_T")

LOGGERS: Final = ("distributed", "tornado", "asyncio")
LOOPBACK: Final = "127.0.0.1"
CONNECT_S = 5.0
LET_GO_S: Final = 30.0
NO_WORKERS_S: Final = 60.0
"""A worker that died is started anew by its nanny within seconds."""


@contextlib.contextmanager
def dask(
    executor: Executor, program: Program, address: str | None, jobs: int = 2, connect_s: float | None = None
) -> Iterator[Pooled]:
    """The cluster at `address`, or a local one of `jobs` processes that ends with this."""
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
        if address is not None:
            _check_that_it_answers(address, connect_s or CONNECT_S)
        try:
            return library.Client(target, timeout=connect_s or CONNECT_S, set_as_default=False)
        except OSError as error:
            raise UsageError(f"no Dask scheduler answers at {address}: {error}") from error

    with contextlib.ExitStack() as stack:
        stack.enter_context(_quiet())
        target: Any = address
        if address is None:
            target = stack.enter_context(_local_cluster(library, jobs))
        client = stack.enter_context(connect(target))
        if address is not None:
            stack.callback(_let_go_of_servers, client)
        yield _pooled(client, executor, program)


def _check_that_it_answers(address: str, deadline_s: float) -> None:
    """Before a client is made: one that cannot connect goes on trying, and complains after the end of the program."""
    from distributed.core import rpc

    async def ask() -> None:
        scheduler: Any = rpc(address, timeout=deadline_s)  # type: ignore[no-untyped-call]
        try:
            await scheduler.identity()
        finally:
            await scheduler.close_rpc()

    async def in_time() -> None:
        await asyncio.wait_for(ask(), deadline_s)

    try:
        asyncio.run(in_time())
    except Exception as error:
        # Whatever is there may answer anything: what is read of it then is no Dask, and neither is the error.
        said = str(error) or f"{type(error).__name__} within {deadline_s:g} s"
        raise UsageError(f"no Dask scheduler answers at {address}: {' '.join(said.split())}") from error


def _let_go_of_servers(client: Any) -> None:
    """The workers of somebody's own cluster go on; what they opened for this search must not."""
    if client.status != "running":
        return
    ending = threading.Thread(target=lambda: client.run(let_go, on_error="ignore"), daemon=True)
    ending.start()
    ending.join(LET_GO_S)


def _local_cluster(library: Any, jobs: int) -> Any:
    # A port of its own for its HTTP server: the usual one may be another cluster's, and Dask says so at length.
    return library.LocalCluster(
        n_workers=jobs,
        threads_per_worker=1,
        host=LOOPBACK,
        dashboard_address=f"{LOOPBACK}:0",
        silence_logs=logging.CRITICAL,
    )


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """What these log, tracebacks of lost connections mostly, is said by us in one sentence."""
    names = {*LOGGERS, *(name for name in logging.root.manager.loggerDict if name.startswith(LOGGERS))}
    before = {name: logging.getLogger(name).level for name in names}
    for name in names:
        logging.getLogger(name).setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        for name, level in before.items():
            logging.getLogger(name).setLevel(level)


def _pooled(client: Any, executor: Executor, program: Program) -> Pooled:
    return Pooled(
        executor,
        program,
        lambda: _ClusterPool(client),
        call=_perform_on_dask,
        lost=_workers_lost_with,
        check=_WorkersLeft(client),
    )


class _ClusterPool(Pool):
    """A client's executor, with the arguments that every other executor takes."""

    def __init__(self, client: Any) -> None:
        # pure=False: the same task twice is two runs, which a retry and a check of determinism both need.
        self._executor = client.get_executor(pure=False)

    def submit(self, fn: Callable[_P, _T], /, *args: _P.args, **kwargs: _P.kwargs) -> PoolFuture[_T]:
        submitted: PoolFuture[_T] = self._executor.submit(fn, *args, **kwargs)
        return submitted

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        self._executor.shutdown(wait=wait and not cancel_futures)


def _workers_lost_with(error: BaseException) -> int:
    """A scheduler gives a task to other workers by itself, until so many have died that it gives it up."""
    from distributed import KilledWorker

    if isinstance(error, KilledWorker):
        return int(error.allowed_failures) + 1
    return 0


class _WorkersLeft:
    """Raises when the cluster has had no workers for long: a task would wait for one for ever."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self._seen = time.monotonic()

    def __call__(self) -> None:
        now = time.monotonic()
        if self._client.status != "running":
            raise WorkersLost(f"the Dask scheduler at {self._client.scheduler.address} is gone")
        if self._client.scheduler_info()["workers"]:
            self._seen = now
        elif now - self._seen > NO_WORKERS_S:
            raise WorkersLost(
                f"the Dask cluster at {self._client.scheduler.address} has had no worker for {NO_WORKERS_S:g} s"
            )


def _perform_on_dask(executor: Executor, program: Program, task: Task) -> Answer:
    """Workers of a local cluster are numbered: each gets a core for itself and its server."""
    from distributed import get_worker

    worker: Any = get_worker()
    if isinstance(worker.name, int):
        os.environ.setdefault(WORKER_VARIABLE, str(worker.name))
    return perform(executor, program, task)
