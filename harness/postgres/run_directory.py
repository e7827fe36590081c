"""The directory of one run, and clearing up those whose run has died."""

from __future__ import annotations

import fcntl
import os
import secrets
from pathlib import Path

from fencepost.harness.postgres import keeper
from fencepost.harness.postgres.base_directory import base_directory, locked

_LOCK = "lock"


def new_run_directory() -> tuple[Path, int]:
    """A fresh `run-<pid>-<random>`, and the locked file descriptor that marks it as in use."""
    base = base_directory()
    with locked(
        base / "runs.lock"
    ):  # else another start could take it for a leftover before its lock is held
        remove_leftovers(base)
        run_dir = base / f"run-{os.getpid()}-{secrets.token_hex(4)}"
        run_dir.mkdir(0o711)
        run_dir.chmod(0o711 if os.geteuid() == 0 else 0o700)
        lock_fd = os.open(run_dir / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(lock_fd, fcntl.LOCK_EX)
    return run_dir, lock_fd


def remove_leftovers(base: Path) -> None:
    """Ends and removes the runs nobody holds any more: their keeper was killed, or the machine restarted."""
    for run_dir in base.glob("run-*"):
        if not _is_held(run_dir):
            keeper.remove_run(run_dir)


def _is_held(run_dir: Path) -> bool:
    try:
        lock_fd = os.open(run_dir / _LOCK, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(lock_fd)
    return False
