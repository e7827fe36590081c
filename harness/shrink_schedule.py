"""Makes a schedule that fails small, by playing what is left when a piece of it is taken away.

Hypothesis shrinks what it drew, a hundred choices for a step or two; here a try takes away steps, half of them at
first, and costs one run of what is left. Steps keep to the claims and jobs they meant, whatever numbers those get when
others are gone; a step whose claim or job is not there any more is gone with it.

The result is 1-minimal unless the budget ends first: no step, hold, fault or argument of it can be taken away. An
operation that gives up a lock on its way leaves it to the server who goes first, so what fails once may not fail again:
each smaller schedule must fail when its text is replayed, and the last one every time.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from fencepost.harness import history
from fencepost.harness.adapter import JobId
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
REPLAYS = 5
"""Of the result. What is left to chance for one in two hardly fails all of them."""


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
"""The piece that started the call by which a claim or a job was handed out, and the how-many-eth of that call."""


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
        except _BudgetSpent:
            pass
    for run in reversed([found, *shrinker.smaller_runs]):
        if all(shrinker.fails_again(run) for _ in range(REPLAYS)):
            return Shrunk(run, shrinker.tries, minimal, replays=True)
    return Shrunk(found, shrinker.tries, minimal=False, replays=False)


class _Shrinker:
    def __init__(self, bench: Bench, variant: Variant, name: str, tries: int, deadline: float) -> None:
        self._bench = bench
        self._variant = variant
        self._name = name
        self._tries_left = tries
        self._deadline = deadline
        self.tries = 0
        self.smaller_runs: list[Run] = []
        """Each smaller than the one before."""

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
            raise _BudgetSpent
        self._tries_left -= 1
        done = self.play(pieces, best)
        if done is None or done.size >= best.size or not self.fails_again(done.run):
            return None
        self.smaller_runs.append(done.run)
        return done

    def fails_again(self, run: Run) -> bool:
        """Its text alone, to the letter."""
        schedule = parse_schedule(run.trace.header["schedule"])
        return self._name in names_of(run_foretold(self._bench, replay_of(schedule)))

    def play(self, pieces: Sequence[_Piece], meant: _Played | None) -> _Played | None:
        """`meant`: the run whose numbers the pieces name claims and jobs by; None: those of this one.

        None where it does not fail, or fails by another name.
        """
        self.tries += 1
        path_of = Schedule(tuple(piece.step for piece in pieces)).path_of
        playing = ForetoldRun(self._bench, self._variant, path_of)
        taken: list[_Piece] = []
        handed = _HandedOut()
        for piece in pieces:
            player = playing.player
            step = _explicit(piece.step, player)
            if meant is not None:
                renamed = _renamed(
                    step, _numbers(meant.claims, handed.claims), _numbers(meant.jobs, handed.jobs)
                )
                if renamed is None:
                    continue
                step = renamed
            if not _is_fair(step, player):
                playing.abandon()
                return None
            steps = len(playing.opened.runner.steps)
            going_on = playing.take(step)
            happened = playing.opened.runner.steps[steps:]
            if happened or not _is_recorded(step):
                taken.append(_Piece(piece.name, step))
            handed.note(piece.name, happened)
            if not going_on or (playing.unmet and self._name == EXPECTATION):
                break
        run = playing.end()
        if self._name not in names_of(run) or run.trace.header["schedule"] is None:
            return None
        return _Played(run, taken, handed.claims, handed.jobs)


class _HandedOut:
    """What was handed out so far in a run, numbered as a schedule numbers it."""

    def __init__(self) -> None:
        self.claims: dict[int, _Origin] = {}
        self.jobs: dict[int, _Origin] = {}
        self._ids: list[JobId] = []
        self._started_by: dict[int, int] = {}  # by call, the piece that started it

    def note(self, piece: int, steps: Sequence[history.Step]) -> None:
        for step in steps:
            if step.call is None:
                continue
            origin = self._started_by.setdefault(step.call.number, piece)
            if step.reply is None:
                continue
            given = [step.reply.job, *(claim.job for claim in step.reply.claims)]
            for nth, job in enumerate(given):
                if job is not None and job not in self._ids:
                    self._ids.append(job)
                    self.jobs[len(self._ids)] = (origin, nth)
            for nth in range(len(step.reply.claims)):
                self.claims[len(self.claims) + 1] = (origin, nth)


def _is_fair(step: Step, player: Player) -> bool:
    """Writing past the guard under a claim that is current breaks every queue, so nothing can be learnt from it."""
    if not isinstance(step, Start) or step.operation != "bypass_guard":
        return True
    return all(ref.number <= len(player.claims) and player.is_over(ref) for ref in step.claims)


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
