"""A finding in words."""

from __future__ import annotations

from fencepost.harness.explore.findings import Finding
from fencepost.harness.explore.result import count, side_by_side, story
from fencepost.harness.known import what_failed


def _size(finding: Finding) -> str:
    shrunk = finding.shrunk
    return "minimal" if shrunk.minimal else f"not minimal: {shrunk.ended_by}"


def told(finding: Finding, replay: str) -> list[str]:
    """`replay` is what to type to run the failing order again."""
    shrunk = finding.shrunk
    broken = ", ".join(finding.broken)
    if finding.failed_again:
        head = (
            f"the shortest failing order ({len(shrunk.run.steps)} steps of {shrunk.program}; {_size(finding)}, "
            f"{count(shrunk.runs, 'run')} to shrink it) breaks {broken}:"
        )
    else:
        head = (
            f"an order of {shrunk.program} broke {broken} in the search and did NOT when it was run again: the "
            "same order does not always end alike. This is how it went then:"
        )
    lines = [
        head,
        *(f"  {line}" for line in story(shrunk.run.steps)),
        "",
        *(f"  {message}" for message in finding.messages),
        *(f"  {problem}" for problem in finding.problems),
    ]
    if finding.interrupted or not finding.failed_again:
        pass  # nobody looked
    elif finding.near is None:
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
