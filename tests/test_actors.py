"""Actors, threads and processes alike: what they say when something breaks, and that the next run is none the worse."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import select
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, cast

import psycopg
import pytest

from fencepost.harness.actors.messages import Request, Seat
from fencepost.harness.actors.process import ProcessActor, ProcessPool
from fencepost.harness.actors.thread import Outbox
from fencepost.harness.bench import AdapterBroke, Bench, Run
from fencepost.harness.errors import UsageError
from fencepost.harness.lab import ACTOR_KINDS, Lab, LabOptions
from fencepost.harness.loading import LoadedQueue, load_queue
from fencepost.harness.scenario import Scenario
from fencepost.harness.verdict import Verdict
from fencepost.tests import fix_queues, fix_scenarios
from fencepost.tests.fix_scenarios import installed, only

STEP_DEADLINE_S = 2.0
ANSWER_DEADLINE_S = 60.0


@pytest.fixture(scope="module", params=ACTOR_KINDS)
def lab(request: pytest.FixtureRequest) -> Iterator[Lab]:
    with Lab(LabOptions(actors=request.param, deadline_s=STEP_DEADLINE_S)) as lab:
        yield lab


@pytest.fixture
def bench_with(lab: Lab) -> Iterator[Callable[[str], Bench]]:
    """The bench of a queue of `fix_queues`, or of an installed one; put away after the test."""
    used: list[LoadedQueue] = []

    def bench_with(name: str) -> Bench:
        used.append(load_queue(name if name == "reference" else f"{fix_queues.__name__}:{name}"))
        return lab.bench(used[-1])

    yield bench_with
    for loaded in used:
        lab.put_away(loaded)


def run(bench: Bench, chosen: Scenario | None = None) -> Run:
    """The lease race, or another one."""
    variant = installed("lease_race") if chosen is None else only(chosen)
    return bench.run(variant)


def told_inconclusive(run: Run) -> str:
    assert run.judgement.verdict is Verdict.INCONCLUSIVE, run.judgement
    return " | ".join(run.judgement.reasons)


def the_next_run_passes(bench: Bench) -> None:
    after = run(bench, fix_scenarios.only_b_works)
    assert after.judgement.verdict is Verdict.PASS, after.judgement


# -- an adapter that breaks --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("queue", "told"),
    [
        ("raises_type_error", "A: complete raised TypeError: no such thing"),
        ("not_implemented", "A: complete raised NotImplementedError: one day"),
        (
            "returns_wrong_type",
            "A: complete raised AdapterFault: complete returned True, which the adapter contract does not allow",
        ),
    ],
)
def test_a_worker_that_breaks_the_contract_leaves_nothing_to_conclude(
    bench_with: Callable[[str], Bench], queue: str, told: str
) -> None:
    bench = bench_with(queue)
    assert told in told_inconclusive(run(bench))
    the_next_run_passes(bench)


def test_a_worker_that_leaves_the_interpreter_is_named(bench_with: Callable[[str], Bench], lab: Lab) -> None:
    bench = bench_with("exits")
    told = told_inconclusive(run(bench))
    if lab.options.actors == "thread":
        assert "A: complete broke: SystemExit: 3" in told
    else:
        assert "A: complete: its process" in told
        assert "ended (exit 3)" in told
    the_next_run_passes(bench)


def test_a_worker_that_cannot_open_is_named(bench_with: Callable[[str], Bench]) -> None:
    bench = bench_with("cannot_open")
    assert "A could not open its worker: ConnectionRefusedError: nobody listens" in told_inconclusive(
        run(bench)
    )
    assert "A could not open" in told_inconclusive(run(bench)), "the second try is no other than the first"
    the_next_run_passes(bench)


def test_an_actor_that_could_not_come_back_under_another_name_is_opened_anew(
    bench_with: Callable[[str], Bench],
) -> None:
    bench = bench_with("cannot_open")
    the_next_run_passes(bench)
    assert "B could not open its worker" in told_inconclusive(run(bench, fix_scenarios.b_works_as_a))
    the_next_run_passes(bench)


def test_a_worker_without_a_promised_operation_is_wrong_use(bench_with: Callable[[str], Bench]) -> None:
    bench = bench_with("lacks_heartbeat")
    with pytest.raises(
        UsageError, match=r"'lacks_heartbeat' has no heartbeat\(\): add it, or take the capabil"
    ):
        run(bench)
    the_next_run_passes(bench)


def test_a_worker_that_cannot_close_is_named(bench_with: Callable[[str], Bench]) -> None:
    bench = bench_with("close_raises")
    assert "A: close raised RuntimeError: still busy" in told_inconclusive(run(bench))
    the_next_run_passes(bench)


def test_an_adapter_whose_observe_breaks_leaves_nothing_to_conclude(
    bench_with: Callable[[str], Bench],
) -> None:
    told = told_inconclusive(run(bench_with("ObserveBreaks")))
    assert "observe() of queue 'observe_breaks' raised ValueError: rows nobody can read" in told


def test_an_adapter_whose_reset_breaks_says_so(bench_with: Callable[[str], Bench]) -> None:
    bench = bench_with("ResetBreaks")
    with pytest.raises(AdapterBroke, match=r"reset\(\) of queue 'reference' raised ValueError: never again"):
        run(bench)


def test_a_reset_does_not_wait_forever(bench_with: Callable[[str], Bench]) -> None:
    bench = bench_with("reference")
    with psycopg.connect(bench.seats.place.dsn_for("in-the-way")) as in_the_way:
        in_the_way.execute("LOCK TABLE lease_queue.jobs")
        with pytest.raises(AdapterBroke, match=r"reset\(\) of queue 'reference' raised LockNotAvailable: "):
            run(bench)
    the_next_run_passes(bench)


def test_async_adapters_are_awaited(bench_with: Callable[[str], Bench]) -> None:
    bench = bench_with("all_async")
    for _ in range(2):
        race = run(bench)
        assert race.judgement.verdict is Verdict.PASS, race.judgement


# -- an actor that does not come back ----------------------------------------------------------------------


def test_the_deadline_names_actor_operation_checkpoint_and_what_the_server_says(
    bench_with: Callable[[str], Bench],
) -> None:
    bench = bench_with("sleeps_in_the_server")
    told = told_inconclusive(run(bench, fix_scenarios.held_after_the_guard))
    assert f"waited {STEP_DEADLINE_S:g} s for A in complete" in told
    assert "(to be held at after_guard)" in told
    assert "(last checkpoint passed: before_lock)" in told
    assert "the server: A (pid " in told
    assert "active, waits on Timeout/PgSleep, query: 'SELECT pg_sleep(" in told
    assert "A was to be held in complete at after_guard and never came there" in told
    the_next_run_passes(bench)


def test_the_deadline_also_ends_a_wait_outside_the_server(bench_with: Callable[[str], Bench]) -> None:
    bench = bench_with("waits_in_the_worker")
    told = told_inconclusive(run(bench))
    assert f"waited {STEP_DEADLINE_S:g} s for A in complete" in told
    assert "the server: A (pid " in told
    the_next_run_passes(bench)


def test_a_hold_at_a_checkpoint_that_never_comes_is_named(bench_with: Callable[[str], Bench]) -> None:
    bench = bench_with("reference")
    told = told_inconclusive(run(bench, fix_scenarios.held_where_nobody_comes))
    assert told == "A was to be held in complete at no_such_place and never came there"
    the_next_run_passes(bench)


def test_a_ctrl_c_leaves_no_actor_at_a_barrier(bench_with: Callable[[str], Bench]) -> None:
    bench = bench_with("reference")
    with pytest.raises(KeyboardInterrupt):
        run(bench, fix_scenarios.interrupted_while_held)
    the_next_run_passes(bench)


def test_a_ctrl_c_stays_one_where_clearing_up_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may have come in the middle of a query of the runner's own, and cost that connection."""

    def fail(*_: object) -> None:
        raise psycopg.OperationalError("another command is already in progress")

    with pytest.raises(KeyboardInterrupt) as ended, Lab(LabOptions()) as lab:
        bench = lab.bench(load_queue("reference"))
        monkeypatch.setattr(bench, "_clear_the_track", fail)
        monkeypatch.setattr(bench, "close", fail)
        run(bench, fix_scenarios.interrupted)
    assert ended.value.__notes__ == [
        "the track could not be cleared: another command is already in progress",
        "the lab could not be closed in order: another command is already in progress",
    ]


