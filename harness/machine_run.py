"""One test's worth of the state machine on one queue: with a profile, a seed, and what is told of a finding."""

from __future__ import annotations

import os
import shlex
from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path

import hypothesis
from hypothesis.database import DirectoryBasedExampleDatabase
from hypothesis.stateful import run_state_machine_as_test

from fencepost.harness.bench import Run
from fencepost.harness.foretold import names_of
from fencepost.harness.lab import Lab
from fencepost.harness.loading import LoadedQueue
from fencepost.harness.machine import machine_on
from fencepost.harness.machine_example import VARIANT, CouldNotBegin, Found, ProvedNothing
from fencepost.harness.machine_tally import Tally
from fencepost.harness.pinning import pinned
from fencepost.harness.scenario_text import scenario_text
from fencepost.harness.schedule import parse_schedule
from fencepost.harness.shrink_schedule import Shrunk, shrink_run
from fencepost.harness.story import failure_text
from fencepost.harness.trace.format import ensure_trace_dir, write_trace


@dataclass(frozen=True, slots=True)
class Finding:
    """What broke, in the smallest run found that shows it, and that run told for a person."""

    names: tuple[str, ...]
    run: Run
    text: str
    replays: bool
    """Its schedule alone showed it again."""

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True)
class Looked:
    """What came of it."""

    tally: Tally
    found: Finding | None = None
    proved_nothing: str | None = None


def look(
    lab: Lab,
    loaded: LoadedQueue,
    settings: hypothesis.settings,
    seed: int,
    *,
    trace_path: Path | None = None,
    wanted: str | None = None,
    known: Collection[str] = (),
) -> Looked:
    """Run the machine on this queue until it finds something that is not `known`, or is through."""
    if isinstance(settings.database, DirectoryBasedExampleDatabase):
        # By queue: an example that fails on one and passes on another would be thrown away there.
        kept = DirectoryBasedExampleDatabase(Path(settings.database.path) / loaded.queue.name)
        settings = hypothesis.settings(settings, database=kept)
    bench = lab.bench(loaded)
    with pinned(lab.core):
        machine, tally = machine_on(bench, wanted=wanted, known=known)
        try:
            run_state_machine_as_test(hypothesis.seed(seed)(machine), settings=settings)
        except Found as found:
            shrunk = shrink_run(bench, VARIANT, found.run, found.name)
            return Looked(tally, found=finding_of(shrunk, loaded.path, trace_path))
        except ProvedNothing as nothing:
            return Looked(tally, proved_nothing=finding_text(nothing.run, loaded.path, trace_path))
        except CouldNotBegin as error:
            return Looked(tally, proved_nothing=f"an example could not begin: {error}")
        except hypothesis.errors.Flaky as flaky:
            return Looked(tally, proved_nothing=_did_not_repeat(flaky))
    return Looked(tally)


def finding_of(shrunk: Shrunk, queue_path: str, trace_path: Path | None) -> Finding:
    text = finding_text(shrunk.run, queue_path, trace_path)
    if not shrunk.minimal:
        text += f"\nnot the smallest there is: shrinking ended after {shrunk.tries} tries"
    if not shrunk.replays:
        text += "\nits schedule, replayed, did not show it: what decided was no step of the run"
    return Finding(names_of(shrunk.run), shrunk.run, text, shrunk.replays)


def _did_not_repeat(flaky: hypothesis.errors.Flaky) -> str:
    """An example that failed and, played again, did not, or failed otherwise: what decided was no step of ours."""
    seen = getattr(flaky, "exceptions", ())
    told = "\n\n".join(str(one) for one in seen) or str(flaky)
    return f"an example failed, and did not when it was played again:\n{told}"


def finding_text(run: Run, queue_path: str, trace_path: Path | None) -> str:
    """What broke, the steps, the schedule, and the same as a scenario ready to paste."""
    text = run.trace.header["schedule"]
    told = None
    if trace_path is not None:
        ensure_trace_dir(trace_path.parent)
        write_trace(run.trace, trace_path)
        told = os.path.relpath(trace_path)
    if text is None:
        return failure_text(run.trace, "there is no schedule: the first step broke", told)
    by_the_model = bool(run.facts.unmet) and not run.facts.violations
    model = ["--model"] if by_the_model else []
    command = shlex.join(["fencepost", "replay", text, "--queue", queue_path, *model])
    schedule = parse_schedule(text)
    written = scenario_text(schedule, run.trace, by_the_model=by_the_model)
    scenario = "\n".join(f"    {line}".rstrip() for line in written.splitlines())
    return "\n".join(
        (
            failure_text(_without_drain(run).trace, command, told),
            f"schedule, {len(schedule)} steps:",
            f"    {text}",
            "the same as a scenario:",
            scenario,
        )
    )


def _without_drain(run: Run) -> Run:
    """A finding is told by the steps that led to it, unless the drain is where it showed."""
    showed = [step for step in run.trace.steps if step.get("violated")]
    if showed and showed[0].get("drain"):
        return run
    kept = tuple(step for step in run.trace.steps if not step.get("drain"))
    return replace(run, trace=replace(run.trace, steps=kept))
