"""Builds the clock preload into the wheel, for machines that have no C compiler.

Run by hatchling while it builds a wheel, with nothing installed but hatchling: the package itself never
imports it. Without a compiler, and outside Linux, the wheel is the pure one.
"""

from __future__ import annotations

import importlib.util
import sys
import sysconfig
import tempfile
from pathlib import Path
from types import ModuleType
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

_IN_WHEEL = "fencepost/harness/clock/_preload.so"


class ClockPreloadHook(BuildHookInterface[Any]):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version != "standard" or sys.platform != "linux":
            return  # an editable install builds into the user's cache instead
        building = _compilers_module()
        self._scratch = tempfile.TemporaryDirectory(prefix="fencepost-preload-")
        library = Path(self._scratch.name) / "_preload.so"
        for compiler in building.compilers():
            try:
                building.build_preload(compiler, library)
            except building.CompilerFailed as problem:
                self.app.display_warning(str(problem))
                continue
            build_data["force_include"][str(library)] = _IN_WHEEL
            build_data["pure_python"] = False
            build_data["tag"] = f"py3-none-{_platform_tag()}"
            return
        self.app.display_warning("no C compiler: the wheel carries no clock preload")

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        scratch = getattr(self, "_scratch", None)
        if scratch is not None:
            scratch.cleanup()


def _compilers_module() -> ModuleType:
    """Loaded by its path: importing it by name would need the package that is only being built."""
    path = Path(__file__).with_name("compilers.py")
    spec = importlib.util.spec_from_file_location("fencepost_build_compilers", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def _platform_tag() -> str:
    return sysconfig.get_platform().replace("-", "_").replace(".", "_")
