"""Network faults on one actor's way to the server: one interface, two engines.

Every actor gets a path of its own: a host and port on loopback behind which the server answers. A fault is put
on a path and holds for all its connections, those that live and those that will be opened, until it is ended.

**One fault at a time.** A second fault on a path that has one is refused: on the real Toxiproxy, adding a toxic
behind a pause lets go what the pause holds, and a run with two faults would not show which of them it was.

**When a call returns, its fault is in force** for every live connection: nothing that a peer sends from then on
gets past it. Calls have a deadline; one that reaches it raises `NetworkError`, and the path is then unusable.
"""

from __future__ import annotations

from typing import Literal, Protocol

from fencepost.harness.errors import FencepostError

ENGINES = ("gate", "toxiproxy")

CALL_DEADLINE_S = 10.0
"""Of one call on a path. Both engines answer in milliseconds; a machine may be busy."""

NO_FAULT = "no fault"

CutBy = Literal["fin", "rst"]


class NetworkError(FencepostError):
    """A fault could not be put in force, or could not be ended. Names the actor, the fault and the engine."""

    def __init__(self, actor: str, fault: str, engine: str, problem: str) -> None:
        super().__init__(f"{fault} on the network path of {actor} (engine {engine}): {problem}")
        self.actor = actor
        self.fault = fault
        self.engine = engine


class NetworkPath(Protocol):
    @property
    def actor(self) -> str: ...

    @property
    def host(self) -> str: ...

    @property
    def port(self) -> int: ...

    @property
    def description(self) -> str:
        """The fault in force, in words that are the same for every engine; `NO_FAULT` without one."""

    def pause(self) -> None:
        """Both directions stand still. Nothing is lost: `resume` lets go what was held, in order, at once."""

    def resume(self) -> None: ...

    def delay(self, seconds: float) -> None:
        """Every byte arrives this much later, in each direction: an answer takes twice as long."""

    def no_delay(self) -> None:
        """What is being delayed is let go at once."""

    def lose_reply(self) -> None:
        """From now on the server gets every request and its replies are swallowed: the client hears nothing."""

    def lose_request(self) -> None:
        """From now on requests are swallowed: the server hears nothing, and the client waits."""

    def half_open(self) -> None:
        """The server's ends of the live connections are closed; the clients are not told and wait for ever.

        Connections opened from now on work.
        """

    def cut_mid_message(self) -> None:
        """Of the next reply on each connection a part gets through, ending within a message; then it dies."""

    def cut(self, how: CutBy = "fin") -> None:
        """The live connections die now; what was held or swallowed on them is gone, and new ones work.

        Ends every fault but `pause` and `delay`, which go on for new connections. `rst` needs a path made with
        `resets=True`.
        """

    def clean(self) -> None:
        """Ends the fault in force; without one it does nothing.

        Live connections go on after `pause` and `delay`, and after `cut_mid_message` where no reply came, and
        those that are not half open after `half_open`. After `lose_reply` and `lose_request` all are cut: a
        stream with a hole in it must not be used, and not every engine knows which have one.
        """

    def close(self) -> None:
        """Ends the path with its connections. Its port no longer answers."""


class Network(Protocol):
    @property
    def engine(self) -> str: ...

    def path(
        self, actor: str, upstream_host: str, upstream_port: int, *, resets: bool = False
    ) -> NetworkPath:
        """A new path for `actor` to that server, without a fault.

        With `resets` its connections can be cut by RST, and only so: Toxiproxy decides at the opening of a
        connection by which of the two it will end.
        """

    def close(self) -> None:
        """Ends every path and what the engine started. Closing twice does nothing the second time."""
