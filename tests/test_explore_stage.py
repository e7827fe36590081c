"""What the explorer's fast way leaves out must not be missed: who rests, what is remembered, what is seen together."""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Iterator

import psycopg
import pytest

from fencepost.harness.actors.messages import Request
from fencepost.harness.actors.thread import Outbox
from fencepost.harness.explore.dependency import IDLE, statement
from fencepost.harness.explore.executor import Choice, Status
from fencepost.harness.explore.program import parse
from fencepost.harness.explore.real import QueueExecutor, close_stages, stage_of
from fencepost.harness.explore.replay import run, stay
from fencepost.harness.explore.statement_memory import StatementMemory
from fencepost.harness.gate.framing import BIND, typed
from fencepost.harness.gate.statements import Statement
from fencepost.harness.history import Reply
from fencepost.harness.lab import LabOptions
from fencepost.harness.loading import DEFAULT_QUEUE

EXECUTOR = QueueExecutor(DEFAULT_QUEUE, LabOptions())
LOCK = "SELECT id FROM lease_queue.jobs WHERE id = $1 FOR UPDATE"


@pytest.fixture(autouse=True, scope="module")
def _no_stage_is_left() -> Iterator[None]:
    yield
    close_stages()


def test_one_who_rests_and_speaks_does_not_hide_that_another_is_blocked() -> None:
    execution = EXECUTOR.open(parse("A:claim,heartbeat C:cancel"))
    execution.reset()
    for name in ("A", "A", "A", "A", "A", "C"):
        execution.take(Choice(name))
    resting = stage_of(execution).seat("A")
    os.eventfd_write(resting.actor.answer_fd, 1)
    assert execution.take(Choice("C")).status is Status.BLOCKED
    # It is heard again when it moves.
    assert execution.take(Choice("A")).status is Status.PARKED
    assert execution.take(Choice("A")).status is Status.PARKED
    freeing = execution.take(Choice("A"))
    assert freeing.status is Status.ANSWERED and freeing.freed == ("C",)
    execution.close()


def test_who_waits_for_somebody_outside_of_the_race_is_not_blocked() -> None:
    """That one will let go without a step of ours; only then does the statement stand still."""
    execution = EXECUTOR.open(parse("A:claim C:claim"))
    run(execution, stay)  # statements are prepared, which takes a lock on the table as well
    execution.reset()
    execution.take(Choice("A"))
    with psycopg.connect(stage_of(execution).bench.dsn, autocommit=True) as outsider:
        outsider.execute("BEGIN")
        outsider.execute("LOCK TABLE lease_queue.jobs IN ACCESS EXCLUSIVE MODE")
        letting_go = threading.Timer(0.3, outsider.execute, ["ROLLBACK"])
        letting_go.start()
        step = execution.take(Choice("A"))
        letting_go.join()
    assert step.status is Status.PARKED
    execution.close()


def test_jobs_that_are_seen_together_are_judged_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    execution = EXECUTOR.open(parse("A:claim", jobs=2))
    assert run(execution, stay).outcome is not None
    producer = stage_of(execution).producer
    really = producer.perform
    jobs: list[str] = []

    def lose_the_first(request: Request) -> Reply:
        reply = really(request)
        assert reply.job is not None
        jobs.append(reply.job)
        if len(jobs) == 2:
            with psycopg.connect(stage_of(execution).bench.dsn, autocommit=True) as other:
                other.execute("DELETE FROM lease_queue.jobs WHERE id = %s", (jobs[0],))
        return reply

    monkeypatch.setattr(producer, "perform", lose_the_first)
    outcome = run(execution, stay).outcome
    assert outcome is not None and outcome.broken == ("no_lost_job",)


def bound(number: int) -> Statement:
    """The lock of one job, with its id as text."""
    value = str(number).encode()
    body = b"\0\0" + b"\0\0" + b"\0\1" + len(value).to_bytes(4) + value + b"\0\0"
    return Statement(LOCK, typed(BIND, body), False, 1)


def test_what_is_remembered_is_what_the_statement_touches() -> None:
    catalog = stage_of(EXECUTOR.open(parse("A:claim"))).catalog
    memory = StatementMemory(catalog)
    first, second = bound(1), bound(2)
    assert (first.parameters, second.parameters) == (("1",), ("2",))
    inside = memory.touched(first, IDLE)[1]
    for sent in (first, second, first):
        for before in (IDLE, inside):
            assert memory.touched(sent, before) == statement(LOCK, sent.parameters, before, catalog)
    assert memory.touched(first, IDLE) != memory.touched(second, IDLE)


def test_an_answer_that_was_taken_is_announced_no_more() -> None:
    outbox = Outbox()
    assert outbox.is_empty
    for _ in range(3):
        outbox.put(None)
        assert not outbox.is_empty
        assert select.select([outbox.fd], [], [], 0)[0]
        assert outbox.get(0.0) is None
        assert outbox.is_empty
        assert not select.select([outbox.fd], [], [], 0)[0]
    outbox.close()
