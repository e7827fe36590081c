"""The state machine in pytest's output: its seed before the search, and what every xdist worker did after it.

Imports no Hypothesis: it is there in every run of pytest.
"""

from __future__ import annotations

import contextlib
from typing import Any

import pytest

from fencepost.harness.errors import UsageError
from fencepost.harness.profiles import DEFAULT, PROFILES, base_seed, profile_named

MARKER = "invariants"
PROPERTY = "fencepost_invariants"
PROFILE, SEED = "--hypothesis-profile", "--hypothesis-seed"

_seed_key = pytest.StashKey[int]()
_SEED_INPUT = "fencepost_seed"
"""Where an xdist worker finds the seed its controller has chosen and told."""


def seed_of_run(config: pytest.Config) -> int:
    """One for all parts and workers: the one given, the profile's own, or a new one."""
    if _seed_key not in config.stash:
        worker = getattr(config, "workerinput", {})
        if _SEED_INPUT in worker:
            config.stash[_seed_key] = worker[_SEED_INPUT]
        else:
            profile = profile_named(config.getoption(PROFILE, None))
            config.stash[_seed_key] = base_seed(profile, config.getoption(SEED, None))
    return config.stash[_seed_key]


class MachineReport:
    """Tells the seed before the search, which may be stopped, and what every xdist worker did after it."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._lines: list[str] = []

    def pytest_report_header(self, config: pytest.Config) -> list[str]:
        profile = config.getoption(PROFILE, None)
        if MARKER not in (config.option.markexpr or "") and profile not in PROFILES:
            return []
        with contextlib.suppress(UsageError):  # said once it is known that the state machine is to run
            return [f"fencepost: {MARKER}: profile {profile or DEFAULT}, seed {seed_of_run(config)}"]
        return []

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        with contextlib.suppress(UsageError):  # the same
            node.workerinput[_SEED_INPUT] = seed_of_run(self._config)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call":
            self._lines += [str(value) for name, value in report.user_properties if name == PROPERTY]

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        for line in self._lines:
            terminalreporter.line(f"fencepost: {line}")
