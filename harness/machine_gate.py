"""The state machine in pytest: what its options may be, and one part of its search."""

from __future__ import annotations

from pathlib import Path

import pytest

from fencepost.harness.bench import OPERATION
from fencepost.harness.errors import UsageError
from fencepost.harness.known import Ran
from fencepost.harness.known_report import (
    known_key,
    machine_variant,
    nameable_key,
    note_for_known,
    what_search_held,
)
from fencepost.harness.lab import Lab
from fencepost.harness.loading import LoadedQueue
from fencepost.harness.machine_example import NAME
from fencepost.harness.machine_report import PROFILE, PROPERTY, seed_of_run
from fencepost.harness.machine_run import Looked, look
from fencepost.harness.machine_settings import hypothesis_knows, register_profiles, settings_of
from fencepost.harness.profiles import DEFAULT, PROFILES, profile_named


def check_profile(name: str) -> None:
    """Before Hypothesis looks for the profile it was given."""
    register_profiles()
    if not hypothesis_knows(name):
        raise pytest.UsageError(f"{PROFILE} {name}: the state machine knows {', '.join(PROFILES)}.")


def check_gate(config: pytest.Config) -> None:
    """Raises UsageError where an option cannot be meant for the state machine. Asked only where it is to run."""
    profile_named(config.getoption(PROFILE, None))
    seed_of_run(config)
    step = config.getoption("--step")
    if step != OPERATION:
        raise UsageError(
            f"--step {step}: the state machine holds operations at single statements by itself; leave the option out."
        )


def look_in_part(item: pytest.Item, part: int, loaded: LoadedQueue, lab: Lab, trace_path: Path) -> Looked:
    """One part of the search, noted with the test for all who report it."""
    config = item.config
    known = config.stash[known_key]
    variant = machine_variant(item)
    name = config.getoption(PROFILE, None) or DEFAULT
    seed = seed_of_run(config)
    looked = look(
        lab,
        loaded,
        settings_of(profile_named(name), config.rootpath, part),
        seed + part,
        trace_path=trace_path,
        known=[entry.invariant for entry in known.speaking_of(variant, loaded.names)],
    )
    told = f"{NAME} on queue '{loaded.queue.name}', part {part}, profile {name}, seed {seed}"
    item.user_properties.append((PROPERTY, f"{told}: {looked.tally}"))
    missing = looked.tally.missing(lab.bench(loaded))
    through = looked.found is None and looked.proved_nothing is None
    if known.known:
        held = what_search_held(looked.tally) if through and not missing else frozenset()
        parts = config.stash[nameable_key].variants.get(NAME, ())
        note_for_known(item, Ran(variant, frozenset({variant, *parts}), loaded.names, held))
    if through and missing:
        pytest.fail(f"{told} proved nothing: {'; '.join(missing)}", pytrace=False)
    return looked
