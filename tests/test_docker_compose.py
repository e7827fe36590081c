"""docker-compose.yml: the images the provider uses, healthy before they count, open to this machine alone."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from fencepost.harness.docker_engine import POSTGRES_IMAGE, TOXIPROXY_IMAGE
from fencepost.harness.network.toxiproxy_binary import BUILT_VERSION

FILE = Path(__file__).parent.parent / "docker-compose.yml"


@pytest.fixture
def services() -> dict[str, Any]:
    return dict(yaml.safe_load(FILE.read_text())["services"])


def test_the_images_are_those_of_the_provider(services: dict[str, Any]) -> None:
    assert {name: service["image"] for name, service in services.items()} == {
        "postgres": POSTGRES_IMAGE,
        "toxiproxy": TOXIPROXY_IMAGE,
    }
    assert TOXIPROXY_IMAGE.endswith(f":{BUILT_VERSION}")


def test_every_service_has_a_health_check_and_ports_on_loopback_only(services: dict[str, Any]) -> None:
    for name, service in services.items():
        assert service["healthcheck"]["test"], name
        assert service["ports"], name
        assert all(port.startswith("127.0.0.1:") for port in service["ports"]), name


def test_no_password_is_written_down(services: dict[str, Any]) -> None:
    assert services["postgres"]["environment"] == {
        "POSTGRES_PASSWORD": "${POSTGRES_PASSWORD:?set it in the environment}"
    }


def _compose(*arguments: str, password: str | None) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": "/usr/local/bin:/usr/bin:/bin"}
    if password is not None:
        environment["POSTGRES_PASSWORD"] = password
    docker = shutil.which("docker")
    probe = docker and subprocess.run(
        [docker, "compose", "version"], capture_output=True, timeout=30, check=False
    )
    if not docker or not probe or probe.returncode != 0:
        pytest.skip("`docker compose` is not installed")
    return subprocess.run(
        [docker, "compose", "--file", str(FILE), *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_compose_itself_reads_it() -> None:
    assert _compose("config", "--quiet", password="x").returncode == 0
    without = _compose("config", "--quiet", password=None)
    assert without.returncode != 0
    assert "set it in the environment" in without.stderr
