"""An outside system that workers act on: a small HTTP service that may check fencing tokens.

No queue can call an effect back that a stale worker has outside of the database. A system that remembers the
highest token it has seen per job, and refuses lower ones, can.
"""

from __future__ import annotations

import http.client
import json
import threading
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any
from urllib.parse import urlsplit

from fencepost.harness.adapter import Claim, JobId, Outcome
from fencepost.harness.history import Reply

EFFECT = "effect"
"""The operation of an actor that calls a sink. It is the actor's own: the queue has no part in it."""

STALE_TOKEN = "stale_token"

CALL_DEADLINE_S = 10.0
STOP_POLL_S = 0.005


@dataclass(frozen=True, slots=True)
class Effect:
    job: JobId
    token: int | None
    worker: str


class Sink:
    """Open on a free port of the loopback interface while it is entered. `effects`: what it did, in order."""

    def __init__(self, *, checks_tokens: bool) -> None:
        self._checks_tokens = checks_tokens
        self._highest: dict[JobId, int] = {}
        self._lock = threading.Lock()
        self.effects: list[Effect] = []

    def __enter__(self) -> Sink:
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler_of(self))
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(STOP_POLL_S,), name="sink", daemon=True
        )
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    @property
    def url(self) -> str:
        host, port = self._server.server_address[:2]
        return f"http://{host!s}:{port}/effects?checks_tokens={self._checks_tokens:d}"

    def ask(self, effect: Effect) -> int | None:
        """None if it was done; if it was refused, the token it came too late for."""
        token = -1 if effect.token is None else effect.token
        with self._lock:
            highest = self._highest.get(effect.job, token)
            if self._checks_tokens and token < highest:
                return highest
            self._highest[effect.job] = max(highest, token)
            self.effects.append(effect)
            return None


def _handler_of(sink: Sink) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = CALL_DEADLINE_S

        def do_POST(self) -> None:
            wanted = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            too_late_for = sink.ask(Effect(wanted["job"], wanted["token"], wanted["worker"]))
            body = json.dumps({"highest_token": too_late_for}).encode()
            self.send_response(http.HTTPStatus.OK if too_late_for is None else http.HTTPStatus.CONFLICT)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            """The trace tells of it."""

    return Handler


def call_sink(url: str, worker: str, claim: Claim) -> Reply:
    """What a worker does: ask for the job's effect under its claim's token."""
    address = urlsplit(url)
    assert address.hostname is not None
    connection = http.client.HTTPConnection(address.hostname, address.port, timeout=CALL_DEADLINE_S)
    try:
        body = json.dumps({"job": claim.job, "token": claim.token, "worker": worker})
        connection.request("POST", address.path, body, {"Content-Type": "application/json"})
        response = connection.getresponse()
        answer = json.loads(response.read())
    finally:
        connection.close()
    if response.status == http.HTTPStatus.OK:
        return Reply(Outcome.ACCEPTED)
    return Reply(Outcome.REFUSED, reason=STALE_TOKEN, current_token=answer["highest_token"])
