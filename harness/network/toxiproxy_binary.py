"""The Toxiproxy server program: where it is looked for, which versions will do, and building it with Go.

`python -m fencepost.harness.network.toxiproxy_binary` is what `make toxiproxy` runs.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from fencepost.harness.errors import FencepostError, UsageError
from fencepost.harness.postgres.base_directory import cache_directory, cached_tree

VARIABLE = "FENCEPOST_TOXIPROXY"
PROGRAM = "toxiproxy-server"

BUILT_VERSION = "2.12.0"
MODULE = "github.com/Shopify/toxiproxy/v2"
OLDEST = (2, 12)  # the faults are tried out on this one; what older ones do to live connections is not known
TOO_NEW = (3, 0)

_ASK_DEADLINE_S = 20.0
_BUILD_DEADLINE_S = 600.0


@dataclass(frozen=True)
class ToxiproxyBinary:
    path: Path
    version: str
    found_by: str


class ToxiproxyMissing(UsageError):
    """There is none on this machine: a reason to skip, where one that was asked for and fails is an error."""


def find_binary(asked_for: str | None = None) -> ToxiproxyBinary:
    """By option, environment variable, PATH, and what `make toxiproxy` built, in this order.

    What was asked for by name and will not do is an error. One on PATH that will not do gives way to a built
    one: its message recommends building, which has to help.
    """
    if asked_for is not None:
        return _checked(_as_path(asked_for, f"--toxiproxy {asked_for}"), "--toxiproxy")
    if named := os.environ.get(VARIABLE):
        return _checked(_as_path(named, f"{VARIABLE}={named}"), VARIABLE)
    built, on_path = _built_path(), shutil.which(PROGRAM)
    if on_path:
        try:
            return _checked(Path(on_path), "PATH")
        except UsageError:
            if not built.is_file():
                raise
    if built.is_file():
        return _checked(built, "make toxiproxy")
    raise ToxiproxyMissing(
        f"Toxiproxy was not found: put {PROGRAM} on PATH, name it by --toxiproxy or {VARIABLE}, "
        "or build it by `make toxiproxy` where Go is installed; `--network gate` needs none."
    )


def _as_path(given: str, told: str) -> Path:
    path = Path(given).expanduser()
    if not path.is_file():
        raise UsageError(f"{told}: there is no such file; give the path of {PROGRAM}.")
    if not os.access(path, os.X_OK):
        raise UsageError(f"{told}: this file cannot be executed; give the path of {PROGRAM}.")
    return path.resolve()


def _checked(path: Path, found_by: str) -> ToxiproxyBinary:
    try:
        asked = subprocess.run(
            [path, "-version"], capture_output=True, text=True, errors="replace", timeout=_ASK_DEADLINE_S
        )
    except (OSError, subprocess.TimeoutExpired) as problem:
        raise UsageError(f"{path} (by {found_by}) cannot be run as {PROGRAM}: {problem}") from problem
    said = re.match(r"toxiproxy-server version (\S+)", asked.stdout)
    if said is None:
        raise UsageError(f"{path} (by {found_by}) is not {PROGRAM}: it did not answer -version as that does.")
    return ToxiproxyBinary(path, require_known_version(said[1], f"{path} (by {found_by})"), found_by)


def require_known_version(version: str, whose: str) -> str:
    numbers = re.match(r"v?(\d+)\.(\d+)", version)
    if numbers is None or not OLDEST <= (int(numbers[1]), int(numbers[2])) < TOO_NEW:
        known = ".".join(map(str, OLDEST))
        raise UsageError(
            f"{whose} is Toxiproxy {version}, and Fencepost knows {known} and later 2.x: "
            f"install one of these, or build {BUILT_VERSION} by `make toxiproxy`."
        )
    return version


def build_binary() -> Path:
    """Builds it with Go, once per user of this machine. Raises UsageError where that cannot be done."""
    built = _built_path()
    if built.is_file():
        return built
    go = shutil.which("go")
    if go is None:
        raise ToxiproxyMissing("Go is not installed, and it builds Toxiproxy")
    cached_tree(_tree_name(), lambda directory: _go_install(go, directory))
    return built


def _go_install(go: str, directory: Path) -> None:
    # The program says "git" for its version unless the linker is told one.
    flags = f"-X {MODULE}.Version={BUILT_VERSION}"
    command = [go, "install", "-trimpath", "-ldflags", flags, f"{MODULE}/cmd/server@v{BUILT_VERSION}"]
    environment = {**os.environ, "GOBIN": str(directory), "CGO_ENABLED": "0"}
    try:
        made = subprocess.run(
            command,
            env=environment,
            cwd=directory,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_BUILD_DEADLINE_S,
        )
    except (OSError, subprocess.TimeoutExpired) as problem:
        raise UsageError(f"Go could not build Toxiproxy {BUILT_VERSION}: {problem}") from problem
    if made.returncode != 0:
        complaint = made.stderr.strip().splitlines() or ["it did not say why"]
        raise UsageError(f"Go could not build Toxiproxy {BUILT_VERSION}: {complaint[-1]}")
    (directory / "server").rename(directory / PROGRAM)


def _tree_name() -> str:
    return f"toxiproxy-{BUILT_VERSION}"


def _built_path() -> Path:
    return cache_directory() / _tree_name() / PROGRAM


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="toxiproxy_binary", description="Find Toxiproxy, or build it with Go."
    )
    parser.add_argument("--if-possible", action="store_true", help="leave with 0 also where it cannot be had")
    arguments = parser.parse_args()
    try:
        try:
            found = find_binary()
        except UsageError:
            if os.environ.get(VARIABLE):
                raise  # a built one would not be asked
            build_binary()
            found = find_binary()
    except FencepostError as problem:
        sys.stderr.write(f"Toxiproxy cannot be had, so only the gate puts network faults here: {problem}\n")
        return 0 if arguments.if_possible else 2
    sys.stdout.write(f"Toxiproxy {found.version}: {found.path} (by {found.found_by})\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
