"""The preload itself: which clocks it moves, when it refuses to load, and where it comes from."""

from __future__ import annotations

import json
import os
import shutil
import stat
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fencepost.harness.clock import compilers, preload
from fencepost.harness.clock.compilers import COMPILER_VARIABLE
from fencepost.harness.clock.preload import (
    CLOCK_FILE_VARIABLE,
    explain_preload,
    find_preload,
    require_preload,
)
from fencepost.harness.errors import UsageError

ASK = """
import ctypes, json, sys, time
class Timeval(ctypes.Structure):
    _fields_ = [("sec", ctypes.c_long), ("usec", ctypes.c_long)]
libc = ctypes.CDLL(None)
libc.time.restype = ctypes.c_long
at = Timeval()
libc.gettimeofday(ctypes.byref(at), None)
names = ["CLOCK_REALTIME", "CLOCK_MONOTONIC", "CLOCK_MONOTONIC_RAW", "CLOCK_BOOTTIME", "CLOCK_TAI"]
read = {name: time.clock_gettime_ns(getattr(time, name)) for name in names}
read["CLOCK_REALTIME_COARSE"] = time.clock_gettime_ns(5)
read["gettimeofday"] = at.sec * 10**9 + at.usec * 1000
read["time"] = libc.time(None) * 10**9
assert 0 <= at.usec < 10**6
sys.stdout.write(json.dumps(read))
"""
MOVED = {"CLOCK_REALTIME", "CLOCK_REALTIME_COARSE", "CLOCK_TAI", "gettimeofday", "time"}


def _preloaded(clock_file: str | None, program: list[str]) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "LD_PRELOAD": str(require_preload().library)}
    if clock_file is not None:
        environment[CLOCK_FILE_VARIABLE] = clock_file
    return subprocess.run(program, env=environment, capture_output=True, text=True, timeout=60)


def _clocks(environment: dict[str, str]) -> dict[str, int]:
    asked = subprocess.run(
        [sys.executable, "-I", "-S", "-c", ASK],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    answer: dict[str, int] = json.loads(asked.stdout)
    return answer


@pytest.mark.parametrize("offset_ns", [10**15, 1, 10**9 - 1, -1, -(10**9) + 1, -(10**15) - 999_999_999])
def test_only_the_clocks_that_tell_the_time_of_day_move(tmp_path: Path, offset_ns: int) -> None:
    offset = tmp_path / "clock"
    offset.write_bytes(struct.pack("=q", offset_ns))
    real = _clocks({})
    moved = _clocks({"LD_PRELOAD": str(require_preload().library), CLOCK_FILE_VARIABLE: str(offset)})
    assert set(real) > MOVED
    for name, at in real.items():
        expected = offset_ns if name in MOVED else 0
        assert abs(moved[name] - at - expected) < 10 * 10**9, name


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (None, "cannot open the file"),
        (b"", "shorter than eight bytes"),
        (b"1234567", "shorter than eight bytes"),
    ],
)
def test_a_process_whose_file_cannot_be_mapped_ends(tmp_path: Path, content: bytes | None, told: str) -> None:
    offset = tmp_path / "clock"
    if content is not None:
        offset.write_bytes(content)
    ended = _preloaded(str(offset), ["/bin/true"])
    assert ended.returncode == 97
    assert told in ended.stderr


def test_a_process_without_a_file_named_ends() -> None:
    ended = _preloaded(None, ["/bin/true"])
    assert ended.returncode == 97
    assert "FENCEPOST_CLOCK_FILE is not set" in ended.stderr


