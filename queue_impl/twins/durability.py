"""Twins that lose what was committed."""

from __future__ import annotations

from fencepost.queue_impl.reference.sql import REFERENCE_SCHEMA, replace_once

from .adapter import reference_twin

UNLOGGED = replace_once(
    replace_once(REFERENCE_SCHEMA, "CREATE TABLE lease_queue.jobs", "CREATE UNLOGGED TABLE lease_queue.jobs"),
    "CREATE TABLE lease_queue.ledger",
    "CREATE UNLOGGED TABLE lease_queue.ledger",
)

TWINS = (
    reference_twin(
        "unlogged_tables",
        "Jobs and ledger are kept in UNLOGGED tables, which PostgreSQL empties when it recovers from a crash.",
        breaks="restart_keeps_leases",
        schema=UNLOGGED,
    ),
)
