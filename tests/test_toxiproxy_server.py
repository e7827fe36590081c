"""Toxiproxy as a program: found, of a known version, started as ours, never mixed up, and gone with the run."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import toxiproxy
from toxiproxy.api import APIConsumer

from fencepost.harness.errors import UsageError
from fencepost.harness.network import tcp_sockets, toxiproxy_binary
from fencepost.harness.network.engines import open_network
from fencepost.harness.network.toxiproxy import ToxiproxyNetwork
from fencepost.harness.network.toxiproxy_binary import ToxiproxyBinary, ToxiproxyMissing, find_binary
from fencepost.harness.network.toxiproxy_server import ToxiproxyServer
from fencepost.harness.postgres import base_directory
from fencepost.harness.postgres.keeper import processes_in
from fencepost.harness.postgres.ports import free_port
from fencepost.tests.fix_network import DEADLINE_S, eventually, toxiproxy_or_skip


@pytest.fixture
def binary() -> ToxiproxyBinary:
    return toxiproxy_or_skip()


@pytest.fixture
def server(binary: ToxiproxyBinary) -> Iterator[ToxiproxyServer]:
    started = ToxiproxyServer.start(binary)
    yield started
    started.close()


@pytest.fixture
def nowhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A machine without Toxiproxy: an empty PATH and cache, and nothing named."""
    monkeypatch.delenv(toxiproxy_binary.VARIABLE, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setattr(toxiproxy_binary, "cache_directory", lambda: tmp_path / "cache")
    (tmp_path / "bin").mkdir()
    return tmp_path


def program(path: Path, says: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!{sys.executable}\nimport sys\nsys.stdout.write({says!r})\n")
    path.chmod(0o755)
    return path


def good(path: Path) -> Path:
    return program(path, "toxiproxy-server version 2.12.0\n")


def test_it_is_found_by_option_then_variable_then_path_then_build(
    nowhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ToxiproxyMissing, match="`make toxiproxy` where Go is installed; `--network gate`"):
        find_binary()
    built = good(nowhere / "cache/toxiproxy-2.12.0/toxiproxy-server")
    assert find_binary() == ToxiproxyBinary(built, "2.12.0", "make toxiproxy")
    on_path = good(nowhere / "bin/toxiproxy-server")
    assert find_binary() == ToxiproxyBinary(on_path, "2.12.0", "PATH")
    named = good(nowhere / "named")
    monkeypatch.setenv(toxiproxy_binary.VARIABLE, str(named))
    assert find_binary() == ToxiproxyBinary(named, "2.12.0", toxiproxy_binary.VARIABLE)
    asked = good(nowhere / "asked")
    assert find_binary(str(asked)) == ToxiproxyBinary(asked, "2.12.0", "--toxiproxy")


def test_one_that_was_asked_for_is_not_passed_over(nowhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    good(nowhere / "bin/toxiproxy-server")
    with pytest.raises(UsageError, match=r"--toxiproxy /no/where: there is no such file"):
        find_binary("/no/where")
    flat = nowhere / "flat"
    flat.write_text("")
    with pytest.raises(UsageError, match="cannot be executed"):
        find_binary(str(flat))
    monkeypatch.setenv(toxiproxy_binary.VARIABLE, "/no/where")
    with pytest.raises(UsageError, match="FENCEPOST_TOXIPROXY=/no/where: there is no such file"):
        find_binary()


@pytest.mark.parametrize("version", ["2.5.0", "2.11.9", "3.0.0", "git", "1.2"])
def test_another_version_is_named_with_those_that_will_do(nowhere: Path, version: str) -> None:
    old = program(nowhere / "old", f"toxiproxy-server version {version}\n")
    with pytest.raises(UsageError, match=f"is Toxiproxy {version}, and Fencepost knows 2.12 and later 2.x"):
        find_binary(str(old))


def test_a_wrong_one_on_path_gives_way_to_a_built_one(nowhere: Path) -> None:
    program(nowhere / "bin/toxiproxy-server", "toxiproxy-server version 2.1.4\n")
    with pytest.raises(UsageError, match=r"Toxiproxy 2\.1\.4"):
        find_binary()
    good(nowhere / "cache/toxiproxy-2.12.0/toxiproxy-server")
    assert find_binary().found_by == "make toxiproxy"


def test_a_program_that_is_something_else_is_said_to_be(nowhere: Path) -> None:
    with pytest.raises(UsageError, match="is not toxiproxy-server"):
        find_binary(str(program(nowhere / "other", "hello")))
    garbage = nowhere / "garbage"
    garbage.write_bytes(b"\x7fELFnot really")
    garbage.chmod(0o755)
    with pytest.raises(UsageError, match="cannot be run as toxiproxy-server"):
        find_binary(str(garbage))


def test_a_machine_without_go_is_told_so_and_tests_go_on(
    nowhere: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["toxiproxy_binary", "--if-possible"])
    assert toxiproxy_binary.main() == 0
    told = capsys.readouterr().err
    assert told.startswith("Toxiproxy cannot be had, so only the gate puts network faults here: Go is not")
    assert told.count("\n") == 1
    monkeypatch.setattr(sys, "argv", ["toxiproxy_binary"])
    assert toxiproxy_binary.main() == 2


def test_a_failing_build_is_one_line_and_leaves_nothing(
    nowhere: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["toxiproxy_binary"])
    monkeypatch.setattr(base_directory, "cache_directory", lambda: nowhere / "cache")
    (nowhere / "cache").mkdir()
    go = nowhere / "bin/go"
    go.write_text("#!/bin/sh\necho downloading >&2\necho no route to the module >&2\nexit 1\n")
    go.chmod(0o755)
    assert toxiproxy_binary.main() == 2
    assert "Go could not build Toxiproxy 2.12.0: no route to the module\n" in capsys.readouterr().err
    assert not (nowhere / "cache/toxiproxy-2.12.0").exists()


def test_it_listens_on_loopback_only_and_tells_its_version(server: ToxiproxyServer) -> None:
    assert server.api().version() == server.binary.version
    assert tcp_sockets.listens(server.port)
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    listening = [row[1] for row in rows if row[3] == "0A" and row[1].endswith(f":{server.port:04X}")]
    assert listening == [f"0100007F:{server.port:04X}"]
    assert not any(
        line.split()[1].endswith(f":{server.port:04X}")
        for line in Path("/proc/net/tcp6").read_text().splitlines()[1:]
    )


def test_the_proof_that_it_is_ours_does_not_stay(server: ToxiproxyServer) -> None:
    assert server.api().proxies() == {}


def test_a_port_that_another_toxiproxy_has_is_not_taken_for_ours(
    server: ToxiproxyServer, binary: ToxiproxyBinary
) -> None:
    with pytest.raises(UsageError, match=f"port {server.port} was taken before Toxiproxy could listen"):
        ToxiproxyServer.start(binary, port=server.port)
    assert server.api().proxies() == {}


def test_a_port_taken_meanwhile_is_exchanged(
    binary: ToxiproxyBinary, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as squatter:
        ports = [squatter.getsockname()[1], free_port()]
        expected = ports[-1]
        monkeypatch.setattr("fencepost.harness.network.toxiproxy_server.free_port", lambda: ports.pop(0))
        server = ToxiproxyServer.start(binary)
        try:
            assert server.port == expected
            assert server.api().version() == binary.version
        finally:
            server.close()


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ("import sys; sys.exit('I will not')", "ended with exit code 1 instead of serving.*I will not"),
        ("import time; time.sleep(60)", "did not answer on its API at 127.0.0.1"),
    ],
)
def test_a_program_that_does_not_serve_is_told_and_ended(tmp_path: Path, body: str, told: str) -> None:
    path = tmp_path / "toxiproxy-server"
    path.write_text(f"#!{sys.executable}\n{body}\n")
    path.chmod(0o755)
    with pytest.raises(UsageError, match=told):
        ToxiproxyServer.start(ToxiproxyBinary(path, "2.12.0", "test"), deadline_s=2)
    assert not _running(path)


def _running(path: Path) -> list[str]:
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if str(path).encode() in entry.read_bytes():
                found.append(entry.parent.name)
        except OSError:
            continue
    return found


def test_two_servers_in_one_process_do_not_mix(binary: ToxiproxyBinary) -> None:
    first, second = ToxiproxyServer.start(binary), ToxiproxyServer.start(binary)
    try:
        apis = [first.api(), second.api()]
        for number, api in enumerate(apis):
            api.create_proxy(f"of-{number}", "127.0.0.1:0", "127.0.0.1:1")
        assert [list(api.proxies()) for api in apis] == [["of-0"], ["of-1"]]
        assert (APIConsumer.host, APIConsumer.port) == ("127.0.0.1", 8474)  # a user's own, untouched
    finally:
        first.close()
        second.close()


def test_the_library_alone_does_mix_them(binary: ToxiproxyBinary, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(APIConsumer, "host", APIConsumer.host)
    monkeypatch.setattr(APIConsumer, "port", APIConsumer.port)
    first, second = ToxiproxyServer.start(binary), ToxiproxyServer.start(binary)
    try:
        one, other = toxiproxy.Toxiproxy(), toxiproxy.Toxiproxy()
        one.update_api_consumer("127.0.0.1", first.port)
        other.update_api_consumer("127.0.0.1", second.port)
        one.create(upstream="127.0.0.1:1", name="meant-for-the-first")
        assert first.api().proxies() == {}
        assert list(second.api().proxies()) == ["meant-for-the-first"]
    finally:
        first.close()
        second.close()


def test_a_proxy_named_in_the_environment_is_not_asked(
    server: ToxiproxyServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    assert server.api().version() == server.binary.version


def test_a_server_that_is_gone_is_named_with_actor_fault_and_engine(binary: ToxiproxyBinary) -> None:
    network = ToxiproxyNetwork(ToxiproxyServer.start(binary))
    path = network.path("A", "127.0.0.1", 1)
    network.server.close()
    with pytest.raises(Exception, match=r"^pause on the network path of A \(engine toxiproxy\): .*reached"):
        path.pause()
    assert path.description == "unknown since pause failed"
    with pytest.raises(Exception, match="unusable since pause failed"):
        path.clean()
    network.close()


def test_a_closed_network_leaves_no_process_and_no_directory(binary: ToxiproxyBinary) -> None:
    network = open_network("toxiproxy")
    assert isinstance(network, ToxiproxyNetwork)
    server = network.server
    run_dir = server.log_path.parent.parent
    assert server.pid in processes_in(run_dir / "toxiproxy" / "data")
    network.close()
    assert not Path(f"/proc/{server.pid}").exists()
    assert not run_dir.exists()
    assert not tcp_sockets.listens(server.port)


SCRIPT = """
import json, sys
from fencepost.harness.network.toxiproxy import ToxiproxyNetwork
network = ToxiproxyNetwork.start()
network.path("A", "127.0.0.1", 1).pause()
facts = {"pid": network.server.pid, "directory": str(network.server.log_path.parent.parent)}
sys.stdout.write(json.dumps(facts) + "\\n")
sys.stdout.flush()
sys.stdin.read()
"""


@pytest.mark.parametrize("how", ["ends", "is killed"])
def test_it_does_not_outlive_its_run(how: str, binary: ToxiproxyBinary) -> None:
    private_tmp = tempfile.mkdtemp(prefix="fp", dir="/tmp")
    environment = {**os.environ, "TMPDIR": private_tmp, toxiproxy_binary.VARIABLE: str(binary.path)}
    harness = subprocess.Popen(
        [sys.executable, "-c", SCRIPT],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    )
    try:
        assert harness.stdout is not None
        facts = json.loads(harness.stdout.readline())
        assert Path(f"/proc/{facts['pid']}").exists()
        if how == "is killed":
            harness.kill()
        harness.communicate(timeout=DEADLINE_S)
        eventually(lambda: not Path(f"/proc/{facts['pid']}").exists(), "no server process")
        eventually(lambda: not Path(facts["directory"]).exists(), "no run directory")
    finally:
        harness.kill()
        harness.wait(DEADLINE_S)
        shutil.rmtree(private_tmp, ignore_errors=True)
