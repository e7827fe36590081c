"""Adapters that share a connection, reset by half, or declare what they do not do: the check names each."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import psycopg
import pytest

from fencepost.harness.adapter import (
    ActorSeat,
    Answer,
    Capability,
    Claim,
    IdempotencyConflict,
    JobId,
    JobState,
    JobView,
    Json,
    Observation,
    QueueRefusal,
)
from fencepost.harness.lab import Lab
from fencepost.queue_impl.reference.model import Settings
from fencepost.tests.fix_adapters import (
    Adapter,
    Worker,
    check_of,
    failed,
    seen_through,
    with_worker,
)

# -- one connection for several workers -------------------------------------------------------------------


class OneConnection(Adapter):
    """As of a module that connects when it is first used."""

    def __init__(self) -> None:
        super().__init__()
        self._shared: Any = None

    def worker(self, actor: ActorSeat, dsn: str) -> Any:
        if self._shared is None:
            self._shared = self._connect(actor, dsn)
        return self._shared

    def _connect(self, actor: ActorSeat, dsn: str) -> Any:
        return super().worker(actor, dsn)


class OneConnectionUnderEveryName(OneConnection):
    """It gives the one session the name of whoever works."""

    def worker(self, actor: ActorSeat, dsn: str) -> Any:
        name = psycopg.conninfo.conninfo_to_dict(dsn)["application_name"]
        return Renaming(super().worker(actor, dsn), str(name))


class Renaming:
    def __init__(self, inner: Worker, name: str) -> None:
        self._inner = inner
        self._name = name

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def claim(self, ttl_s: float) -> Claim | None:
        self._inner.inner._connection.execute(
            "SELECT set_config('application_name', %s, false)", (self._name,)
        )
        return self._inner.claim(ttl_s)

    def close(self) -> None:
        """The others need it."""


class OneConnectionBesideIdleOnes(OneConnection):
    """Each worker opens a connection of its own, and does not use it."""

    def worker(self, actor: ActorSeat, dsn: str) -> Any:
        idle = psycopg.connect(dsn, autocommit=True)
        name = psycopg.conninfo.conninfo_to_dict(dsn)["application_name"]
        return WithIdle(
            super().worker(actor, psycopg.conninfo.make_conninfo(dsn, application_name="pool")),
            idle,
            str(name),
        )


class WithIdle:
    def __init__(self, inner: Worker, idle: psycopg.Connection[Any], name: str) -> None:
        self._inner = inner
        self._idle = idle

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def close(self) -> None:
        self._idle.close()


class OneAtATime(Adapter):
    """A lock of the program's own around every claim."""

    def worker(self, actor: ActorSeat, dsn: str) -> Any:
        worker = super().worker(actor, dsn)
        claim = worker.claim

        def claim_alone(ttl_s: float) -> Claim | None:
            with _ONE_AT_A_TIME:
                return claim(ttl_s)

        worker.claim = claim_alone
        return worker


_ONE_AT_A_TIME = threading.Lock()


class AsksTheFirst(Adapter):
    """Every claim asks a second connection first, which all share."""

    def __init__(self) -> None:
        super().__init__()
        self._registry: psycopg.Connection[Any] | None = None

    def worker(self, actor: ActorSeat, dsn: str) -> Any:
        worker = super().worker(actor, dsn)
        if self._registry is None:
            self._registry = psycopg.connect(dsn, autocommit=True)
        claim, registry = worker.claim, self._registry

        def ask_and_claim(ttl_s: float) -> Claim | None:
            registry.execute("SELECT 1")
            return claim(ttl_s)

        worker.claim = ask_and_claim
        return worker


# -- a reset that leaves something ------------------------------------------------------------------------


class ResetsBut(Adapter):
    """What `kept` selects stays."""

    kept = "false"

    def reset(self, dsn: str) -> None:
        connection = self._connections.get(dsn)
        kept = f"SELECT id FROM lease_queue.jobs WHERE {self.kept}"
        connection.execute(f"DELETE FROM lease_queue.ledger WHERE job_id NOT IN ({kept})".encode())
        connection.execute(f"DELETE FROM lease_queue.jobs WHERE NOT ({self.kept})".encode())


class KeepsCompleted(ResetsBut):
    kept = "state = 'succeeded'"


class KeepsFailed(ResetsBut):
    kept = "state = 'failed'"


