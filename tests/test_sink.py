"""The outside system that workers act on, asked as they ask it: over HTTP."""

from __future__ import annotations

import pytest

from fencepost.harness.adapter import Claim, Outcome
from fencepost.harness.history import Reply
from fencepost.harness.sink import Effect, Sink, call_sink

REFUSED = Reply(Outcome.REFUSED, reason="stale_token", current_token=2)


def ask(sink: Sink, worker: str, token: int | None, job: str = "1") -> Reply:
    return call_sink(sink.url, worker, Claim(job, token))


def test_a_token_lower_than_one_seen_is_refused() -> None:
    with Sink(checks_tokens=True) as sink:
        assert ask(sink, "B", 2).accepted
        assert ask(sink, "A", 1) == REFUSED
    assert sink.effects == [Effect("1", 2, "B")]


def test_the_same_token_may_act_again() -> None:
    with Sink(checks_tokens=True) as sink:
        assert ask(sink, "A", 1).accepted
        assert ask(sink, "A", 1).accepted
    assert len(sink.effects) == 2


def test_tokens_are_compared_within_one_job() -> None:
    with Sink(checks_tokens=True) as sink:
        assert ask(sink, "B", 2, job="1").accepted
        assert ask(sink, "A", 1, job="2").accepted


def test_a_refused_token_does_not_count_as_seen() -> None:
    with Sink(checks_tokens=True) as sink:
        ask(sink, "B", 2)
        ask(sink, "A", 1)
        assert ask(sink, "B", 2).accepted


def test_without_a_check_every_call_has_its_effect() -> None:
    with Sink(checks_tokens=False) as sink:
        assert ask(sink, "B", 2).accepted
        assert ask(sink, "A", 1).accepted
    assert [effect.worker for effect in sink.effects] == ["B", "A"]


@pytest.mark.parametrize("checks_tokens", [True, False])
def test_a_queue_without_tokens_is_not_refused(checks_tokens: bool) -> None:
    with Sink(checks_tokens=checks_tokens) as sink:
        assert ask(sink, "A", None).accepted
        assert ask(sink, "B", None).accepted


def test_its_port_is_closed_when_it_is_left() -> None:
    with Sink(checks_tokens=True) as sink:
        url = sink.url
    with pytest.raises(ConnectionRefusedError):
        call_sink(url, "A", Claim("1", 1))
