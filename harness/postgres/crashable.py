"""The embedded server under test: crashed, killed, restarted and held in recovery, each time verified."""

from __future__ import annotations

import errno
import os
import signal
import time
from typing import Final

import psycopg

from fencepost.harness.errors import StepDeadline
from fencepost.harness.postgres import backends, keeper
from fencepost.harness.postgres.embedded_server import EmbeddedServer
from fencepost.harness.postgres.patience import connect_patiently, refuses_for_now
from fencepost.harness.postgres.provider import (
    FAULT_DEADLINE_S,
    CannotInject,
    FaultDidNotHappen,
    ServerFault,
    require_stop,
)
from fencepost.harness.postgres.settings import LOOPBACK

_POLL_S = 0.002
_SIGNALS = {
    ServerFault.CRASH: signal.SIGQUIT,
    ServerFault.KILL_POSTMASTER: signal.SIGKILL,
    ServerFault.FAST_RESTART: signal.SIGINT,
}
# What the server writes into its log (lc_messages is C), and so the proof of what happened to it.
_SAYS_WHILE_STOPPING = {
    ServerFault.CRASH: "received immediate shutdown request",
    ServerFault.FAST_RESTART: "database system is shut down",
}
_RECOVERED = "automatic recovery in progress"
_WAS_SHUT_DOWN = "database system was shut down at"
_REINITIALISED = "all server processes terminated; reinitializing"
_READY = "database system is ready to accept connections"
_STARTING_UP = "the database system is starting up"

# A server told to look for archived log asks `restore_command` before it recovers. Ours waits for a writer of
# this pipe and then knows of no archived log. Relative to the data directory, where the server works.
_HOLD = "fencepost.hold"
_HOLD_COMMAND = f"test -p {_HOLD} && read -r released < {_HOLD}; exit 1"
_LOOK_FOR_ARCHIVED_LOG = "recovery.signal"