class KeepsTheLedger(Adapter):
    """In a table of the adapter's own."""

    def __init__(self) -> None:
        super().__init__()
        self._entries: list[Any] = []

    def observe(self, dsn: str) -> Observation:
        seen = super().observe(dsn)
        self._entries += [entry for entry in seen.ledger if entry not in self._entries]
        return Observation(seen.at_us, seen.jobs, tuple(self._entries))


KEYS: dict[str, tuple[Json, JobId]] = {}


class KeepsKeys(Worker):
    """Beside the queue, in a table that reset does not know."""

    def enqueue(self, payload: Json, *, key: str | None = None, **options: Any) -> JobId:
        if key is None:
            return self.inner.enqueue(payload, **options)
        if key in KEYS and KEYS[key][0] != payload:
            raise IdempotencyConflict(key)
        if key not in KEYS or not self._is_there(KEYS[key][1]):
            KEYS[key] = (payload, self.inner.enqueue(payload, **options))
        return KEYS[key][1]

    def _is_there(self, job: JobId) -> bool:
        with psycopg.connect(self.dsn) as connection:
            return bool(connection.execute("SELECT FROM lease_queue.jobs WHERE id = %s", (job,)).fetchall())


# -- writes that go too far -------------------------------------------------------------------------------


def on_all(sql: str) -> type[Worker]:
    class AndAll(Worker):
        def complete(self, claim: Claim, result: Json = None) -> Answer:
            answer = self.inner.complete(claim, result)
            run(self.dsn, sql)
            return answer

    return AndAll


