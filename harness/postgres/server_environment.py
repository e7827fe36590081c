"""The environment the server programs run in: what they need, and nothing a user's shell happens to hold."""

from __future__ import annotations

import os

_PASSED_ON = ("PATH", "LD_LIBRARY_PATH")


def server_environment() -> dict[str, str]:
    """Without the PG* variables: a PGPORT or PGDATA left in a shell would redirect the server."""
    passed_on = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
    return {**passed_on, "LC_ALL": "C", "TZ": "UTC"}
