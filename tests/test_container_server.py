"""`--pg docker`: the same crashes in a container. Skipped where no engine answers or its image is not there."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from fencepost.harness import docker_engine
from fencepost.harness.errors import StepDeadline, UsageError
from fencepost.harness.lab import Lab, LabOptions
from fencepost.harness.loading import load_queue
from fencepost.harness.postgres import container
from fencepost.harness.postgres.container import ContainerServer, ContainerServers
from fencepost.harness.postgres.patience import connect_patiently
from fencepost.harness.postgres.provider import FaultDidNotHappen, ServerFault
from fencepost.harness.scenario import choose, installed_scenarios
from fencepost.harness.verdict import Verdict
from fencepost.tests.fix_commands import run_fencepost
from fencepost.tests.fix_server_faults import WHOLE_SERVER, committed_stays_uncommitted_goes, inject, session

DATABASE = "faults"


@pytest.fixture(scope="module")
def engine() -> Iterator[None]:
    """An engine that has the image already: a test does not fetch hundreds of megabytes unasked."""
    from docker.errors import ImageNotFound

    try:
        with docker_engine.engine() as client:
            client.images.get(docker_engine.POSTGRES_IMAGE)
    except UsageError as problem:
        pytest.skip(str(problem))
    except ImageNotFound:
        pytest.skip(f"the image {docker_engine.POSTGRES_IMAGE} is not here: `make test-docker` gets it")
    yield


@pytest.fixture(scope="module")
def servers(engine: None) -> Iterator[ContainerServers]:
    started = ContainerServers.start()
    try:
        started.test.create_database(DATABASE)
        yield started
    finally:
        started.close()


@pytest.fixture
def server(servers: ContainerServers) -> ContainerServer:
    return servers.test


def _ours() -> list[str]:
    """Names of the containers this process made."""
    with docker_engine.engine() as client:
        made = client.containers.list(all=True, filters={"label": docker_engine.RUN_LABEL})
        return [
            each.name
            for each in made
            if each.labels[docker_engine.RUN_LABEL] == docker_engine.labels()[docker_engine.RUN_LABEL]
        ]


@pytest.mark.parametrize("fault", WHOLE_SERVER)
def test_committed_stays_and_uncommitted_goes(servers: ContainerServers, fault: ServerFault) -> None:
    server = servers.test
    address, log_from = server.tcp_address, len(server.log())
    with psycopg.connect(servers.control.dsn(), autocommit=True) as watching:
        committed_stays_uncommitted_goes(server, DATABASE, lambda victim: inject(server, fault, victim))
        assert watching.execute("SELECT 1").fetchone() == (1,)
    assert server.tcp_address == address
    assert ("automatic recovery in progress" in server.log()[log_from:]) == (
        fault is not ServerFault.FAST_RESTART
    )


def test_three_crashes_in_a_row(server: ContainerServer) -> None:
    for _ in range(3):
        committed_stays_uncommitted_goes(server, DATABASE, lambda _: server.crash())


def test_one_session_is_ended_and_no_other(server: ContainerServer) -> None:
    with session(server, DATABASE) as victim, session(server, DATABASE) as bystander:
        server.terminate_backend(victim.info.backend_pid)
        with pytest.raises(psycopg.errors.AdminShutdown):
            victim.execute("SELECT 1")
        assert bystander.execute("SELECT 1").fetchone() == (1,)


def test_a_held_start_answers_57P03_until_it_is_let_go(server: ContainerServer) -> None:
    server.refuse_connections()
    for _ in range(3):
        with pytest.raises(psycopg.OperationalError, match="the database system is starting up"):
            psycopg.connect(server.dsn(DATABASE))
    with pytest.raises(StepDeadline, match=r"waited 0\.2 s for the server .* is starting up"):
        connect_patiently(server.dsn(DATABASE), deadline_s=0.2)
    server.accept_connections()
    with session(server, DATABASE) as connection:
        assert connection.execute("SELECT pg_is_in_recovery()").fetchone() == (False,)


def test_a_held_start_can_itself_be_crashed(server: ContainerServer) -> None:
    server.refuse_connections()
    server.stop_now()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(server.tcp_address)
    server.start()
    with session(server, DATABASE) as connection:
        assert connection.execute("SELECT 1").fetchone() == (1,)


def test_a_fault_that_cannot_happen_is_told(server: ContainerServer) -> None:
    with pytest.raises(FaultDidNotHappen, match="runs already"):
        server.start()
    with pytest.raises(FaultDidNotHappen, match="is not held"):
        server.accept_connections()
    with pytest.raises(FaultDidNotHappen, match="has no backend"):
        server.kill_backend(999_999)


def test_a_start_without_recovery_is_not_taken_for_a_crash(
    server: ContainerServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(container._SIGNALS, ServerFault.KILL_ALL, "SIGINT")
    with pytest.raises(FaultDidNotHappen, match="does not say 'automatic recovery in progress'"):
        server.kill_all()


def test_it_listens_on_loopback_alone_and_asks_for_its_password(server: ContainerServer) -> None:
    host, port = server.tcp_address
    assert host == "127.0.0.1"
    with pytest.raises(psycopg.OperationalError, match="password"):
        psycopg.connect(host=host, port=port, user="postgres", password="guess", dbname="postgres")
    listening = [
        line.split()[1]
        for line in Path("/proc/net/tcp").read_text().splitlines()[1:]
        if line.split()[3] == "0A"
    ]
    assert [address for address in listening if address.endswith(f":{port:04X}")] == [f"0100007F:{port:04X}"]


def test_settings_are_in_force(server: ContainerServer) -> None:
    with session(server, DATABASE) as connection:
        for name, value in (
            ("synchronous_commit", "on"),
            ("fsync", "off"),
            ("autovacuum", "off"),
            ("TimeZone", "UTC"),
        ):
            assert connection.execute(f"SHOW {name}".encode()).fetchone() == (value,)


def test_a_race_in_a_container(engine: None) -> None:
    (variant,) = next(
        s for s in choose(installed_scenarios(), ["lease_race"]) if s.name == "lease_race"
    ).variants()
    before = _ours()
    with Lab(LabOptions(pg="docker")) as lab:
        assert len(_ours()) == len(before) + 1
        run = lab.run(load_queue("reference"), variant)
    assert run.judgement.verdict is Verdict.PASS
    assert run.trace.header["server"]["provider"] == "docker"
    assert _ours() == before


# A run of its own, that is killed.
DIE = """
import os, signal
from fencepost.harness.postgres.container import ContainerServers
servers = ContainerServers.start()
print(servers.test._container.id, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_the_next_start_removes_what_a_killed_run_left(servers: ContainerServers) -> None:
    died = subprocess.run(
        [sys.executable, "-c", DIE], capture_output=True, text=True, timeout=180, check=False
    )
    assert died.returncode == -signal.SIGKILL
    left = died.stdout.strip()
    with docker_engine.engine() as client:
        assert client.containers.get(left).status == "running"
        docker_engine.remove_leftovers(client)
        ids = [each.id for each in client.containers.list(all=True)]
    assert left not in ids
    assert servers.test._container.id in ids  # a living run's is left alone


def test_an_image_that_cannot_be_had_is_named(engine: None) -> None:
    before = _ours()
    with pytest.raises(
        UsageError, match=r"the image 127\.0\.0\.1:1/nope:1 is not here and could not be pulled"
    ):
        ContainerServers.start("127.0.0.1:1/nope:1")
    assert _ours() == before


# -- without an engine ---------------------------------------------------------------------------------------


def test_no_engine_is_one_sentence(tmp_path: Path) -> None:
    nowhere = {"DOCKER_HOST": f"unix://{tmp_path}/nobody.sock"}
    done = run_fencepost("race", "--pg", "docker", cwd=tmp_path, environment=nowhere)
    assert (done.code, done.out) == (2, "")
    (line,) = done.err.splitlines()
    assert "--pg docker: no Docker engine answers (" in line
    assert line.endswith("start one, or use --pg embedded.")


def test_an_engine_that_does_not_answer_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(docker_engine, "ANSWER_DEADLINE_S", 1)
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/silent.sock")
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(tmp_path / "silent.sock"))
        silent.listen()
        with pytest.raises(UsageError, match="no Docker engine answers"):
            docker_engine.require_docker()


def test_an_engine_elsewhere_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", "tcp://192.0.2.1:2375")
    with pytest.raises(UsageError, match="containers are reached on loopback only"):
        docker_engine.require_docker()


def test_without_the_sdk_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "docker", None)
    with pytest.raises(UsageError, match=r"pip install 'fencepost\[docker\]'"):
        docker_engine.require_docker()


def test_only_processes_that_have_ended_are_gone() -> None:
    ourselves = docker_engine.labels()[docker_engine.RUN_LABEL]
    boot, namespace, pid, started = ourselves.split()
    assert pid == str(os.getpid())
    assert not docker_engine._is_gone(ourselves)
    assert docker_engine._is_gone(f"{boot} {namespace} {pid} {int(started) + 1}")
    assert docker_engine._is_gone(f"another-boot {namespace} {pid} {started}")
    assert not docker_engine._is_gone(f"{boot} pid:[1] {pid} {int(started) + 1}")
    assert not docker_engine._is_gone("somebody else's label")
