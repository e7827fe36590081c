"""Images under the tags of docker-compose.yml, made from files of this machine, for an engine that cannot pull.

The software inside is the real one: the PostgreSQL of the embedded servers with the system's C library and shell, and
the Toxiproxy that `make toxiproxy` builds. What is made here carries a label and is removed after the run.
"""

from __future__ import annotations

import io
import re
import shutil
import subprocess
import tarfile
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from fencepost.harness.docker_engine import POSTGRES_IMAGE, TOXIPROXY_IMAGE
from fencepost.harness.errors import UsageError
from fencepost.harness.network.toxiproxy_binary import build_binary
from fencepost.harness.postgres.binaries import PostgresBinaries, find_binaries

if TYPE_CHECKING:
    from docker import DockerClient

IMPORTED = "fencepost.imported"
POSTGRES_UID = 999
PGDATA = "/var/lib/postgresql/18/docker"  # as in the official image
TOOLS = ("sh", "sleep", "printenv", "mkdir", "chown", "chmod", "rm", "cat", "setpriv", "ls")
_LIBRARY = re.compile(r"(/\S+) \(0x")

# What the official image's own entry point does, as far as a test needs it: make the data directory once, with a
# password for TCP, then become the server under an unprivileged user.
ENTRYPOINT = f"""#!/bin/sh
set -e
mkdir -p "$PGDATA" /run/postgresql
chown {POSTGRES_UID}:{POSTGRES_UID} "$PGDATA" /run/postgresql
chmod 700 "$PGDATA"
as_postgres="setpriv --reuid={POSTGRES_UID} --regid={POSTGRES_UID} --clear-groups"
if ! test -s "$PGDATA/PG_VERSION"; then
    printf '%s' "${{POSTGRES_PASSWORD:?give a password}}" > /run/postgresql/password
    chown {POSTGRES_UID} /run/postgresql/password
    $as_postgres initdb --username=postgres --pwfile=/run/postgresql/password --auth-local=peer \\
        --auth-host=scram-sha-256 --encoding=UTF8 --locale=C --no-sync --pgdata="$PGDATA"
    rm /run/postgresql/password
    echo 'host all all all scram-sha-256' >> "$PGDATA/pg_hba.conf"
fi
exec $as_postgres "$@" -c unix_socket_directories=/run/postgresql
"""


def import_postgres(client: DockerClient) -> None:
    binaries = find_binaries(POSTGRES_IMAGE.partition(":")[2])
    image = io.BytesIO()
    with tarfile.open(fileobj=image, mode="w") as tar:
        _add_directories(tar, "tmp", "root", "run/postgresql", "var/lib/postgresql", "etc")
        home = _add_installation(tar, binaries)
        programs = [binaries.bindir / name for name in ("postgres", "initdb")]
        tools = [_tool(name) for name in TOOLS]
        for tool in tools:
            _add(tar, tool, f"usr/bin/{tool.name}")
        _add_text(tar, "bin/sh", "", link="/usr/bin/sh")
        for library in sorted(
            _libraries([*programs, *(binaries.bindir.parent / "lib").glob("*.so*"), *tools])
        ):
            if not library.is_relative_to(binaries.bindir.parent.parent.parent):
                _add(tar, library, str(library).lstrip("/"))
        _add_text(
            tar,
            "etc/passwd",
            f"root:x:0:0::/root:/bin/sh\npostgres:x:{POSTGRES_UID}:{POSTGRES_UID}::/:/bin/sh\n",
        )
        _add_text(tar, "etc/group", f"root:x:0:\npostgres:x:{POSTGRES_UID}:\n")
        _add_text(tar, "usr/local/bin/docker-entrypoint.sh", ENTRYPOINT, mode=0o755)
    _import(
        client,
        image.getvalue(),
        POSTGRES_IMAGE,
        f"ENV PATH=/usr/bin:/bin:{home}/bin PGDATA={PGDATA}",
        "VOLUME /var/lib/postgresql",
        'ENTRYPOINT ["/usr/local/bin/docker-entrypoint.sh"]',
        'CMD ["postgres"]',
        "EXPOSE 5432",
    )


def import_toxiproxy(client: DockerClient) -> None:
    binary = build_binary()
    if _libraries([binary]):
        raise UsageError(f"{binary} needs shared libraries: build it by `make toxiproxy` with CGO_ENABLED=0.")
    image = io.BytesIO()
    with tarfile.open(fileobj=image, mode="w") as tar:
        _add(tar, binary, "toxiproxy")
    _import(
        client,
        image.getvalue(),
        TOXIPROXY_IMAGE,
        'ENTRYPOINT ["/toxiproxy"]',
        'CMD ["-host=0.0.0.0"]',
        "EXPOSE 8474",
    )


IMPORTERS = {POSTGRES_IMAGE: import_postgres, TOXIPROXY_IMAGE: import_toxiproxy}


def remove_imported(client: DockerClient) -> None:
    for image in client.images.list(filters={"label": IMPORTED}):
        client.images.remove(image.id, force=True)


def _import(client: DockerClient, tarball: bytes, name: str, *changes: str) -> None:
    repository, _, tag = name.rpartition(":")
    said = client.api.import_image_from_data(
        tarball, repository=repository, tag=tag, changes=[*changes, f"LABEL {IMPORTED}=true"]
    )
    if "errorDetail" in str(said):
        raise UsageError(f"the image {name} could not be imported: {said}")


def _add_installation(tar: tarfile.TarFile, binaries: PostgresBinaries) -> str:
    """At the same place as outside: its programs find their libraries and data relative to themselves."""
    prefix = binaries.bindir.parent
    for part in ("bin", "lib", "share"):
        tar.add(prefix / part, str(prefix / part).lstrip("/"), filter=_readable)
    wheel_libraries = prefix.parent.parent / f"{prefix.parent.name}.libs"
    if wheel_libraries.is_dir():
        tar.add(wheel_libraries, str(wheel_libraries).lstrip("/"), filter=_readable)
    return str(prefix)


def _readable(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.uid = entry.gid = 0
    entry.mode |= 0o555 if entry.isdir() or entry.mode & 0o100 else 0o444
    return entry


def _libraries(programs: Iterable[Path]) -> set[Path]:
    """Every shared library they load, the loader included."""
    found: set[Path] = set()
    for program in programs:
        said = subprocess.run(
            ["ldd", program], capture_output=True, text=True, check=False, timeout=20
        ).stdout
        found |= {Path(path) for path in _LIBRARY.findall(said)}
    return found


def _tool(name: str) -> Path:
    path = shutil.which(name)
    if path is None:
        raise UsageError(f"no image can be made here: there is no {name} on PATH.")
    return Path(path)


def _add(tar: tarfile.TarFile, path: Path, name: str) -> None:
    entry = tar.gettarinfo(path.resolve(), name)
    with path.resolve().open("rb") as content:
        tar.addfile(_readable(entry), content)


def _add_text(tar: tarfile.TarFile, name: str, text: str, mode: int = 0o644, link: str | None = None) -> None:
    entry = tarfile.TarInfo(name)
    entry.mode, entry.size = mode, len(text.encode())
    if link is not None:
        entry.type, entry.linkname = tarfile.SYMTYPE, link
    tar.addfile(entry, io.BytesIO(text.encode()))


def _add_directories(tar: tarfile.TarFile, *names: str) -> None:
    for name in names:
        entry = tarfile.TarInfo(name)
        entry.type, entry.mode = tarfile.DIRTYPE, 0o1777 if name == "tmp" else 0o755
        tar.addfile(entry)
