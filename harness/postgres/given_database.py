"""The one database we were given for the purpose: empty before a run, marked during it, empty after it."""

from __future__ import annotations

from typing import Any

import psycopg
from psycopg import sql

from fencepost.harness.errors import UsageError

MARKER = "fencepost_run"
_MARK = "fencepost works in this database: everything in it is dropped when its run is over"
_LOCK = 0x66656E6365  # one run at a time; the server drops the lock with the run's session
_TOLD_OBJECTS = 3

# Everything in a schema depends on it (deptype n), whatever it is: tables, types, functions, …
_OBJECTS = """
WITH schemas AS (
    SELECT oid, nspname FROM pg_namespace WHERE nspname !~ '^pg_' AND nspname <> 'information_schema'
)
SELECT 1 AS rank, 'extension' AS type, quote_ident(extname) AS identity FROM pg_extension
WHERE extname <> 'plpgsql'
UNION ALL
SELECT 2, 'schema', quote_ident(nspname) FROM schemas WHERE nspname <> 'public'
UNION ALL
SELECT 3, found.type, found.identity
FROM pg_depend d CROSS JOIN LATERAL pg_identify_object(d.classid, d.objid, 0) found
WHERE d.refclassid = 'pg_namespace'::regclass AND d.refobjid IN (SELECT oid FROM schemas)
  AND d.deptype = 'n' AND d.classid <> 'pg_default_acl'::regclass
UNION ALL
SELECT 4, 'large object', oid::text FROM pg_largeobject_metadata
ORDER BY 1, 2, 3
"""

_MARKED = """
SELECT EXISTS (
    SELECT FROM pg_class
    WHERE relname = %s AND relkind = 'r' AND relowner = current_user::regrole
      AND obj_description(oid, 'pg_class') = %s
)
"""


def require_empty(connection: psycopg.Connection[Any]) -> None:
    """Refuses a database that holds anything, unless a dead run of ours left it there."""
    found = _objects(connection)
    if not found or is_marked(connection):
        return
    told = ", ".join(f"{kind} {identity}" for kind, identity in found[:_TOLD_OBJECTS])
    more = f" and {len(found) - _TOLD_OBJECTS} more" if len(found) > _TOLD_OBJECTS else ""
    raise UsageError(
        f"--pg dsn: the database {connection.info.dbname} is not empty (it holds {told}{more}), and nothing that "
        "is not ours is touched: name an empty one, or a role that may create databases."
    )


def is_marked(connection: psycopg.Connection[Any]) -> bool:
    row = connection.execute(_MARKED, (MARKER, _MARK)).fetchone()
    return bool(row and row[0])


def take(connection: psycopg.Connection[Any]) -> None:
    """Marks the database as ours for as long as this session lives, and clears what a dead run left in it."""
    row = connection.execute("SELECT pg_try_advisory_lock(%s)", (_LOCK,)).fetchone()
    if not row or not row[0]:
        raise UsageError(
            f"--pg dsn: another run works in the database {connection.info.dbname}: wait for its end (and run "
            "without -n), or name a role that may create databases."
        )
    require_empty(connection)
    clear(connection)
    try:
        connection.execute(sql.SQL("CREATE TABLE {} ()").format(sql.Identifier(MARKER)))
    except psycopg.Error as problem:
        raise UsageError(
            f"--pg dsn: the role {connection.info.user} may create neither databases nor tables in the database "
            f"{connection.info.dbname} ({_first_line(problem)}): grant it CREATEDB, or CREATE there."
        ) from problem
    connection.execute(
        sql.SQL("COMMENT ON TABLE {} IS {}").format(sql.Identifier(MARKER), sql.Literal(_MARK))
    )


def give_back(connection: psycopg.Connection[Any]) -> None:
    """Clears it, and unmarks it at once: a session that is closed lives on for a moment, with its locks."""
    clear(connection)
    connection.execute("SELECT pg_advisory_unlock(%s)", (_LOCK,))


def clear(connection: psycopg.Connection[Any]) -> None:
    """Ends the other sessions in this database and drops everything in it, the mark last."""
    objects = _objects(connection)
    if not objects:
        return
    connection.execute(
        "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity"
        " WHERE datname = current_database() AND usename = current_user AND pid <> pg_backend_pid()"
    )
    for kind, identity in sorted(objects, key=lambda found: MARKER in found[1]):
        if kind == "large object":
            connection.execute("SELECT lo_unlink(%s)", (int(identity),))
        else:
            # Both come from the server's own catalogue, quoted by it.
            connection.execute(f"DROP {kind} IF EXISTS {identity} CASCADE".encode())


def _objects(connection: psycopg.Connection[Any]) -> list[tuple[str, str]]:
    return [(kind, identity) for _, kind, identity in connection.execute(_OBJECTS).fetchall()]


def _first_line(problem: psycopg.Error) -> str:
    return str(problem).strip().splitlines()[0]
