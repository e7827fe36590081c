"""The data directory every server of a run starts from: made by initdb once, copied each time."""

from __future__ import annotations

import hashlib
import subprocess
from pathlib import Path

from fencepost.harness.errors import UsageError
from fencepost.harness.postgres.base_directory import cached_tree
from fencepost.harness.postgres.binaries import PostgresBinaries
from fencepost.harness.postgres.os_user import ServerUser
from fencepost.harness.postgres.server_environment import server_environment
from fencepost.harness.postgres.settings import INITDB_ARGUMENTS


def data_template(binaries: PostgresBinaries, user: ServerUser, deadline_s: float) -> Path:
    """A cached data directory owned by `user`. It holds no password: nobody can log in over TCP with it."""
    identity = "\0".join([str(binaries.bindir), user.name, str(user.uid), *INITDB_ARGUMENTS])
    key = hashlib.sha256(identity.encode()).hexdigest()[:12]
    tree = cached_tree(
        f"template-{binaries.version}-{key}", lambda into: _initdb(binaries, user, into, deadline_s)
    )
    return tree / "data"


def _initdb(binaries: PostgresBinaries, user: ServerUser, into: Path, deadline_s: float) -> None:
    data = into / "data"
    data.mkdir(0o700)
    user.own(data)
    command = [str(binaries.bindir / "initdb"), f"--pgdata={data}", *INITDB_ARGUMENTS]
    try:
        made = subprocess.run(
            command,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=deadline_s,
            cwd=into,
            env=server_environment(),
            **user.run_as(),
        )
    except subprocess.TimeoutExpired:
        raise UsageError(
            f"initdb of PostgreSQL {binaries.version} did not end within {deadline_s:g} s: "
            "try again on a less busy machine"
        ) from None
    if made.returncode != 0:
        raise UsageError(
            f"initdb of PostgreSQL {binaries.version} in {binaries.bindir} failed, "
            "so choose another installation; "
            f"it said: {made.stderr.strip() or made.stdout.strip()}"
        )
