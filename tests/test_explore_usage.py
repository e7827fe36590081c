"""What `fencepost explore` cannot do with what it was given is one sentence, in time, with exit code 2."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fencepost.harness.cli import main
from fencepost.tests.fix_commands import run_fencepost

DEADLINE_S = 30.0


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--strategy", "pct", "--depth", "0"], "--depth: '0': give a whole number from 1 on"),
        (["--strategy", "pct", "--depth", "65"], "--depth 65: give a whole number from 1 to 64"),
        (["--strategy", "pct", "--depth", "deep"], "--depth: 'deep': give a whole number"),
        (["--budget", "0"], "--budget: '0': give a whole number from 1 on"),
        (["--budget", "-5"], "--budget: '-5': give a whole number from 1 on"),
        (["--jobs", "0"], "--jobs: '0': give a whole number from 1 on"),
        (["--seed", "x"], "--seed: invalid int value: 'x'"),
        (["--strategy", "reduce"], "--strategy reduce: give one of exhaustive, reduced, pct, random"),
        (["--faults", "expire,quake"], "--faults, column 8: 'quake' is no fault"),
        (["--ops", "A:claim b:claim"], "--ops, column 9: 'b' is no actor's name"),
        (["--ops", "A:claim,"], "--ops, column 9: an operation is missing"),
        (["--ops", ""], "--ops, column 1: no actor"),
        (["--enqueue", "1001"], "1001 jobs at the start are too many"),
        (["--queue", "nobodys"], "--queue nobodys: give MODULE:NAME or one of the known queues"),
        (["--queue", "procrastinate", "--ops", "A:cancel"], "A is to cancel, and the queue lacks CANCEL"),
        (["--engine", "spark"], "--engine spark: give one of local, dask"),
        (["--engine", "dask", "--address", "nonsense"], "--address nonsense: "),
        (["--engine", "dask", "--address", "tls://127.0.0.1:1"], "no Dask scheduler answers at tls://"),
        (["--address", "tcp://127.0.0.1:1"], "use it with --engine dask"),
        (["--shard", "1/2"], "unrecognized arguments: --shard 1/2"),
    ],
)
def test_wrong_use_is_one_sentence(
    options: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        code = main(["explore", "--ops", "A:claim", "--trace-dir", str(tmp_path), *options])
    except SystemExit as ended:
        assert isinstance(ended.code, int)
        code = ended.code
    told = capsys.readouterr()
    assert code == 2 and said in told.err and told.out == "", told
    # A place in what was typed is shown below the sentence.
    assert len(told.err.splitlines()) == (3 if "column" in said else 1), told.err


@contextlib.contextmanager
def somebody_else(says: bytes) -> Iterator[str]:
    """A server that is no scheduler: it accepts, says this and then nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        taken: list[socket.socket] = []

        def accept() -> None:
            with contextlib.suppress(OSError):
                while True:
                    taken.append(server.accept()[0])
                    taken[-1].sendall(says)

        thread = threading.Thread(target=accept)
        thread.start()
        yield f"tcp://127.0.0.1:{server.getsockname()[1]}"
        server.shutdown(socket.SHUT_RDWR)
        thread.join()
        for connection in taken:
            connection.close()


@pytest.mark.parametrize("says", [b"", b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n"])
def test_a_cluster_that_is_none_is_one_sentence_in_time(says: bytes, tmp_path: Path) -> None:
    with somebody_else(says) as address:
        begun = time.monotonic()
        asked = ["explore", "--ops", "A:claim", "--engine", "dask", "--address", address]
        done = run_fencepost(*asked, cwd=tmp_path)
        assert time.monotonic() - begun < DEADLINE_S
    assert (done.code, done.out) == (2, ""), done
    assert done.err.count("\n") == 1 and f"no Dask scheduler answers at {address}" in done.err, done.err
