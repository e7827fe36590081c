"""Two runs beside each other: their steps aligned, the first divergence found and put in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Any

from fencepost.harness.trace import Trace
from fencepost.reports import words

LARGEST_ALIGNED = 2000
"""Steps up to which an alignment is searched for; longer runs are paired by number from the first difference on."""


@dataclass(frozen=True)
class Pair:
    """A step of the one run beside one of the other, by their places; None where the other run has none."""

    left: int | None
    right: int | None
    same: bool


@dataclass(frozen=True)
class Comparison:
    pairs: tuple[Pair, ...]
    divergence: int | None  # place in `pairs`
    words: str

    @property
    def alike(self) -> int:
        return sum(pair.same for pair in self.pairs)


def compare(left: Trace, right: Trace) -> Comparison:
    left_view, right_view = _Canonical(left), _Canonical(right)
    pairs = tuple(
        Pair(a, b, a is not None and b is not None and left_view.outcomes[a] == right_view.outcomes[b])
        for a, b in _aligned(left_view.intents, right_view.intents)
    )
    divergence = next((place for place, pair in enumerate(pairs) if not pair.same), None)
    return Comparison(pairs, divergence, _tell(left, right, pairs, divergence))


def nearest(trace: Trace, candidates: Sequence[Trace]) -> tuple[int, Comparison] | None:
    """Which candidate shares the longest beginning with the trace, and after that the most steps."""
    best: tuple[tuple[int, int], int, Comparison] | None = None
    for place, candidate in enumerate(candidates):
        comparison = compare(trace, candidate)
        alike = comparison.divergence if comparison.divergence is not None else len(comparison.pairs)
        rank = (alike, comparison.alike)
        if best is None or rank > best[0]:
            best = rank, place, comparison
    return None if best is None else (best[1], best[2])


class _Canonical:
    """Steps without times and ids: what was let go (`intents`), and with what came of it (`outcomes`)."""

    def __init__(self, trace: Trace) -> None:
        self._jobs: dict[str, str] = {}
        self._tokens: dict[str, dict[Any, int]] = {}
        self.intents: list[tuple[Any, ...]] = []
        self.outcomes: list[tuple[Any, ...]] = []
        for step in trace.steps:
            intent = (
                step["kind"],
                step.get("actor"),
                step.get("operation"),
                step.get("started"),
                step.get("fault"),
                bool(step.get("drain")),
                tuple(self._claim(claim) for claim in step.get("claims", ())),
            )
            self.intents.append(intent)
            self.outcomes.append(
                (
                    *intent,
                    step.get("status"),
                    step.get("checkpoint"),
                    self._reply(step),
                    self._rows(step["after"]),
                )
            )

    def _job(self, job: Any) -> str | None:
        return None if job is None else self._jobs.setdefault(str(job), f"job{len(self._jobs)}")

    def _token(self, job: Any, token: Any) -> int | None:
        if token is None:
            return None
        known = self._tokens.setdefault(str(job), {})
        return known.setdefault(token, len(known))

    def _claim(self, claim: Mapping[str, Any]) -> tuple[Any, ...]:
        return self._job(claim["job"]), self._token(claim["job"], claim.get("token"))

    def _reply(self, step: Mapping[str, Any]) -> tuple[Any, ...] | None:
        reply = step.get("reply")
        if reply is None:
            return None
        items = tuple((item["outcome"], item.get("reason")) for item in reply.get("items", ()))
        claims = tuple(self._claim(claim) for claim in reply.get("claims", ()))
        return reply["outcome"], reply.get("reason"), reply.get("error"), reply.get("count"), claims, items

    def _rows(self, after: Mapping[str, Any]) -> tuple[Any, ...]:
        jobs = tuple(
            (
                self._job(job["job"]),
                job["state"],
                self._token(job["job"], job.get("token")),
                job.get("holder"),
            )
            for job in after["jobs"]
        )
        ledger = tuple((self._job(e["job"]), self._token(e["job"], e.get("token"))) for e in after["ledger"])
        return jobs, ledger


def _aligned(
    left: Sequence[tuple[Any, ...]], right: Sequence[tuple[Any, ...]]
) -> list[tuple[int | None, int | None]]:
    common = 0
    while common < min(len(left), len(right)) and left[common] == right[common]:
        common += 1
    pairs: list[tuple[int | None, int | None]] = [(place, place) for place in range(common)]
    rest_left, rest_right = left[common:], right[common:]
    if max(len(rest_left), len(rest_right)) > LARGEST_ALIGNED:
        return pairs + _side_by_side(common, common + len(rest_left), common, common + len(rest_right))
    for tag, a0, a1, b0, b1 in SequenceMatcher(None, rest_left, rest_right, autojunk=False).get_opcodes():
        if tag == "equal":
            pairs += [(common + a, common + b) for a, b in zip(range(a0, a1), range(b0, b1), strict=True)]
        else:
            pairs += [(common + a, None) for a in range(a0, a1)]
            pairs += [(None, common + b) for b in range(b0, b1)]
    return pairs


def _side_by_side(a0: int, a1: int, b0: int, b1: int) -> list[tuple[int | None, int | None]]:
    longest = max(a1 - a0, b1 - b0)
    return [(a0 + n if a0 + n < a1 else None, b0 + n if b0 + n < b1 else None) for n in range(longest)]


def _tell(left: Trace, right: Trace, pairs: Sequence[Pair], divergence: int | None) -> str:
    if divergence is None:
        return "Both runs did the same in every step."
    before = f"The first {divergence} steps are the same. " if divergence else ""
    pair = pairs[divergence]
    one = _tell_step(left.steps[pair.left]) if pair.left is not None else "has no step for it"
    other = _tell_step(right.steps[pair.right]) if pair.right is not None else "has no step for it"
    here, there = _labels(left, right)
    told = f"{before}Then {here}: {one}; {there}: {other}."
    if one == other and pair.left is not None and pair.right is not None:
        return f"{before}Then the rows differ, after {one}: {_rows_differ(left, right, pair)}."
    return told


def _labels(left: Trace, right: Trace) -> tuple[str, str]:
    here, there = left.header["queue"]["name"], right.header["queue"]["name"]
    return (here, there) if here != there else ("this run", "the other")


def _tell_step(step: Mapping[str, Any]) -> str:
    who = f"{step['actor']}: " if "actor" in step else ""
    came = words.answer(step)
    return f"step {step['n']}, {who}{words.what(step)}{f' → {came}' if came else ''}"


def _rows_differ(left: Trace, right: Trace, pair: Pair) -> str:
    assert pair.left is not None
    assert pair.right is not None
    here, there = _labels(left, right)
    return f"{here} has {_rows(left.steps[pair.left])}, {there} has {_rows(right.steps[pair.right])}"


def _rows(step: Mapping[str, Any]) -> str:
    after = step["after"]
    jobs = [
        f"job {job['job']} {job['state']} ({words.token_text(job.get('token'))})" for job in after["jobs"]
    ]
    ledger = [str(entry.get("token")) for entry in after["ledger"]]
    return f"{words.and_more(jobs, 3) or 'no jobs'}, ledger [{words.and_more(ledger, 6)}]"


def as_json(comparison: Comparison, label: str) -> dict[str, Any]:
    return {
        "label": label,
        "words": comparison.words,
        "divergence": comparison.divergence,
        "pairs": [[pair.left, pair.right, pair.same] for pair in comparison.pairs],
    }
