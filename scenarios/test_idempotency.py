"""A job is submitted more than once under one key: a producer that got no answer tries again, or two try at once."""

from __future__ import annotations

from fencepost.harness.adapter import Capability
from fencepost.harness.race import Race
from fencepost.harness.scenario import scenario
from fencepost.harness.witness import came_after_the_end, key_submitted, was_blocked, was_held

IDEMPOTENCY_KEY = Capability.IDEMPOTENCY_KEY
CHECKPOINTS = Capability.CHECKPOINTS

KEY = "order-1"
KEYS_LIKE_IT = ("order_1", "ORDER-1", "order-11")
PAYLOAD = {"order": 1}
OTHER_PAYLOAD = {"order": 2}
BETWEEN = "between_lookup_and_insert"


@scenario(
    requires={IDEMPOTENCY_KEY},
    witnesses=[key_submitted(KEY)],
    each={"meanwhile": ("waiting", "leased")},
)
def same_key_in_sequence(race: Race, meanwhile: str) -> None:
    """Q submits a key again while its job waits or is worked on: Q is answered with the job there is."""
    job = race.enqueue(PAYLOAD, key=KEY)
    q, a, b = race.workers("Q", "A", "B")

    lease = a.claim(job) if meanwhile == "leased" else None
    again = q.submit(PAYLOAD, key=KEY)
    lease = lease or a.claim(job)
    b.finds_nothing()
    a.complete(lease).accepted()

    race.check(again.reply.job == job, f"Q should get job {job}, it got {again.reply.job}")
    race.expect(job, state="succeeded", ledger=1)


@scenario(
    requires={IDEMPOTENCY_KEY, CHECKPOINTS},
    witnesses=[was_held("P", "enqueue", BETWEEN), was_held("Q", "enqueue", BETWEEN), key_submitted(KEY)],
    each={"first": ("P", "Q")},
)
def same_key_held_between_lookup_and_insert(race: Race, first: str) -> None:
    """P and Q have both looked the key up and found nothing: whichever inserts first, both get its job."""
    p, q, a = race.workers("P", "Q", "A")

    by_p = p.start("enqueue", payload=PAYLOAD, key=KEY, hold_at=BETWEEN).is_held()
    by_q = q.start("enqueue", payload=PAYLOAD, key=KEY, hold_at=BETWEEN).is_held()
    for submission in (by_p, by_q) if first == "P" else (by_q, by_p):
        submission.go_on()
    jobs = {submission.result().accepted().reply.job for submission in (by_p, by_q)}
    lease = a.claim()
    a.complete(lease).accepted()

    race.check(
        jobs == {lease.job}, f"P and Q should both get job {lease.job}, they got {sorted(map(str, jobs))}"
    )


@scenario(
    requires={IDEMPOTENCY_KEY, CHECKPOINTS},
    witnesses=[
        was_held("P", "enqueue", "before_commit"),
        was_blocked("Q", "enqueue"),
        key_submitted(KEY),
    ],
)
def same_key_while_the_first_is_uncommitted(race: Race) -> None:
    """Q submits a key whose job P has inserted and not committed: Q waits, and gets P's job."""
    p, q, a = race.workers("P", "Q", "A")

    by_p = p.start("enqueue", payload=PAYLOAD, key=KEY, hold_at="before_commit").is_held()
    by_q = q.start("enqueue", payload=PAYLOAD, key=KEY)
    by_p.go_on()
    job = by_p.result().accepted().reply.job
    again = by_q.result().accepted().reply.job
    a.complete(a.claim(job)).accepted()

    race.check(again == job, f"Q should get job {job}, it got {again}")


@scenario(
    requires={IDEMPOTENCY_KEY},
    witnesses=[key_submitted(KEY, times=3)],
)
def same_key_other_payload(race: Race) -> None:
    """Q submits a key again with another payload: that is a conflict, and the job keeps its own payload."""
    job = race.enqueue(PAYLOAD, key=KEY)
    q, a = race.workers("Q", "A")

    other = q.submit(OTHER_PAYLOAD, key=KEY)
    same = q.submit(PAYLOAD, key=KEY)
    other.refused("idempotency_conflict")
    race.check(same.reply.job == job, f"Q should get job {job} for the payload it has, got {same.reply.job}")
    race.check(race.look(job).payload in (PAYLOAD, None), f"job {job} has another payload now")
    a.complete(a.claim(job)).accepted()


@scenario(
    requires={IDEMPOTENCY_KEY, CHECKPOINTS},
    witnesses=[was_held("P", "enqueue", BETWEEN), key_submitted(KEY)],
)
def other_payload_was_faster(race: Race) -> None:
    """P has looked the key up, Q takes it with another payload: P's insert is a conflict, not Q's job."""
    p, q, a = race.workers("P", "Q", "A")

    slow = p.start("enqueue", payload=PAYLOAD, key=KEY, hold_at=BETWEEN).is_held()
    job = q.enqueue(OTHER_PAYLOAD, key=KEY)
    slow.go_on().result().refused("idempotency_conflict")
    a.complete(a.claim(job)).accepted()

    race.expect(job, state="succeeded", ledger=1)


@scenario(
    requires={IDEMPOTENCY_KEY},
    witnesses=[
        key_submitted(KEY),
        *(key_submitted(other).where(other_key=other) for other in KEYS_LIKE_IT),
    ],
    each={"other_key": KEYS_LIKE_IT},
)
def two_keys_do_not_interfere(race: Race, other_key: str) -> None:
    """Two keys that look alike carry the same payload: each has a job of its own, and keeps it."""
    one = race.enqueue(PAYLOAD, key=KEY)
    q, a = race.workers("Q", "A")

    other = q.enqueue(PAYLOAD, key=other_key)
    race.check(one != other, f"keys {KEY!r} and {other_key!r} both got job {one}")
    again = {key: q.submit(PAYLOAD, key=key).reply.job for key in (KEY, other_key)}
    a.complete(a.claim(one)).accepted()
    a.complete(a.claim(other)).accepted()

    race.check(again == {KEY: one, other_key: other}, f"submitted again, the keys got {again}")


@scenario(
    requires={IDEMPOTENCY_KEY, Capability.RETRY, Capability.DEAD_LETTER, Capability.CANCEL},
    witnesses=[key_submitted(KEY), came_after_the_end("Q", "enqueue")],
    each={"end": ("succeeded", "failed", "cancelled")},
)
def key_of_a_finished_job(race: Race, end: str) -> None:
    """A key is submitted again after its job has ended: the answer is that job, and nothing runs again."""
    job = race.enqueue(PAYLOAD, key=KEY, max_attempts=1)
    q, a, b = race.workers("Q", "A", "B")

    a.end(a.claim(job), end).accepted()
    again = q.submit(PAYLOAD, key=KEY)
    b.finds_nothing()

    race.check(again.reply.job == job, f"Q should get job {job}, it got {again.reply.job}")
    race.expect(job, state=end, ledger=1 if end == "succeeded" else 0)
