"""The state machine's profiles in Hypothesis's words."""

from __future__ import annotations

from pathlib import Path

import hypothesis
from hypothesis import Phase, settings
from hypothesis.database import DirectoryBasedExampleDatabase

from fencepost.harness.profiles import EXAMPLES, PROFILES, Profile

SETTINGS = settings(
    phases=[Phase.reuse, Phase.generate],  # shrinking is ours: `shrink_schedule.py`
    deadline=None,  # every step has a deadline of its own, and an example with a crash takes a second
    report_multiple_bugs=False,  # the first finding is shrunk and shown; the others are there after it is mended
    print_blob=False,  # the schedule is what replays it, on any version
)


def register_profiles() -> None:
    """So that Hypothesis knows the names; what they mean here stands in `PROFILES`."""
    for name, profile in PROFILES.items():
        if not hypothesis_knows(name):
            settings.register_profile(name, parent=SETTINGS, max_examples=profile.examples)


def hypothesis_knows(name: str) -> bool:
    try:
        settings.get_profile(name)
    except hypothesis.errors.InvalidArgument:
        return False
    return True


def settings_of(profile: Profile, root: Path, part: int) -> settings:
    """Each part keeps what it found to itself: another would begin with that, and find nothing else."""
    return settings(
        SETTINGS,
        max_examples=profile.examples,
        stateful_step_count=profile.steps,
        database=DirectoryBasedExampleDatabase(root / EXAMPLES / f"part-{part}"),
        suppress_health_check=(),
    )
