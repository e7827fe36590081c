"""Keeps the servers of one run, and ends them when the run ends, however it ends.

Runs as a process of its own (`python -I -S keeper.py SPEC`, standard library only) in a session of its own,
so that neither a Ctrl-C nor a SIGKILL of the harness reaches it. It takes one JSON command per line on stdin
and answers each with one line on stdout. The end of stdin means that the harness is gone: it stops every
server and removes the run's directory.

The functions above `Keeper` are also imported by the harness, which clears up after runs whose keeper was
killed.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

POLL_S = 0.005
GRACE_S = 2.0  # for an immediate shutdown; the postmaster itself kills stragglers only after five
KILL_DEADLINE_S = 10.0
PARENT_CHECK_S = 0.5
PR_SET_PDEATHSIG = 1
LEAVING_SIGNALS = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)


def data_directories(run_dir: Path) -> list[Path]:
    return sorted(run_dir.glob("*/data"))


def processes_in(data_dir: Path) -> list[int]:
    """Every process of the server on `data_dir`: all of them, and only they, work in that directory.

    Process groups do not tell: each backend makes itself the leader of its own. Without /proc the answer is
    empty, and only processes the keeper started itself are ended.
    """
    found: list[int] = []
    try:
        entries = os.listdir("/proc")  # noqa: PTH208 - four times faster than Path.iterdir, and polled
    except FileNotFoundError:
        return found
    for entry in entries:
        if entry.isdigit():
            try:
                directory = os.readlink(f"/proc/{entry}/cwd")  # noqa: PTH115 - as above
            except OSError:
                continue  # gone meanwhile, a zombie, or somebody else's
            if directory == str(data_dir):
                found.append(int(entry))
    return found


def postmaster_in(data_dir: Path) -> int | None:
    """The running postmaster's process id. The file outlives a crash, so it is checked against /proc."""
    try:
        pid = int((data_dir / "postmaster.pid").read_text().split("\n", 1)[0])
    except (FileNotFoundError, ValueError):
        return None
    return pid if pid in processes_in(data_dir) else None


