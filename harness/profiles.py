"""How long the state machine looks: `--hypothesis-profile quick|ci|deep`."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from pathlib import Path

import hypothesis
from hypothesis import Phase, settings
from hypothesis.database import DirectoryBasedExampleDatabase

from fencepost.harness.errors import UsageError

EXAMPLES = Path(".fencepost/examples")
"""What failed is kept there, so that the next run begins with it."""

CI_SEED = 5
"""The same examples in every run of `ci`, so that a build does not fail by chance. They are many enough to find every
twin; another seed is another search: `--hypothesis-seed`."""


@dataclass(frozen=True, slots=True)
class Profile:
    examples: int  # of one part
    steps: int  # of one example
    seed: int | None = None  # None: a new one for every run, printed


PROFILES = {
    "quick": Profile(examples=25, steps=15),
    "ci": Profile(examples=1_500, steps=25, seed=CI_SEED),
    "deep": Profile(examples=50_000, steps=40),
}
DEFAULT = "quick"

SETTINGS = settings(
    phases=[Phase.reuse, Phase.generate],  # shrinking is ours: `shrink_schedule.py`
    deadline=None,  # every step has a deadline of its own, and an example with a crash takes a second
    report_multiple_bugs=False,  # the first finding is shrunk and shown; the others are there after it is mended
    print_blob=False,  # the schedule is what replays it, on any version
)


def register_profiles() -> None:
    """So that Hypothesis knows the names; what they mean here stands in `PROFILES`."""
    for name, profile in PROFILES.items():
        try:
            settings.get_profile(name)
        except hypothesis.errors.InvalidArgument:
            settings.register_profile(name, parent=SETTINGS, max_examples=profile.examples)


def profile_named(name: str | None) -> Profile:
    if name is None:
        return PROFILES[DEFAULT]
    if name not in PROFILES:
        raise UsageError(f"--hypothesis-profile {name}: the state machine knows {', '.join(PROFILES)}.")
    return PROFILES[name]


def settings_of(profile: Profile, root: Path) -> settings:
    return settings(
        SETTINGS,
        max_examples=profile.examples,
        stateful_step_count=profile.steps,
        database=DirectoryBasedExampleDatabase(root / EXAMPLES),
        suppress_health_check=(),
    )


def seed_of(profile: Profile, given: str | None, part: int) -> int:
    """The one given, the profile's own, or a new one; another for each part."""
    if given is not None:
        return int(given) + part
    return (profile.seed if profile.seed is not None else secrets.randbelow(2**32)) + part
