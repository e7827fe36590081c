"""Small scenarios the harness's own tests run by themselves; not collected, since some of them must not pass."""

from __future__ import annotations

from fencepost.harness.race import Race
from fencepost.harness.scenario import Scenario, Variant, installed_scenarios, scenario
from fencepost.harness.wire import after, before, lose_reply
from fencepost.harness.witness import lease_expired, struck, was_accepted, was_blocked, was_held


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


@scenario(witnesses=[was_accepted("A", "complete")], path="gate")
def waits_for_a_statement_that_never_comes(race: Race) -> None:
    """A fault is armed at a statement that is not on A's way."""
    job = race.enqueue()
    a = race.worker("A")
    a.start("complete", a.claim(job), faults=[lose_reply("^TRUNCATE")]).result().accepted()


@scenario(witnesses=[was_accepted("A", "complete")], path="gate")
def is_held_at_a_statement_that_never_comes(race: Race) -> None:
    """A is to be held at a statement that is not on its way."""
    job = race.enqueue()
    a = race.worker("A")
    a.start("complete", a.claim(job), hold_at=before("^TRUNCATE")).result().accepted()


@scenario(
    witnesses=[was_held("A", "complete"), was_accepted("A", "complete"), struck("crash")],
    path="gate",
    each={"place": ("before", "after")},
)
def crashes_at_the_commit(race: Race, place: str) -> None:
    """The server crashes while A's COMMIT waits at the gate, or while its answer does."""
    job = race.enqueue()
    a = race.worker("A")
    lease = a.claim(job)
    hold = before("^COMMIT") if place == "before" else after("^COMMIT")
    committing = a.start("complete", lease, hold_at=hold).is_held()
    race.server.crash()
    committing.is_held().go_on()
    if place == "before":
        committing.result().unknown()
        race.expect(job, state="leased", ledger=0)
    else:
        committing.result().accepted()
        race.expect(job, state="succeeded", ledger=1)
    a.complete(lease).accepted()


@scenario(witnesses=[struck("pause")], path="network")
def interrupted_with_faults_in_force(race: Race) -> None:
    """Ctrl-C is pressed while A is stopped and B's path is paused."""
    job = race.enqueue()
    a = race.worker("A", process=True)
    b = race.worker("B")
    a.start("complete", a.claim(job), hold_at="after_guard").is_held()
    a.stop()
    b.path.pause()
    b.start("claim", ttl_s=60.0).is_cut_off()
    raise KeyboardInterrupt
