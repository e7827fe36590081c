"""A Toxiproxy server of our own: started on a free loopback port, proved to be ours, and gone with the run."""

from __future__ import annotations

import atexit
import json
import os
import secrets
import signal
import time
from pathlib import Path

from fencepost.harness.errors import UsageError
from fencepost.harness.network.base import CALL_DEADLINE_S
from fencepost.harness.network.toxiproxy_api import ToxiproxyApi, ToxiproxyApiError
from fencepost.harness.network.toxiproxy_binary import ToxiproxyBinary, require_known_version
from fencepost.harness.postgres.keeper_client import KeeperClient
from fencepost.harness.postgres.os_user import ServerUser, our_name
from fencepost.harness.postgres.ports import free_port
from fencepost.harness.postgres.run_directory import new_run_directory
from fencepost.harness.postgres.server_environment import server_environment
from fencepost.harness.postgres.settings import LOOPBACK

START_DEADLINE_S = 30.0
_POLL_S = 0.005
_ASK_DEADLINE_S = 1.0  # while starting: somebody else on its port may take the connection and never answer
_PORT_ATTEMPTS = 5
_PORT_TAKEN = "address already in use"
_NAME = "toxiproxy"


class ToxiproxyServer:
    """Kept by the process that keeps embedded servers: it ends with the run, whatever ends that."""

    def __init__(self, binary: ToxiproxyBinary, keeper: KeeperClient, directory: Path) -> None:
        self.binary = binary
        self.pid = 0
        self.port = 0
        self.log_path = directory / "log"
        self._keeper = keeper
        self._directory = directory / "data"  # the keeper knows its processes by their working directory
        self._directory.mkdir(parents=True)
        self._started_by = os.getpid()
        atexit.register(self.close)

    @classmethod
    def start(
        cls,
        binary: ToxiproxyBinary,
        *,
        port: int | None = None,
        arguments: tuple[str, ...] = (),
        deadline_s: float = START_DEADLINE_S,
    ) -> ToxiproxyServer:
        """On a free port; a given `port` is not changed for another one when it is taken."""
        run_dir, lock_fd = new_run_directory()
        try:
            ourselves = ServerUser(our_name(), os.geteuid(), os.getegid(), is_us=True)
            keeper = KeeperClient(run_dir, lock_fd, ourselves, core=None)
        finally:
            os.close(lock_fd)
        server = cls(binary, keeper, run_dir / _NAME)
        try:
            server._bring_up(port, arguments, time.monotonic() + deadline_s)
        except BaseException:  # a Ctrl-C in here must not leave it behind either
            server.close()
            raise
        return server

    def api(self, deadline_s: float = CALL_DEADLINE_S) -> ToxiproxyApi:
        return ToxiproxyApi(LOOPBACK, self.port, deadline_s)

    def log_tail(self, lines: int = 5) -> str:
        try:
            return "\n".join(self.log_path.read_text(errors="replace").splitlines()[-lines:])
        except FileNotFoundError:
            return ""

    def close(self) -> None:
        """Ends it and removes its files. Closing twice does nothing the second time."""
        if os.getpid() != self._started_by:
            return  # a forked copy of the harness does not own it
        atexit.unregister(self.close)
        self._keeper.close()

    def _bring_up(self, port: int | None, arguments: tuple[str, ...], deadline: float) -> None:
        for _ in range(1 if port is not None else _PORT_ATTEMPTS):
            self.port = free_port() if port is None else port
            if self._launched(arguments, deadline):
                return
            self._keeper.ask("signal", name=_NAME, signal_number=int(signal.SIGKILL))
            self._keeper.ask("stop", name=_NAME)
        told = f"port {port} was" if port is not None else f"{_PORT_ATTEMPTS} ports in a row were"
        raise UsageError(
            f"{told} taken before Toxiproxy could listen on {LOOPBACK}: "
            "end what listens there and start again."
        )

    def _launched(self, arguments: tuple[str, ...], deadline: float) -> bool:
        """False if its port was taken. It does not end then: it stays, without an API, and says so in its log.

        Whoever has the port may be a Toxiproxy too, so an answer alone does not prove that ours is up: ours
        starts with a proxy of a name nobody else has.
        """
        mark = f"fencepost-{secrets.token_hex(8)}"
        config = self._directory / "config.json"
        config.write_text(
            json.dumps(
                [{"name": mark, "listen": f"{LOOPBACK}:0", "upstream": f"{LOOPBACK}:1", "enabled": False}]
            )
        )
        self.log_path.unlink(missing_ok=True)
        address = ["-host", LOOPBACK, "-port", str(self.port), "-config", str(config)]
        answer = self._keeper.ask(
            "start",
            name=_NAME,
            argv=[str(self.binary.path), *address, *arguments],
            env={**server_environment(), "LOG_LEVEL": "warn"},
            data_dir=str(self._directory),
            log=str(self.log_path),
        )
        self.pid = int(answer["pid"])
        said = ""
        while time.monotonic() < deadline:
            if _PORT_TAKEN in self.log_path.read_text(errors="replace"):
                return False
            exit_code = self._keeper.ask("status", name=_NAME)["exit"]
            if exit_code is not None:
                raise UsageError(
                    f"{self.binary.path} ended with exit code {exit_code} instead of serving; "
                    f"the end of its log: {self.log_tail() or 'it wrote nothing'}"
                )
            try:
                api = self.api(_ASK_DEADLINE_S)
                if mark in api.proxies():
                    require_known_version(api.version(), f"the server on port {self.port}")
                    api.delete_proxy(mark)
                    return True
                said = "another Toxiproxy answered on its port"
            except (ToxiproxyApiError, ValueError, KeyError) as problem:
                said = str(problem)
            time.sleep(_POLL_S)
        raise UsageError(
            f"{self.binary.path} did not answer on its API at {LOOPBACK}:{self.port} by its deadline: {said}"
        )