class CrashableServer(EmbeddedServer):
    provider: Final = "embedded"
    can: Final = frozenset(ServerFault)

    _stopped_by: ServerFault | None = None
    _hold_fd: int | None = None  # the writing end of the pipe at which a held start waits

    @property
    def tcp_address(self) -> tuple[str, int]:
        return LOOPBACK, self.port

    def refusal(self, fault: ServerFault) -> CannotInject | None:
        return None

    # -- the whole server ---------------------------------------------------------------------------------

    def stop_now(self, how: ServerFault = ServerFault.CRASH) -> None:
        require_stop(how)
        if not self.alive():
            raise FaultDidNotHappen(f"the {self.name} server is not running, so {how} cannot stop it")
        log_from = self.log_size()
        if how is ServerFault.KILL_ALL:
            self.kill_processes()
        else:
            self.signal(_SIGNALS[how])
        self._await_gone(how)
        said = _SAYS_WHILE_STOPPING.get(how)
        if said is not None and said not in self.log_since(log_from):
            raise FaultDidNotHappen(
                f"the {self.name} server ended and its log does not say '{said}':\n{self.log_tail()}"
            )
        self._stopped_by = how
        self._forget_hold()

    def start(self) -> None:
        if self.alive():
            raise FaultDidNotHappen(f"the {self.name} server runs already: it was to be started after a stop")
        self.start_again(time.monotonic() + FAULT_DEADLINE_S)
        self._verify_recovery()

    def crash(self) -> None:
        self.stop_now(ServerFault.CRASH)
        self.start()

    def kill_postmaster(self) -> None:
        self.stop_now(ServerFault.KILL_POSTMASTER)
        self.start()

    def kill_all(self) -> None:
        self.stop_now(ServerFault.KILL_ALL)
        self.start()

    def fast_restart(self) -> None:
        self.stop_now(ServerFault.FAST_RESTART)
        self.start()

    def refuse_connections(self) -> None:
        self.stop_now(ServerFault.CRASH)
        for name, make in (
            (_HOLD, lambda path: os.mkfifo(path, 0o600)),
            (_LOOK_FOR_ARCHIVED_LOG, lambda path: path.touch(0o600)),
        ):
            make(self.data_dir / name)
            self.user.own(self.data_dir / name)
        # With hot_standby it would call itself ready while it still recovers, and only read.
        self.launch(f"restore_command={_HOLD_COMMAND}", "hot_standby=off")
        deadline = time.monotonic() + FAULT_DEADLINE_S
        self._hold_fd = self._await_held(deadline)
        self._await_refusal(deadline)

    def accept_connections(self) -> None:
        if self._hold_fd is None:
            raise FaultDidNotHappen(f"the {self.name} server is not held: `refuse_connections` comes first")
        (self.data_dir / _HOLD).unlink()  # it will ask again for other files, and is not to wait again
        os.write(self._hold_fd, b"go on\n")
        self._forget_hold()
        self.await_ready(time.monotonic() + FAULT_DEADLINE_S)
        self._verify_recovery()

    # -- one backend --------------------------------------------------------------------------------------

    def kill_backend(self, pid: int) -> None:
        with self._admin() as connection:
            backends.require_client_backend(connection, pid)
        log_from = self.log_size()
        os.kill(pid, signal.SIGKILL)
        self._await_log(log_from, _REINITIALISED, f"to end its other backends after {pid} was killed")
        self._await_log(log_from, _READY, f"to recover after its backend {pid} was killed")
        connect_patiently(self.dsn("postgres", application_name="fencepost-admin")).close()

    def terminate_backend(self, pid: int) -> None:
        with self._admin() as connection:
            backends.terminate_backend(connection, pid)

    # -- seeing that it happened --------------------------------------------------------------------------

    def _await_gone(self, how: ServerFault) -> None:
        """Until the postmaster is reaped and every other process has left: none can still commit or answer."""
        deadline = time.monotonic() + FAULT_DEADLINE_S
        while self.alive() or keeper.processes_in(self.data_dir):
            if time.monotonic() >= deadline:
                raise StepDeadline(
                    f"waited {FAULT_DEADLINE_S:g} s for the {self.name} server to end after {how}; "
                    f"it still has the processes {keeper.processes_in(self.data_dir)}; "
                    f"the end of its log:\n{self.log_tail()}"
                )
            time.sleep(_POLL_S)

    def _verify_recovery(self) -> None:
        """That it recovered after a crash, and had no need to after an orderly shutdown."""
        wanted = _WAS_SHUT_DOWN if self._stopped_by is ServerFault.FAST_RESTART else _RECOVERED
        if wanted not in self.log_of_this_start():
            raise FaultDidNotHappen(
                f"the {self.name} server was started after {self._stopped_by} and its log does not say "
                f"'{wanted}':\n{self.log_of_this_start()}"
            )

    def _await_log(self, log_from: int, said: str, what: str) -> None:
        deadline = time.monotonic() + FAULT_DEADLINE_S
        while said not in self.log_since(log_from):
            if not self.alive() or time.monotonic() >= deadline:
                state = "it runs" if self.alive() else "it has ended"
                raise FaultDidNotHappen(
                    f"waited for the {self.name} server {what} ({state}), and its log does not say "
                    f"'{said}':\n{self.log_tail()}"
                )
            time.sleep(_POLL_S)

    def _await_held(self, deadline: float) -> int:
        """The pipe can be opened for writing, without waiting, only once recovery waits at its other end."""
        while True:
            try:
                return os.open(self.data_dir / _HOLD, os.O_WRONLY | os.O_NONBLOCK)
            except OSError as problem:
                if problem.errno != errno.ENXIO:
                    raise
            if not self.alive() or time.monotonic() >= deadline:
                raise FaultDidNotHappen(
                    f"the {self.name} server was to wait in recovery and does not:\n{self.log_tail()}"
                )
            time.sleep(_POLL_S)

    def _await_refusal(self, deadline: float) -> None:
        answered = "nothing"
        while time.monotonic() < deadline:
            try:
                psycopg.connect(self.dsn("postgres"), connect_timeout=5).close()
            except psycopg.OperationalError as problem:
                answered = str(problem).strip()
                if _STARTING_UP in answered:
                    return
                if not refuses_for_now(problem):
                    break
            else:
                answered = "by accepting it"
                break
            time.sleep(_POLL_S)
        raise FaultDidNotHappen(f"the {self.name} server was to refuse a connection and answered: {answered}")

    def _forget_hold(self) -> None:
        """Of a held start nothing stays that could hold the next one."""
        if self._hold_fd is not None:
            os.close(self._hold_fd)
            self._hold_fd = None
        if not self.alive():
            for name in (_HOLD, _LOOK_FOR_ARCHIVED_LOG):
                (self.data_dir / name).unlink(missing_ok=True)