def send_signal(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return  # it left on its own, which is what was wanted


def end_servers(data_dirs: Iterable[Path], reap: Callable[[], None] = lambda: None) -> None:
    """Immediate shutdown of these servers; SIGKILL for what is left after the grace time."""
    data_dirs = list(data_dirs)
    for data_dir in data_dirs:
        postmaster = postmaster_in(data_dir)
        if postmaster is not None:
            send_signal(postmaster, signal.SIGQUIT)
        for pid in processes_in(data_dir):
            send_signal(pid, signal.SIGCONT)  # a process a fault has stopped would sit out the grace time
    if not await_gone(data_dirs, GRACE_S, reap):
        kill_servers(data_dirs, reap)
    for data_dir in data_dirs:
        remove_shared_memory(data_dir)


def kill_servers(data_dirs: Iterable[Path], reap: Callable[[], None] = lambda: None) -> bool:
    """SIGKILL of all processes at once, postmaster first. Whether all were gone by the deadline."""
    data_dirs = list(data_dirs)
    for data_dir in data_dirs:
        postmaster = postmaster_in(data_dir)
        if postmaster is not None:
            send_signal(postmaster, signal.SIGKILL)
    # A process forked while the list was read is on the next one.
    deadline = time.monotonic() + KILL_DEADLINE_S
    while time.monotonic() < deadline:
        for data_dir in data_dirs:
            for pid in processes_in(data_dir):
                send_signal(pid, signal.SIGKILL)
        if await_gone(data_dirs, POLL_S, reap):
            return True
    return False


def await_gone(data_dirs: Iterable[Path], deadline_s: float, reap: Callable[[], None]) -> bool:
    data_dirs = list(data_dirs)
    deadline = time.monotonic() + deadline_s
    while True:
        reap()
        if not any(processes_in(data_dir) for data_dir in data_dirs):
            return True
        if time.monotonic() >= deadline:
            return False
        time.sleep(POLL_S)


def remove_shared_memory(data_dir: Path) -> None:
    """Removes the small System V segment that a SIGKILLed server leaves in the kernel.

    It is recognized by its id, by the key and creator that `postmaster.pid` recorded, and by nobody using it.
    The id alone is not enough: after a reboot it may be anyone's.
    """
    try:
        lines = (data_dir / "postmaster.pid").read_text().split("\n")
        key, segment = lines[6].split()
        table = Path("/proc/sysvipc/shm").read_text().splitlines()
    except (FileNotFoundError, IndexError, ValueError):
        return  # a clean stop removed its segment together with the file
    columns = table[0].split()
    for row in table[1:]:
        known = dict(zip(columns, row.split(), strict=False))
        recorded = (segment, key, lines[0], "0")
        if (known["shmid"], str(int(known["key"]) & 0xFFFFFFFF), known["cpid"], known["nattch"]) == recorded:
            ctypes.CDLL(None).shmctl(int(segment), 0, None)  # 0: IPC_RMID


def remove_run(run_dir: Path, reap: Callable[[], None] = lambda: None) -> None:
    """Ends what still runs in a run's directory and removes it."""
    end_servers(data_directories(run_dir), reap)
    shutil.rmtree(run_dir, ignore_errors=True)


class Keeper:
    def __init__(self, spec: dict[str, Any]) -> None:
        self.run_dir = Path(spec["run_dir"])
        self.parent = int(spec["parent"])
        self.run_as: dict[str, Any] = spec["run_as"]
        self.servers: dict[str, subprocess.Popen[bytes]] = {}
        self.data_dirs: dict[str, Path] = {}
        self.prctl = ctypes.CDLL(None).prctl if sys.platform == "linux" else None

    def start(
        self, name: str, argv: list[str], env: dict[str, str], data_dir: str, log: str
    ) -> dict[str, Any]:
        keeper = os.getpid()
        prctl = self.prctl

        def die_with_the_keeper() -> None:
            # Runs after the change of user, which would have cleared it.
            if prctl is not None:
                prctl(PR_SET_PDEATHSIG, signal.SIGQUIT)
                if os.getppid() != keeper:
                    os._exit(1)

        with open(log, "ab") as log_file:  # noqa: PTH123 - pathlib is no shorter here
            self.servers[name] = subprocess.Popen(
                argv,
                env=env,
                cwd=data_dir,
                stdin=subprocess.DEVNULL,
                stdout=log_file,
                stderr=log_file,
                start_new_session=True,
                umask=0o077,
                preexec_fn=die_with_the_keeper,
                **self.run_as,
            )
        self.data_dirs[name] = Path(data_dir)
        return {"pid": self.servers[name].pid}

    def status(self, name: str) -> dict[str, Any]:
        return {"exit": self.servers[name].poll()}

    def signal(self, name: str, signal_number: int) -> dict[str, Any]:
        if self.servers[name].poll() is None:
            send_signal(self.servers[name].pid, signal_number)
        return {}

    def stop(self, name: str) -> dict[str, Any]:
        end_servers([self.data_dirs[name]], self.reap)
        self.bury([name])
        return {}

    def crash(self, name: str) -> dict[str, Any]:
        gone = kill_servers([self.data_dirs[name]], self.reap)
        return {"gone": gone and self.bury([name])}

    def reap(self) -> None:
        for server in self.servers.values():
            server.poll()

    def bury(self, names: list[str]) -> bool:
        """Waits until the kernel has forgotten these servers. Whether it has by the deadline.

        A process that ends gives up its directory first, so that it counts as gone, and can be waited for only
        later: without this a keeper could leave and its server still be seen.
        """
        deadline = time.monotonic() + KILL_DEADLINE_S
        while any(self.servers[name].poll() is None for name in names):
            if time.monotonic() >= deadline:
                return False
            time.sleep(POLL_S)
        return True

    def close(self) -> None:
        """Ends everything, also a server so young that it has not written its lock file yet."""
        for number in LEAVING_SIGNALS:
            signal.signal(number, signal.SIG_IGN)  # a second Ctrl-C must not interrupt clearing up
        for server in self.servers.values():
            if server.poll() is None:
                send_signal(server.pid, signal.SIGQUIT)
        remove_run(self.run_dir, self.reap)
        self.bury(list(self.servers))

    def serve(self) -> None:
        commands: dict[str, Callable[..., dict[str, Any]]] = {
            "start": self.start,
            "status": self.status,
            "signal": self.signal,
            "stop": self.stop,
            "crash": self.crash,
        }
        pending = b""
        while True:
            readable, _, _ = select.select([0], [], [], PARENT_CHECK_S)
            if os.getppid() != self.parent:
                return  # a forked copy of the harness may still hold the pipe open
            if not readable:
                continue
            received = os.read(0, 65536)
            if not received:
                return
            pending += received
            *lines, pending = pending.split(b"\n")
            for line in lines:
                command = json.loads(line)
                number = command.pop("number")
                try:
                    answer = commands[command.pop("command")](**command)
                except OSError as problem:
                    answer = {"error": str(problem)}
                os.write(1, json.dumps({**answer, "number": number}).encode() + b"\n")


def leave(_number: int, _frame: object) -> None:
    raise SystemExit(0)


def main() -> None:
    spec = json.loads(sys.argv[1])
    for number in LEAVING_SIGNALS:
        signal.signal(number, leave)
    if spec["core"] is not None:
        os.sched_setaffinity(0, {spec["core"]})
    keeper = Keeper(spec)
    try:
        keeper.serve()
    except BrokenPipeError:
        pass  # the harness left in the middle of an answer
    finally:
        keeper.close()


if __name__ == "__main__":
    main()
