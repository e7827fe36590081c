"""Process actors killed, stopped and continued, at exact places; and that nothing of them is left."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import termios
from array import array
from collections.abc import Iterator
from pathlib import Path

import pytest

from fencepost.harness.actors.base import ActorFailed, ActorGone, ActorStopped, NotAProcess
from fencepost.harness.actors.messages import Request, encode
from fencepost.harness.actors.process import ActorProcess, ProcessActor, ProcessPool
from fencepost.harness.actors.signals import thread_states
from fencepost.harness.adapter import JobState, Outcome
from fencepost.harness.errors import FencepostError
from fencepost.harness.lab import Lab, LabOptions
from fencepost.harness.loading import load_queue
from fencepost.harness.verdict import Verdict
from fencepost.tests.fix_actors import ANSWER_DEADLINE_S, TTL_S, Stage, actor_processes, stage_on
from fencepost.tests.fix_commands import eventually, exists
from fencepost.tests.fix_scenarios import installed

OTHER_TTL_S = 2 * TTL_S


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
    with stage_on(lab.bench(load_queue("reference"))) as stage:
        yield stage
        before = actor_processes()
        gone = [actor for actor in stage.actors if actor.is_gone]
        for actor in gone:
            actor.close()
            actor.abandon()
        assert actor_processes() == before, "who is gone takes nobody along and comes back from nothing"


@pytest.fixture
def pool() -> Iterator[ProcessPool]:
    pool = ProcessPool()
    yield pool
    pool.close()


def open_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


# -- killed ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("checkpoint", "then"),
    [
        ("before_lock", JobState.LEASED),
        ("after_ledger", JobState.LEASED),
        ("before_commit", JobState.LEASED),
        ("after_commit", JobState.SUCCEEDED),
    ],
)
def test_a_kill_at_a_checkpoint_leaves_what_was_committed_and_nothing_else(
    stage: Stage, checkpoint: str, then: JobState
) -> None:
    a, p = stage.process("A"), stage.open("P")
    job = stage.ask(p, "enqueue", payload={}).job
    assert job is not None
    stage.hold(a, checkpoint, "complete", stage.claim(a))
    a.take_passed()

    a.kill()

    assert not exists(a.pid)
    assert a.is_gone
    assert not a.is_stopped
    reply = a.poll(0.0)
    assert reply is not None
    assert (reply.outcome, reply.reason, reply.error) == (Outcome.UNKNOWN, "killed", None)
    stage.wait_until_left("A")
    assert stage.view(job).state is then
    assert len(stage.bench.ask("observe", stage.bench.dsn).ledger) == (then is JobState.SUCCEEDED)


def test_a_killed_actor_says_no_more_and_another_takes_its_place(stage: Stage) -> None:
    a, p = stage.process("A"), stage.open("P")
    stage.ask(p, "enqueue", payload={})
    claim = stage.claim(a)
    stage.hold(a, "before_commit", "complete", claim)
    a.kill()
    assert stage.answer(a).reason == "killed"

    with pytest.raises(ActorGone, match=r"A was killed: there is nobody left to hear from; seat a new one"):
        a.poll(0.0)
    for refused in (a.kill, a.stop, a.cont, lambda: a.submit(Request("claim"))):
        with pytest.raises(ActorGone, match="A was killed: there is nobody left to"):
            refused()
    stage.wait_until_left("A")
    again = stage.process("A")
    assert again.pid != a.pid
    assert stage.ask(again, "complete", claim).accepted, "the lease is the worker's name's, not its process's"


def test_what_it_said_before_it_died_still_counts(stage: Stage) -> None:
    a = stage.process("A")
    assert stage.ask(a, "claim", ttl_s=TTL_S).accepted
    passed = a.take_passed()
    assert passed
    said = [{"passed": name} for name in passed] + [{"reply": {"outcome": "accepted"}}]

    a.submit(Request("claim", {"ttl_s": TTL_S}))
    eventually(
        lambda: unread_bytes(a) == sum(len(encode(line)) for line in said), "it has said the same again"
    )
    a.kill()
    assert stage.answer(a).accepted
    assert a.take_passed() == passed


def unread_bytes(actor: ProcessActor) -> int:
    count = array("i", [0])
    fcntl.ioctl(actor._process._stdout_fd, termios.FIONREAD, count)
    return count[0]


def test_a_kill_closes_what_the_runner_held_of_it(stage: Stage) -> None:
    stage.process("A").close()
    before = open_descriptors(), actor_processes()
    a = stage.process("B", clock_skew_s=3600.0)
    assert open_descriptors() > before[0]
    a.kill()
    assert (open_descriptors(), actor_processes()) == before


def test_checkpoints_passed_before_the_kill_are_known(stage: Stage) -> None:
    a, p = stage.process("A"), stage.open("P")
    stage.ask(p, "enqueue", payload={})
    claim = stage.claim(a)
    a.take_passed()
    stage.hold(a, "before_ledger", "complete", claim)
    a.kill()
    stage.answer(a)
    assert a.take_passed() == ["before_lock", "after_lock", "after_guard"]


# -- stopped -----------------------------------------------------------------------------------------------


def test_a_stopped_actor_stands_still_with_every_thread_and_goes_on_from_there(stage: Stage) -> None:
    a, p = stage.process("A"), stage.open("P")
    job = stage.ask(p, "enqueue", payload={}).job
    assert job is not None
    key = stage.hold(a, "before_commit", "complete", stage.claim(a))

    a.stop()
    states = thread_states(a.pid)
    assert len(states) > 1, "it has a thread that watches its runner"
    assert set(states.values()) == {"T"}
    assert a.is_stopped
    before = stage.sessions("A")
    stage.open_barrier(key)
    eventually(lambda: not stage.bench._control.is_parked(key), "the barrier open")
    assert a.poll(0.0) is None
    assert stage.sessions("A") == before
    assert stage.view(job).state is JobState.LEASED

    a.cont()
    assert not a.is_stopped
    assert stage.answer(a).accepted
    assert stage.view(job).state is JobState.SUCCEEDED


def test_what_cannot_be_asked_of_a_stopped_actor_is_said(stage: Stage) -> None:
    a = stage.process("A")
    with pytest.raises(FencepostError, match="A is not stopped, so it cannot be continued"):
        a.cont()
    a.stop()
    with pytest.raises(ActorStopped, match="A is stopped already"):
        a.stop()
    with pytest.raises(ActorStopped, match="A is stopped and would not hear of claim: continue it first"):
        a.submit(Request("claim", {"ttl_s": TTL_S}))
    a.cont()
    assert stage.ask(a, "claim", ttl_s=TTL_S).accepted


@pytest.mark.parametrize("held", [False, True])
@pytest.mark.parametrize("how", ["kill", "close", "abandon"])
def test_a_stopped_actor_is_ended_without_a_wait(stage: Stage, how: str, held: bool) -> None:
    a, p = stage.process("A"), stage.open("P")
    stage.ask(p, "enqueue", payload={})
    claim = stage.claim(a)
    if held:
        stage.hold(a, "before_commit", "complete", claim)
    a.stop()
    getattr(a, how)()
    assert not exists(a.pid)
    assert a.is_gone
    assert a.pid not in actor_processes()


def test_a_stopped_worker_sends_no_heartbeat_and_the_fence_refuses_the_late_one(stage: Stage) -> None:
    """Its heartbeats come from a thread of its own: that one stands still as well."""
    a, b, p = stage.process("A"), stage.open("B"), stage.open("P")
    job = stage.ask(p, "enqueue", payload={}).job
    assert job is not None
    claim = stage.claim(a)
    first_until_us = stage.view(job).lease_until_us
    assert stage.ask(a, "keep_alive", claim, ttl_s=OTHER_TTL_S, beats=2).accepted
    assert a.take_passed().count("before_heartbeat") == 2
    renewed_until_us = stage.view(job).lease_until_us
    assert first_until_us is not None
    assert renewed_until_us is not None
    assert renewed_until_us > first_until_us, "while it moves, its heartbeats arrive"

    due = stage.hold(a, "before_heartbeat", "keep_alive", claim, ttl_s=2 * OTHER_TTL_S)
    a.stop()
    eventually(lambda: len(stage.sessions("A")) == 1, "the session of the first heartbeats left")
    arrived = stage.sessions("A")
    stage.open_barrier(due)
    stage.bench.lease_time.advance(TTL_S)
    assert stage.view(job).lease_until_us == renewed_until_us, "the one that is due would be accepted now"
    stage.bench.lease_time.advance(TTL_S + 1)
    fresh = stage.claim(b)
    assert (fresh.job, fresh.token) == (job, 2)
    assert stage.sessions("A") == arrived, "not even a connection: nothing came from it"
    assert a.poll(0.0) is None

    a.cont()
    late = stage.answer(a)
    assert (late.outcome, late.reason) == (Outcome.REFUSED, "token_mismatch")
    assert stage.ask(a, "complete", claim).reason == "token_mismatch"
    assert stage.ask(b, "complete", fresh).accepted
    assert stage.view(job).state is JobState.SUCCEEDED


# -- the pool ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGSTOP])
def test_the_pool_hands_out_nobody_who_is_dead_or_stopped(pool: ProcessPool, sent: signal.Signals) -> None:
    unfit, spare = pool.take(), pool.take()
    pool.give_back(spare)
    pool.give_back(unfit)  # the last one in is the first one out
    os.kill(unfit.pid, sent)
    eventually(lambda: not unfit.is_fit, f"{sent.name} taken")
    assert pool.take() is spare
    assert not exists(unfit.pid)
    unfit_again = pool.take()
    os.kill(unfit_again.pid, sent)
    eventually(lambda: not unfit_again.is_fit, f"{sent.name} taken")
    pool.give_back(unfit_again)
    assert not exists(unfit_again.pid), "nor does it take one back"


def test_closing_the_pool_ends_the_stopped_too(pool: ProcessPool) -> None:
    processes = [pool.take() for _ in range(2)]
    pool.give_back(processes[0])
    for process in processes:
        process.stop()
        process.dismiss()
        eventually(lambda: not exists(process.pid), "a stopped one does not wait until it is asked twice")  # noqa: B023
    pool.close()
    assert not any(exists(process.pid) for process in processes)


def test_a_process_that_ended_by_itself_can_be_neither_stopped_nor_continued(pool: ProcessPool) -> None:
    process = pool.take()
    os.kill(process.pid, signal.SIGKILL)
    eventually(lambda: not exists(process.pid), "it is gone")
    for refused in (process.stop, process.cont):
        with pytest.raises(ActorFailed, match=rf"its process {process.pid} ended \(exit -9\)"):
            refused()


def test_a_bench_replaces_a_killed_actor_and_ends_a_stopped_one_after_its_race() -> None:
    """And a lab closes with both still seated."""
    before = actor_processes()
    with Lab(LabOptions(actors="process")) as lab:
        bench = lab.bench(load_queue("reference"))
        killed, stopped = bench.open_actor("A"), bench.open_actor("S")
        bench.seats.actors.update(A=killed, S=stopped)
        killed.kill()
        stopped.stop()
        run = bench.run(installed("lease_race"))
        assert run.judgement.verdict is Verdict.PASS, run.judgement
        assert bench.seats.actors["A"] is not killed
        assert bench.seats.actors["A"].seat == killed.seat, "nobody else sat there"
        assert stopped.is_gone
        bench.seats.actors["A"].kill()
        bench.seats.actors["B"].stop()
        assert actor_processes() > before
    assert actor_processes() == before


STOPS_ITS_ACTOR = """
import sys
from fencepost.harness.actors.process import ActorProcess
actor = ActorProcess()
actor.send({"dance": True})
assert actor.receive(60.0) is not None
actor.stop()
print(actor.pid, flush=True)
sys.stdin.read()
"""


def test_a_stopped_actor_does_not_outlive_its_runner() -> None:
    runner = subprocess.Popen(
        [sys.executable, "-c", STOPS_ITS_ACTOR], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert runner.stdout is not None
    pid = int(runner.stdout.readline())
    assert exists(pid)
    runner.kill()
    runner.communicate(timeout=ANSWER_DEADLINE_S)
    eventually(lambda: not exists(pid), "the stopped actor of a killed runner gone")


# -- threads -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("signalled", "what"), [("kill", "killed"), ("stop", "stopped"), ("cont", "continued")]
)
def test_a_thread_cannot_be_signalled(stage: Stage, signalled: str, what: str) -> None:
    a = stage.open("A", kind="thread")
    assert not a.is_gone
    assert not a.is_stopped
    with pytest.raises(
        NotAProcess,
        match=f"A is a thread and cannot be {what}: seat it as a process, or run with --actors pro",
    ):
        getattr(a, signalled)()


def test_keeping_alive_works_in_a_thread_too(stage: Stage) -> None:
    a, p = stage.open("A", kind="thread"), stage.open("P")
    stage.ask(p, "enqueue", payload={})
    claim = stage.claim(a)
    assert stage.ask(a, "keep_alive", claim, ttl_s=OTHER_TTL_S, beats=3).accepted
    assert a.take_passed().count("before_heartbeat") == 3
    stage.bench.lease_time.pass_lease(claim, stage.view(claim.job).lease_until_us)
    refused = stage.ask(a, "keep_alive", claim, ttl_s=OTHER_TTL_S, beats=3)
    assert (refused.outcome, refused.reason) == (Outcome.REFUSED, "lease_expired")


def test_an_actor_process_is_told_apart_by_its_threads_states() -> None:
    process = ActorProcess()
    assert not process.is_stopped
    process.stop()
    assert process.is_stopped
    process.cont()
    assert not process.is_stopped
    process.end()
    assert thread_states(process.pid) == {}
