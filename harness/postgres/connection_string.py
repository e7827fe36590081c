"""A connection string somebody gave us: read, and told without its password."""

from __future__ import annotations

import re
from functools import lru_cache

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from fencepost.harness.errors import UsageError

_IN_URI = re.compile(r"(://[^:/@\s]*):.*@", re.DOTALL)  # up to the last @: a password may hold one
_AS_KEYWORD = re.compile(r"(sslpassword|password)\s*=\s*('(?:[^'\\]|\\.)*'|[^\s&]+)", re.IGNORECASE)
_HOW_TO_WRITE_IT = (
    "write it as postgresql://USER:PASSWORD@HOST:PORT/DATABASE, with %-escapes for special characters in user "
    "and password, or leave the password to PGPASSWORD or a .pgpass file"
)


@lru_cache(maxsize=512)
def conninfo(base: str = "", **parts: str | int | None) -> str:
    """psycopg's, kept: libpq reads the string anew for each, and every operation of an actor asks for one."""
    return make_conninfo(base, **parts)


def without_password(text: str) -> str:
    return _AS_KEYWORD.sub(r"\1=…", _IN_URI.sub(r"\1@", text))


def read_connection_string(given: str) -> dict[str, str]:
    """Its parts, by libpq's names. What libpq says of a broken one is not passed on: it quotes the password."""
    try:
        parts = {name: str(value) for name, value in conninfo_to_dict(given).items() if value is not None}
    except psycopg.ProgrammingError:
        raise UsageError(f"--pg dsn: this is no connection string: {_HOW_TO_WRITE_IT}.") from None
    ports = parts.get("port", "").split(",")
    if "@" in parts.get("host", "") or not all(port.isdigit() or port == "" for port in ports):
        # An unescaped @, / or ? in the password: its rest was taken for the host or the port.
        raise UsageError(
            f"--pg dsn: this connection string falls apart at the wrong places: {_HOW_TO_WRITE_IT}."
        )
    return parts


def with_parts(parts: dict[str, str], **more: str | int | None) -> str:
    return make_conninfo(
        "", **{**parts, **{name: value for name, value in more.items() if value is not None}}
    )
