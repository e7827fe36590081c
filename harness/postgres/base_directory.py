"""Where runs and caches live: one directory per user under the system's temporary directory."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import stat
import tempfile
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

from fencepost.harness.errors import UsageError

# Unix socket addresses hold 107 bytes; a run's longest path below the base directory takes these.
_LONGEST_BELOW = len("/run-4194304-01234567/control/socket/.s.PGSQL.65535.lock")
_LONGEST_SOCKET_PATH = 100
_CONTENTS = "contents.json"


def base_directory() -> Path:
    """`<tempdir>/fencepost-<uid>`, made if need be, and verified to be ours alone to write in."""
    name = f"fencepost-{os.geteuid()}"
    base = Path(tempfile.gettempdir()).resolve() / name
    if len(os.fsencode(base)) + _LONGEST_BELOW > _LONGEST_SOCKET_PATH or not _servers_can_reach(base):
        base = Path("/tmp").resolve() / name
    # Root's servers run under another user, who must be able to pass through but not to list.
    mode = 0o711 if os.geteuid() == 0 else 0o700
    with contextlib.suppress(FileExistsError):
        base.mkdir(mode)
    found = base.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o022:
        raise UsageError(
            f"{base} is not a directory that only this user can write to: "
            "remove it, or set TMPDIR to another place"
        )
    base.chmod(mode)
    return base


def _servers_can_reach(base: Path) -> bool:
    """Root may have a temporary directory of its own that the servers' user cannot pass through."""
    return os.geteuid() != 0 or all(parent.stat().st_mode & 0o001 for parent in base.parents)


def cache_directory() -> Path:
    cache = base_directory() / "cache"
    cache.mkdir(0o711, exist_ok=True)
    cache.chmod(0o711)
    return cache


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Holds `path` (made if need be) by an exclusive lock, which the kernel drops with its process."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def cached_tree(name: str, build: Callable[[Path], None]) -> Path:
    """The cached directory `name`, built once by `build` into an empty directory and moved into place whole.

    It is compared with its list of contents at each use: cleaners of temporary directories remove single old
    files, and a template with holes would give servers that fail in puzzling ways.
    """
    cache = cache_directory()
    tree = cache / name
    contents = cache / f"{name}.{_CONTENTS}"
    if _is_whole(tree, contents):
        return tree
    with locked(cache / f"{name}.lock"):
        if _is_whole(tree, contents):
            return tree
        made = cache / f"{name}.{uuid.uuid4().hex}"
        made.mkdir(0o755)
        made.chmod(0o755)
        try:
            build(made)
            if tree.exists():
                shutil.rmtree(tree)
            write_whole(contents, json.dumps(_contents_hash(made)).encode())
            made.rename(tree)
        finally:
            shutil.rmtree(made, ignore_errors=True)
    return tree


def write_whole(path: Path, content: bytes, mode: int = 0o644) -> None:
    """Writes a file so that a reader sees all of it or none."""
    made = path.with_name(f"{path.name}.{uuid.uuid4().hex}")
    try:
        made.write_bytes(content)
        made.chmod(mode)
        made.rename(path)
    finally:
        made.unlink(missing_ok=True)


def _is_whole(tree: Path, contents: Path) -> bool:
    try:
        return bool(json.loads(contents.read_bytes()) == _contents_hash(tree))
    except (FileNotFoundError, json.JSONDecodeError):
        return False


def _contents_hash(tree: Path) -> str:
    """Names and sizes only: reading tens of megabytes at each start would cost more than it protects from."""
    seen: list[tuple[str, int]] = []
    for directory, subdirectories, files in os.walk(tree):
        subdirectories.sort()
        seen.append((os.path.relpath(directory, tree), len(subdirectories)))
        seen.extend((name, os.lstat(f"{directory}/{name}").st_size) for name in sorted(files))
    if len(seen) < 2:
        raise FileNotFoundError(tree)
    return hashlib.sha256(json.dumps(seen).encode()).hexdigest()
