"""Finds a C compiler and builds the clock preload with it.

Standard library only: the wheel's build hook loads it too, where nothing else is installed.
"""

from __future__ import annotations

import importlib.util
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

SOURCE = Path(__file__).with_name("preload.c")
COMPILER_VARIABLE = "FENCEPOST_CC"
_FLAGS = ("-O2", "-fPIC", "-shared")
_LIBRARIES = ("-ldl",)  # dlsym, where libc does not hold it itself
_DEADLINE_S = 300  # zig's first use builds its own runtime


@dataclass(frozen=True)
class Compiler:
    command: tuple[str, ...]
    asked_for: bool  # by the user, so that its failure must not go unnoticed

    @property
    def name(self) -> str:
        return shlex.join(self.command)

    def identity(self) -> str:
        """Changes when another compiler, or another version of it, stands behind the command."""
        program = shutil.which(self.command[0])
        if program is None:
            return self.name
        found = Path(program).resolve().stat()
        return f"{self.name} {Path(program).resolve()} {found.st_size} {found.st_mtime_ns}"


class CompilerFailed(Exception):
    pass


def compilers() -> Iterator[Compiler]:
    """In order of preference: the user's, the system's, the one from PyPI."""
    asked_for = os.environ.get(COMPILER_VARIABLE)
    if asked_for:
        yield Compiler(tuple(shlex.split(asked_for)), asked_for=True)
        return
    for name in ("cc", "gcc", "clang"):
        if shutil.which(name):
            yield Compiler((name,), asked_for=False)
    if importlib.util.find_spec("ziglang") is not None:
        yield Compiler((sys.executable, "-m", "ziglang", "cc"), asked_for=False)


def build_preload(compiler: Compiler, target: Path) -> None:
    command = [*compiler.command, *_FLAGS, "-o", str(target), str(SOURCE), *_LIBRARIES]
    try:
        built = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=_DEADLINE_S)
    except (OSError, subprocess.TimeoutExpired) as problem:
        raise CompilerFailed(f"`{compiler.name}` did not run: {problem}") from problem
    if built.returncode != 0 or not target.is_file():
        complaint = built.stderr.strip().splitlines() or [f"exit code {built.returncode}"]
        raise CompilerFailed(f"`{compiler.name}` could not build the clock preload: {complaint[0]}")
