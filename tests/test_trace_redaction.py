"""Passwords of connection strings reach no trace, no page and no failure text."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fencepost.harness.lab import Lab, LabOptions
from fencepost.harness.loading import load_queue
from fencepost.harness.story import failure_text
from fencepost.harness.trace import read_trace, write_trace
from fencepost.harness.trace.redact import redacted, redacted_text
from fencepost.reports import html, markdown, perfetto
from fencepost.tests.fix_queues import SECRET
from fencepost.tests.fix_scenarios import installed
from fencepost.tests.report_traces import Story


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("postgresql://app:hunter2@db:5432/jobs", "postgresql://app:***@db:5432/jobs"),
        ("postgres://app:p@ss:w/rd@db/jobs, then more", "postgres://app:***@db/jobs, then more"),
        ("postgresql+psycopg://:hunter2@/jobs", "postgresql+psycopg://:***@/jobs"),
        ("host=db password=hunter2 user=app", "host=db password=*** user=app"),
        ("host=db password = 'hun ter\\'2' user=app", "host=db password = *** user=app"),
        ("postgresql://db/jobs?user=a&password=hunter2", "postgresql://db/jobs?user=a&password=***"),
        ("connect(**{'host': 'db', 'password': 'hunter2'})", "connect(**{'host': 'db', 'password': ***})"),
        ("PGPASSWORD=hunter2 psql", "PGPASSWORD=*** psql"),
        ("sslpassword=hunter2", "sslpassword=***"),
        ("PASSWORD=hunter2", "PASSWORD=***"),
    ],
)
def test_a_password_is_taken_out(text: str, told: str) -> None:
    assert redacted_text(text) == told
    assert redacted_text(told) == told


@pytest.mark.parametrize(
    "text",
    [
        "postgresql://db.example:5432/jobs",
        "http://example.org/a@b",
        "A's complete was refused: token 1, current 2",
        "SELECT id FROM jobs WHERE state = $1",
    ],
)
def test_other_text_is_left_alone(text: str) -> None:
    assert redacted_text(text) == text


def test_every_text_of_a_line_is_looked_at() -> None:
    line = {"password=x": ["password=x", {"a": "password=x"}], "n": 1, "none": None}
    assert redacted(line) == {"password=***": ["password=***", {"a": "password=***"}], "n": 1, "none": None}


def test_a_trace_from_elsewhere_is_redacted_when_it_is_read(tmp_path: Path) -> None:
    story = Story()
    story.call(
        "A", "claim", {"outcome": "unknown", "error": "OperationalError", "message": "password=hunter2"}
    )
    path = tmp_path / "trace.jsonl"
    write_trace(story.trace(), path)
    assert "hunter2" not in path.read_text()
    path.write_text(path.read_text().replace("password=***", "password=hunter2"))
    trace = read_trace(path)
    assert "hunter2" not in json.dumps([trace.header, trace.steps, trace.end])


def test_an_error_that_tells_a_password_does_not_spread_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Lab(LabOptions()) as lab:
        run = lab.run(load_queue("fencepost.tests.fix_queues:tells_its_password"), installed("lease_race"))
    assert SECRET in json.dumps(run.trace.steps), "nobody told it: this test tried nothing"
    path = tmp_path / "trace.jsonl"
    write_trace(run.trace, path)
    page = html.write([path], output=tmp_path / "page.html").path
    events = perfetto.write([path], output=tmp_path / "trace.json").path
    markdown.write([path])
    assert page is not None
    assert events is not None
    told = [path.read_text(), page.read_text(), events.read_text(), capsys.readouterr().out]
    told.append(failure_text(run.trace, "pytest", None))
    assert all("postgresql://app:***@db.example/jobs" in text for text in told[:2])
    assert not [text for text in told if SECRET in text]
