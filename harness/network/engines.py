"""Choosing the engine of a run: checked at the door, opened when it is needed."""

from __future__ import annotations

from fencepost.harness.errors import UsageError
from fencepost.harness.network.base import ENGINES, Network
from fencepost.harness.network.by_gate import GateNetwork
from fencepost.harness.network.toxiproxy_binary import find_binary


def check_engine(engine: str) -> None:
    if engine not in ENGINES:
        raise UsageError(f"--network {engine}: give one of {', '.join(ENGINES)}.")


def check_network(engine: str, toxiproxy: str | None = None) -> None:
    """Everything that can be known to be missing before anything is started. Raises UsageError."""
    check_engine(engine)
    if toxiproxy is not None and engine != "toxiproxy":
        raise UsageError(
            f"--toxiproxy {toxiproxy} has no use without --network toxiproxy: give both or none."
        )
    if engine == "toxiproxy":
        find_binary(toxiproxy)
        _require_library()


def open_network(engine: str, toxiproxy: str | None = None) -> Network:
    """`toxiproxy` is the path of the server program, where one was asked for."""
    check_network(engine, toxiproxy)
    if engine == "gate":
        return GateNetwork()
    # Here and not above: toxiproxy-python is an extra, and the gate does without it.
    from fencepost.harness.network.toxiproxy import ToxiproxyNetwork

    return ToxiproxyNetwork.start(toxiproxy)


def _require_library() -> None:
    try:
        import toxiproxy  # noqa: F401
    except ImportError as problem:
        raise UsageError(
            f"--network toxiproxy needs toxiproxy-python ({problem}): pip install 'fencepost[toxiproxy]'."
        ) from problem
