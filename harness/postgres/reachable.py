"""Makes binaries reachable for the servers' user where they lie in a directory closed to it."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import shutil
from pathlib import Path

from fencepost.harness.errors import UsageError
from fencepost.harness.postgres.base_directory import cached_tree
from fencepost.harness.postgres.binaries import PostgresBinaries
from fencepost.harness.postgres.os_user import USER_VARIABLE, ServerUser

_NEEDED_AT_RUN_TIME = ("bin", "lib", "lib64", "share")


def reachable_binaries(binaries: PostgresBinaries, user: ServerUser) -> PostgresBinaries:
    """`binaries`, or a cached copy of them: an environment under a 0700 home is closed to the server."""
    if user.is_us or user.can_run(binaries.bindir / "postgres"):
        return binaries
    prefix = binaries.bindir.parent
    identity = hashlib.sha256(f"{prefix} {(binaries.bindir / 'postgres').stat().st_mtime_ns}".encode())
    tree = cached_tree(
        f"binaries-{binaries.version}-{identity.hexdigest()[:12]}",
        lambda into: _copy_installation(prefix, into),
    )
    copied = dataclasses.replace(binaries, bindir=tree / prefix.parent.name / prefix.name / "bin")
    if not user.can_run(copied.bindir / "postgres"):
        raise UsageError(
            f"the user {user.name} can run neither {binaries.bindir}/postgres nor a copy of it: "
            f"name a user who can in {USER_VARIABLE}"
        )
    return copied


def _copy_installation(prefix: Path, into: Path) -> None:
    """Copies PREFIX to INTO/<its parent's name>/<its name>, beside the libraries a wheel keeps apart.

    A wheel's programs find those by a path relative to themselves (`package.libs` beside `package`), so the
    layout around them is kept.
    """
    package = prefix.parent
    for name in _NEEDED_AT_RUN_TIME:
        if (prefix / name).is_dir():
            _copy_readable(prefix / name, into / package.name / prefix.name / name)
    wheel_libraries = package.parent / f"{package.name}.libs"
    if wheel_libraries.is_dir():
        _copy_readable(wheel_libraries, into / wheel_libraries.name)
    for directory in (into, into / package.name, into / package.name / prefix.name):
        directory.chmod(0o755)


def _copy_readable(source: Path, target: Path) -> None:
    shutil.copytree(source, target, symlinks=True)
    for directory, _, files in os.walk(target):
        Path(directory).chmod(0o755)
        for name in files:
            copied = Path(directory, name)
            if not copied.is_symlink():
                copied.chmod(0o755 if copied.stat().st_mode & 0o100 else 0o644)
