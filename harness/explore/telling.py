"""A finding in words."""

from __future__ import annotations

from fencepost.harness.explore.findings import Finding
from fencepost.harness.explore.result import side_by_side, story
from fencepost.harness.known import what_failed


def told(finding: Finding, replay: str) -> list[str]:
    """`replay` is what to type to run the failing order again."""
    shrunk = finding.shrunk
    size = "minimal" if shrunk.minimal else "not minimal: the budget for shrinking was spent"
    lines = [
        f"the shortest failing order ({len(shrunk.run.steps)} steps of {shrunk.program}; {size}, "
        f"{shrunk.runs} runs to shrink it) breaks {', '.join(finding.broken)}:",
        *(f"  {line}" for line in story(shrunk.run.steps)),
        "",
        *(f"  {violation.message}" for violation in finding.failing.facts.violations),
    ]
    if finding.near is None:
        lines += ["", "no order near it holds"]
    else:
        lines += [
            "",
            "the nearest order that holds, on the right:",
            *side_by_side(finding.near.failing.steps, finding.near.other.steps),
        ]
    verdict = finding.failing.judgement.verdict.value
    names = ", ".join(what_failed(finding.failing.facts, finding.failing.judgement)) or "nothing"
    agrees = "" if finding.replays else ", which is NOT what the search saw"
    return [
        *lines,
        "",
        f"replay:  {replay}",
        f"         (run again from this text: {verdict}, breaks {names}{agrees})",
    ]