@pytest.fixture
def fresh_cache(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    made = Path(tempfile.mkdtemp(prefix="fp", dir="/tmp"))
    made.chmod(0o755)
    monkeypatch.setattr(tempfile, "tempdir", str(made))
    monkeypatch.delenv(COMPILER_VARIABLE, raising=False)
    yield made
    shutil.rmtree(made)


@pytest.fixture
def no_compiler(fresh_cache: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(compilers.shutil, "which", lambda name: None)
    monkeypatch.setattr(compilers.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(preload, "SHIPPED", tmp_path / "_preload.so")


def test_it_is_built_once_and_readable_by_everyone(fresh_cache: Path) -> None:
    library = require_preload().library
    assert library.is_relative_to(fresh_cache)
    assert stat.S_IMODE(library.stat().st_mode) == 0o755
    built = library.stat().st_mtime_ns
    assert require_preload().library == library
    assert library.stat().st_mtime_ns == built
    assert "built by" in explain_preload()


@pytest.mark.usefixtures("fresh_cache")
def test_another_compiler_builds_another_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    usual = require_preload().library
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("there is no system C compiler here")
    (tmp_path / "mycc").symlink_to(compiler)
    monkeypatch.setenv(COMPILER_VARIABLE, f"{tmp_path}/mycc -g")
    assert require_preload().library != usual
    assert f"{tmp_path}/mycc -g" in explain_preload()


@pytest.mark.usefixtures("fresh_cache")
@pytest.mark.parametrize("command", ["/nowhere/cc", "false", "true"])
def test_a_compiler_the_user_named_must_work(monkeypatch: pytest.MonkeyPatch, command: str) -> None:
    monkeypatch.setenv(COMPILER_VARIABLE, command)
    with pytest.raises(UsageError, match="correct FENCEPOST_CC or unset it"):
        find_preload()


@pytest.mark.usefixtures("no_compiler")
def test_with_nothing_to_build_it_the_next_step_is_named() -> None:
    assert find_preload() is None
    assert "pip install ziglang" in explain_preload()
    with pytest.raises(UsageError, match=r"cannot be moved here: .*pip install ziglang"):
        require_preload()


@pytest.mark.usefixtures("no_compiler")
def test_the_shipped_one_is_used_where_nothing_can_be_built(fresh_cache: Path) -> None:
    # Built outside the substitutes of the fixture, as the wheel's build would have.
    subprocess.run(
        ["/usr/bin/env", "cc", "-shared", "-fPIC", "-o", preload.SHIPPED, compilers.SOURCE, "-ldl"]
    )
    if not preload.SHIPPED.exists():
        pytest.skip("there is no system C compiler here to stand in for the wheel's build")
    library = require_preload().library
    assert library.is_relative_to(fresh_cache)
    assert "shipped with the wheel" in explain_preload()


@pytest.mark.usefixtures("no_compiler")
def test_a_shipped_one_that_does_not_work_here_is_not_used() -> None:
    preload.SHIPPED.write_bytes(b"\x7fELF for another machine")
    assert find_preload() is None
    assert "does not work here" in explain_preload()


@pytest.mark.usefixtures("fresh_cache")
def test_a_compiler_that_builds_something_else_is_noticed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    real = shutil.which("cc") or shutil.which("gcc")
    if real is None:
        pytest.skip("there is no system C compiler here")
    (tmp_path / "idle.c").write_text("int nothing;\n")
    fake = tmp_path / "cc"
    fake.write_text(f'#!/bin/sh\nexec {real} -shared -fPIC -o "$5" {tmp_path}/idle.c\n')
    fake.chmod(0o755)
    monkeypatch.setenv(COMPILER_VARIABLE, str(fake))
    with pytest.raises(UsageError, match="does not work here"):
        find_preload()


def test_reading_the_moved_clock_costs_next_to_nothing(tmp_path: Path) -> None:
    """The bound lies between what was measured (3 ns) and one system call per reading (some 270 ns)."""
    offset = tmp_path / "clock"
    offset.write_bytes(bytes(8))
    loop = (
        "import sys, time\nbest = 10**12\n"
        "for _ in range(20):\n"
        "    a = time.perf_counter_ns()\n"
        "    for _ in range(20000): time.time()\n"
        "    best = min(best, time.perf_counter_ns() - a)\n"
        "sys.stdout.write(str(best / 20000))"
    )
    program = [sys.executable, "-I", "-S", "-c", loop]
    started = time.monotonic()
    moved_ns = float(_preloaded(str(offset), program).stdout)
    plain_ns = float(subprocess.run(program, capture_output=True, text=True, timeout=60).stdout)
    assert moved_ns - plain_ns < 150, (moved_ns, plain_ns, time.monotonic() - started)
