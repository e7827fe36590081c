"""Clocks of actors, session time zones, and a database clock that is set back: what holds, and what is refused."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from fencepost.harness.actors.base import Actor, ActorFailed, NotAProcess
from fencepost.harness.actors.messages import Seat
from fencepost.harness.actors.process import ProcessActor, ProcessPool
from fencepost.harness.adapter import Claim
from fencepost.harness.clock import preload
from fencepost.harness.clock.preload import ClockPreload
from fencepost.harness.clock.server_clock import OffsetFile, ServerClock
from fencepost.harness.errors import UsageError
from fencepost.harness.lab import ACTOR_KINDS, Lab, LabOptions
from fencepost.harness.loading import load_queue
from fencepost.harness.verdict import Verdict
from fencepost.tests import fix_queues, fix_scenarios
from fencepost.tests.fix_actors import TTL_S, Stage, actor_processes, stage_on
from fencepost.tests.fix_scenarios import only

HOUR_S = 3600.0
SLACK_S = 60.0
"""What a loaded machine may take between two readings; far less than the skews that are to be told apart."""


@pytest.fixture(scope="module", autouse=True)
def no_process_is_left() -> Iterator[None]:
    before = actor_processes()
    yield
    assert actor_processes() == before


@pytest.fixture(scope="module")
def lab(no_process_is_left: None) -> Iterator[Lab]:
    with Lab(LabOptions()) as lab:
        yield lab


@pytest.fixture
def stage(lab: Lab) -> Iterator[Stage]:
    with stage_on(lab.bench(load_queue(f"{fix_queues.__name__}:tells_the_time"))) as stage:
        yield stage


def own_time_s(stage: Stage, actor: Actor) -> float:
    """What the actor itself takes the time to be."""
    return int(str(stage.ask(actor, "complete", Claim("1", 1)).reason)) / 1e6


# -- an actor's own clock ----------------------------------------------------------------------------------


@pytest.mark.parametrize("skew_s", [HOUR_S, -HOUR_S, 1.5, -0.25])
def test_an_actors_clock_is_off_by_its_skew(stage: Stage, skew_s: float) -> None:
    a = stage.process("A", clock_skew_s=skew_s)
    before_s = time.time()
    told_s = own_time_s(stage, a)
    assert before_s + skew_s <= told_s <= time.time() + skew_s


@pytest.mark.parametrize("skew_s", [HOUR_S, -HOUR_S])
def test_the_databases_clock_is_not_touched_by_it_and_its_threads_keep_waiting_in_real_time(
    stage: Stage, skew_s: float
) -> None:
    b, p = stage.process("B", clock_skew_s=skew_s), stage.open("P")
    stage.ask(p, "enqueue", payload={})
    now_us = stage.bench._watch.now_us()
    claim = stage.claim(b)
    assert claim.lease_until_us is not None
    assert 0 <= claim.lease_until_us - now_us - TTL_S * 1e6 < SLACK_S * 1e6
    started = time.monotonic()
    assert stage.ask(b, "keep_alive", claim, ttl_s=2 * TTL_S, beats=3, every_s=0.05).accepted
    assert 0.15 <= time.monotonic() - started < SLACK_S, "its waits neither end at once nor last an hour"


def test_a_skew_makes_an_actor_a_process_whatever_the_others_are(stage: Stage) -> None:
    assert isinstance(stage.open("A", clock_skew_s=HOUR_S), ProcessActor)
    assert not isinstance(stage.open("B"), ProcessActor)


def test_a_thread_cannot_have_a_clock_of_its_own(stage: Stage) -> None:
    with pytest.raises(
        NotAProcess, match="A is a thread and cannot be given a clock of its own: seat it as a"
    ):
        stage.open("A", kind="thread", clock_skew_s=HOUR_S)


def test_warm_processes_are_kept_by_their_skew(stage: Stage) -> None:
    skews = (0.0, HOUR_S, -HOUR_S)
    actors = [stage.process("A", clock_skew_s=skew_s) for skew_s in skews]
    pids = [actor.pid for actor in actors]
    assert len(set(pids)) == len(skews)
    for actor in actors:
        actor.close()
    for skew_s, pid in reversed(list(zip(skews, pids, strict=True))):
        again = stage.process("A", clock_skew_s=skew_s)
        assert again.pid == pid
        assert abs(own_time_s(stage, again) - time.time() - skew_s) < SLACK_S


@pytest.mark.parametrize("skew_s", [float("nan"), float("inf"), -float("inf"), 1e12])
def test_a_skew_no_clock_can_have_is_wrong_use(stage: Stage, skew_s: float) -> None:
    before = actor_processes(), len(list(Path("/proc/self/fd").iterdir()))
    with pytest.raises(
        UsageError, match=r"a clock (is skewed by a finite number|cannot be moved by 1e\+12 s)"
    ):
        stage.process("A", clock_skew_s=skew_s)
    assert (actor_processes(), len(list(Path("/proc/self/fd").iterdir()))) == before


def test_without_a_preload_it_says_what_is_missing(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        preload, "_search", lambda: preload._Search(None, "there is no C compiler: install gcc")
    )
    with pytest.raises(
        UsageError, match=r"^an actor's own clock cannot be skewed here: there is no C compiler: install gcc$"
    ):
        stage.process("A", clock_skew_s=HOUR_S)


@pytest.mark.parametrize("skew_s", [HOUR_S, -HOUR_S, 0.5])
def test_a_preload_that_does_nothing_is_seen(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, skew_s: float
) -> None:
    monkeypatch.setattr(ClockPreload, "environment", lambda self, offset: {})
    before = actor_processes()
    with pytest.raises(
        ActorFailed,
        match=rf"A was to have its clock off by {skew_s:g} s, it is off by -?0\.0\d\d s: its process does not",
    ):
        stage.process("A", clock_skew_s=skew_s)
    assert actor_processes() == before


class DoesNotTell:
    """Stands where a pool and its process stand: one in a language whose clock no preload reaches."""

    pid = 0

    def take(self, clock_skew_s: float) -> DoesNotTell:
        return self

    def send(self, message: dict[str, Any]) -> None:
        assert message["open"]["clock_skew_s"] == HOUR_S

    def receive(self, timeout_s: float) -> dict[str, Any]:
        return {"opened": True}

    def discard(self, process: DoesNotTell) -> None:
        pass


def test_a_process_that_does_not_tell_its_time_cannot_be_skewed() -> None:
    with pytest.raises(ActorFailed, match="A was to have its clock off by 3600 s and does not tell its time"):
        ProcessActor(
            cast(ProcessPool, DoesNotTell()), Seat("A", "A", "reference", "", "", clock_skew_s=HOUR_S)
        )


def test_a_preload_of_the_users_own_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LD_PRELOAD", "/lib/theirs.so")
    assert ClockPreload(Path("/ours.so")).environment(Path("/offset")) == {
        "LD_PRELOAD": "/ours.so:/lib/theirs.so",
        "FENCEPOST_CLOCK_FILE": "/offset",
    }


# -- session time zones ------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ACTOR_KINDS)
def test_each_actors_sessions_have_the_time_zone_it_was_given(stage: Stage, kind: str) -> None:
    for zone in ("Asia/Kathmandu", "America/St_Johns"):
        a = stage.open("A", kind=kind, time_zone=zone)
        assert stage.ask(a, "fail", Claim("1", 1), error="").reason == zone
        a.close()


# -- the database's clock, set back ------------------------------------------------------------------------


class Machine:
    """A clock that only a test moves, and a server that adds the offset to it."""

    def __init__(self, path: Path) -> None:
        self.offset = OffsetFile.create(path)
        self.now_us = 1_000_000_000

    def clock(self) -> ServerClock:
        return ServerClock(self.offset, lambda: self.now_us + self.offset.read_us())


def test_catching_up_brings_no_moment_twice(tmp_path: Path) -> None:
    machine = Machine(tmp_path / "offset")
    clock, other = machine.clock(), machine.clock()
    clock.advance(100)
    clock.rewind(30)
    clock.advance(10)
    clock.rewind(500)
    other.catch_up()
    assert machine.offset.read_us() == 100_000_000, "the highest it was, whoever set it back"
    clock.catch_up()
    assert machine.offset.read_us() == 100_000_000, "and never beyond"
    machine.offset.close()


def test_a_race_does_not_begin_before_the_last_one_ended(lab: Lab) -> None:
    bench = lab.bench(load_queue("reference"))
    first = bench.run(only(fix_scenarios.rewinds_in_the_middle))
    assert first.judgement.verdict is Verdict.PASS, first.judgement
    began_us = first.trace.header["first_observation"]["at_us"]
    left_us = bench._watch.now_us()
    assert left_us < began_us, "it was really left behind"
    second = bench.run(only(fix_scenarios.only_b_works))
    assert second.judgement.verdict is Verdict.PASS, second.judgement
    assert second.trace.header["first_observation"]["at_us"] >= left_us + HOUR_S * 1e6


def test_the_clock_is_not_set_back_while_a_step_is_blocked(lab: Lab) -> None:
    bench = lab.bench(load_queue("reference"))
    before_us = bench._watch.now_us()
    run = bench.run(only(fix_scenarios.rewinds_while_b_is_blocked))
    assert run.judgement.verdict is Verdict.INCONCLUSIVE
    assert "the clock cannot be set back while B's cancel waits for a lock" in run.judgement.reasons
    assert bench._watch.now_us() >= before_us
