"""The clock preload as a file the servers can load: built once and cached, or shipped with the wheel."""

from __future__ import annotations

import hashlib
import os
import platform
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from fencepost.harness.clock.compilers import (
    COMPILER_VARIABLE,
    SOURCE,
    CompilerFailed,
    build_preload,
    compilers,
)
from fencepost.harness.errors import UsageError
from fencepost.harness.postgres.base_directory import cache_directory, locked, write_whole

CLOCK_FILE_VARIABLE = "FENCEPOST_CLOCK_FILE"
SHIPPED = Path(__file__).with_name("_preload.so")
_PROBE_OFFSET_S = 1_000_000
_PROBE_DEADLINE_S = 20


@dataclass(frozen=True)
class ClockPreload:
    library: (
        Path  # readable by any user: it lies in the cache, never in an environment a home directory closes
    )

    def environment(self, offset: Path) -> dict[str, str]:
        """What a process must be started with to have the clock that the number in `offset` says."""
        others = os.environ.get("LD_PRELOAD")
        libraries = str(self.library) if not others else f"{self.library}:{others}"
        return {"LD_PRELOAD": libraries, CLOCK_FILE_VARIABLE: str(offset)}


@dataclass(frozen=True)
class _Search:
    """What looking for a preload came to."""

    found: ClockPreload | None
    told: str  # where it comes from, or what was missing


def find_preload() -> ClockPreload | None:
    """The preload, built on the first call on a machine; None if it can neither be built nor was shipped."""
    return _search().found


def explain_preload() -> str:
    """Where the preload comes from, or what is missing and what to do about it."""
    return _search().told


def require_preload(wanted: str = "the database's clock cannot be moved here") -> ClockPreload:
    """The preload, or a UsageError that says what cannot be done (`wanted`) and what is missing for it."""
    search = _search()
    if search.found is None:
        raise UsageError(f"{wanted}: {search.told}")
    return search.found


def _search() -> _Search:
    if sys.platform != "linux":
        return _Search(
            None, "moving a server's clock needs Linux, so run there or let the adapter expire leases"
        )
    failures: list[str] = []
    for compiler in compilers():
        try:
            library = _cached(compiler.identity(), partial(build_preload, compiler))
            return _Search(ClockPreload(library), f"built by `{compiler.name}`, cached as {library}")
        except CompilerFailed as problem:
            if compiler.asked_for:
                raise UsageError(f"{problem}: correct {COMPILER_VARIABLE} or unset it") from problem
            failures.append(str(problem))
    if SHIPPED.is_file():
        try:
            content = SHIPPED.read_bytes()
            library = _cached(hashlib.sha256(content).hexdigest(), lambda target: _write(content, target))
            return _Search(ClockPreload(library), f"shipped with the wheel, cached as {library}")
        except CompilerFailed as problem:
            failures.append(str(problem))
    missing = "; ".join(failures) or "there is no C compiler and the installed wheel carries no built preload"
    return _Search(None, f"{missing}: install gcc or clang, or `pip install ziglang`")


def _cached(made_by: str, make: Callable[[Path], None]) -> Path:
    """The library in the cache, made and tried out on the first use of this source with this compiler."""
    identity = b"\0".join([SOURCE.read_bytes(), made_by.encode(), platform.machine().encode()])
    cache = cache_directory()
    library = cache / f"clock-{hashlib.sha256(identity).hexdigest()[:16]}.so"
    if library.is_file():
        return library
    with locked(cache / f"{library.name}.lock"), tempfile.TemporaryDirectory(dir=cache) as scratch:
        if not library.is_file():
            made = Path(scratch) / library.name
            make(made)
            _try_out(made, Path(scratch) / "offset")
            write_whole(library, made.read_bytes(), mode=0o755)
    return library


def _write(content: bytes, target: Path) -> None:
    target.write_bytes(content)


def _try_out(library: Path, offset: Path) -> None:
    """Asks a preloaded process for the time; not this one, since a preload that fails ends its process."""
    offset.write_bytes(struct.pack("=q", _PROBE_OFFSET_S * 1_000_000_000))
    environment = {**os.environ, "LD_PRELOAD": str(library), CLOCK_FILE_VARIABLE: str(offset)}
    asked = subprocess.run(
        [sys.executable, "-I", "-S", "-c", "import sys, time; sys.stdout.write(str(time.time()))"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=_PROBE_DEADLINE_S,
    )
    if asked.returncode != 0 or float(asked.stdout or 0) < time.time() + _PROBE_OFFSET_S / 2:
        complaint = asked.stderr.strip().splitlines() or ["it did not move the time"]
        raise CompilerFailed(f"the clock preload does not work here ({complaint[0]})")
