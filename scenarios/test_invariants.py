"""The gate: Hypothesis makes up orders of operations, holds, clock moves and faults, on any adapter.

pytest scenarios/ -m invariants --hypothesis-profile quick|ci|deep [--hypothesis-seed N] [--queue MODULE:NAME]
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from fencepost.harness.machine_run import Looked

PARTS = (1, 2)
"""Two, so that two xdist workers have something to do; each is a search of its own."""


@pytest.mark.invariants
@pytest.mark.parametrize("part", PARTS)
def test_invariants(look_for_violations: Callable[[int], Looked], part: int) -> None:
    looked = look_for_violations(part)
    if looked.found is not None:
        pytest.fail(str(looked.found), pytrace=False)
    if looked.proved_nothing is not None:
        pytest.fail(str(looked.proved_nothing), pytrace=False)
