"""Rows and tokens have the same name in every run of an order, whatever the queue calls them."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest

from fencepost.harness.cli import main
from fencepost.harness.explore.catalog import Drawn, Reference, Table, catalog
from fencepost.harness.explore.footprint import Footprint
from fencepost.harness.explore.program import parse
from fencepost.harness.explore.real import QueueExecutor, close_stages, stage_of
from fencepost.harness.explore.replay import Run, run, stay
from fencepost.harness.explore.scale import Here
from fencepost.harness.explore.search import explore
from fencepost.harness.explore.strategies import make_strategy
from fencepost.harness.lab import LabOptions
from fencepost.harness.loading import load_queue

NAMELESS = "fencepost.tests.fix_explored_queues:Nameless"
FORTY_LINES = "fencepost.adapters.forty_lines:FortyLines"


@pytest.fixture(autouse=True, scope="module")
def _no_stage_is_left() -> Iterator[None]:
    yield
    close_stages()


def executor(queue: str) -> QueueExecutor:
    return QueueExecutor(load_queue(queue).path, LabOptions())


def looks(done: Run) -> list[tuple[str, Footprint]]:
    return [(sight, step.footprint) for sight, step in zip(done.sights, done.steps, strict=True)]


@pytest.mark.parametrize("queue", ["procrastinate", "pgqueuer", FORTY_LINES, NAMELESS])
def test_an_order_looks_the_same_whatever_ran_before(queue: str) -> None:
    execution = executor(queue).open(parse("A:claim,complete B:claim,complete"))
    first = run(execution, stay)
    again = run(execution, stay)
    assert looks(again) == looks(first)
    assert again.outcome == first.outcome
    execution.close()


def test_a_row_goes_by_its_jobs_name_where_its_key_is_another_each_time() -> None:
    execution = executor(NAMELESS).open(parse("A:claim,complete"))
    done = run(execution, stay)
    keys = {access.key for step in done.steps for access in step.footprint.accesses if access.key}
    assert keys == {("j1",)}
    assert "j1 under token 1" in done.steps[3].said
    execution.close()


def test_reduced_reaches_what_exhaustive_reaches_where_keys_are_other_ones_each_time() -> None:
    program = parse("A:claim,complete B:claim")
    results = []
    for strategy in ("exhaustive", "reduced"):
        here = Here(executor(NAMELESS), program)
        results.append(explore(program, make_strategy(strategy, program, budget=1_000), here))
        here.close()
    every, fewer = results
    assert every.complete and fewer.complete, (every.lines(), fewer.lines())
    assert fewer.tally.outcomes.keys() == every.tally.outcomes.keys()
    assert fewer.tally.runs < every.tally.runs


@pytest.mark.parametrize("queue", ["procrastinate", "pgqueuer"])
def test_a_librarys_queue_is_explored_to_a_verdict(queue: str, capsys: pytest.CaptureFixture[str]) -> None:
    search = ["--ops", "A:claim,complete B:claim,complete", "--faults", "expire", "--budget", "40"]
    assert main(["explore", "--queue", queue, "--strategy", "reduced", *search]) in (0, 1, 3)
    said = capsys.readouterr()
    assert "nondeterminism" not in said.out and said.err == ""
    assert "reduced: " in said.out


def test_a_sequence_goes_on_where_its_table_kept_a_row() -> None:
    """Or the next row would have the number of one that is there."""
    execution = executor(FORTY_LINES).open(parse("A:claim"))
    stage = stage_of(execution)
    drawn = {each.sequence for each in stage.catalog.drawn}
    execution.reset()
    assert stage.unsteady == frozenset() and drawn == {"tasks_id_seq"}
    with psycopg.connect(stage.bench.dsn, autocommit=True) as db:
        db.execute("INSERT INTO tasks (payload) VALUES ('{}')")
        row = db.execute("SELECT string_agg(id::text, ' ' ORDER BY id) FROM tasks").fetchone()
        assert row == ("1 2",)
        bench_reset = stage.bench.reset
        stage.bench.reset = lambda: None  # type: ignore[method-assign]
        try:
            stage.reset()
        finally:
            stage.bench.reset = bench_reset  # type: ignore[method-assign]
        assert stage.unsteady == {"public.tasks"}
        assert db.execute("INSERT INTO tasks (payload) VALUES ('{}') RETURNING id").fetchone() == (3,)
    stage.reset()
    assert stage.unsteady == frozenset()
    execution.close()


def test_what_refers_to_a_restarted_number_is_the_same_each_time_and_a_made_up_key_is_not() -> None:
    jobs = Table("public.jobs", ("id",), ("bigint",))
    leases = Table(
        "public.leases",
        ("job_id",),
        ("bigint",),
        references=(Reference(("job_id",), "public.jobs", ("id",)),),
    )
    workers = Table("public.workers", ("name",), ("text",))
    known = catalog(jobs, leases, workers, drawn=(Drawn("public.jobs", "id", "jobs_id_seq", 1),))
    assert known.unsteady(frozenset({"jobs_id_seq"})) == {"public.workers"}
    assert known.unsteady(frozenset()) == {"public.jobs", "public.leases", "public.workers"}
