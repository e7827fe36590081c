"""The distributions: what is in them, and that the wheel works in an environment that never saw the checkout."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("harness", "queue_impl", "adapters", "scenarios", "reports")
DEADLINE_S = 300


def run(*command: str | Path, cwd: Path, **environment: str) -> str:
    kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTEST_ADDOPTS")}
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env={**kept, **environment},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def project_files() -> list[str]:
    if not (ROOT / ".git").exists() or shutil.which("git") is None:
        pytest.skip("which files belong to the project is known to git alone, and this is no git checkout")
    listed = run("git", "ls-files", "--cached", "--others", "--exclude-standard", "-z", cwd=ROOT)
    return [name for name in listed.split("\0") if name and os.path.lexists(ROOT / name)]


@dataclass(frozen=True)
class Distributions:
    files: tuple[str, ...]  # of the project, when they were built
    wheel: Path
    sdist: Path


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Distributions:
    """Both, from a copy of the project: the sdist first, and the wheel from nothing but the sdist."""
    scratch = tmp_path_factory.mktemp("copy")
    files = project_files()
    for name in files:
        (scratch / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, scratch / name, follow_symlinks=False)
    assert (scratch / "src/fencepost").is_symlink()
    out = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", out, scratch, cwd=scratch)
    (wheel,) = out.glob("*.whl")
    (sdist,) = out.glob("*.tar.gz")
    return Distributions(tuple(files), wheel, sdist)


@pytest.fixture(scope="module")
def elsewhere(built: Distributions, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fresh environment with the wheel in it; its directory lies outside the checkout."""
    home = tmp_path_factory.mktemp("elsewhere")
    run(sys.executable, "-m", "venv", "--without-pip", home / "venv", cwd=home)
    python = home / "venv/bin/python"
    run(
        *(sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-deps", "--no-index"),
        *("--disable-pip-version-check", built.wheel),
        cwd=home,
    )
    # What the wheel depends on is taken from this environment, without this environment's own fencepost.
    dependencies = home / "dependencies"
    dependencies.mkdir()
    for entry in Path(sysconfig.get_paths()["purelib"]).iterdir():
        if "fencepost" not in entry.name and entry.suffix != ".pth":
            (dependencies / entry.name).symlink_to(entry)
    return home


def run_elsewhere(home: Path, *command: str | Path) -> str:
    return run(*command, cwd=home, PYTHONPATH=str(home / "dependencies"))


def test_the_sdist_holds_each_file_once(built: Distributions) -> None:
    with tarfile.open(built.sdist) as archive:
        names = [name.partition("/")[2] for name in archive.getnames()]
    assert not [name for name in names if name.startswith("src/")], (
        "it went through src/fencepost into itself"
    )
    assert len(names) == len(set(names))
    wanted = {name for name in built.files if name.partition("/")[0] in (*PACKAGES, "tests")}
    assert wanted <= set(names)
    assert {"pyproject.toml", "README.md", "constraints.txt", "PKG-INFO"} <= set(names)
    assert not [name for name in names if "__pycache__" in name or name.endswith((".pyc", ".so"))]


def test_the_wheel_holds_the_packages_and_nothing_else(built: Distributions) -> None:
    with zipfile.ZipFile(built.wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    wanted = {f"fencepost/{name}" for name in built.files if name.partition("/")[0] in PACKAGES}
    preload = {"fencepost/harness/clock/_preload.so"}
    assert names - preload == wanted
    if shutil.which("cc") or shutil.which("gcc") or shutil.which("clang"):
        assert preload <= names, "there is a compiler, so the wheel carries the built clock preload"
        assert re.fullmatch(r"fencepost-.*-py3-none-linux_\w+\.whl", built.wheel.name)
    kinds = {Path(name).suffix if Path(name).name != "py.typed" else "py.typed" for name in names}
    assert kinds <= {".py", ".sql", ".c", ".so", ".j2", ".js", ".css", "py.typed"}
    for package in ("harness", "queue_impl", "reports"):
        assert f"fencepost/{package}/py.typed" in names


def test_the_wheel_says_what_it_offers(built: Distributions) -> None:
    with zipfile.ZipFile(built.wheel) as archive:
        (offers,) = [name for name in archive.namelist() if name.endswith("entry_points.txt")]
        (metadata,) = [name for name in archive.namelist() if name.endswith("METADATA")]
        offered = archive.read(offers).decode()
        told = archive.read(metadata).decode()
    for section, line in (
        ("console_scripts", "fencepost = fencepost.harness.cli:main"),
        ("pytest11", "fencepost = fencepost.harness.plugin"),
        ("fencepost.queues", "reference = fencepost.queue_impl.reference.adapter:reference"),
        ("fencepost.twins", "reference = fencepost.queue_impl.twins:TWINS"),
        ("fencepost.scenarios", "builtin = fencepost.scenarios"),
        ("fencepost.reports", "html = fencepost.reports.html:write"),
    ):
        assert line in offered.partition(f"[{section}]\n")[2].partition("\n\n")[0].splitlines()
    assert "Requires-Python: >=3.11" in told
    assert {"dev", "compiler"} <= set(re.findall(r"^Provides-Extra: (.*)$", told, re.MULTILINE))


def test_the_race_is_replayed_by_the_wheel_alone(elsewhere: Path) -> None:
    where = "import fencepost.harness, sys; sys.stdout.write(fencepost.harness.__file__)"
    imported = Path(run_elsewhere(elsewhere, elsewhere / "venv/bin/python", "-c", where))
    assert imported.is_relative_to(elsewhere / "venv")
    out = run_elsewhere(elsewhere, elsewhere / "venv/bin/fencepost", "race")
    lines = out.splitlines()
    events = [json.loads(line)["event"] for line in lines[:8]]
    assert events[0] == "lease_acquired"
    assert events[-2:] == ["stale_write_blocked", "worker_exit"]
    assert lines[-1].startswith("verdict pass in ")
    assert (elsewhere / ".fencepost/traces/lease_race.jsonl").is_file()
    told = run_elsewhere(elsewhere, elsewhere / "venv/bin/fencepost", "report", "-o", "report")
    assert told == "report: report/index.html\n"
    assert "was refused: token 1, current 2" in (elsewhere / "report/runs/lease_race.html").read_text()


def test_the_installed_scenarios_run_under_pytest(elsewhere: Path) -> None:
    out = run_elsewhere(
        elsewhere,
        *(elsewhere / "venv/bin/python", "-m", "pytest", "--pyargs", "fencepost.scenarios"),
        *("-k", "lease_race", "-p", "no:cacheprovider", "-p", "no:hypothesispytest", "-q"),
    )
    counted = re.search(r"^(\d+) passed(, \d+ deselected)? in ", out, re.MULTILINE)
    assert counted is not None, out
    assert int(counted[1]) >= 17
