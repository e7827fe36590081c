"""What each action of the state machine comes to on a real queue, and what is not played twice."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import hypothesis
import pytest

from fencepost.harness.foretold import ForetoldRun
from fencepost.harness.history import CallStatus, Step, StepKind
from fencepost.harness.lab import Lab, LabOptions
from fencepost.harness.loading import load_queue
from fencepost.harness.machine import QueueMachine, machine_on
from fencepost.harness.machine_example import Found
from fencepost.harness.machine_run import look
from fencepost.harness.machine_settings import SETTINGS
from fencepost.harness.pinning import pinned
from fencepost.harness.replay import replay_of
from fencepost.harness.schedule import Step as ScheduleStep
from fencepost.harness.schedule import parse_schedule
from fencepost.harness.verdict import Verdict

TWINS = "fencepost.queue_impl.twins"
BEGUN = ["P:enqueue"]

Action = tuple[str, dict[str, Any]]


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with Lab(LabOptions()) as lab, pinned(lab.core):
        yield lab


@pytest.fixture
def machine(lab: Lab) -> type[QueueMachine]:
    return machine_on(lab.bench(load_queue("reference")))[0]


def example(machine: type[QueueMachine], *actions: Action, theme: str = "anything") -> QueueMachine:
    begun = machine()
    begun.begin(theme=theme, attempts=None, priorities=(0,))
    for action in actions:
        begun._do(action, action)
    return begun


def went(done: QueueMachine) -> list[str]:
    """What it played, without its end."""
    return [_told(step) for step in done._playing.opened.runner.steps]


def _told(step: Step) -> str:
    if step.kind is StepKind.FAULT:
        return f"{step.actor}~{step.fault}" if step.actor else str(step.fault)
    if step.call is None:
        return step.kind.value
    status = {CallStatus.PARKED: "@", CallStatus.BLOCKED: "!"}.get(step.status or CallStatus.ANSWERED, "")
    began = "" if step.call.started_step == step.number else "…"
    lost = "?" if step.reply is not None and step.reply.outcome.value == "unknown" else ""
    return f"{step.actor}:{began}{step.call.operation}{status}{lost}"


def working(where: int | None = None) -> Action:
    return "work", {
        "who": "A",
        "operation": "claim",
        "pick": 0,
        "ttl_s": 60.0,
        "fresh": False,
        "where": where,
    }


def settling(operation: str, where: int | None = None) -> Action:
    return "settle", {"operation": operation, "fresh": True, "where": where}


def interfering(how: str, operation: str = "complete") -> Action:
    return "interfere", {"pick": 0, "how": how, "operation": operation}


CLAIMED = [*BEGUN, "A:claim"]
HELD = [*CLAIMED, "A:complete@"]


@pytest.mark.parametrize(
    ("actions", "steps"),
    [
        ([working()], CLAIMED),
        ([working(where=0)], [*BEGUN, "A:claim@"]),
        ([settling("complete")], [*CLAIMED, "A:complete"]),
        ([settling("complete", where=2)], HELD),
        ([settling("complete", 2), ("go_on", {"pick": 0})], [*HELD, "A:…complete"]),
        ([settling("complete", 2), ("cut", {"pick": 0})], [*HELD, "A~terminate_backend"]),
        ([settling("complete", 0), interfering("cancel")], [*HELD, "P:cancel"]),
        ([settling("complete", 0), interfering("claim")], [*HELD, "clock", "B:claim"]),
        ([settling("complete", 0), interfering("settle")], [*HELD, "clock", "B:claim", "B:complete"]),
        ([settling("complete", 0), interfering("expire")], [*HELD, "clock"]),
        ([settling("complete", 0), interfering("sweep", "fail")], [*HELD, "clock", "R:reap@"]),
        (
            [settling("complete", 0), interfering("sweep", "complete")],
            [*HELD, "P:enqueue", "B:claim", "clock", "R:reap"],
        ),
        (
            [("overtake", {"pick": 0, "how": "claim", "operation": "fail", "back": "fail"})],
            BEGUN,  # nobody has claimed anything
        ),
        (
            [working(), ("overtake", {"pick": 0, "how": "claim", "operation": "fail", "back": "fail"})],
            [*CLAIMED, "clock", "B:claim", "A:fail"],
        ),
        (
            [working(), ("reap", {"who": "R", "limit": 1, "lease": "lost", "back": "complete", "where": None})],
            [*CLAIMED, "P:enqueue", "A:claim", "clock", "R:reap", "A:complete"],
        ),
        ([working(), ("pass_time", {"what": "near", "pick": 0})], [*CLAIMED, "clock"]),
        ([("batch", {"who": "A", "pick": 0, "how": "claim", "fresh": True, "where": None})],
         [*BEGUN, "P:enqueue", "P:enqueue", "A:claim_batch"]),
        (
            [("batch", {"who": "A", "pick": 0, "how": "twice", "fresh": True, "where": None})],
            [*CLAIMED, "A:complete_batch"],
        ),
        (
            [("end", {"who": "P", "operation": "cancel", "pick": 0, "fresh": True, "where": 2})],
            [*CLAIMED, "P:cancel@"],
        ),
        (
            [("end", {"who": "P", "operation": "cancel", "pick": 0, "fresh": True, "where": 2}),
             interfering("cancel", "heartbeat")],
            [*CLAIMED, "P:cancel@", "A:complete!"],
        ),
        (
            [("lose_an_answer", {"what": "complete", "loss": "lose_reply", "pick": 0, "again": True})],
            [*BEGUN, "C:claim", "C:complete?", "C:complete"],
        ),
        (
            [("lose_an_answer", {"what": "claim", "loss": "lose_request", "pick": 0, "again": False})],
            [*BEGUN, "C:claim?"],
        ),
        (
            [("lose_an_answer", {"what": "reap", "loss": "error40001", "pick": 0, "again": True})],
            [*BEGUN, "R2:reap", "R2:reap"],
        ),
        ([("odd", {"what": "exhaust", "who": "A", "pick": 0})],
         [*BEGUN, "P:enqueue", "P:set_token", "A:claim", "P:cancel"]),
        ([("odd", {"what": "bypass", "who": "A", "pick": 0})],
         [*CLAIMED, "clock", "B:claim", "A:bypass_guard"]),
        ([("die", {"how": "crash"})], [*BEGUN, "crash"]),
        ([("die", {"how": "crash"}), ("die", {"how": "crash"})], [*BEGUN, "crash"]),
    ],
    ids=lambda value: " ".join(value) if isinstance(value[0], str) else None,
)  # fmt: skip
def test_an_action_comes_to_what_it_is_for(
    machine: type[QueueMachine], actions: Sequence[Action], steps: list[str]
) -> None:
    done = example(machine, *actions)
    assert went(done) == steps
    done.teardown()


def test_a_worker_that_can_be_killed_is(machine: type[QueueMachine]) -> None:
    joined = ("work", working()[1] | {"who": "B"})
    done = example(machine, joined, ("die", {"how": "kill"}), theme="deaths")
    assert went(done) == [*BEGUN, "B:claim", "B~kill"]
    done.teardown()
    assert done.tally.faults["kill"] == 1


def test_thirteen_failures_are_one_action(machine: type[QueueMachine]) -> None:
    done = example(machine, ("odd", {"what": "retry", "who": "A", "pick": 0}))
    assert went(done).count("A:fail") == 13
    done.teardown()


def test_only_what_was_held_while_another_acted_counts_as_in_flight(machine: type[QueueMachine]) -> None:
    alone = example(machine, settling("complete", 2), ("go_on", {"pick": 0}))
    alone.teardown()
    assert alone.tally.in_flight == 0
    example(machine, settling("complete", 0), interfering("cancel"), ("go_on", {"pick": 0})).teardown()
    assert alone.tally.in_flight == 1


def test_an_example_that_goes_as_another_did_is_not_played(machine: type[QueueMachine]) -> None:
    ways = [settling("complete", 0), interfering("cancel")]
    example(machine, *ways).teardown()
    assert (machine.tally.examples, machine.tally.repeated) == (1, 0)
    same = example(machine, *ways)
    same.teardown()
    assert not same._is_played
    assert (machine.tally.examples, machine.tally.repeated) == (1, 1)
    # One that ends sooner ends otherwise, and one that goes on is played from its beginning.
    example(machine, *ways[:1]).teardown()
    further = example(machine, *ways, ("go_on", {"pick": 0}))
    assert went(further) == [*HELD, "P:cancel", "A:…complete"]
    further.teardown()
    assert (machine.tally.examples, machine.tally.repeated) == (3, 1)


def test_what_is_drawn_for_the_other_case_makes_no_new_way(machine: type[QueueMachine]) -> None:
    for put_aside in ("claim", "cancel"):
        begun = machine()
        begun.begin(theme="anything", attempts=None, priorities=(0,))
        begun._do(working(), interfering(put_aside))  # nobody is held
        begun.teardown()
    assert (machine.tally.examples, machine.tally.repeated) == (1, 1)


def test_an_example_that_failed_is_played_again(lab: Lab) -> None:
    """Hypothesis asks for it a second time, to see whether it fails again."""
    machine, tally = machine_on(lab.bench(load_queue(f"{TWINS}:delay_ignored")), wanted="not_before")
    late = {"who": "P", "key": None, "payload": {}, "attempts": None, "priority": 0, "where": None}
    for played in (1, 2):
        begun = example(machine, ("enqueue", late | {"delay_s": 30.0}))
        with pytest.raises(Found, match="not_before"):
            begun._do(("work", working()[1] | {"who": "B"}), ("go_on", {"pick": 0}))
            begun._do(("work", working()[1] | {"who": "C"}), ("go_on", {"pick": 0}))
            begun.teardown()
        assert tally.examples == played


def settings(examples: int) -> hypothesis.settings:
    return hypothesis.settings(SETTINGS, max_examples=examples, stateful_step_count=20, database=None)


def test_the_same_seed_is_the_same_search(lab: Lab) -> None:
    told = [str(look(lab, load_queue("reference"), settings(12), seed).tally) for seed in (1, 1, 2)]
    assert told[0] == told[1] != told[2]


def test_a_new_finding_beside_a_known_one_is_shown_by_its_own_name(lab: Lab) -> None:
    known = ("fence", "terminal_absorbing", "expectation")
    looked = look(lab, load_queue(f"{TWINS}:guard_without_row_lock"), settings(400), seed=6, known=known)
    assert looked.found is not None, str(looked.tally)
    assert set(looked.found.names) - set(known)


def test_ctrl_c_is_no_finding_and_leaves_the_bench_as_it_was(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[ScheduleStep] = []
    take = ForetoldRun.take

    def stop_at_the_fiftieth(playing: ForetoldRun, step: ScheduleStep) -> bool:
        taken.append(step)
        going_on = take(playing, step)
        if len(taken) == 50:
            raise KeyboardInterrupt
        return going_on

    reference = load_queue("reference")
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(ForetoldRun, "take", stop_at_the_fiftieth)
        look(lab, reference, settings(30), seed=1)
    assert len(taken) == 50
    run = lab.run(reference, replay_of(parse_schedule("P:enqueue | A:claim | A:complete")))
    assert run.judgement.verdict is Verdict.PASS, run.judgement.reasons
