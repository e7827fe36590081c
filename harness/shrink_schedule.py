"""Makes a schedule that fails small, by playing what is left when a piece of it is taken away.

Hypothesis shrinks what it drew, a hundred choices for a step or two; here a try takes away steps, half of them at
first, and costs one run of what is left. Steps keep to the claims and jobs they meant, whatever numbers those get when
others are gone; a step whose claim or job is not there any more is gone with it.

The result is 1-minimal unless the budget ends first: no step, hold, fault or argument of it can be taken away. It is
what an exact replay of its text showed.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from fencepost.harness.bench import Bench, Run
from fencepost.harness.foretold import ForetoldRun, names_of, run_foretold
from fencepost.harness.known import EXPECTATION
from fencepost.harness.replay import Player, replay_of
from fencepost.harness.scenario import Variant
from fencepost.harness.schedule import (
    ClaimRef,
    ClockPast,
    GoOn,
    JobRef,
    Join,
    Schedule,
    Start,
    Step,
    Then,
    parse_schedule,
)
from fencepost.harness.schedule_of import UNDER_A_CLAIM

TRIES_AT_MOST = 600
SECONDS_AT_MOST = 60.0


@dataclass(frozen=True, slots=True)
class Shrunk:
    """`minimal` is false when the budget ended first, and `replays` where its exact replay found something else."""

    run: Run
    tries: int
    minimal: bool
    replays: bool


@dataclass(frozen=True, slots=True)
class _Piece:
    """A step, with a name of its own that stays while others are taken away."""

    name: int
    step: Step


_Origin = tuple[int, int]
"""The piece in which a claim or a job was handed out, and the how-many-eth of it."""


@dataclass(slots=True)
class _Played:
    """A run of some pieces. `pieces` are those that took place, naming claims and jobs by their numbers in this run."""

    run: Run
    pieces: list[_Piece] = field(default_factory=list)
    claims: dict[int, _Origin] = field(default_factory=dict)
    jobs: dict[int, _Origin] = field(default_factory=dict)

    @property
    def size(self) -> tuple[int, int]:
        return len(self.pieces), sum(len(str(piece.step)) for piece in self.pieces)


class _BudgetSpent(Exception):
    """Only between the search and its caller below."""


def shrink_run(
    bench: Bench,
    variant: Variant,
    found: Run,
    name: str,
    *,
    tries_at_most: int = TRIES_AT_MOST,
    seconds_at_most: float = SECONDS_AT_MOST,
) -> Shrunk:
    """`found` failed by this name; so does what is returned."""
    text = found.trace.header["schedule"]
    if text is None:
        return Shrunk(found, 0, minimal=False, replays=False)
    shrinker = _Shrinker(bench, variant, name, tries_at_most, time.monotonic() + seconds_at_most)
    pieces = [_Piece(number, _at_ease(step)) for number, step in enumerate(parse_schedule(text))]
    minimal = False
    smallest = shrinker.play(pieces, None)
    if smallest is not None:
        try:
            while (smaller := shrinker.smaller(smallest)) is not None:
                smallest = smaller
            minimal = True
        except _BudgetSpent as spent:
            smallest = spent.args[0]
    best = found if smallest is None else smallest.run
    replayed = run_foretold(
        bench, replay_of(parse_schedule(best.trace.header["schedule"]), name=variant.name)
    )
    return Shrunk(best, shrinker.tries, minimal, replays=name in names_of(replayed))


class _Shrinker:
    def __init__(self, bench: Bench, variant: Variant, name: str, tries: int, deadline: float) -> None:
        self._bench = bench
        self._variant = variant
        self._name = name
        self._tries_left = tries
        self._deadline = deadline
        self.tries = 0

    def smaller(self, best: _Played) -> _Played | None:
        """One round over all that can be taken away. None: nothing can."""
        began = best
        size = max(1, len(best.pieces) // 2)
        while True:
            best = self._without_stretches(best, size)
            if size == 1:
                break
            size //= 2
        best = self._simpler(best)
        return best if best.size < began.size else None

    def _without_stretches(self, best: _Played, size: int) -> _Played:
        """From the end on: what failed is the last step, and what it needs tends to stand near it."""
        at = len(best.pieces) - size
        while at > -size:
            start = max(0, at)
            left = [*best.pieces[:start], *best.pieces[at + size :]]
            done = self._try(left, best) if left else None
            best = done or best
            at = min(at, len(best.pieces)) - size
        return best

    def _simpler(self, best: _Played) -> _Played:
        at = len(best.pieces) - 1
        while at >= 0:
            changed = False
            for step in _simpler_steps(best.pieces[at].step):
                piece = replace(best.pieces[at], step=step)
                done = self._try([*best.pieces[:at], piece, *best.pieces[at + 1 :]], best)
                if done is not None:
                    best, changed = done, True
                    break
            at = min(at if changed else at - 1, len(best.pieces) - 1)
        return best

    def _try(self, pieces: Sequence[_Piece], best: _Played) -> _Played | None:
        if not self._tries_left or time.monotonic() > self._deadline:
            raise _BudgetSpent(best)
        self._tries_left -= 1
        done = self.play(pieces, best)
        return done if done is not None and done.size < best.size else None

    def play(self, pieces: Sequence[_Piece], meant: _Played | None) -> _Played | None:
        """`meant`: the run whose numbers the pieces name claims and jobs by; None: those of this one.

        None where it does not fail, or fails by another name.
        """
        self.tries += 1
        path_of = Schedule(tuple(piece.step for piece in pieces)).path_of
        playing = ForetoldRun(self._bench, self._variant, path_of)
        taken: list[_Piece] = []
        claims: dict[int, _Origin] = {}
        jobs: dict[int, _Origin] = {}
        for piece in pieces:
            player = playing.player
            step = _explicit(piece.step, player)
            if meant is not None:
                renamed = _renamed(step, _numbers(meant.claims, claims), _numbers(meant.jobs, jobs))
                if renamed is None:
                    continue
                step = renamed
            steps, given, known = len(playing.opened.runner.steps), len(player.claims), len(player.jobs)
            going_on = playing.take(step)
            if len(playing.opened.runner.steps) > steps or not _is_recorded(step):
                taken.append(_Piece(piece.name, step))
            claims |= {n: (piece.name, n - given) for n in range(given + 1, len(player.claims) + 1)}
            jobs |= {n: (piece.name, n - known) for n in range(known + 1, len(player.jobs) + 1)}
            if not going_on or (playing.unmet and self._name == EXPECTATION):
                break
        run = playing.end()
        if self._name not in names_of(run) or run.trace.header["schedule"] is None:
            return None
        return _Played(run, taken, claims, jobs)


def _at_ease(step: Step) -> Step:
    """Where a call stands after a step may change when others are gone."""
    return replace(step, then=Then.ANY) if isinstance(step, Start | GoOn) else step


def _is_recorded(step: Step) -> bool:
    """Joining is no step of the run."""
    return not isinstance(step, Join)


def _explicit(step: Step, player: Player) -> Step:
    """With the claim named that it would mean as the actor's latest."""
    if isinstance(step, Start) and step.operation in UNDER_A_CLAIM and not step.claims:
        latest = player.latest_of(step.actor)
        return replace(step, claims=(ClaimRef(latest),)) if latest is not None else step
    if isinstance(step, ClockPast) and isinstance(step.target, str):
        latest = player.latest_of(step.target)
        return replace(step, target=ClaimRef(latest)) if latest is not None else step
    return step


