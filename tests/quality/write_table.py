"""Writes docs/found-by-the-machine.md from what the last `make quality` found, and from a stress test's hits."""

from __future__ import annotations

import json
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOUND = ROOT / ".fencepost" / "quality"
STRESS = ROOT / ".fencepost" / "stress.json"


def main() -> None:
    found = [json.loads(path.read_text()) for path in sorted(FOUND.glob("*.json"))]
    stress = json.loads(STRESS.read_text()) if STRESS.exists() else {"seconds": 0, "hits": {}}
    lines = [
        "# Found by the state machine",
        "",
        "Written by `make quality` from a run of it: for each twin how many examples the state machine took (profile",
        "`ci`, asked for the invariant the twin names), how many steps its shrunk counterexample has, and what a plain",
        "stress test without any control hits (`benchmarks/stress.py`: 8 threads, no held operation, no moved clock).",
        "",
        "| twin | invariant | examples | steps | stress: anomalies | the shrunk schedule |",
        "|---|---|---|---|---|---|",
    ]
    for told in found:
        hits = stress["hits"].get(told["twin"])
        seen = "not run" if hits is None else f"{hits['anomalies']} in {hits['operations']:,} operations"
        schedule = told["schedule"] if len(told["schedule"]) < 300 else f"{told['schedule'][:297]}…"
        cell = schedule.replace("|", "\\|")
        lines.append(
            f"| `{told['twin']}` | {told['invariant']} | {told['examples']} | {told['steps']} | {seen} | `{cell}` |"
        )
    lines += ["", f"{len(found)} twins found.", ""]
    (ROOT / "docs" / "found-by-the-machine.md").write_text("\n".join(lines))


if __name__ == "__main__":
    main()
