"""What rows do not show: when a lease ends, as its holder was told, and how a job ended whose row is gone."""

from __future__ import annotations

from typing import Any

import pytest

from fencepost.harness.adapter import UNSPECIFIED, Claim, JobId, JobState, JobView, Observation, Outcome
from fencepost.harness.endings import ended_as, says_why
from fencepost.harness.history import Call, Reply
from fencepost.harness.told_leases import EXPIRED_US, ToldLeases
from fencepost.tests.histories import ACCEPTED, STALE, UNKNOWN, US, History

NOW_US = 1_000 * US
TTL_S = 60.0
END_US = NOW_US + 60 * US
FIRST, SECOND = Claim("1", 1, END_US), Claim("1", 2, END_US + 70 * US)
NUMBERS = iter(range(1, 1_000_000))


def call(operation: str, *claims: Claim, reply: Reply, started_us: int = NOW_US, **arguments: Any) -> Call:
    return Call(
        next(NUMBERS),
        "A",
        "A",
        operation,
        {"ttl_s": TTL_S, **arguments},
        claims,
        1,
        started_us,
        started_us,
        reply=reply,
    )


def gives(claim: Claim) -> Call:
    return call("claim", reply=Reply(Outcome.ACCEPTED, claims=(claim,)))


def end_of(told: ToldLeases, token: int | None, state: JobState = JobState.LEASED) -> int | None:
    seen = Observation(NOW_US, (JobView("1", state, token=token),))
    return told.fill_in(seen).by_job["1"].lease_until_us


def test_a_lease_ends_as_its_claim_said() -> None:
    told = ToldLeases()
    assert end_of(told, 1) is None
    told.note(gives(FIRST), NOW_US)
    assert end_of(told, 1) == END_US
    assert end_of(told, 2) is None, "that is another lease, whose claim has not been answered"
    assert end_of(told, 1, JobState.READY) is None


def test_what_rows_show_stays() -> None:
    told = ToldLeases()
    told.note(gives(FIRST), NOW_US)
    seen = Observation(NOW_US, (JobView("1", JobState.LEASED, token=1, lease_until_us=5),))
    assert told.fill_in(seen) is seen


def test_an_accepted_heartbeat_moves_the_end() -> None:
    told = ToldLeases()
    told.note(gives(FIRST), NOW_US)
    beat = call("heartbeat", FIRST, reply=ACCEPTED)
    told.note(beat, NOW_US + 40 * US)
    told.note(beat, NOW_US + 50 * US)
    assert end_of(told, 1) == NOW_US + 100 * US, "counted once, from the look that followed it"


@pytest.mark.parametrize(
    ("beat", "at_us"),
    [
        (call("heartbeat", FIRST, reply=STALE), NOW_US),
        (call("heartbeat", FIRST, reply=ACCEPTED, started_us=END_US), END_US),
        (call("heartbeat", SECOND, reply=ACCEPTED), NOW_US),
    ],
    ids=["refused", "after the end", "of another lease"],
)
def test_no_other_heartbeat_does(beat: Call, at_us: int) -> None:
    told = ToldLeases()
    told.note(gives(FIRST), NOW_US)
    told.note(beat, at_us)
    assert end_of(told, 1) == END_US


def test_a_lease_rewritten_as_expired_is_over() -> None:
    told = ToldLeases()
    told.note(gives(FIRST), NOW_US)
    told.expired(FIRST)
    assert end_of(told, 1) == EXPIRED_US


def test_without_tokens_an_end_is_forgotten_with_its_lease() -> None:
    told = ToldLeases()
    first = Claim("1", None, END_US)
    told.note(gives(first), NOW_US)
    assert end_of(told, None) == END_US
    assert end_of(told, None, JobState.READY) is None
    assert end_of(told, None) is None, "whoever has it now has not been answered"


def test_without_tokens_a_claim_whose_answer_was_lost_may_be_what_rows_show() -> None:
    told = ToldLeases()
    told.note(gives(Claim("1", None, END_US)), NOW_US)
    told.note(call("claim", reply=UNKNOWN), END_US - 1)
    assert end_of(told, None) == END_US, "nobody could have had it"
    told.note(call("claim", reply=UNKNOWN), END_US)
    assert end_of(told, None) is None


# -- rows that are gone -----------------------------------------------------------------------------------


def gone_by(operation: str, reply: Reply, job: JobId = "1") -> History:
    history = History()
    history.put("1")
    history.do("P", "enqueue")
    history.drop("1")
    arguments = {"job": job} if operation == "cancel" else {}
    claims = () if operation == "cancel" else (Claim(job, 1),)
    history.do("A", operation, *claims, reply=reply, **arguments)
    return history


@pytest.mark.parametrize(
    ("operation", "state"),
    [("complete", JobState.SUCCEEDED), ("fail", JobState.FAILED), ("cancel", JobState.CANCELLED)],
)
def test_a_row_goes_with_what_ended_the_job(operation: str, state: JobState) -> None:
    assert ended_as(gone_by(operation, ACCEPTED).steps, "1") is state
    assert ended_as(gone_by(operation, UNKNOWN).steps, "1") is state


def test_a_row_that_nothing_ended_is_lost() -> None:
    assert ended_as(gone_by("complete", STALE).steps, "1") is None
    assert ended_as(gone_by("complete", ACCEPTED, job="2").steps, "1") is None
    assert ended_as(gone_by("cancel", ACCEPTED, job="2").steps, "1") is None
    assert ended_as(gone_by("claim", ACCEPTED).steps, "1") is None


def test_of_a_row_that_is_gone_a_queue_knows_no_reason() -> None:
    unknown_job = Reply(Outcome.REFUSED, reason="unknown_job")
    assert says_why(unknown_job, "token_mismatch", row_is_gone=True)
    assert not says_why(unknown_job, "token_mismatch", row_is_gone=False)
    assert not says_why(STALE, "not_leased", row_is_gone=True)
    assert says_why(Reply(Outcome.REFUSED, reason=UNSPECIFIED), "token_mismatch", row_is_gone=False)