def test_a_poll_never_outlasts_its_timeout() -> None:
    """However short it is: a poll that missed its own deadline once waited for the answer instead."""
    outbox = Outbox()

    def poll_often() -> None:
        for _ in range(100_000):
            outbox.put(None)
            assert outbox.get(0.0) is None
            with contextlib.suppress(queue.Empty):
                outbox.get(1e-6)

    poller = threading.Thread(target=poll_often, daemon=True)
    poller.start()
    poller.join(ANSWER_DEADLINE_S)
    assert not poller.is_alive()


# -- the protocol, by hand ---------------------------------------------------------------------------------


class Conversation:
    """A process actor, spoken to line by line."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "fencepost.harness.actors.process_main"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
        )
        self._received = b""

    def say(self, message: Any) -> None:
        line = message if isinstance(message, bytes) else json.dumps(message).encode()
        assert self._process.stdin is not None
        self._process.stdin.write(line + b"\n")

    def hear(self) -> Any:
        assert self._process.stdout is not None
        deadline = time.monotonic() + ANSWER_DEADLINE_S
        while b"\n" not in self._received:
            ready, _, _ = select.select([self._process.stdout], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, f"no answer within {ANSWER_DEADLINE_S:g} s"
            received = os.read(self._process.stdout.fileno(), 65536)
            assert received, "it hung up"
            self._received += received
        line, _, self._received = self._received.partition(b"\n")
        return json.loads(line)

    def ask(self, message: Any) -> Any:
        self.say(message)
        return self.hear()

    def ask_past_checkpoints(self, message: Any) -> tuple[list[str], Any]:
        """The checkpoints passed on the way, and the answer."""
        passed: list[str] = []
        answer = self.ask(message)
        while "passed" in answer:
            passed.append(answer["passed"])
            answer = self.hear()
        return passed, answer

    def hang_up(self) -> tuple[int, str]:
        """Its exit code and what it said on stderr."""
        _, said = self._process.communicate(timeout=ANSWER_DEADLINE_S)
        return self._process.returncode, said.decode()

    def end(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.communicate(timeout=ANSWER_DEADLINE_S)


@pytest.fixture
def talk() -> Iterator[Conversation]:
    conversation = Conversation()
    yield conversation
    conversation.end()


@pytest.fixture(scope="module")
def bench() -> Iterator[Bench]:
    with Lab(LabOptions()) as lab:
        yield lab.bench(load_queue("reference"))


def seat_on(bench: Bench, actor: str = "A", queue_path: str = "reference") -> dict[str, str]:
    return {
        "actor": actor,
        "worker_name": actor,
        "queue_path": queue_path,
        "dsn": bench.seats.place.dsn_for(f"fencepost:{actor}"),
        "control_dsn": bench.seats.place.control_dsn,
    }


def perform(operation: str, *claims: Any, **arguments: Any) -> dict[str, Any]:
    return {"perform": {"operation": operation, "arguments": arguments, "claims": list(claims), "race": 1}}


def test_a_process_actor_speaks_json_lines(talk: Conversation, bench: Bench) -> None:
    assert talk.ask({"open": seat_on(bench)}) == {"opened": True}
    _, enqueued = talk.ask_past_checkpoints(perform("enqueue", payload={"n": 1}))
    assert enqueued["reply"]["outcome"] == "accepted"
    passed, claimed = talk.ask_past_checkpoints(perform("claim", ttl_s=60.0))
    assert "after_claim" in passed
    (claim,) = claimed["reply"]["claims"]
    assert claim["job"] == enqueued["reply"]["job"]
    passed, completed = talk.ask_past_checkpoints(perform("complete", claim))
    assert passed.index("before_lock") < passed.index("after_guard") < passed.index("before_commit")
    assert completed == {"reply": {"outcome": "accepted", "current_token": claim["token"]}}
    assert talk.ask({"close": True}) == {"closed": True}
    assert talk.ask({"open": seat_on(bench, "B")}) == {"opened": True}, "it can be another actor afterwards"
    assert talk.ask({"close": True}) == {"closed": True}
    assert talk.hang_up() == (0, "")


def test_a_process_actor_answers_what_it_does_not_understand(talk: Conversation, bench: Bench) -> None:
    assert talk.ask(b"hello") == {"failed": "not a JSON line: b'hello\\n'"}
    assert talk.ask(b"[1]") == {"failed": "not a JSON object: b'[1]\\n'"}
    assert talk.ask({"dance": True}) == {"failed": "unknown message ['dance']"}
    assert talk.ask(perform("claim", ttl_s=60.0)) == {"failed": "perform came before open"}
    assert "TypeError" in talk.ask({"open": {"actor": "A"}})["failed"]
    no_such = talk.ask({"open": seat_on(bench, queue_path="no.such:queue")})
    assert no_such == {"usage_error": "--queue no.such:queue: cannot import no.such (No module named 'no')."}
    assert talk.ask({"open": seat_on(bench)}) == {"opened": True}
    assert talk.ask(perform("dance")) == {
        "failed": "dance raised AttributeError: 'ReferenceWorker' object has no attribute 'dance'"
    }
    assert talk.ask({"close": True}) == {"closed": True}
    assert talk.hang_up() == (0, "")


def test_what_an_adapter_prints_does_not_reach_the_protocol(talk: Conversation, bench: Bench) -> None:
    assert talk.ask({"open": seat_on(bench, queue_path=f"{fix_queues.__name__}:prints")}) == {"opened": True}
    _, answer = talk.ask_past_checkpoints(perform("claim", ttl_s=60.0))
    assert answer == {"reply": {"outcome": "accepted"}}
    assert talk.ask({"close": True}) == {"closed": True}
    _, said = talk.hang_up()
    assert "printed" in said
    assert "not a line of the protocol" in said


def test_a_process_actor_leaves_with_its_runner_even_in_an_operation(
    talk: Conversation, bench: Bench
) -> None:
    path = f"{fix_queues.__name__}:waits_in_the_worker"
    assert talk.ask({"open": seat_on(bench, queue_path=path)}) == {"opened": True}
    talk.say(perform("complete", {"job": "1"}))
    code, _ = talk.hang_up()
    assert code == 1


class ScriptedProcess:
    """Stands where a process stands, and has said all this by now."""

    pid = 0

    def __init__(self, *said: dict[str, Any]) -> None:
        self.said = [{"opened": True}, *said]

    def take(self, clock_skew_s: float) -> ScriptedProcess:
        return self

    def send(self, message: dict[str, Any]) -> None:
        pass

    def receive(self, timeout_s: float) -> dict[str, Any] | None:
        return self.said.pop(0) if self.said else None


def test_what_a_parked_process_passed_is_known_without_another_poll() -> None:
    """The server may show it parked between two looks at its pipe: a guard passed must not look unpassed."""
    process = ScriptedProcess({"passed": "before_lock"}, {"passed": "after_guard"})
    actor = ProcessActor(cast(ProcessPool, process), Seat("A", "A", "reference", "", ""))
    actor.submit(Request("complete"))

    assert actor.take_passed() == ["before_lock", "after_guard"]


def test_an_answer_found_while_looking_for_checkpoints_is_not_lost() -> None:
    process = ScriptedProcess({"passed": "after_guard"}, {"reply": {"outcome": "accepted"}})
    actor = ProcessActor(cast(ProcessPool, process), Seat("A", "A", "reference", "", ""))
    actor.submit(Request("complete"))

    assert actor.take_passed() == ["after_guard"]
    reply = actor.poll(0.0)
    assert reply is not None and reply.accepted
