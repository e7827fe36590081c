"""Blocked is a state: it is seen in the server, ends when another step frees it, and leaves one order in the trace."""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

import pytest

from fencepost.harness.actors.base import Actor
from fencepost.harness.actors.messages import Request, Seat
from fencepost.harness.adapter import Outcome
from fencepost.harness.bench import Bench, Run
from fencepost.harness.control import Control
from fencepost.harness.history import Call, CallStatus, Reply
from fencepost.harness.lab import Lab, LabOptions
from fencepost.harness.loading import load_queue
from fencepost.harness.scenario import Scenario
from fencepost.harness.settling import InFlight, Settler, has_cycle
from fencepost.harness.trace import canonical
from fencepost.harness.verdict import Verdict
from fencepost.tests import blocked_scenarios as races


@pytest.fixture(scope="module", params=["thread", "process"])
def bench(request: pytest.FixtureRequest) -> Iterator[Bench]:
    with Lab(LabOptions(actors=request.param)) as lab:
        yield lab.bench(load_queue("reference"))


def run(bench: Bench, wanted: Scenario) -> Run:
    return bench.run(next(wanted.variants()))


def test_one_step_frees_two_and_they_are_recorded_in_actor_order(bench: Bench) -> None:
    runs = [run(bench, races.one_step_frees_two) for _ in range(10)]
    assert {r.judgement.verdict for r in runs} == {Verdict.PASS}, runs[0].judgement
    freed = [(step["actor"], step["status"]) for step in runs[0].trace.steps if step["kind"] == "freed"]
    assert freed == [("A", "answered"), ("C", "answered")]
    blocked = [(s["actor"], s["blocked_by"]) for s in runs[0].trace.steps if s.get("status") == "blocked"]
    assert blocked[0] == ("C", ["B"])
    assert blocked[1][0] == "A"
    assert len({canonical(r.trace) for r in runs}) == 1


def test_a_blocked_step_shows_the_locks_held_and_waited_for(bench: Bench) -> None:
    steps = run(bench, races.one_step_frees_two).trace.steps
    blocked = next(step for step in steps if step.get("status") == "blocked")
    waited_for = [lock for lock in blocked["locks"] if not lock["granted"]]
    assert [(lock["actor"], lock["type"]) for lock in waited_for] == [("C", "transactionid")]
    assert {"actor": "B", "type": "transactionid", "mode": "ExclusiveLock", "granted": True} in blocked[
        "locks"
    ]
    assert {lock["relation"] for lock in blocked["locks"] if "relation" in lock} <= {"jobs", "ledger"}
    assert not [step["n"] for step in steps if step.get("status") != "blocked" and "locks" in step]


def test_a_freed_step_can_be_held_further_on(bench: Bench) -> None:
    result = run(bench, races.freed_and_then_held)
    assert result.judgement.verdict is Verdict.PASS, result.judgement
    (freed,) = [step for step in result.trace.steps if step["kind"] == "freed"]
    assert (freed["actor"], freed["status"], freed["checkpoint"]) == ("B", "parked", "after_lock")


def test_what_a_scenario_leaves_in_flight_is_brought_to_its_end(bench: Bench) -> None:
    result = run(bench, races.left_in_flight)
    drained = [(s["actor"], s["status"]) for s in result.trace.steps if s.get("drain") and "status" in s]
    assert drained == [("A", "answered"), ("B", "answered")]
    assert result.facts.drained
    # B's cancel answered only in the drain, which proves nothing about the race.
    assert result.judgement.verdict is Verdict.INCONCLUSIVE
    assert "B was in the schedule and never ran" in result.judgement.reasons


def test_a_hold_that_is_never_reached_is_inconclusive_and_leaves_no_lock(bench: Bench) -> None:
    for _ in range(2):
        result = run(bench, races.held_where_it_never_comes)
        assert result.judgement.verdict is Verdict.INCONCLUSIVE
        assert (
            "A was to be held in complete at no_such_place and never came there" in result.judgement.reasons
        )


def test_an_actor_does_one_thing_at_a_time(bench: Bench) -> None:
    result = run(bench, races.two_at_once)
    assert "A is still in complete: an actor does one thing at a time" in result.judgement.reasons


@pytest.mark.parametrize(
    ("waits", "cycle"),
    [
        ({}, False),
        ({"A": frozenset({"B"})}, False),
        ({"A": frozenset({"B"}), "B": frozenset({"C"})}, False),
        ({"A": frozenset({"B"}), "B": frozenset({"A"})}, True),
        ({"A": frozenset({"B"}), "B": frozenset({"C"}), "C": frozenset({"B"})}, True),
        ({"A": frozenset({"A"})}, True),
    ],
)
def test_a_cycle_of_waits_is_no_resting_state(waits: dict[str, frozenset[str]], cycle: bool) -> None:
    assert has_cycle(waits) is cycle


class AnswersAfter(Actor):
    """Answers at the last of so many looks."""

    def __init__(self, name: str, looks: int) -> None:
        super().__init__(Seat(name, name, "", "", ""))
        self._looks = looks

    def submit(self, request: Request) -> None: ...

    def poll(self, timeout_s: float) -> Reply | None:
        self._looks -= 1
        return Reply(Outcome.REFUSED, reason="40P01") if self._looks <= 0 else None

    @property
    def answer_fd(self) -> int:
        raise NotImplementedError("only a gate asks for it")

    def close(self) -> None: ...

    def abandon(self) -> None: ...


def settled(waits: dict[str, frozenset[str]], *actors: AnswersAfter) -> list[CallStatus | None]:
    flights = [InFlight(Call(1, a.seat.actor, a.seat.actor, "complete", {}, (), 1, 0, 0), a) for a in actors]
    Settler(cast(Control, None), lambda: waits, lambda: "", lambda flight: False).settle(flights)
    return [flight.status for flight in flights]


def test_who_waits_in_a_cycle_is_waited_for() -> None:
    """The server's deadlock detector ends one of them."""
    cycle = {"A": frozenset("B"), "B": frozenset("A")}
    assert settled(cycle, AnswersAfter("A", 3), AnswersAfter("B", 3)) == [CallStatus.ANSWERED] * 2


def test_an_answer_that_came_while_the_server_was_asked_is_seen() -> None:
    assert settled({"A": frozenset("B")}, AnswersAfter("A", 2)) == [CallStatus.ANSWERED]
    assert settled({"A": frozenset("B")}, AnswersAfter("A", 99)) == [CallStatus.BLOCKED]