def run(dsn: str, sql: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(sql.encode())


# -- reapers ----------------------------------------------------------------------------------------------


class ReapsNothing(Worker):
    def reap(self, limit: int | None = None) -> int:
        return 0


class OnlyCounts(Worker):
    def reap(self, limit: int | None = None) -> int:
        with psycopg.connect(self.dsn) as connection:
            row = connection.execute(
                "SELECT count(*) FROM lease_queue.jobs WHERE state = 'leased' AND lease_expires_at < clock_timestamp()"
            ).fetchone()
        assert row is not None
        return int(row[0])


class ReapsIntoTheFuture(Worker):
    def reap(self, limit: int | None = None) -> int:
        count = self.inner.reap(limit)
        if count:
            run(
                self.dsn,
                "UPDATE lease_queue.jobs SET next_run_at = next_run_at + interval '1 day' WHERE state = 'ready'",
            )
        return count


class ReapsAll(Worker):
    def reap(self, limit: int | None = None) -> int:
        return self.inner.reap()


class Silent(Worker):
    @contextmanager
    def _silent(self) -> Iterator[None]:
        queue = self.inner._queue
        checkpoint = queue._checkpoint
        queue._checkpoint = lambda name: None
        try:
            yield
        finally:
            queue._checkpoint = checkpoint


class ReapsInSilence(Silent):
    def reap(self, limit: int | None = None) -> int:
        with self._silent():
            return self.inner.reap(limit)


class WritesInSilence(Silent):
    def complete(self, claim: Claim, result: Json = None) -> Answer:
        with self._silent():
            return self.inner.complete(claim, result)


# -- capabilities that are only declared ------------------------------------------------------------------


def dropping(*options: str) -> type[Worker]:
    """`enqueue` takes them and forgets them."""

    class Forgets(Worker):
        def enqueue(self, payload: Json, **given: Any) -> JobId:
            return self.inner.enqueue(payload, **{k: v for k, v in given.items() if k not in options})

    return Forgets


class RefusesDelay(Worker):
    def enqueue(
        self, payload: Json, *, key: str | None = None, max_attempts: int | None = None, priority: int = 0
    ) -> JobId:
        return self.inner.enqueue(payload, key=key, max_attempts=max_attempts, priority=priority)


class IgnoresThePayloadOfAKey(Worker):
    def enqueue(self, payload: Json, *, key: str | None = None, **options: Any) -> JobId:
        try:
            return self.inner.enqueue(payload, key=key, **options)
        except IdempotencyConflict as conflict:
            with psycopg.connect(self.dsn) as connection:
                row = connection.execute(
                    "SELECT id FROM lease_queue.jobs WHERE idempotency_key = %s", (key,)
                ).fetchone()
            assert row is not None, conflict
            return str(row[0])


class LowerIsMoreUrgent(Worker):
    def enqueue(self, payload: Json, *, priority: int = 0, **options: Any) -> JobId:
        return self.inner.enqueue(payload, priority=-priority, **options)


class NewestFirst(Worker):
    def enqueue(self, payload: Json, **options: Any) -> JobId:
        job = self.inner.enqueue(payload, **options)
        run(
            self.dsn,
            f"UPDATE lease_queue.jobs SET next_run_at = next_run_at - id * interval '1 s' WHERE id = {job}",
        )
        return job


class CountsRetries(Worker):
    def enqueue(self, payload: Json, *, max_attempts: int | None = None, **options: Any) -> JobId:
        more = None if max_attempts is None else max_attempts + 1
        return self.inner.enqueue(payload, max_attempts=more, **options)


class CountsNoLostLease(Worker):
    def claim(self, ttl_s: float) -> Claim | None:
        run(self.dsn, LOST_ARE_FREE)
        return self.inner.claim(ttl_s)


LOST_ARE_FREE = """UPDATE lease_queue.jobs SET attempts = attempts - 1
    WHERE state = 'leased' AND lease_expires_at < clock_timestamp() AND attempts > 0"""


class FailsForGood(Worker):
    def fail(self, claim: Claim, error: str) -> Answer:
        answer = self.inner.fail(claim, error)
        run(self.dsn, "UPDATE lease_queue.jobs SET state = 'failed' WHERE state = 'ready' AND attempts > 0")
        return answer


class RequeuesTheSame(Worker):
    def requeue(self, job: JobId) -> JobId:
        run(self.dsn, "UPDATE lease_queue.jobs SET state = 'ready', attempts = 0 WHERE state = 'failed'")
        return job


def flat_waits() -> Adapter:
    return Adapter(settings=Settings(backoff_base_s=30.0, backoff_cap_s=30.0))


class CancelsNothing(Worker):
    def cancel(self, job: JobId) -> Answer:
        return Answer.accepted()


class CancelsWhatWaits(Worker):
    def cancel(self, job: JobId) -> Answer:
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            row = connection.execute("SELECT state FROM lease_queue.jobs WHERE id = %s", (job,)).fetchone()
        return Answer.refused("not_leased") if row == ("leased",) else self.inner.cancel(job)


class BatchOfOne(Worker):
    def claim_batch(self, ttl_s: float, limit: int) -> Sequence[Claim]:
        return self.inner.claim_batch(ttl_s, 1)


class BatchTakesAll(Worker):
    def claim_batch(self, ttl_s: float, limit: int) -> Sequence[Claim]:
        return self.inner.claim_batch(ttl_s, 100)[:limit]


class AllOrNothing(Worker):
    def complete_batch(self, claims: Sequence[Claim]) -> Sequence[Answer]:
        answers = [self.inner.complete(claim) for claim in claims]
        good = all(answer.outcome == "accepted" for answer in answers)
        return answers if good else [Answer.refused("unspecified")] * len(claims)


class CompletesTheFirst(Worker):
    def complete_batch(self, claims: Sequence[Claim]) -> Sequence[Answer]:
        answers = self.inner.complete_batch(claims[:2])
        return [*answers, *[Answer.accepted()] * (len(claims) - 2)]


class ForgetsResults(Worker):
    def complete(self, claim: Claim, result: Json = None) -> Answer:
        return self.inner.complete(claim)


class OneLength(Worker):
    def claim(self, ttl_s: float) -> Claim | None:
        return self.inner.claim(60.0)


class OneLengthOfHeartbeats(Worker):
    def heartbeat(self, claim: Claim, ttl_s: float) -> Answer:
        return self.inner.heartbeat(claim, max(60.0, min(ttl_s, 60.0)))


class BeatsOnce(Worker):
    def keep_alive(self, claim: Claim, ttl_s: float, beats: int = 1, every_s: float = 0.01) -> Answer:
        return self.inner.keep_alive(claim, ttl_s, 1, every_s)


class PretendsToBeat(Worker):
    def keep_alive(self, claim: Claim, ttl_s: float, beats: int = 1, every_s: float = 0.01) -> Answer:
        for _ in range(beats):
            self.actor.checkpoint("before_heartbeat")
        return Answer.accepted()


class SetsNoToken(Worker):
    def set_token(self, job: JobId, token: int) -> Answer:
        return Answer.accepted()


class BypassesNothing(Worker):
    def bypass_guard(self, claim: Claim) -> Answer:
        return Answer.accepted()


class NoRepeats(Worker):
    def complete(self, claim: Claim, result: Json = None) -> Answer:
        answer = self.inner.complete(claim, result)
        return Answer.refused("terminal") if answer.repeated else answer


class SkipsTokens(Worker):
    def claim(self, ttl_s: float) -> Claim | None:
        run(self.dsn, SKIP_ONE)
        return self.inner.claim(ttl_s)


SKIP_ONE = """UPDATE lease_queue.jobs SET fencing_token = fencing_token + 1
    WHERE state = 'leased' AND lease_expires_at < clock_timestamp()"""


class RemembersWhatIsDone(Worker):
    """Also after a reset, when another job has the number."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._done: set[JobId] = set()

    def complete(self, claim: Claim, result: Json = None) -> Answer:
        if claim.job in self._done:
            return Answer.accepted(repeated=True)
        self._done.add(claim.job)
        return self.inner.complete(claim, result)


class ExpiresByName(Adapter):
    """Rows say that the lease is over, and the queue knows nothing of it."""

    def __init__(self) -> None:
        super().__init__()
        self._expired: set[str] = set()

    def expire(self, dsn: str, claim: Claim) -> None:
        self._expired.add(claim.job)

    def reset(self, dsn: str) -> None:
        super().reset(dsn)
        self._expired.clear()

    def observe(self, dsn: str) -> Observation:
        seen = super().observe(dsn)
        jobs = (replace(v, lease_until_us=0) if v.job in self._expired else v for v in seen.jobs)
        return Observation(seen.at_us, tuple(jobs), seen.ledger)


def ready_for_delayed(view: JobView) -> JobView:
    return replace(view, state=JobState.READY) if view.state is JobState.DELAYED else view


class RefusesATakenKey(Worker):
    def enqueue(self, payload: Json, **options: Any) -> JobId:
        try:
            return self.inner.enqueue(payload, **options)
        except IdempotencyConflict:
            raise QueueRefusal("taken", "the key is taken") from None


class ClaimsAhead(Worker):
    def claim(self, ttl_s: float) -> Claim | None:
        run(self.dsn, "UPDATE lease_queue.jobs SET next_run_at = clock_timestamp() WHERE state = 'ready'")
        return self.inner.claim(ttl_s)


def countless() -> Adapter:
    adapter = seen_through(lambda view: replace(view, attempts=None))
    adapter.worker_class = CountsNoLostLease
    return adapter


class CompletesCancelled(Worker):
    """The holder's completion counts whatever became of the job."""

    def complete(self, claim: Claim, result: Json = None) -> Answer:
        run(
            self.dsn,
            f"UPDATE lease_queue.jobs SET state = 'succeeded' WHERE state = 'cancelled' AND id = {claim.job}",
        )
        return self.inner.complete(claim, result)


class ChangesDeadLetters(Worker):
    def requeue(self, job: JobId) -> JobId:
        new = self.inner.requeue(job)
        run(self.dsn, f"UPDATE lease_queue.jobs SET state = 'cancelled' WHERE id = {job}")
        return new


class RequeuesForLater(Worker):
    def requeue(self, job: JobId) -> JobId:
        new = self.inner.requeue(job)
        run(
            self.dsn,
            f"UPDATE lease_queue.jobs SET next_run_at = next_run_at + interval '1 day' WHERE id = {new}",
        )
        return new


@dataclass(frozen=True)
class Mistake:
    make: Callable[[], Adapter]
    check: str
    told: str
    probed: Capability | None = None  # that the advice says to take back
    also: frozenset[str] = frozenset()


C = Capability

MISTAKES: dict[str, Mistake] = {
    "one connection": Mistake(OneConnection, "actors are isolated", "no session with the application_name"),
    "one connection under every name": Mistake(
        OneConnectionUnderEveryName, "actors are isolated", "A and B are served by one backend (pid "
    ),
    "one connection beside idle ones": Mistake(
        OneConnectionBesideIdleOnes, "actors are isolated", "A's claim passed none of the sessions"
    ),
    "one at a time": Mistake(
        OneAtATime, "actors are isolated", "while A's claim waited for a lock in the server, B's did not"
    ),
    "another's connection is asked first": Mistake(
        AsksTheFirst, "actors are isolated", "A's session was ended by the server, and B's claim was unknown"
    ),
    "reset keeps completed jobs": Mistake(
        KeepsCompleted, "reset removes everything", "still shows a completed job"
    ),
    "reset keeps failed jobs": Mistake(KeepsFailed, "reset removes everything", "still shows a failed job"),
    "reset keeps the ledger": Mistake(
        KeepsTheLedger, "reset removes everything", "the ledger still has 1 entries"
    ),
    "reset keeps keys": Mistake(
        lambda: with_worker(KeepsKeys),
        "reset frees keys",
        "a key used before it with another payload makes no new job",
    ),
    "complete completes all": Mistake(
        lambda: with_worker(
            on_all("UPDATE lease_queue.jobs SET priority = 9, max_attempts = 9 WHERE state = 'ready'")
        ),
        "one write touches one job",
        "changed another job as well",
    ),
    "complete extends all leases": Mistake(
        lambda: with_worker(
            on_all("UPDATE lease_queue.jobs SET lease_expires_at = lease_expires_at + interval '1 s'")
        ),
        "one write touches one job",
        "its lease_until_us changed",
    ),
    "reap does nothing": Mistake(
        lambda: with_worker(ReapsNothing), "reap recovers", "reap says that it recovered 0", C.REAPER
    ),
    "reap only counts": Mistake(
        lambda: with_worker(OnlyCounts), "reap recovers", "still shown as leased under it", C.REAPER
    ),
    "reap hides the job": Mistake(
        lambda: with_worker(ReapsIntoTheFuture), "reap recovers", "nobody can claim the job", C.REAPER
    ),
    "reap has no bound": Mistake(
        lambda: with_worker(ReapsAll), "a sweep is bounded", "recovered 2 leases where 1", C.BOUNDED_REAP
    ),
    "reap passes nothing": Mistake(
        lambda: with_worker(ReapsInSilence), "reap passes its snapshot", "no checkpoint", C.REAP_SNAPSHOT
    ),
    "writes pass nothing": Mistake(
        lambda: with_worker(WritesInSilence),
        "checkpoints are passed",
        "complete passed no checkpoint",
        C.CHECKPOINTS,
    ),
    "delay is refused": Mistake(
        lambda: with_worker(RefusesDelay), "a delayed job waits", "enqueue raised TypeError", C.DELAY
    ),
    "delay is forgotten": Mistake(
        lambda: with_worker(dropping("delay_s")), "a delayed job waits", "is shown as ready", C.DELAY
    ),
    "delayed is not shown": Mistake(
        lambda: seen_through(ready_for_delayed), "a delayed job waits", "is shown as ready", C.DELAY
    ),
    "keys are forgotten": Mistake(
        lambda: with_worker(dropping("key")),
        "a key names one job",
        "they are job 1 and job 2",
        C.IDEMPOTENCY_KEY,
    ),
    "a key's payload is ignored": Mistake(
        lambda: with_worker(IgnoresThePayloadOfAKey),
        "a key names one job",
        "a taken key with another payload was accepted",
        C.IDEMPOTENCY_KEY,
    ),
    "priorities are forgotten": Mistake(
        lambda: with_worker(dropping("priority")),
        "a higher priority comes first",
        "got job 1, not job 2",
        C.PRIORITY,
    ),
    "priorities are turned round": Mistake(
        lambda: with_worker(LowerIsMoreUrgent),
        "a higher priority comes first",
        "got job 1, not job 2",
        C.PRIORITY,
    ),
    "the newest comes first": Mistake(
        lambda: with_worker(NewestFirst), "the oldest comes first", "were claimed as 3, 2, 1", C.OLDEST_FIRST
    ),
    "attempts are forgotten": Mistake(
        lambda: with_worker(dropping("max_attempts")),
        "attempts are bounded",
        "failed twice and is shown as",
        C.MAX_ATTEMPTS,
    ),
    "retries are counted": Mistake(
        lambda: with_worker(CountsRetries),
        "attempts are bounded",
        "failed twice and is shown as",
        C.MAX_ATTEMPTS,
    ),
    "a failure ends the job": Mistake(
        lambda: with_worker(FailsForGood),
        "attempts are bounded",
        "failed once and is shown as failed",
        C.MAX_ATTEMPTS,
    ),
    "a lost lease is no attempt": Mistake(
        lambda: with_worker(CountsNoLostLease),
        "lost leases are attempts",
        "claim number 2 of a job shows 1",
        C.RETRY,
    ),
    "waits do not grow": Mistake(flat_waits, "waits grow", "after failure 3 a job waits ", C.BACKOFF),
    "a dead letter comes back": Mistake(
        lambda: with_worker(RequeuesTheSame), "dead letters stay", "made no new job", C.DEAD_LETTER
    ),
    "cancel does nothing": Mistake(
        lambda: with_worker(CancelsNothing),
        "cancel ends a job",
        "waits was cancelled and is shown as ready",
        C.CANCEL,
    ),
    "cancel spares what is leased": Mistake(
        lambda: with_worker(CancelsWhatWaits),
        "cancel ends a job",
        "cancel was refused (not_leased)",
        C.CANCEL,
    ),
    "a batch is one": Mistake(
        lambda: with_worker(BatchOfOne), "a batch is claimed", "with a limit of 2 got 1 of", C.BATCH
    ),
    "a batch takes all": Mistake(
        lambda: with_worker(BatchTakesAll), "a batch is claimed", "and 1, 2, 3 are leased", C.BATCH
    ),
    "a batch is all or nothing": Mistake(
        lambda: with_worker(AllOrNothing),
        "a batch is completed",
        "answered refused, refused, refused",
        C.BATCH_COMPLETE,
    ),
    "a batch completes the first": Mistake(
        lambda: with_worker(CompletesTheFirst),
        "a batch is completed",
        "whose claim was accepted is shown as leased",
        C.BATCH_COMPLETE,
    ),
    "results are forgotten": Mistake(
        lambda: with_worker(ForgetsResults), "results are kept", "observe() shows None", C.RESULT
    ),
    "one length of leases": Mistake(
        lambda: with_worker(OneLength),
        "leases have any length",
        "asked for for 20 s ends in 60.0 s",
        C.LEASE_LENGTH,
    ),
    "one length of heartbeats": Mistake(
        lambda: with_worker(OneLengthOfHeartbeats), "leases have any length", "renewed", C.LEASE_LENGTH
    ),
    "heartbeats stop": Mistake(
        lambda: with_worker(BeatsOnce),
        "heartbeats go on by themselves",
        "passed before_heartbeat 1 times",
        C.BACKGROUND_HEARTBEAT,
    ),
    "heartbeats are pretended": Mistake(
        lambda: with_worker(PretendsToBeat),
        "heartbeats go on by themselves",
        "the lease ends when it did before",
        C.BACKGROUND_HEARTBEAT,
    ),
    "no token is set": Mistake(
        lambda: with_worker(SetsNoToken), "a token can be set", "set to 41 and is shown as 0", C.TOKEN_SETTING
    ),
    "no guard is bypassed": Mistake(
        lambda: with_worker(BypassesNothing), "the guard can be bypassed", "changed nothing", C.GUARD_BYPASS
    ),
    "repeats are refused": Mistake(
        lambda: with_worker(NoRepeats), "repeated writes are recognised", "was refused (terminal)", C.REPEATS
    ),
    "tokens are skipped": Mistake(
        lambda: with_worker(SkipsTokens), "tokens are consecutive", "the second's", C.CONSECUTIVE_TOKENS
    ),
    "a worker remembers": Mistake(
        lambda: with_worker(RemembersWhatIsDone),
        "warm workers forget",
        "could not complete its second job",
        C.WARM_WORKERS,
    ),
    "a taken key is refused": Mistake(
        lambda: with_worker(RefusesATakenKey),
        "a key names one job",
        "refused with the key is taken",
        C.IDEMPOTENCY_KEY,
    ),
    "what is delayed is claimed": Mistake(
        lambda: with_worker(ClaimsAhead), "a delayed job waits", "was claimed at once", C.DELAY
    ),
    "lost leases are not counted": Mistake(
        countless, "lost leases are attempts", "was claimed a third time", C.RETRY
    ),
    "what was cancelled is completed": Mistake(
        lambda: with_worker(CompletesCancelled), "cancel ends a job", "it is shown as succeeded", C.CANCEL
    ),
    "requeue changes the dead letter": Mistake(
        lambda: with_worker(ChangesDeadLetters), "dead letters stay", "changed the dead letter", C.DEAD_LETTER
    ),
    "requeue is for later": Mistake(
        lambda: with_worker(RequeuesForLater),
        "dead letters stay",
        "that requeue made cannot be claimed",
        C.DEAD_LETTER,
    ),
    "expire is not heard of": Mistake(
        ExpiresByName, "expire touches the lease alone", "after expire() nobody can claim", C.EXPIRE
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_named(mistake: str, fencepost_lab: Lab) -> None:
    expected = MISTAKES[mistake]
    KEYS.clear()
    results = check_of(fencepost_lab, expected.make(), mistake)
    found = failed(results)
    assert found.keys() == {expected.check} | expected.also, found
    assert expected.told in found[expected.check].wrong
    assert found[expected.check].advice
    if expected.probed is not None:
        assert found[expected.check].advice.endswith(f"take {expected.probed} out of the capabilities.")
