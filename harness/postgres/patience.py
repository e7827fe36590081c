"""Connecting to a server that may be starting: refusals that pass are waited out, all others are told at once."""

from __future__ import annotations

import time
from typing import Any

import psycopg

from fencepost.harness.errors import StepDeadline

CONNECT_DEADLINE_S = 30.0
_POLL_S = 0.005

# libpq gives no SQLSTATE for a refused connection, only the text; the embedded servers speak English (lc_messages).
_PASSING_REFUSALS = (
    "the database system is starting up",  # 57P03, as the four below
    "the database system is not yet accepting connections",
    "the database system is not accepting connections",
    "the database system is shutting down",
    "the database system is in recovery mode",
    "Connection refused",  # nobody listens yet
    "No such file or directory",  # its unix socket is made at the start
    "server closed the connection unexpectedly",  # it went down between accepting and answering
    "Connection reset by peer",
)


def refuses_for_now(problem: psycopg.OperationalError) -> bool:
    """Whether the same attempt may succeed a moment later."""
    return any(text in str(problem) for text in _PASSING_REFUSALS)


def connect_patiently(
    dsn: str, *, deadline_s: float = CONNECT_DEADLINE_S, **options: Any
) -> psycopg.Connection[tuple[Any, ...]]:
    """As `psycopg.connect`, for a server that is up or coming up. Raises StepDeadline if it does not come."""
    deadline = time.monotonic() + deadline_s
    while True:
        left_s = deadline - time.monotonic()
        try:
            return psycopg.connect(dsn, **{"connect_timeout": max(2, round(left_s)), **options})
        except psycopg.OperationalError as problem:
            if not refuses_for_now(problem):
                raise
            if time.monotonic() >= deadline:
                raise StepDeadline(
                    f"waited {deadline_s:g} s for the server to accept a connection; "
                    f"it last answered: {str(problem).strip()}"
                ) from problem
        time.sleep(_POLL_S)
