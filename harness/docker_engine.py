"""The Docker engine: found, asked, and rid of the containers of runs that have died."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fencepost.harness.errors import UsageError

if TYPE_CHECKING:
    from docker import DockerClient

POSTGRES_IMAGE = "postgres:18"
TOXIPROXY_IMAGE = "ghcr.io/shopify/toxiproxy:2.12.0"
"""Both as in docker-compose.yml; tests/test_docker_compose.py compares."""

RUN_LABEL = "fencepost.run"
"""On every container we make, with the process that made it: who is gone does not need it any more."""

ANSWER_DEADLINE_S = 60


def require_docker() -> None:
    """Raises UsageError unless an engine answers."""
    with engine():
        pass


@contextlib.contextmanager
def engine() -> Iterator[DockerClient]:
    client = connect()
    try:
        yield client
    finally:
        client.close()


def connect() -> DockerClient:
    """A client of the engine that DOCKER_HOST names, or of the local one; its calls have a deadline."""
    try:
        import docker
        from docker.errors import DockerException
    except ImportError:
        raise UsageError(
            "--pg docker needs the Docker SDK for Python: `pip install 'fencepost[docker]'`."
        ) from None
    named = os.environ.get("DOCKER_HOST", "")
    if named and not named.startswith("unix://"):
        raise UsageError(
            "--pg docker: DOCKER_HOST names an engine that may be on another machine, and containers are reached "
            "on loopback only: unset it, or use --pg dsn:… for a server elsewhere."
        )
    try:
        client = docker.from_env(timeout=ANSWER_DEADLINE_S)
        client.ping()
    except (DockerException, OSError) as problem:
        raise UsageError(
            f"--pg docker: no Docker engine answers ({_short(problem)}): start one, or use --pg embedded."
        ) from None
    return client


def describe(client: DockerClient) -> str:
    """The engine, its way to a container, and whether it has the image already."""
    from docker.errors import ImageNotFound

    network = "the host's network" if uses_host_network(client) else "a port of loopback"
    try:
        client.images.get(POSTGRES_IMAGE)
        image = f"{POSTGRES_IMAGE} is here"
    except ImageNotFound:
        image = f"{POSTGRES_IMAGE} is to be pulled"
    return f"engine {client.version()['Version']}, containers on {network}, {image}"


def uses_host_network(client: DockerClient) -> bool:
    """An engine without a bridge can only put a container on the host's own network."""
    return not any(network.attrs.get("Driver") == "bridge" for network in client.networks.list())


def require_image(client: DockerClient, image: str) -> None:
    """Pulled if it is not there. Raises UsageError if it cannot be."""
    from docker.errors import DockerException, ImageNotFound

    try:
        client.images.get(image)
    except ImageNotFound:
        try:
            client.images.pull(image)
        except (DockerException, OSError) as problem:
            raise UsageError(
                f"--pg docker: the image {image} is not here and could not be pulled ({_short(problem)}): pull or "
                "load it yourself, or name one that is here by --pg docker:IMAGE."
            ) from None


def labels() -> dict[str, str]:
    return {RUN_LABEL: _ourselves()}


def remove_leftovers(client: DockerClient) -> None:
    """Removes the containers of runs whose process has ended."""
    for container in client.containers.list(all=True, filters={"label": RUN_LABEL}):
        if _is_gone(container.labels[RUN_LABEL]):
            remove(container)


def remove(container: Any) -> None:
    """With its data. Being gone already is no error."""
    from docker.errors import APIError, NotFound

    try:
        container.remove(force=True, v=True)
    except NotFound:
        return
    except APIError as problem:
        if problem.status_code != 409:  # its removal is under way
            raise


def _ourselves() -> str:
    return f"{_boot()} {_namespace()} {os.getpid()} {_started(os.getpid())}"


def _is_gone(made_by: str) -> bool:
    """Whether that process has certainly ended. One we cannot look at (in another container) has not."""
    try:
        boot, namespace, pid, started = made_by.split()
    except ValueError:
        return False
    if boot != _boot():
        return True
    return namespace == _namespace() and _started(int(pid)) != started


def _boot() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def _namespace() -> str:
    return str(Path("/proc/self/ns/pid").readlink())


def _started(pid: int) -> str:
    """When that process started, in ticks since the boot: with its id, it names one process and no other."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (FileNotFoundError, ProcessLookupError):
        return "ended"


def _short(problem: Exception) -> str:
    return " ".join(str(problem).split())[:300]
