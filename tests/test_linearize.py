"""The search for an explanation: small histories told by hand, and ten thousand against brute force."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from dataclasses import replace

import pytest

from fencepost.harness.adapter import Outcome
from fencepost.harness.lease_job import FAILED, LEASED, SUCCEEDED, WAITING, JobNow, LeaseJob
from fencepost.harness.linearize import BudgetSpent, Operation, Unexplained, check, check_job
from fencepost.tests.random_histories import random_history

ACCEPTED, REFUSED, UNKNOWN = Outcome.ACCEPTED, Outcome.REFUSED, Outcome.UNKNOWN
SPEC = LeaseJob()
S = 1_000_000


class Told:
    """A history told call by call: each has the next two positions, and a second of database time."""

    def __init__(self) -> None:
        self.operations: list[Operation] = []
        self.position = 0
        self.now_us = 0

    def call(self, name: str, outcome: Outcome = ACCEPTED, **told: object) -> Told:
        first = self.position
        self.position += 2
        self.now_us += S
        answered = None if outcome is UNKNOWN else first + 1
        made = Operation(
            "1", name, first, answered, outcome, earliest_us=self.now_us - S, latest_us=self.now_us
        )
        self.operations.append(replace(made, **told))
        return self

    def later(self, seconds: int) -> Told:
        self.now_us += seconds * S
        return self

    def verdict(self) -> Unexplained | None:
        return check(self.operations, SPEC)


def leased() -> Told:
    return Told().call("enqueue", max_attempts=3).call("claim", token=1, ttl_us=30 * S)


def test_a_plain_life_is_explained() -> None:
    assert leased().call("heartbeat", token=1, ttl_us=30 * S).call("complete", token=1).verdict() is None


def test_two_completes_are_not() -> None:
    told = leased().call("complete", token=1).call("complete", token=1)
    found = told.verdict()
    assert found is not None
    assert found.operation is told.operations[-1]
    assert "no order of the calls on job 1 explains" in str(found)


def test_the_repetition_of_a_complete_is_one_of_an_answer() -> None:
    assert leased().call("complete", token=1).call("complete", token=1, repeated=True).verdict() is None
    assert leased().call("complete", token=1, repeated=True).verdict() is not None
    assert leased().call("complete", token=1).call("complete", REFUSED, token=1).verdict() is not None


@pytest.mark.parametrize("outcome", [ACCEPTED, REFUSED])
def test_a_lost_complete_may_have_happened_or_not(outcome: Outcome) -> None:
    """Its retry is accepted anew, as a repetition, or refused once the lease is over."""
    assert leased().call("complete", UNKNOWN, token=1).call("complete", token=1).verdict() is None
    assert (
        leased().call("complete", UNKNOWN, token=1).call("complete", token=1, repeated=True).verdict() is None
    )
    late = leased().call("complete", UNKNOWN, token=1).later(60).call("complete", outcome, token=1)
    assert (late.verdict() is None) is (outcome is REFUSED)


def test_a_lost_complete_happens_once_at_most() -> None:
    lost = leased().call("complete", UNKNOWN, token=1)
    assert lost.call("read", phase=SUCCEEDED, token=1, entries=1).verdict() is None
    assert lost.call("read", phase=SUCCEEDED, token=1, entries=2).verdict() is not None


def test_a_job_that_was_seen_done_is_not_claimed_again() -> None:
    told = leased().call("complete", UNKNOWN, token=1).later(60)
    assert told.call("claim", token=2).verdict() is None
    seen = leased().call("complete", UNKNOWN, token=1).call("read", phase=SUCCEEDED, token=1).later(60)
    assert seen.call("claim", token=2).verdict() is not None


def test_a_lost_claim_is_a_lease_nobody_knows_of() -> None:
    lost = Told().call("enqueue", max_attempts=3).call("claim", UNKNOWN, ttl_us=30 * S)
    assert lost.call("claim", token=1).verdict() is None, "the lost one never happened"
    lost = Told().call("enqueue", max_attempts=3).call("claim", UNKNOWN, ttl_us=30 * S)
    seen = lost.call("read", phase=LEASED, token=1, attempts=1)
    assert seen.verdict() is None
    assert seen.call("claim", token=2).verdict() is not None, "the lease is live"
    expired = Told().call("enqueue", max_attempts=3).call("claim", UNKNOWN, ttl_us=30 * S)
    expired.call("read", phase=LEASED, token=1, attempts=1).later(60)
    assert expired.call("claim", token=2).verdict() is None


def test_time_decides_a_lease() -> None:
    assert leased().later(60).call("complete", token=1).verdict() is not None
    assert leased().call("complete", REFUSED, token=1).verdict() is not None
    assert leased().later(60).call("complete", REFUSED, token=1).verdict() is None


def test_the_last_attempt_ends_the_job() -> None:
    last = Told().call("enqueue", max_attempts=1).call("claim", token=1, ttl_us=30 * S).call("fail", token=1)
    assert replace_last(last, phase=FAILED).verdict() is None
    assert replace_last(last, phase=WAITING).verdict() is not None


def replace_last(told: Told, *, phase: str) -> Told:
    again = Told()
    again.operations, again.position, again.now_us = list(told.operations), told.position, told.now_us
    return again.call("read", phase=phase, token=1)


def test_calls_at_the_same_time_may_have_happened_in_either_order() -> None:
    told = leased()
    cancel = Operation("1", "cancel", 4, 7, latest_us=5 * S)
    complete = Operation("1", "complete", 5, 6, REFUSED, token=1, latest_us=5 * S)
    assert check([*told.operations, cancel, complete], SPEC) is None
    one_after_another = replace(cancel, started=7, answered=8)
    assert check([*told.operations, one_after_another, complete], SPEC) is not None


def test_the_earliest_of_several_jobs_is_told() -> None:
    wrong_late = leased().call("complete", token=1).call("complete", token=1)
    wrong_early = [Operation("2", "claim", 0, 1, token=1)]
    found = check([*wrong_late.operations, *wrong_early], SPEC)
    assert found is not None
    assert found.job == "2"


def test_a_search_has_a_budget() -> None:
    told = leased()
    for _ in range(20):
        told.call("heartbeat", UNKNOWN, token=1, ttl_us=30 * S)
    with pytest.raises(BudgetSpent, match="given up after 10 configurations"):
        check(told.call("complete", token=1).operations, SPEC, budget=10)


def brute_force(history: list[Operation]) -> bool:
    """Every subset of the optional calls, every permutation, by the definition."""
    required = [op for op in history if not op.is_optional]
    optional = [op for op in history if op.is_optional]
    return any(
        _some_order([*required, *chosen])
        for count in range(len(optional) + 1)
        for chosen in itertools.combinations(optional, count)
    )


def _some_order(chosen: list[Operation]) -> bool:
    return any(_respects_time(order) and _ends(order) for order in itertools.permutations(chosen))


def _respects_time(order: tuple[Operation, ...]) -> bool:
    return all(
        later.is_optional or later.answered is None or later.answered > earlier.started
        for earlier, later in itertools.combinations(order, 2)
    )


def _ends(order: tuple[Operation, ...]) -> bool:
    states: set[JobNow] = {SPEC.initial()}
    for op in order:
        states = {after for state in states for after in SPEC.apply(state, op)}
    return bool(states)


def smallest_prefix(history: list[Operation]) -> int | None:
    for position in sorted(op.answered for op in history if op.answered is not None and not op.is_optional):
        prefix = [
            op
            if op.answered is not None and op.answered <= position
            else replace(op, answered=None, outcome=UNKNOWN, latest_us=None, repeated=False)
            for op in history
            if op.started <= position
        ]
        if not brute_force(prefix):
            return position
    return None


@pytest.mark.parametrize("part", range(4))
def test_it_agrees_with_brute_force(part: int) -> None:
    """Ten thousand histories in four parts; each kind of verdict and of answer comes up often."""
    kinds: Counter[str] = Counter()
    for number in range(2500):
        chance = random.Random(part * 1_000_000 + number)
        history = random_history(chance, calls=chance.choice((2, 3, 4, 4)))
        found = check_job(history, SPEC)
        expected = smallest_prefix(history)
        assert (found.answered if found else None) == expected, [str(op) for op in history]
        kinds["explained" if found is None else "unexplained"] += 1
        kinds["with unknown answers"] += any(op.is_optional for op in history)
        kinds["overlapping"] += any(
            a.answered is not None and b.started < a.answered
            for a, b in itertools.combinations(sorted(history, key=lambda op: op.started), 2)
        )
        kinds["unexplained in the middle"] += found is not None and expected != max(
            op.answered for op in history if op.answered is not None
        )
    assert all(kinds[kind] > 100 for kind in kinds), kinds
    assert len(kinds) == 5


def test_items_of_one_batch_on_one_job_are_answered_together() -> None:
    told = leased().call("complete", token=1).call("complete", token=1)
    first, second = told.operations[-2:]
    told.operations[-1] = replace(second, started=first.started, answered=first.answered)
    found = told.verdict()
    assert found is not None
    assert found.answered == first.answered
