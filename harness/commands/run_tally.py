"""What all runs of one scenario's variant came to."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from fencepost.harness.bench import Run
from fencepost.harness.known import Baseline, KnownFailure, Ran, what_failed, what_held
from fencepost.harness.scenario import Variant
from fencepost.harness.trace.canonical import canonical_hash
from fencepost.harness.trace.format import file_name, write_trace
from fencepost.harness.verdict import Verdict

SKIPPED, KNOWN = "skipped", "known"
"""What is said in a verdict's place where nothing was run, and where nothing failed but what was known to."""


@dataclass
class Tally:
    """The verdict is the worst of all runs; more than one hash is a failure too."""

    variant: Variant
    skipped: str | None = None
    verdicts: Counter[Verdict] = field(default_factory=Counter)
    reasons: list[str] = field(default_factory=list)
    known: dict[KnownFailure, None] = field(default_factory=dict)  # in the order they were met
    new_failures: int = 0
    hashes: Counter[str] = field(default_factory=Counter)
    classes: Counter[str] = field(default_factory=Counter)  # of a classified scenario's runs
    elapsed_s: float = 0.0
    trace: Path | None = None

    def skip(self, lacking: str, baseline: Baseline, queue: frozenset[str]) -> None:
        self.skipped = lacking
        scenario = self.variant.scenario
        baseline.note(Ran(self.variant.name, scenario.variant_names, queue, impossible=True))

    def add(self, run: Run, directory: Path, baseline: Baseline, queue: frozenset[str]) -> None:
        self.verdicts[run.judgement.verdict] += 1
        self.hashes[canonical_hash(run.trace)] += 1
        self.elapsed_s += run.elapsed_s
        if self.trace is None or run.judgement.verdict is not Verdict.PASS:
            self.trace = directory / f"{run.variant.scenario.family}-{file_name(run.variant.name)}.jsonl"
            write_trace(run.trace, self.trace)
            if run.control is not None:
                write_trace(run.control.trace, self.trace.with_name(f"{self.trace.stem}.control.jsonl"))
        if "class" in run.trace.end:
            self.classes[run.trace.end["class"]] += 1
        if run.judgement.reasons and not self.reasons:
            self.reasons = list(run.judgement.reasons)
        self._compare(run, baseline, queue)

    def _compare(self, run: Run, baseline: Baseline, queue: frozenset[str]) -> None:
        name, variants = self.variant.name, self.variant.scenario.variant_names
        known = baseline.explain(name, queue, what_failed(run.facts, run.judgement))
        self.known.update(dict.fromkeys(known))
        self.new_failures += run.judgement.verdict is Verdict.FAIL and not known
        baseline.note(Ran(name, variants, queue, what_held(run.facts, run.judgement)))

    @property
    def verdict(self) -> Verdict:
        if self.new_failures:
            return Verdict.FAIL
        if self.verdicts[Verdict.INCONCLUSIVE] or len(self.hashes) != 1:
            return Verdict.INCONCLUSIVE
        (verdict,) = self.verdicts
        return verdict

    @property
    def word(self) -> str:
        if self.skipped is not None:
            return SKIPPED
        is_known = self.verdict is Verdict.FAIL and not self.new_failures
        return KNOWN if is_known else self.verdict.value

    def told_reasons(self) -> list[str]:
        if len(self.hashes) > 1:
            told = ", ".join(f"{digest[:12]} ({count} runs)" for digest, count in self.hashes.items())
            return [*self.reasons, f"the runs' canonical traces disagree: {told}"]
        return self.reasons
