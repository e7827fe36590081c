"""The operating-system users of a run: ours, and the one the servers run under."""

from __future__ import annotations

import os
import pwd
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict

from fencepost.harness.errors import UsageError

USER_VARIABLE = "FENCEPOST_PG_OS_USER"
_DEADLINE_S = 20


class RunAs(TypedDict, total=False):
    """Arguments for `subprocess` that run a program under another user."""

    user: int
    group: int
    extra_groups: list[int]


@dataclass(frozen=True)
class ServerUser:
    """Who the servers run as. PostgreSQL refuses to run as root, so root needs somebody else."""

    name: str
    uid: int
    gid: int
    is_us: bool

    def run_as(self) -> RunAs:
        return {} if self.is_us else {"user": self.uid, "group": self.gid, "extra_groups": []}

    def own(self, path: Path) -> None:
        if not self.is_us:
            os.chown(path, self.uid, self.gid)

    def can_run(self, program: Path) -> bool:
        """Tried rather than computed from mode bits: access lists and closed parents count as well."""
        try:
            answer = subprocess.run(
                [program, "--version"], capture_output=True, timeout=_DEADLINE_S, cwd="/", **self.run_as()
            )
        except (OSError, subprocess.TimeoutExpired):
            return False
        return answer.returncode == 0


def our_name() -> str:
    """The user the harness runs as, by the name a server's peer authentication sees."""
    uid = os.geteuid()
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        raise UsageError(
            f"user id {uid} has no name, and PostgreSQL will not start without one: "
            "add it to /etc/passwd or run under another user"
        ) from None


def server_user() -> ServerUser:
    """Ourselves; for root, an unprivileged user."""
    if os.geteuid() != 0:
        return ServerUser(our_name(), os.geteuid(), os.getegid(), is_us=True)
    named = os.environ.get(USER_VARIABLE)
    for name in [named] if named else ["postgres", "nobody"]:
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        if entry.pw_uid == 0:
            raise UsageError(
                f"{USER_VARIABLE} names root, but PostgreSQL refuses to run as root: name another"
            )
        return ServerUser(name, entry.pw_uid, entry.pw_gid, is_us=False)
    if named:
        raise UsageError(f"{USER_VARIABLE} names the user {named}, who does not exist: name one who does")
    raise UsageError(
        f"PostgreSQL refuses to run as root and there is no user postgres or nobody: "
        f"name an unprivileged user in {USER_VARIABLE}"
    )
