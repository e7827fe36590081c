"""How long the state machine looks: `--hypothesis-profile quick|ci|deep`."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from pathlib import Path

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


def profile_named(name: str | None) -> Profile:
    if name is None:
        return PROFILES[DEFAULT]
    if name not in PROFILES:
        raise UsageError(f"--hypothesis-profile {name}: the state machine knows {', '.join(PROFILES)}.")
    return PROFILES[name]


def base_seed(profile: Profile, given: str | None) -> int:
    """The one given, the profile's own, or a new one. Part n searches with the n-th after it."""
    if given is None:
        return profile.seed if profile.seed is not None else secrets.randbelow(2**32)
    if not given.isascii() or not given.isdigit():
        raise UsageError(f"--hypothesis-seed {given}: the state machine takes a whole number from 0 on.")
    return int(given)
