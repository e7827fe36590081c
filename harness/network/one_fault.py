"""What both engines share: one fault at a time, named in every message, and a path that failed stays failed."""

from __future__ import annotations

import math
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from fencepost.harness.errors import UsageError
from fencepost.harness.network.base import NO_FAULT, CutBy, NetworkError

PAUSE = "pause"
DELAY = "delay"
LOSE_REPLY = "lose_reply"
LOSE_REQUEST = "lose_request"
HALF_OPEN = "half_open"
CUT_MID_MESSAGE = "cut_mid_message"

HOLDING = frozenset({PAUSE, DELAY})
"""Faults that lose nothing: they outlive a cut, and connections outlive them."""

LOSING = frozenset({LOSE_REPLY, LOSE_REQUEST})

IN_WORDS = {
    PAUSE: "paused",
    DELAY: "delayed",
    LOSE_REPLY: "replies are lost",
    LOSE_REQUEST: "requests are lost",
    HALF_OPEN: "half open",
    CUT_MID_MESSAGE: "cut in the next reply",
}

LONGEST_DELAY_S = 24 * 3600.0


class OneFaultPath(ABC):
    """A `NetworkPath`. An engine says how each fault is put in force and ended; see the abstract methods."""

    def __init__(self, engine: str, actor: str, host: str, port: int, resets: bool) -> None:
        self.actor = actor
        self.host = host
        self.port = port
        self._engine = engine
        self._resets = resets
        self._turn = threading.RLock()
        self._fault: str | None = None
        self._delay_s = 0.0
        self._broken: str | None = None  # the call that failed: what is in force since is not known
        self._closed = False

    @property
    def description(self) -> str:
        if self._broken is not None:
            return f"unknown since {self._broken} failed"
        if self._fault is None:
            return NO_FAULT
        told = IN_WORDS[self._fault]
        return f"{told} by {self._delay_s:g} s each way" if self._fault == DELAY else told

    def pause(self) -> None:
        self._put(PAUSE, self._pause)

    def resume(self) -> None:
        self._end(PAUSE, "resume", self._resume)

    def delay(self, seconds: float) -> None:
        if not (math.isfinite(seconds) and 0 < seconds <= LONGEST_DELAY_S):
            raise UsageError(f"delay({seconds}): give seconds above 0 and up to {LONGEST_DELAY_S:g}.")
        self._put(DELAY, lambda: self._delay(seconds))
        self._delay_s = seconds

    def no_delay(self) -> None:
        self._end(DELAY, "no_delay", self._no_delay)

    def lose_reply(self) -> None:
        self._put(LOSE_REPLY, self._lose_reply)

    def lose_request(self) -> None:
        self._put(LOSE_REQUEST, self._lose_request)

    def half_open(self) -> None:
        self._put(HALF_OPEN, self._half_open)

    def cut_mid_message(self) -> None:
        self._put(CUT_MID_MESSAGE, self._cut_mid_message)

    def cut(self, how: CutBy = "fin") -> None:
        if how not in ("fin", "rst"):
            raise UsageError(f"cut({how!r}): give 'fin' or 'rst'.")
        with self._call("cut"):
            if (how == "rst") != self._resets:
                wanted = "with" if how == "rst" else "without"
                raise NetworkError(
                    self.actor, f"cut({how!r})", self._engine, f"ask for a path {wanted} resets=True"
                )
            with self._breaking("cut"):
                self._cut(self._fault)
            if self._fault not in HOLDING:
                self._fault = None

    def clean(self) -> None:
        with self._call("clean"):
            ends: dict[str, Callable[[], None]] = {
                PAUSE: self._resume,
                DELAY: self._no_delay,
                LOSE_REPLY: lambda: self._cut(LOSE_REPLY),
                LOSE_REQUEST: lambda: self._cut(LOSE_REQUEST),
                HALF_OPEN: self._end_half_open,
                CUT_MID_MESSAGE: self._end_cut_mid_message,
            }
            if self._fault is not None:
                with self._breaking("clean"):
                    ends[self._fault]()
                self._fault = None

    def close(self) -> None:
        with self._turn:
            if not self._closed:
                self._closed = True
                self._close()

    def _put(self, fault: str, put: Callable[[], None]) -> None:
        with self._call(fault):
            if self._fault is not None:
                raise NetworkError(
                    self.actor,
                    fault,
                    self._engine,
                    f"the path has a fault already ({self.description}); end it first, by cut or clean",
                )
            with self._breaking(fault):
                put()
            self._fault = fault

    def _end(self, fault: str, call: str, end: Callable[[], None]) -> None:
        with self._call(call):
            if self._fault != fault:
                raise NetworkError(
                    self.actor, call, self._engine, f"the path is not {IN_WORDS[fault]} ({self.description})"
                )
            with self._breaking(call):
                end()
            self._fault = None

    @contextmanager
    def _call(self, name: str) -> Iterator[None]:
        with self._turn:
            if self._closed:
                raise NetworkError(self.actor, name, self._engine, "the path is closed")
            if self._broken is not None:
                raise NetworkError(
                    self.actor, name, self._engine, f"the path is unusable since {self._broken} failed on it"
                )
            yield

    @contextmanager
    def _breaking(self, name: str) -> Iterator[None]:
        """A call that fails half way leaves a path nobody can speak for."""
        try:
            yield
        except BaseException:
            self._broken = name
            raise

    @abstractmethod
    def _pause(self) -> None: ...

    @abstractmethod
    def _resume(self) -> None: ...

    @abstractmethod
    def _delay(self, seconds: float) -> None: ...

    @abstractmethod
    def _no_delay(self) -> None: ...

    @abstractmethod
    def _lose_reply(self) -> None: ...

    @abstractmethod
    def _lose_request(self) -> None: ...

    @abstractmethod
    def _half_open(self) -> None: ...

    @abstractmethod
    def _end_half_open(self) -> None: ...

    @abstractmethod
    def _cut_mid_message(self) -> None: ...

    @abstractmethod
    def _end_cut_mid_message(self) -> None: ...

    @abstractmethod
    def _cut(self, fault: str | None) -> None:
        """Kills the live connections and ends `fault`, unless it is one that holds."""

    @abstractmethod
    def _close(self) -> None: ...
