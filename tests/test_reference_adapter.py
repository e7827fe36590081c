"""The reference queue through the harness's contract."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from fencepost.harness.adapter import (
    Answer,
    Capability,
    Claim,
    IdempotencyConflict,
    JobState,
    LedgerEntry,
    QueueRefusal,
    missing_methods,
    missing_operations,
)
from fencepost.harness.postgres.embedded import EmbeddedServers
from fencepost.queue_impl.reference import adapter as adapter_module
from fencepost.queue_impl.reference.adapter import ReferenceAdapter, ReferenceWorker, reference

TTL_S = 60.0


@dataclass
class Seat:
    name: str = "A"
    worker_name: str = "worker of A"
    passed: list[str] = field(default_factory=list)

    def checkpoint(self, name: str) -> None:
        self.passed.append(name)


@pytest.fixture(scope="module")
def dsn() -> Iterator[str]:
    with EmbeddedServers.start() as servers:
        servers.test.create_database("reference_adapter")
        # A statement that waits where none should gets an error and not the rest of the day.
        named = servers.test.dsn("reference_adapter", application_name="fencepost-A")
        dsn = make_conninfo(named, options="-c statement_timeout=20s")
        reference.install(dsn)
        yield dsn


@pytest.fixture
def adapter(dsn: str) -> Iterator[ReferenceAdapter]:
    adapter = ReferenceAdapter()
    adapter.reset(dsn)
    yield adapter
    adapter.close()


@pytest.fixture
def seat() -> Seat:
    return Seat()


@pytest.fixture
def worker(adapter: ReferenceAdapter, dsn: str, seat: Seat) -> Iterator[ReferenceWorker]:
    worker = adapter.worker(seat, dsn)
    yield worker
    worker.close()


def taken(worker: ReferenceWorker) -> Claim:
    claim = worker.claim(TTL_S)
    assert claim is not None
    return claim


def test_it_has_what_the_contract_asks_for(worker: ReferenceWorker) -> None:
    assert missing_methods(reference) == []
    assert missing_operations(worker, reference.capabilities) == []
    assert set(Capability) - reference.capabilities == {Capability.DEFERRED_RECLAIM}


def test_an_observation_shows_jobs_and_ledger_in_the_harnesss_words(
    adapter: ReferenceAdapter, worker: ReferenceWorker, dsn: str
) -> None:
    done = worker.enqueue({"n": 1}, key="k", max_attempts=3, priority=1)
    claim = taken(worker)
    delayed = worker.enqueue({}, delay_s=3600)
    leased = adapter.observe(dsn).by_job[done]
    assert (leased.state, leased.holder, leased.token, leased.attempts) == (
        JobState.LEASED,
        "worker of A",
        1,
        1,
    )
    assert leased.lease_until_us == claim.lease_until_us
    worker.complete(claim)
    observation = adapter.observe(dsn)
    assert [view.job for view in observation.jobs] == [done, delayed]
    view = observation.by_job[done]
    assert (view.state, view.holder, view.lease_until_us) == (JobState.SUCCEEDED, None, None)
    assert (view.key, view.payload, view.max_attempts, view.requeued_from) == ("k", {"n": 1}, 3, None)
    view = observation.by_job[delayed]
    assert view.state == JobState.DELAYED
    assert view.next_run_at_us is not None
    assert 3599e6 < view.next_run_at_us - observation.at_us <= 3600e6
    assert observation.ledger == (LedgerEntry(done, 1, "worker of A"),)


def test_an_observation_does_not_wait_for_a_locked_row(
    adapter: ReferenceAdapter, worker: ReferenceWorker, dsn: str
) -> None:
    worker.enqueue({})
    adapter.observe(dsn)
    with psycopg.connect(dsn) as other:
        other.execute("UPDATE lease_queue.jobs SET priority = 9")
        assert len(adapter.observe(dsn).jobs) == 1


def test_a_claim_crosses_a_process_boundary(worker: ReferenceWorker) -> None:
    worker.enqueue({})
    claim = taken(worker)
    over_there = Claim(claim.job, claim.token, claim.lease_until_us, json.loads(json.dumps(claim.raw)))
    assert worker.complete(over_there) == Answer.accepted(current_token=1)
    assert worker.complete(over_there) == Answer.accepted(current_token=1, repeated=True)
    assert worker.fail(over_there, "late") == Answer.refused("terminal", current_token=1)


def test_expire_touches_the_lease_only(adapter: ReferenceAdapter, worker: ReferenceWorker, dsn: str) -> None:
    job = worker.enqueue({})
    claim = taken(worker)
    before = adapter.observe(dsn).by_job[job]
    adapter.expire(dsn, claim)
    after = adapter.observe(dsn)
    view = after.by_job[job]
    assert view.lease_until_us is not None
    assert view.lease_until_us <= after.at_us
    assert (view.state, view.token, view.attempts) == (before.state, before.token, before.attempts)
    assert worker.heartbeat(claim, TTL_S) == Answer.refused("lease_expired", current_token=1)
    assert taken(worker).token == 2
    with pytest.raises(QueueRefusal, match="not leased under token 1") as refusal:
        adapter.expire(dsn, claim)
    assert refusal.value.reason == "no_such_lease"


def test_expiring_a_locked_lease_is_refused_and_does_not_hang(
    adapter: ReferenceAdapter, worker: ReferenceWorker, dsn: str
) -> None:
    worker.enqueue({})
    claim = taken(worker)
    with psycopg.connect(dsn) as other:
        other.execute("SELECT FROM lease_queue.jobs FOR UPDATE")
        with pytest.raises(QueueRefusal, match="only the clock can be moved") as refusal:
            adapter.expire(dsn, claim)
        assert refusal.value.reason == "row_locked"


@pytest.mark.parametrize("resets_per_truncate", [1, 1000])
def test_a_reset_is_as_after_install(
    resets_per_truncate: int,
    monkeypatch: pytest.MonkeyPatch,
    adapter: ReferenceAdapter,
    worker: ReferenceWorker,
    dsn: str,
) -> None:
    monkeypatch.setattr(adapter_module, "RESETS_PER_TRUNCATE", resets_per_truncate)
    worker.enqueue({}, max_attempts=1, key="k")
    worker.fail(taken(worker), "boom")
    worker.requeue("1")
    worker.complete(taken(worker))
    adapter.reset(dsn)
    assert (adapter.observe(dsn).jobs, adapter.observe(dsn).ledger) == ((), ())
    assert worker.enqueue({}, key="k") == "1"
    assert taken(worker).token == 1


def test_refusals_come_as_the_contracts_exceptions(
    adapter: ReferenceAdapter, worker: ReferenceWorker, dsn: str
) -> None:
    job = worker.enqueue({}, key="k")
    with pytest.raises(IdempotencyConflict):
        worker.enqueue({"other": 1}, key="k")
    with pytest.raises(QueueRefusal) as refusal:
        worker.requeue(job)
    assert refusal.value.reason == "not_failed"
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("UPDATE lease_queue.jobs SET fencing_token = 9223372036854775807")
    before = adapter.observe(dsn).jobs
    with pytest.raises(QueueRefusal) as refusal:
        worker.claim(TTL_S)
    assert refusal.value.reason == "token_exhausted"
    assert adapter.observe(dsn).jobs == before


def test_batches_reap_and_cancel(adapter: ReferenceAdapter, worker: ReferenceWorker, dsn: str) -> None:
    for _ in range(3):
        worker.enqueue({})
    first, second, third = worker.claim_batch(TTL_S, 5)
    adapter.expire(dsn, second)
    assert worker.complete_batch([first, second]) == [
        Answer.accepted(current_token=1),
        Answer.refused("lease_expired", current_token=1),
    ]
    assert worker.reap() == 1
    assert worker.cancel(third.job) == Answer.accepted(current_token=1)
    assert worker.cancel("404") == Answer.refused("unknown_job")


def test_the_actors_checkpoint_is_called_and_the_connection_keeps_its_name(
    worker: ReferenceWorker, seat: Seat, dsn: str
) -> None:
    worker.enqueue({})
    seat.passed.clear()
    worker.complete(taken(worker))
    assert "after_guard" in seat.passed
    with psycopg.connect(dsn, autocommit=True, application_name="looking") as connection:
        names: list[tuple[Any, ...]] = connection.execute(
            "SELECT DISTINCT application_name FROM pg_stat_activity WHERE query = 'COMMIT' AND pid <> %s",
            [connection.info.backend_pid],
        ).fetchall()
    assert names == [("fencepost-A",)]
