"""Writes docs/figures/machine.json from what the last `make quality` found."""

from __future__ import annotations

import json
from pathlib import Path

from fencepost.docs.twin_figures import Figures
from fencepost.harness.profiles import CI_SEED, PROFILES

FOUND = Path(__file__).resolve().parents[2] / ".fencepost" / "quality"


def main() -> None:
    found = [json.loads(path.read_text()) for path in sorted(FOUND.glob("*.json"))]
    ci = PROFILES["ci"]
    Figures(
        command="make quality",
        says=(
            "The state machine with the budget of the profile `ci` "
            f"({ci.examples} examples in each of two parts, seeds {CI_SEED + 1} and {CI_SEED + 2}), asked for the "
            "invariant the twin names: the number of the example that first showed it, and the steps that are left of "
            "that example when it is shrunk."
        ),
        columns={"examples": "state machine: examples", "steps": "steps of the shrunk one"},
        listed={"schedule": "The shrunk counterexamples of the state machine"},
        twins={told["twin"]: {key: told[key] for key in ("examples", "steps", "schedule")} for told in found},
    ).write("machine")


if __name__ == "__main__":
    main()
