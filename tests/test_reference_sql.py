"""The statement loader: a statement missing, there twice, or edited in vain must not go unnoticed."""

from __future__ import annotations

import re

import pytest

from fencepost.queue_impl.reference import REFERENCE_SCHEMA, STATEMENTS, SqlError, replace_once
from fencepost.queue_impl.reference.sql import parse_statements


def test_statements_are_split_by_name_and_lose_their_comments() -> None:
    statements = parse_statements("-- a file\n-- name: one\n-- why\nSELECT 1\n\n-- name: two\nSELECT\n  2\n")
    assert dict(statements) == {"one": "SELECT 1", "two": "SELECT\n  2"}


@pytest.mark.parametrize(
    ("source", "complaint"),
    [
        ("-- name: one\nSELECT 1\n-- name: one\nSELECT 2", "line 3: the statement 'one' is there twice"),
        ("SELECT 1\n-- name: one\nSELECT 1", "line 1: SQL before the first"),
        ("-- name: one two\nSELECT 1", "'one two' is not a statement name"),
        ("-- name: one\n-- nothing\n-- name: two\nSELECT 1", "statements without a text: one"),
    ],
)
def test_a_malformed_file_is_refused(source: str, complaint: str) -> None:
    with pytest.raises(SqlError, match=re.escape(complaint)):
        parse_statements(source)


def test_an_unknown_name_is_an_error_that_lists_the_known_ones() -> None:
    with pytest.raises(SqlError, match=r"no statement is named 'clam'; there are: .*claim"):
        STATEMENTS["clam"]
    with pytest.raises(SqlError, match="no statement is named 'clam'"):
        STATEMENTS.replaced("clam", "SELECT 1")
    assert "clam" not in STATEMENTS
    assert "claim" in STATEMENTS


def test_an_edit_changes_a_copy_in_exactly_one_place() -> None:
    edited = STATEMENTS.edited("claim", "jobs.fencing_token + 1", "jobs.fencing_token")
    assert "fencing_token + 1" not in edited["claim"]
    assert "fencing_token + 1" in STATEMENTS["claim"]
    assert edited["judge_job"] == STATEMENTS["judge_job"]
    with pytest.raises(SqlError, match="exactly once, it occurs 0 times"):
        STATEMENTS.edited("claim", "no such text", "")
    with pytest.raises(SqlError, match="exactly once, it occurs 2 times"):
        replace_once("a a", "a", "b")


def test_time_is_never_the_transactions_frozen_now() -> None:
    for name, text in {**STATEMENTS, "schema": REFERENCE_SCHEMA}.items():
        assert not re.search(r"\bnow\(\)|current_timestamp|\btimestamp\b(?!tz)", text, re.IGNORECASE), name
