"""Which connections a loopback port has, as the kernel tells it."""

from __future__ import annotations

from pathlib import Path

_TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
_ESTABLISHED = "01"
_CLOSE_WAIT = "08"  # the peer has closed, and we have not
_LISTEN = "0A"


def listens(port: int) -> bool:
    """False also where the kernel does not show it: another system, or a server in a container."""
    return any(local == port and state == _LISTEN for local, _, state in _rows())


def open_peers(port: int) -> frozenset[int]:
    """The peers' ports of the connections to `port` that its own side has not closed."""
    return frozenset(
        remote for local, remote, state in _rows() if local == port and state in (_ESTABLISHED, _CLOSE_WAIT)
    )


def _rows() -> list[tuple[int, int, str]]:
    rows: list[tuple[int, int, str]] = []
    for table in _TABLES:
        try:
            lines = table.read_text().splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            _, local, remote, state, *_ = line.split()
            rows.append((int(local.rpartition(":")[2], 16), int(remote.rpartition(":")[2], 16), state))
    return rows
