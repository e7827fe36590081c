"""Stopping and continuing a process, and what the kernel says about it.

A signal sent is not yet a signal taken: a thread on another core runs on for a moment, and one heartbeat sent in
that moment would make a schedule inexact. So each of these returns only when every thread is seen where it should be.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from fencepost.harness.errors import FencepostError

SIGNAL_DEADLINE_S = 10.0
"""For the kernel to take a signal to every thread: microseconds, but for a thread inside an uninterruptible read."""

POLL_S = 0.0002
STOPPED = "T"


class SignalNotTaken(FencepostError):
    """A process did not stop, or did not go on, though it was told to."""


def thread_states(pid: int) -> dict[int, str]:
    """Each thread's state letter (proc(5): R, S, D, T, Z, …); empty if there is no such process, or no /proc."""
    states: dict[int, str] = {}
    try:
        threads = [int(name) for name in os.listdir(f"/proc/{pid}/task")]  # noqa: PTH208 - names, not paths
    except (FileNotFoundError, ProcessLookupError):
        return states
    for thread in threads:
        try:
            stat = Path(f"/proc/{pid}/task/{thread}/stat").read_text()
        except (FileNotFoundError, ProcessLookupError):
            continue  # it ended between the two looks
        # The name before it stands in parentheses and may hold any character, parentheses too.
        states[thread] = stat.rpartition(")")[2].split()[0]
    return states


def is_stopped(pid: int) -> bool:
    states = thread_states(pid)
    return bool(states) and all(state == STOPPED for state in states.values())


def stop(pid: int) -> None:
    _require_proc()
    os.kill(pid, signal.SIGSTOP)
    deadline = time.monotonic() + SIGNAL_DEADLINE_S
    while not is_stopped(pid):
        if time.monotonic() > deadline:
            raise SignalNotTaken(_told(pid, "is not stopped", "SIGSTOP"))
        time.sleep(POLL_S)


def resume(pid: int) -> None:
    os.kill(pid, signal.SIGCONT)
    deadline = time.monotonic() + SIGNAL_DEADLINE_S
    while STOPPED in thread_states(pid).values():
        if time.monotonic() > deadline:
            raise SignalNotTaken(_told(pid, "is still stopped", "SIGCONT"))
        time.sleep(POLL_S)


def _require_proc() -> None:
    if not Path("/proc/self/task").is_dir():
        raise SignalNotTaken("whether a process is stopped cannot be seen here: that needs Linux's /proc")


def _told(pid: int, what: str, sent: str) -> str:
    states = ", ".join(f"{thread} {state}" for thread, state in sorted(thread_states(pid).items()))
    return f"process {pid} {what} {SIGNAL_DEADLINE_S:g} s after {sent}; its threads: {states or 'none'}"