def _numbers(meant: Mapping[int, _Origin], given: Mapping[int, _Origin]) -> dict[int, int]:
    now = {origin: number for number, origin in given.items()}
    return {number: now[origin] for number, origin in meant.items() if origin in now}


def _renamed(step: Step, claims: Mapping[int, int], jobs: Mapping[int, int]) -> Step | None:
    """With the numbers of this run; None where something it names is not there."""
    if isinstance(step, ClockPast):
        if isinstance(step.target, ClaimRef):
            number = claims.get(step.target.number)
            return None if number is None else replace(step, target=replace(step.target, number=number))
        if isinstance(step.target, JobRef):
            number = jobs.get(step.target.number)
            return None if number is None else replace(step, target=JobRef(number))
        return step
    if not isinstance(step, Start):
        return step
    kept = tuple(replace(ref, number=claims[ref.number]) for ref in step.claims if ref.number in claims)
    if step.claims and not kept:
        return None
    if step.job is None:
        return replace(step, claims=kept)
    number = jobs.get(step.job.number)
    return None if number is None else replace(step, claims=kept, job=JobRef(number))


def _simpler_steps(step: Step) -> Iterator[Step]:
    if not isinstance(step, Start):
        return
    if step.holds:
        yield replace(step, holds=())
    if step.faults:
        yield replace(step, faults=())
    for name in step.arguments:
        yield replace(step, arguments={key: step.arguments[key] for key in step.arguments if key != name})
    if len(step.claims) > 1:
        for at in range(len(step.claims)):
            yield replace(step, claims=(*step.claims[:at], *step.claims[at + 1 :]))
