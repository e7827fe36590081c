"""Free loopback ports."""

from __future__ import annotations

import errno
import random
import socket
from pathlib import Path

from fencepost.harness.errors import UsageError
from fencepost.harness.postgres.settings import LOOPBACK

_LOWEST = 15000
_DEFAULT_HIGHEST = 32767
_ATTEMPTS = 50


def free_port() -> int:
    """A port nobody listens on, below the range the kernel gives to outgoing connections.

    A server that is crashed and started again must find its port free: from within that range, any client
    on the machine could have been given it meanwhile.
    """
    below = _first_outgoing_port() or _DEFAULT_HIGHEST + 1
    # Seeded by the system, not by a schedule's seed: two workers with one seed must not fight for one port.
    system_random = random.SystemRandom()
    for _ in range(_ATTEMPTS):
        port = system_random.randrange(_LOWEST, max(below, _LOWEST + 1000))
        if _is_free(port):
            return port
    raise UsageError(f"no free port was found on {LOOPBACK}: end some of the servers that listen there")


def _is_free(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as PostgreSQL binds
        try:
            probe.bind((LOOPBACK, port))
        except OSError as problem:
            if problem.errno in (errno.EADDRINUSE, errno.EACCES):
                return False
            raise
    return True


def _first_outgoing_port() -> int | None:
    try:
        return int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return None
