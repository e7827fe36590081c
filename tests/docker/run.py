"""What `make test-docker` runs: pytest with its arguments, on containers.

Takes the engine that answers. Where none does, and this is root with `dockerd` on PATH, it starts one of its own in a
directory of its own and ends it afterwards. Images that cannot be pulled are imported from local files
(import_images.py) and removed again.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from fencepost.harness import docker_engine
from fencepost.harness.errors import FencepostError, UsageError
from fencepost.harness.network.toxiproxy_binary import VARIABLE as TOXIPROXY_VARIABLE

sys.path.insert(0, str(Path(__file__).parent))
from import_images import IMPORTERS, remove_imported

START_DEADLINE_S = 60.0
END_DEADLINE_S = 60.0
# No bridge and no firewall rules: those need rights over the machine's network, which a test should not want.
ENGINE_OPTIONS = ("--iptables=false", "--bridge=none", "--ip-forward=false")


def main(arguments: list[str]) -> int:
    try:
        with contextlib.ExitStack() as stack:
            directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fp-docker-")))
            stack.enter_context(_an_engine(directory))
            stack.enter_context(_images())
            os.environ[TOXIPROXY_VARIABLE] = str(_toxiproxy_program(directory))
            _tell("pytest", *arguments)
            code = subprocess.run([sys.executable, "-m", "pytest", *arguments], check=False).returncode
            return code or _containers_left()
    except FencepostError as problem:
        _tell(str(problem))
        return 2


@contextlib.contextmanager
def _an_engine(directory: Path) -> Iterator[None]:
    try:
        docker_engine.require_docker()
    except UsageError as problem:
        if os.geteuid() != 0 or shutil.which("dockerd") is None:
            raise UsageError(
                f"{problem} (`make test-docker` starts one itself as root with dockerd on PATH)"
            ) from None
    else:
        yield
        return
    socket = f"unix://{directory}/docker.sock"
    _tell("no engine answers: starting one in", str(directory))
    with (directory / "dockerd.log").open("wb") as log:
        engine = subprocess.Popen(
            [
                *("dockerd", *ENGINE_OPTIONS, f"--host={socket}", f"--pidfile={directory}/dockerd.pid"),
                *(f"--data-root={directory}/data", f"--exec-root={directory}/exec"),
            ],
            stdout=log,
            stderr=log,
        )
    os.environ["DOCKER_HOST"] = socket
    try:
        _await_engine(engine, directory / "dockerd.log")
        yield
    finally:
        engine.terminate()
        engine.wait(END_DEADLINE_S)
        _unmount_below(directory)


def _unmount_below(directory: Path) -> None:
    """An engine leaves the mount of its default network namespace behind, and no directory goes with one in it."""
    mounts = [line.split()[1] for line in Path("/proc/self/mounts").read_text().splitlines()]
    for mount in sorted((each for each in mounts if each.startswith(f"{directory}/")), reverse=True):
        subprocess.run(["umount", mount], check=True, timeout=END_DEADLINE_S)


def _await_engine(engine: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_DEADLINE_S
    while True:
        try:
            docker_engine.require_docker()
            return
        except UsageError:
            if engine.poll() is not None or time.monotonic() >= deadline:
                said = log.read_text(errors="replace").splitlines()[-3:]
                raise UsageError(f"dockerd does not answer; the end of its log: {' '.join(said)}") from None
        time.sleep(0.1)


@contextlib.contextmanager
def _images() -> Iterator[None]:
    with docker_engine.engine() as client:
        try:
            for image, import_it in IMPORTERS.items():
                try:
                    docker_engine.require_image(client, image)
                    _tell("image", image)
                except UsageError:
                    import_it(client)
                    _tell("image", image, "(not to be pulled here: imported from local files)")
            yield
        finally:
            docker_engine.remove_leftovers(client)
            remove_imported(client)


def _toxiproxy_program(directory: Path) -> Path:
    """A program that behaves as `toxiproxy-server` and is the one in the image."""
    program = directory / "toxiproxy-server"
    engine = f"DOCKER_HOST={os.environ['DOCKER_HOST']} " if "DOCKER_HOST" in os.environ else ""
    container = Path(__file__).with_name("toxiproxy_container.py")
    program.write_text(f'#!/bin/sh\n{engine}exec {sys.executable} {container} "$@"\n')
    program.chmod(0o755)
    return program


def _containers_left() -> int:
    with docker_engine.engine() as client:
        left = client.containers.list(all=True, filters={"label": docker_engine.RUN_LABEL})
        for container in left:
            _tell("a container was left:", container.name, container.status, str(container.image.tags))
        return 1 if left else 0


def _tell(*words: str) -> None:
    sys.stdout.write(" ".join(("test-docker:", *words)) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
