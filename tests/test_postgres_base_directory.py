"""The directory all runs of a user share: nobody else may have made it or be able to write in it."""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from fencepost.harness.errors import UsageError
from fencepost.harness.postgres.base_directory import base_directory, cached_tree


@pytest.fixture
def temporary(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    made = Path(tempfile.mkdtemp(prefix="fp", dir="/tmp"))
    made.chmod(0o755)
    monkeypatch.setattr(tempfile, "tempdir", str(made))
    yield made
    shutil.rmtree(made)


def _name() -> str:
    return f"fencepost-{os.geteuid()}"


def test_it_is_made_for_us_alone_to_write(temporary: Path) -> None:
    base = base_directory()
    assert base == temporary / _name()
    assert stat.S_IMODE(base.stat().st_mode) == (0o711 if os.geteuid() == 0 else 0o700)
    assert base_directory() == base


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o702])
def test_one_that_others_can_write_to_is_refused(temporary: Path, mode: int) -> None:
    (temporary / _name()).mkdir()
    (temporary / _name()).chmod(mode)
    with pytest.raises(UsageError, match="remove it, or set TMPDIR"):
        base_directory()


def test_a_link_is_refused(temporary: Path) -> None:
    (temporary / "elsewhere").mkdir(0o700)
    (temporary / _name()).symlink_to(temporary / "elsewhere")
    with pytest.raises(UsageError, match="remove it, or set TMPDIR"):
        base_directory()


def test_somebody_elses_is_refused(temporary: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can make a directory that belongs to somebody else")
    (temporary / _name()).mkdir(0o700)
    os.chown(temporary / _name(), 65534, 65534)
    with pytest.raises(UsageError, match="remove it, or set TMPDIR"):
        base_directory()


def test_socket_paths_stay_short_enough(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deep = temporary / ("d" * 60)
    deep.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(deep))
    assert base_directory() == Path("/tmp") / _name()


def test_a_temporary_directory_closed_to_the_servers_is_not_used(
    temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root's servers run under another user")
    closed = temporary / "closed"
    closed.mkdir(0o700)
    monkeypatch.setattr(tempfile, "tempdir", str(closed))
    assert base_directory() == Path("/tmp") / _name()


@pytest.mark.usefixtures("temporary")
def test_a_cached_tree_is_built_once_and_again_when_it_has_holes() -> None:
    builds: list[Path] = []

    def build(into: Path) -> None:
        builds.append(into)
        (into / "inner").mkdir()
        (into / "inner" / "empty").touch()
        (into / "full").write_text("content")

    tree = cached_tree("tree", build)
    assert cached_tree("tree", build) == tree
    assert len(builds) == 1
    for damage in (
        lambda: (tree / "inner" / "empty").unlink(),
        lambda: (tree / "full").write_text(""),
        lambda: shutil.rmtree(tree / "inner"),
        lambda: shutil.rmtree(tree),
    ):
        before = len(builds)
        damage()
        assert cached_tree("tree", build) == tree
        assert len(builds) == before + 1
        assert (tree / "full").read_text() == "content"
        assert (tree / "inner" / "empty").exists()


@pytest.mark.usefixtures("temporary")
def test_a_failed_build_leaves_nothing_in_the_cache() -> None:
    def fail(into: Path) -> None:
        (into / "half").touch()
        raise UsageError("no")

    with pytest.raises(UsageError):
        cached_tree("tree", fail)
    assert [path.name for path in (base_directory() / "cache").iterdir()] == ["tree.lock"]
