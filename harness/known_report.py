"""Known failures in pytest: what the session collected that they can name, and what is said of them at its end."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import TYPE_CHECKING, Any

import pytest

from fencepost.harness.explore.marked import exploration_of
from fencepost.harness.known import EXPECTATION, OUTDATED, Baseline, KnownFailure, Ran
from fencepost.harness.known_names import Nameable, of_machine
from fencepost.harness.scenario import Scenario

if TYPE_CHECKING:
    from fencepost.harness.machine_tally import Tally

PROPERTY = "fencepost_known"

known_key = pytest.StashKey[Baseline]()
nameable_key = pytest.StashKey[Nameable]()


def note_for_known(item: pytest.Item, ran: Ran) -> None:
    """Tells the controller, where an entry speaks of this run."""
    if item.config.stash[known_key].speaking_of(ran.variant, ran.queue):
        item.user_properties.append((PROPERTY, ran.as_json()))


def expect_known(entries: Sequence[KnownFailure]) -> None:
    """Ends a test whose every finding is known."""
    if entries:
        pytest.xfail("known: " + "; ".join(f"{entry.invariant} ({entry.reason})" for entry in entries))


def what_search_held(tally: Tally) -> frozenset[str]:
    """What a search that is through looked for and did not meet."""
    looked_for = {name for name, count in tally.evaluated.items() if count} | {EXPECTATION}
    return frozenset(looked_for - tally.known.keys())


def machine_variant(item: pytest.Item) -> str:
    """A part of the search as a variant of the state machine: `invariants[1]` of `test_invariants[1]`."""
    _, bracket, part = item.name.partition("[")
    return f"{of_machine()}{bracket}{part}"


class Collected:
    """Sees all that a collected file holds, before anything is deselected. Lives where tests are collected."""

    def __init__(self) -> None:
        self.nameable = Nameable()

    @pytest.hookimpl(wrapper=True)
    def pytest_pycollect_makeitem(self, name: str, obj: object) -> Generator[None, Any, Any]:
        made = yield
        if isinstance(obj, Scenario):
            self.nameable.add_scenario(obj)
        elif exploration_of(obj) is not None:
            self.nameable.add_exploration(name)
        else:
            items = made if isinstance(made, list) else [made]
            parts = [
                machine_variant(item)
                for item in items
                if isinstance(item, pytest.Item) and item.get_closest_marker("invariants")
            ]
            if parts:
                self.nameable.add_machine(parts)
        return made


class KnownReport:
    """Lives in the controller, to which every xdist worker's test reports come."""

    def __init__(self, baseline: Baseline) -> None:
        self._baseline = baseline

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        for name, value in report.user_properties:
            if report.when == "call" and name == PROPERTY and isinstance(value, str):
                self._baseline.note(Ran.from_json(value))

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        gone = self._baseline.gone
        if not gone:
            return
        terminalreporter.section("known failures that are gone", sep="=", green=True)
        for entry in gone:
            terminalreporter.line(f"gone: {entry}")
        terminalreporter.line(OUTDATED)
