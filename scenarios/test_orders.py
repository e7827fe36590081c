"""Operations whose every order of statements is tried, not the one a scenario tells: `@explore`.

To copy: the operations and the faults are all that is given, and the invariants say what must hold. What fails is
shrunk, and the text to run it again with is printed.
"""

from __future__ import annotations

from fencepost.harness.explore.marked import explore
from fencepost.harness.explore.result import Result


@explore("A:claim B:claim", strategy="pct", budget=100)
def test_two_claims_of_one_job(result: Result) -> None:
    """One job, two workers: one of them gets it, whoever is faster and wherever."""
    assert result.tally.runs == 100


@explore("A:claim,complete C:cancel", strategy="pct", budget=100)
def test_a_cancel_while_a_worker_completes(result: Result) -> None:
    """A job is completed or cancelled, and stays what it became."""
    ends = {str(outcome.state) for outcome in result.tally.outcomes}
    assert any("succeeded" in end for end in ends) and any("cancelled" in end for end in ends)


@explore("A:claim,complete B:claim,complete", faults="expire", strategy="pct", budget=100)
def test_two_workers_and_a_lease_that_ends(result: Result) -> None:
    """Whoever loses the job to another completes it no more. The orders are too many: a hundred of them are drawn."""
    assert result.tally.runs == 100
