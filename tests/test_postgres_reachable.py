"""Binaries in a directory closed to the servers' user are copied to where it can reach them."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from fencepost.harness.errors import UsageError
from fencepost.harness.postgres.base_directory import cache_directory
from fencepost.harness.postgres.binaries import SHIPPED_IN, PostgresBinaries, find_binaries
from fencepost.harness.postgres.embedded import EmbeddedServers
from fencepost.harness.postgres.os_user import USER_VARIABLE, server_user
from fencepost.harness.postgres.reachable import reachable_binaries

needs_root = pytest.mark.skipif(
    os.geteuid() != 0, reason="only root's servers run under another user than the harness"
)


@pytest.fixture
def closed_home(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An environment like one under /root, with the shipped binaries in it; temporary files stay open."""
    home = Path(tempfile.mkdtemp(prefix="fp", dir="/tmp"))
    temporary = Path(tempfile.mkdtemp(prefix="fp", dir="/tmp"))
    temporary.chmod(0o755)
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    yield home
    shutil.rmtree(home)
    shutil.rmtree(temporary)


def _install_into(home: Path) -> PostgresBinaries:
    shipped = find_binaries()
    if shipped.source != SHIPPED_IN:
        pytest.skip(f"{SHIPPED_IN} is not installed here")
    prefix = shipped.bindir.parent
    site_packages = prefix.parent.parent
    for part in (prefix, site_packages / f"{SHIPPED_IN}.libs"):
        if part.is_dir():
            shutil.copytree(part, home / "site" / part.relative_to(site_packages), symlinks=True)
    return find_binaries(str(home / "site" / prefix.relative_to(site_packages) / "bin"))


@needs_root
def test_a_closed_home_gives_a_copy(closed_home: Path) -> None:
    installed = _install_into(closed_home)
    for directory, _, files in os.walk(closed_home):  # as installed under a umask of 077
        for name in files:
            path = Path(directory, name)
            if not path.is_symlink():
                path.chmod(path.stat().st_mode & 0o700)
    assert closed_home.stat().st_mode & 0o077 == 0
    with EmbeddedServers.start(binaries=installed) as servers:
        program = Path(f"/proc/{servers.test.pid}/exe").readlink()
        assert program.is_relative_to(cache_directory())
        assert servers.test.version == installed.version
    again = reachable_binaries(installed, server_user())
    assert again.bindir == program.parent


@needs_root
def test_open_binaries_are_used_where_they_are() -> None:
    found = find_binaries()
    if not server_user().can_run(found.bindir / "postgres"):
        pytest.skip("the binaries here are closed to the servers' user")
    assert reachable_binaries(found, server_user()) == found


@needs_root
def test_the_servers_user_can_be_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(USER_VARIABLE, "nobody")
    with EmbeddedServers.start() as servers:
        assert Path(f"/proc/{servers.test.pid}").owner() == "nobody"


@needs_root
@pytest.mark.parametrize(("name", "told"), [("no-such-user", "who does not exist"), ("root", "names root")])
def test_a_user_that_cannot_run_servers_is_refused(
    monkeypatch: pytest.MonkeyPatch, name: str, told: str
) -> None:
    monkeypatch.setenv(USER_VARIABLE, name)
    with pytest.raises(UsageError, match=told):
        server_user()
