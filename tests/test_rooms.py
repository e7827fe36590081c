"""Who may import whom: DESIGN's table of rooms, read off the code."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

MAY_IMPORT = {
    "harness": {"harness"},
    "queue_impl": {"queue_impl"},
    "adapters": {"adapters", "harness.adapter"},
    "scenarios": {"scenarios", "harness"},
    "reports": {"reports", "harness.trace", "harness.errors"},
}


def imports_of(path: Path) -> set[str]:
    """Modules of this project a file imports, without the `fencepost.` before them."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            names.add(node.module)
            names |= {f"{node.module}.{alias.name}" for alias in node.names if node.module == "fencepost"}
    return {name.removeprefix("fencepost.") for name in names if name.startswith("fencepost.")}


def is_allowed(module: str, allowed: set[str]) -> bool:
    return any(module == room or module.startswith(f"{room}.") for room in allowed)


@pytest.mark.parametrize("room", MAY_IMPORT)
def test_a_room_imports_only_what_it_may(room: str) -> None:
    files = [path for path in (ROOT / room).rglob("*.py") if "__pycache__" not in path.parts]
    assert files
    for path in files:
        allowed = set(MAY_IMPORT[room])
        if room == "queue_impl" and path.name == "adapter.py":
            allowed.add("harness.adapter")
        if path == ROOT / "queue_impl/twins/__init__.py":
            allowed.add("harness.adapter")  # the type of what it hands out
        wrong = {module for module in imports_of(path) if not is_allowed(module, allowed)}
        assert not wrong, f"{path.relative_to(ROOT)} may not import {sorted(wrong)}"


def test_the_reference_queue_works_without_the_harness() -> None:
    import subprocess
    import sys

    code = (
        "import sys, fencepost.queue_impl.reference as queue\n"
        "assert not [name for name in sys.modules if name.startswith('fencepost.harness')]\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
