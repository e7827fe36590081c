"""Small scenarios the harness's own tests run by themselves; not collected, since some of them must not pass."""

from __future__ import annotations

from fencepost.harness.race import Race
from fencepost.harness.scenario import Scenario, Variant, installed_scenarios, scenario
from fencepost.harness.witness import lease_expired, was_blocked, was_held


def installed(name: str) -> Variant:
    """The first variant of the scenario of this name."""
    (found,) = [each for each in installed_scenarios() if each.name == name]
    return only(found)


def only(chosen: Scenario) -> Variant:
    return next(chosen.variants())


@scenario(witnesses=[lease_expired])
def only_b_works(race: Race) -> None:
    """B lets its lease expire, and takes the job again."""
    job = race.enqueue()
    b = race.worker("B")
    race.clock.advance_past(b.claim(job))
    b.complete(b.claim(job)).accepted()


@scenario(witnesses=[lease_expired])
def b_works_as_a(race: Race) -> None:
    """B goes by A's name."""
    race.worker("B", known_as="A").claim(race.enqueue())


@scenario(witnesses=[was_held("A", "complete")])
def held_after_the_guard(race: Race) -> None:
    """A is to be held once its write has been judged."""
    job = race.enqueue()
    a = race.worker("A")
    a.start("complete", a.claim(job), hold_at="after_guard").is_held()


@scenario(witnesses=[lease_expired])
def held_where_nobody_comes(race: Race) -> None:
    """A is to be held at a place that is not on its way."""
    job = race.enqueue()
    a = race.worker("A")
    race.clock.advance_past(a.claim(job))
    a.start("complete", a.claim(job), hold_at="no_such_place").result().accepted()


@scenario(witnesses=[lease_expired])
def interrupted(race: Race) -> None:
    """Ctrl-C is pressed before anything happens."""
    raise KeyboardInterrupt


@scenario(witnesses=[lease_expired])
def interrupted_while_held(race: Race) -> None:
    """Ctrl-C is pressed while A is held at a checkpoint."""
    job = race.enqueue()
    a = race.worker("A")
    a.start("complete", a.claim(job), hold_at="after_guard").is_held()
    raise KeyboardInterrupt


@scenario(witnesses=[was_held("A", "complete")])
def rewinds_in_the_middle(race: Race) -> None:
    """The clock is set back an hour while A is held, and left there."""
    job = race.enqueue()
    a = race.worker("A")
    held = a.start("complete", a.claim(job), hold_at="after_guard").is_held()
    race.clock.rewind(3600.0)
    held.go_on().result().accepted()


@scenario(witnesses=[was_blocked("B", "cancel")])
def rewinds_while_b_is_blocked(race: Race) -> None:
    """B waits for A's row; setting the clock back would stretch the server's timers for it."""
    job = race.enqueue()
    a, b = race.workers("A", "B")
    a.start("complete", a.claim(job), hold_at="after_guard").is_held()
    b.start("cancel", job=job).is_blocked()
    race.clock.rewind(3600.0)
