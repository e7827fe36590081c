"""Writes the parts of docs/ that come from the code: `python docs/write.py` (`make docs`); a test runs `--check`."""

from __future__ import annotations

import inspect
import re
import sys
from pathlib import Path

from fencepost.docs.twin_figures import read_figures, with_figures
from fencepost.harness.adapter import OPERATION_NEEDS, Capability
from fencepost.harness.adapter_check.plan import CHECKS
from fencepost.harness.commands.listing import markdown
from fencepost.harness.invariants import INVARIANTS
from fencepost.harness.scenario import installed_scenarios

DOCS = Path(__file__).resolve().parent


def capabilities() -> str:
    """Each capability with the comment beside it in the contract, and the operations it brings."""
    source = inspect.getsource(Capability)
    told = dict(re.findall(r"^    (\w+) = .*?# (.+)$", source, re.MULTILINE))
    lines = ["| capability | what it says | operations |", "|---|---|---|"]
    for capability in Capability:
        operations = ", ".join(f"`{name}`" for name, need in OPERATION_NEEDS.items() if need is capability)
        lines.append(f"| `{capability.value}` | {told[capability.name]} | {operations} |")
    return "\n".join(lines)


def invariants() -> str:
    lines = ["| invariant | what must hold | needs |", "|---|---|---|"]
    for invariant in INVARIANTS:
        needs = ", ".join(sorted(invariant.needs))
        lines.append(f"| `{invariant.name}` | {invariant.sentence} | {needs} |")
    return "\n".join(lines)


def checks() -> str:
    lines = ["| check | holds the queue to | not made where one of these failed |", "|---|---|---|"]
    lines.append("| installs |  |  |")
    for check in CHECKS:
        needs = ", ".join(f"`{need}`" for need in sorted(check.needs))
        lines.append(f"| {check.name} | {needs} | {', '.join(check.after)} |")
    return "\n".join(lines)


def forty_lines() -> str:
    return "```python\n" + (DOCS.parent / "adapters/forty_lines.py").read_text().rstrip() + "\n```"


PARTS = {
    ("adapters.md", "forty_lines"): forty_lines,
    ("adapters.md", "capabilities"): capabilities,
    ("adapters.md", "checks"): checks,
    ("design.md", "invariants"): invariants,
}


def filled(text: str, name: str, content: str) -> str:
    """`text` with what stands between the marks of this part replaced."""
    begin, end = f"<!-- {name}: from the code -->", f"<!-- end of {name} -->"
    before, _, rest = text.partition(begin)
    _, found, after = rest.partition(end)
    if not found:
        raise SystemExit(f"the marks of {name} are missing")
    return f"{before}{begin}\n{content}\n{end}{after}"


def pages() -> dict[Path, str]:
    texts: dict[Path, str] = {}
    for (page, name), make in PARTS.items():
        path = DOCS / page
        texts[path] = filled(texts.get(path, path.read_text()), name, make())
    catches = DOCS / "what-it-catches.md"
    texts[catches] = with_figures(catches.read_text(), read_figures())
    texts[DOCS / "scenarios.md"] = markdown(installed_scenarios()) + "\n"
    return texts


def main() -> int:
    stale = {path: text for path, text in pages().items() if not path.exists() or path.read_text() != text}
    if "--check" in sys.argv:
        for path in stale:
            sys.stderr.write(
                f"docs/{path.name} is not what the code and docs/figures say: run `python docs/write.py`\n"
            )
        return 1 if stale else 0
    for path, text in stale.items():
        path.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
