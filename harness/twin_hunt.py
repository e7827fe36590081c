"""Hunting many twins at once: a process per core, each with a lab of its own.

What goes between the processes are names: scenarios are functions, and every process finds them by itself.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing.connection import wait
from multiprocessing.sharedctypes import Synchronized

from fencepost.harness.lab import Lab, LabOptions
from fencepost.harness.pinning import WORKER_VARIABLE
from fencepost.harness.scenario import Variant
from fencepost.harness.twins import (
    NOT_PASSED,
    Asked,
    Catch,
    SuiteReport,
    TwinReport,
    TwinSuite,
    clean,
    hunt,
    load_suites,
    suites_of,
    variants_of,
)

ORIGINAL = None
"""In the place of a twin's name: the queue itself."""


@dataclass(frozen=True)
class Hunted:
    catches: tuple[NamedCatch, ...]
    not_run: tuple[str, ...] = ()


@dataclass(frozen=True)
class NamedCatch:
    variant: str
    verdict: str
    broke: tuple[str, ...]
    step: int | None


def hunt_all(
    options: LabOptions,
    names: Sequence[str],
    *,
    jobs: int,
    thorough: bool,
    only: Sequence[str] = (),
    show: Callable[[str], None] = lambda name: None,
) -> list[SuiteReport]:
    """The queue and each of its twins is one piece of work; the reports are the same for any number of jobs.

    `only` these twins, or all of them. Where scenarios are named and no twins, each of them is tried on every twin.
    """
    asked = Asked(tuple(names), tuple(only))
    thorough = thorough or asked.of_scenarios
    suites = suites_of(only)
    variants = variants_of(names)
    context = multiprocessing.get_context("spawn")
    counter = context.Value("i", 0)
    with ProcessPoolExecutor(jobs, context, _open_lab, (options, counter)) as pool:
        pieces = {
            pool.submit(_hunt_piece, suite.original, twin, asked.names, thorough): (suite.original, twin)
            for suite in suites
            for twin in [ORIGINAL, *(twin.name for twin in suite.twins)]
        }
        found: dict[tuple[str, str | None], Hunted] = {}
        try:
            for piece in as_completed(pieces):
                original, twin = pieces[piece]
                found[original, twin] = piece.result()
                show(twin or original)
        except BaseException:  # a Ctrl-C too: the pool would hunt all the other twins before it lets go
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return [
        _report(
            suite,
            variants,
            asked,
            {twin: found[name, twin] for name, twin in found if name == suite.original},
        )
        for suite in suites
    ]


def _report(
    suite: TwinSuite, variants: Sequence[Variant], asked: Asked, found: dict[str | None, Hunted]
) -> SuiteReport:
    by_name = {variant.name: variant for variant in variants}

    def caught(hunted: Hunted) -> list[Catch]:
        return [
            Catch(by_name[catch.variant], NOT_PASSED[catch.verdict], catch.broke, catch.step)
            for catch in hunted.catches
        ]

    twins = [TwinReport(twin, caught(found[twin.name])) for twin in suite.twins]
    return SuiteReport(suite, variants, twins, caught(found[ORIGINAL]), found[ORIGINAL].not_run, asked)


# In the processes of the pool

_lab: Lab | None = None


def _open_lab(options: LabOptions, counter: Synchronized[int]) -> None:
    global _lab
    # The pool takes a KeyboardInterrupt for the result of a piece and goes on with the next one: a Ctrl-C ends
    # this process instead, and the keeper ends its servers.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    threading.Thread(target=_end_with_the_hunt, daemon=True).start()
    with counter.get_lock():
        os.environ[WORKER_VARIABLE] = str(counter.value)
        counter.value += 1
    _lab = Lab(options)


def _end_with_the_hunt() -> None:
    """A hunt that was killed cannot end its pool, and an orphan of a pool waits for work for ever."""
    hunt_process = multiprocessing.parent_process()
    assert hunt_process is not None, "only in the processes of the pool"
    wait([hunt_process.sentinel])
    os._exit(1)


def _hunt_piece(original: str, twin_name: str | None, names: tuple[str, ...], thorough: bool) -> Hunted:
    assert _lab is not None, "the pool opens it first"
    (suite,) = [suite for suite in load_suites() if suite.original == original]
    variants = variants_of(names)
    not_run: list[str] = []
    if twin_name is ORIGINAL:
        catches, not_run = clean(_lab, suite.original, variants)
    else:
        (twin,) = [twin for twin in suite.twins if twin.name == twin_name]
        catches = hunt(_lab, twin, variants, thorough=thorough).catches
    named = (NamedCatch(c.variant.name, c.verdict.value, c.broke, c.step) for c in catches)
    return Hunted(tuple(named), tuple(not_run))
