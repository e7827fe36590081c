"""Each witness sees what it names, and nothing that only looks like it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from fencepost.harness.adapter import Capability, Claim, JobState, Outcome
from fencepost.harness.errors import UsageError
from fencepost.harness.history import Execution, Reply
from fencepost.harness.scenario import scenario
from fencepost.harness.witness import (
    Witness,
    answered,
    came_after_the_end,
    came_due,
    came_long_after_its_claim,
    end_of_a_claim_passed,
    found_nothing,
    kept_past_its_claim,
    key_submitted,
    lease_expired,
    reaped,
    reclaimed,
    struck,
    time_passed,
    was_accepted,
    was_blocked,
    was_held,
    was_refused,
)
from fencepost.tests.histories import NOTHING, STALE, US, History

LEASE_S = 60
CLAIM = Claim("1", 1)
ERROR = Reply(Outcome.REFUSED, reason="42P01", error="42P01")

Told = Callable[[History], None]


def leased(history: History, *, until_s: int = LEASE_S) -> None:
    until_us = history.now_us + until_s * US
    history.put("1", state=JobState.LEASED, token=1, holder="A", lease_until_us=until_us)
    history.do("A", "claim", reply=Reply(Outcome.ACCEPTED, claims=(Claim("1", 1, until_us),)))


def leased_and(then: Told) -> Told:
    def tell(history: History) -> None:
        leased(history)
        then(history)

    return tell


def delayed_and(then: Told) -> Told:
    def tell(history: History) -> None:
        history.put("1", state=JobState.DELAYED, next_run_at_us=history.now_us + 100 * US)
        history.exit("P")
        then(history)

    return tell


def renewed(history: History) -> None:
    history.put("1", lease_until_us=history.now_us + 10 * LEASE_S * US)
    history.do("A", "heartbeat", CLAIM)


def renewed_and_moved(history: History) -> None:
    renewed(history)
    history.advance(LEASE_S + 1)


def finished(history: History) -> None:
    history.put("1", state=JobState.SUCCEEDED, lease_until_us=None)
    history.do("A", "complete", CLAIM)


def finished_and(then: Told) -> Told:
    def tell(history: History) -> None:
        leased(history)
        finished(history)
        then(history)

    return tell


def parked(actor: str, operation: str, checkpoint: str) -> Told:
    return lambda history: history.park(history.let_go(actor, operation), checkpoint)


def twice(then: Told) -> Told:
    def tell(history: History) -> None:
        then(history)
        then(history)

    return tell


SEEN: list[tuple[Witness, Told, Told]] = [
    (
        lease_expired,
        leased_and(lambda h: h.advance(LEASE_S + 1)),
        leased_and(lambda h: h.advance(LEASE_S - 5)),
    ),
    (
        lease_expired,
        leased_and(lambda h: h.advance(LEASE_S + 1)),
        finished_and(lambda h: h.advance(LEASE_S + 1)),
    ),
    (kept_past_its_claim, leased_and(renewed_and_moved), leased_and(lambda h: h.advance(LEASE_S + 1))),
    (kept_past_its_claim, leased_and(renewed_and_moved), leased_and(renewed)),
    (
        end_of_a_claim_passed,
        finished_and(lambda h: h.advance(LEASE_S + 1)),
        finished_and(lambda h: h.advance(LEASE_S - 5)),
    ),
    (time_passed(300), twice(lambda h: h.advance(150)), lambda h: h.advance(299)),
    (
        came_long_after_its_claim("A", "complete", 30),
        leased_and(lambda h: (h.advance(30), h.do("A", "complete", CLAIM))),  # type: ignore[func-returns-value]
        leased_and(lambda h: h.do("A", "complete", CLAIM)),
    ),
    (struck("restart", times=2), twice(lambda h: h.fault("restart")), lambda h: h.fault("restart")),
    (struck("restart"), lambda h: h.fault("restart"), lambda h: h.fault("cut")),
    (
        reaped("R", "S"),
        lambda h: h.do("S", "reap", reply=Reply(Outcome.ACCEPTED, count=1)),
        lambda h: h.do("S", "reap", reply=Reply(Outcome.ACCEPTED, count=0)),
    ),
    (
        reaped("R"),
        lambda h: h.do("R", "reap", reply=Reply(Outcome.ACCEPTED, count=1)),
        lambda h: h.do("Z", "reap", reply=Reply(Outcome.ACCEPTED, count=1)),
    ),
    (found_nothing("B"), lambda h: h.do("B", "claim", reply=NOTHING), leased),
    (
        found_nothing("B"),
        lambda h: h.do("B", "claim", reply=NOTHING),
        lambda h: h.do("B", "claim", reply=Reply(Outcome.ACCEPTED, claims=(CLAIM,))),
    ),
    (
        found_nothing("B"),
        lambda h: h.do("B", "claim", reply=NOTHING),
        lambda h: h.do("B", "claim", reply=ERROR),  # it did not look
    ),
    (
        was_blocked("A", "complete"),
        lambda h: h.block(h.let_go("A", "complete", CLAIM), "B"),
        lambda h: h.do("A", "complete", CLAIM),
    ),
    (
        was_blocked("A", "complete"),
        lambda h: h.block(h.let_go("A", "complete", CLAIM), "B"),
        lambda h: h.block(h.let_go("A", "fail", CLAIM), "B"),
    ),
    (
        was_held("A", "complete", "after_guard"),
        parked("A", "complete", "after_guard"),
        parked("A", "complete", "before_lock"),
    ),
    (
        was_held("A", "complete"),
        parked("A", "complete", "before_lock"),
        parked("B", "complete", "before_lock"),
    ),
    (
        was_refused("A", "complete", "token_mismatch"),
        lambda h: h.do("A", "complete", CLAIM, reply=STALE),
        lambda h: h.do("A", "complete", CLAIM, reply=ERROR),
    ),
    (
        was_refused("A", "complete_batch", "token_mismatch"),
        lambda h: h.do("A", "complete_batch", CLAIM, reply=Reply(Outcome.ACCEPTED, items=(STALE,))),
        lambda h: h.do("A", "complete_batch", CLAIM, reply=Reply(Outcome.ACCEPTED, items=(NOTHING,))),
    ),
    (
        answered("A", "complete", times=2),
        twice(lambda h: h.do("A", "complete", CLAIM, reply=STALE)),
        lambda h: h.do("A", "complete", CLAIM),
    ),
    (answered("A", "claim"), leased, parked("A", "claim", "after_claim")),
    (
        was_accepted("A", "fail", times=2),
        twice(lambda h: h.do("A", "fail", CLAIM)),
        twice(lambda h: h.do("A", "fail", CLAIM, reply=STALE)),
    ),
    (came_due, delayed_and(lambda h: h.advance(101)), delayed_and(lambda h: h.advance(90))),
    (
        key_submitted("k"),
        twice(lambda h: h.do("P", "enqueue", key="k")),
        lambda h: (h.do("P", "enqueue", key="k"), h.do("P", "enqueue", key="l")),  # type: ignore[func-returns-value]
    ),
    (
        came_after_the_end("A", "fail"),
        finished_and(lambda h: h.do("A", "fail", CLAIM, reply=STALE)),
        leased_and(lambda h: h.do("A", "fail", CLAIM, reply=STALE)),
    ),
    (
        came_after_the_end("A", "fail"),
        finished_and(lambda h: h.do("A", "fail", CLAIM, reply=STALE)),
        finished_and(lambda h: h.do("A", "heartbeat", CLAIM, reply=STALE)),
    ),
]


@pytest.mark.parametrize(("witness", "happened", "not_quite"), SEEN, ids=lambda v: getattr(v, "sentence", ""))
def test_a_witness_sees_what_it_names_and_nothing_like_it(
    witness: Witness, happened: Told, not_quite: Told
) -> None:
    history = History()
    happened(history)
    assert witness.seen(history.steps, [])

    history = History()
    not_quite(history)
    assert not witness.seen(history.steps, [])


def test_a_reclaim_is_a_second_execution_of_one_job() -> None:
    first = Execution(1, "A", "1", 1)
    assert not reclaimed.seen([], [first, Execution(2, "B", "2", 1)])
    assert reclaimed.seen([], [first, Execution(2, "B", "1", 2)])


def test_a_witness_can_be_asked_of_some_variants_and_of_the_race_or_its_control_only() -> None:
    chosen = {"by": "reaper", "order": "first"}
    assert lease_expired.where(by="reaper").is_asked(control=False, chosen=chosen)
    assert not lease_expired.where(by="claim").is_asked(control=False, chosen=chosen)
    assert not lease_expired.where(by="reaper").of_the_race().is_asked(control=True, chosen=chosen)
    assert not lease_expired.of_the_control().is_asked(control=False, chosen=chosen)
    assert lease_expired.of_the_control().is_asked(control=True, chosen=chosen)


def test_a_witness_of_a_variant_that_does_not_exist_is_refused() -> None:
    """It would never be asked: the scenario could pass without it."""
    with pytest.raises(UsageError, match="only where by is 'reeper'"):
        scenario(
            requires={Capability.FENCING},
            witnesses=[lease_expired.where(by="reeper")],
            each={"by": ("reaper", "claim")},
        )
