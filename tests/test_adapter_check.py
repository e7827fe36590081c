"""Adapters that are wrong in one way each: the check names what is wrong, and finds nothing else."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import psycopg
import pytest

from fencepost.harness.adapter import (
    ActorSeat,
    Answer,
    Capability,
    Claim,
    JobId,
    JobState,
    JobView,
    Json,
    Observation,
    QueueRefusal,
)
from fencepost.harness.adapter_check import check_adapter, hands
from fencepost.harness.adapter_check.plan import CHECKS
from fencepost.harness.lab import Lab
from fencepost.harness.loading import LoadedQueue, load_queue
from fencepost.tests.fix_adapters import (
    Adapter,
    Worker,
    check_of,
    declaring,
    failed,
    not_made,
    seen_through,
    with_worker,
)

# -- wrong in install, observe, reset ---------------------------------------------------------------------


class NeverInstalls(Adapter):
    def install(self, dsn: str) -> None:
        raise RuntimeError("no such table")


class InstallsOnce(Adapter):
    def install(self, dsn: str) -> None:
        with psycopg.connect(dsn) as connection:
            connection.execute(self._schema.encode())


class ObservesADictionary(Adapter):
    def observe(self, dsn: str) -> Any:
        return {"jobs": []}


class CountsSeconds(Adapter):
    def observe(self, dsn: str) -> Observation:
        seen = super().observe(dsn)
        return Observation(seen.at_us // 1_000_000, seen.jobs, seen.ledger)


class NeverResets(Adapter):
    def reset(self, dsn: str) -> None:
        pass


class HidesTheLedger(Adapter):
    def observe(self, dsn: str) -> Observation:
        seen = super().observe(dsn)
        return Observation(seen.at_us, seen.jobs)


class ExpiresTooMuch(Adapter):
    def expire(self, dsn: str, claim: Claim) -> None:
        super().expire(dsn, claim)
        self._connections.get(dsn).execute("UPDATE lease_queue.jobs SET attempts = attempts + 1")


class ExpiresNothing(Adapter):
    def expire(self, dsn: str, claim: Claim) -> None:
        pass


def renamed(view: JobView) -> JobView:
    return replace(view, job=f"job-{view.job}")


def always_ready(view: JobView) -> JobView:
    return replace(view, state=JobState.READY)


def text_token(view: JobView) -> JobView:
    return replace(view, token=str(view.token))  # type: ignore[arg-type]


def other_token(view: JobView) -> JobView:
    return replace(view, token=7)


def no_state(view: JobView) -> JobView:
    return replace(view, state="waiting")  # type: ignore[arg-type]


def never_leased(view: JobView) -> JobView:
    state = JobState.READY if view.state is JobState.LEASED else view.state
    return replace(view, state=state)


# -- wrong in a worker's operations -----------------------------------------------------------------------


class SaysFalse(Worker):
    def claim(self, ttl_s: float) -> Any:
        return self.inner.claim(ttl_s) or False


class GivesADictionary(Worker):
    def claim(self, ttl_s: float) -> Any:
        claim = self.inner.claim(ttl_s)
        return None if claim is None else {"job": claim.job}


class HasABug(Worker):
    def claim(self, ttl_s: float) -> Any:
        return self.inner.claim(ttl_s, "unexpected")  # type: ignore[call-arg]


class WaitsForWork(Worker):
    def claim(self, ttl_s: float) -> Claim | None:
        claim = self.inner.claim(ttl_s)
        if claim is None:
            with psycopg.connect(self.dsn) as connection:
                connection.execute("SELECT pg_sleep(600)")
        return claim


class KeepsAnObject(Worker):
    def claim(self, ttl_s: float) -> Claim | None:
        claim = self.inner.claim(ttl_s)
        return None if claim is None else replace(claim, raw={**claim.raw, "live": object()})


class KeepsATuple(Worker):
    def claim(self, ttl_s: float) -> Claim | None:
        claim = self.inner.claim(ttl_s)
        return None if claim is None else replace(claim, raw={**claim.raw, "pair": (claim.job, claim.token)})


class CountsMilliseconds(Worker):
    def claim(self, ttl_s: float) -> Claim | None:
        return self.inner.claim(ttl_s / 1000)


class StealsLiveLeases(Worker):
    def claim(self, ttl_s: float) -> Claim | None:
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            connection.execute(
                "UPDATE lease_queue.jobs SET lease_expires_at = now() - interval '1 day' WHERE state = 'leased'"
            )
        return self.inner.claim(ttl_s)


class ReapsAnything(Worker):
    def reap(self) -> int:
        return self.inner.reap() + 1


class CompletesNothing(Worker):
    def complete(self, claim: Claim, result: Json = None) -> Answer:
        return Answer.accepted()


class RefusesToComplete(Worker):
    def complete(self, claim: Claim, result: Json = None) -> Answer:
        return Answer.refused("not_leased")


class FailsNothing(Worker):
    def fail(self, claim: Claim, error: str) -> Answer:
        return Answer.accepted()


class SaysNothing(Worker):
    def fail(self, claim: Claim, error: str) -> Any:
        self.inner.fail(claim, error)


class BeatsInVain(Worker):
    def heartbeat(self, claim: Claim, ttl_s: float) -> Answer:
        return Answer.accepted()


class AlwaysSaysYes(Worker):
    def complete(self, claim: Claim, result: Json = None) -> Answer:
        self.inner.complete(claim, result)
        return Answer.accepted()


class StaysOpen(Worker):
    def close(self) -> None:
        pass


class Nameless(Adapter):
    def worker(self, actor: ActorSeat, dsn: str) -> Any:
        return super().worker(actor, psycopg.conninfo.make_conninfo(dsn, application_name="my-queue"))


class SharesOneWorker(Adapter):
    worker_class = StaysOpen

    def __init__(self) -> None:
        super().__init__()
        self._shared: Any = None

    def worker(self, actor: ActorSeat, dsn: str) -> Any:
        if self._shared is None:
            self._shared = super().worker(actor, dsn)
        return self._shared


class OpensNoConnection(Adapter):
    def worker(self, actor: ActorSeat, dsn: str) -> Any:
        return super().worker(actor, psycopg.conninfo.make_conninfo(dsn, dbname="elsewhere"))


class LacksAnOperation(Adapter):
    def worker(self, actor: ActorSeat, dsn: str) -> Any:
        worker = super().worker(actor, dsn)
        worker.reap = None
        return worker


class ResetRaises(Adapter):
    def reset(self, dsn: str) -> None:
        raise RuntimeError("no such function")


class ShowsAJobTooMany(Adapter):
    def observe(self, dsn: str) -> Observation:
        seen = super().observe(dsn)
        return Observation(seen.at_us, (*seen.jobs, JobView("0", JobState.SUCCEEDED)), seen.ledger)


class InstallsAnew(Adapter):
    def install(self, dsn: str) -> None:
        super().install(dsn)
        self.reset(dsn)


class ClaimsNothingAsSomething(Worker):
    def claim(self, ttl_s: float) -> Claim | None:
        return self.inner.claim(ttl_s) or Claim("0", 0, 0, {})


class RefusesToClaim(Worker):
    def claim(self, ttl_s: float) -> Claim | None:
        raise QueueRefusal("fixed_lease_length", "every lease lasts 30 s here")


class RefusesToEnqueue(Worker):
    def enqueue(self, payload: Json, **options: Any) -> JobId:
        raise QueueRefusal("closed", "the queue is closed")


class NamesJobsByToken(Worker):
    def claim(self, ttl_s: float) -> Claim | None:
        claim = self.inner.claim(ttl_s)
        return None if claim is None else replace(claim, job=f"{claim.job}/{claim.token}")


class TellsNoEnd(Worker):
    def claim(self, ttl_s: float) -> Claim | None:
        claim = self.inner.claim(ttl_s)
        return None if claim is None else replace(claim, lease_until_us=None)


class TellsATextualEnd(Worker):
    def claim(self, ttl_s: float) -> Claim | None:
        claim = self.inner.claim(ttl_s)
        return None if claim is None else replace(claim, lease_until_us=str(claim.lease_until_us))  # type: ignore[arg-type]


def no_end(view: JobView) -> JobView:
    return replace(view, lease_until_us=None)


def textual_end(view: JobView) -> JobView:
    return view if view.lease_until_us is None else replace(view, lease_until_us=str(view.lease_until_us))  # type: ignore[arg-type]


def no_payload(view: JobView) -> JobView:
    return replace(view, payload={})


def delayed_at_first(view: JobView) -> JobView:
    return replace(view, state=JobState.DELAYED) if view.state is JobState.READY else view


def tells_no_end() -> Adapter:
    adapter = seen_through(no_end)
    adapter.worker_class = TellsNoEnd
    return adapter


class RefusesToFail(Worker):
    def fail(self, claim: Claim, error: str) -> Answer:
        return Answer.refused("not_leased")


class RefusesToBeat(Worker):
    def heartbeat(self, claim: Claim, ttl_s: float) -> Answer:
        return Answer.refused("not_leased")


class KeepsLeasesAlive(Worker):
    """By a clock of its own: however the database's is moved, no lease ends."""

    def claim(self, ttl_s: float) -> Claim | None:
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            connection.execute(
                "UPDATE lease_queue.jobs SET lease_expires_at = clock_timestamp() + interval '60 s' "
                "WHERE state = 'leased'"
            )
        return self.inner.claim(ttl_s)


class EndsLeasesEarly(Worker):
    def claim(self, ttl_s: float) -> Claim | None:
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            connection.execute(
                "UPDATE lease_queue.jobs SET lease_expires_at = now() - interval '1 s' "
                "WHERE lease_expires_at < clock_timestamp() + interval '15 s'"
            )
        return self.inner.claim(ttl_s)


WRONG: dict[str, tuple[Callable[[], Adapter], str, str]] = {
    "install raises": (NeverInstalls, "installs", "no such table"),
    "install works once": (InstallsOnce, "installs twice", "already exists"),
    "observe gives a dictionary": (ObservesADictionary, "observes", "observe() returned {'jobs': []} (dict)"),
    "time in seconds": (CountsSeconds, "observes", "the server's clock says"),
    "reset does nothing": (NeverResets, "reset resets", "still shows 2 of two jobs"),
    "ids in two forms": (
        lambda: seen_through(renamed),
        "an enqueued job is seen",
        "does not show job",
    ),
    "state in other words": (
        lambda: seen_through(no_state),
        "an enqueued job is seen",
        "the state of a job is 'waiting' (str)",
    ),
    "token as text": (
        lambda: seen_through(text_token),
        "an enqueued job is seen",
        "token of a job is '0' (str)",
    ),
    "leases not shown": (
        lambda: seen_through(never_leased),
        "a claim is seen",
        "just claimed is shown as ready",
    ),
    "tokens disagree": (
        lambda: seen_through(other_token),
        "a claim is seen",
        "the claim carries token 1, the rows show 7",
    ),
    "claim says False": (
        lambda: with_worker(SaysFalse),
        "an empty queue claims nothing",
        "claim returned False",
    ),
    "claim gives a dictionary": (lambda: with_worker(GivesADictionary), "reset resets", "claim returned {"),
    "claim has a bug": (
        lambda: with_worker(HasABug),
        "an empty queue claims nothing",
        "claim raised TypeError",
    ),
    "claim waits": (
        lambda: with_worker(WaitsForWork),
        "an empty queue claims nothing",
        "claim has not answered",
    ),
    "raw is an object": (lambda: with_worker(KeepsAnObject), "raw is JSON", "not JSON"),
    "raw is a tuple": (lambda: with_worker(KeepsATuple), "raw is JSON", "comes back from JSON as"),
    "ttl in milliseconds": (
        lambda: with_worker(CountsMilliseconds),
        "a lease has its length",
        "asked for 60 s ends in",
    ),
    "claim steals": (
        lambda: with_worker(StealsLiveLeases),
        "a live lease is kept",
        "a second worker got the job",
    ),
    "reap reaps anything": (
        lambda: with_worker(ReapsAnything),
        "a live lease is kept",
        "reap recovered 1 leases although the only one was live",
    ),
    "complete does nothing": (
        lambda: with_worker(CompletesNothing),
        "complete settles",
        "a completed job is shown as leased",
    ),
    "complete is refused": (
        lambda: with_worker(RefusesToComplete),
        "complete settles",
        "under a live lease was refused (not_leased)",
    ),
    "fail does nothing": (
        lambda: with_worker(FailsNothing),
        "fail settles",
        "reported a failure is shown as leased",
    ),
    "fail answers nothing": (lambda: with_worker(SaysNothing), "fail settles", "fail returned None"),
    "recovery is declared deferred": (
        lambda: declaring(Capability.DEFERRED_RECLAIM),
        "only reap recovers",
        "although the queue declares DEFERRED_RECLAIM",
    ),
    "heartbeat does nothing": (
        lambda: with_worker(BeatsInVain),
        "heartbeat extends",
        "renewed in time was taken",
    ),
    "expire spends an attempt": (
        ExpiresTooMuch,
        "expire touches the lease alone",
        "changed more than the lease's end",
    ),
    "expire does nothing": (ExpiresNothing, "expire touches the lease alone", "still live by its rows"),
    "fencing is only declared": (
        lambda: with_worker(AlwaysSaysYes),
        "old tokens are refused",
        "complete under an old token was accepted",
    ),
    "the ledger is not shown": (
        HidesTheLedger,
        "completions are in the ledger",
        "shows 0 entries for one completed job",
    ),
    "sessions have another name": (Nameless, "actors are isolated", "no session with the application_name"),
    "workers share a connection": (
        SharesOneWorker,
        "actors are isolated",
        "no session with the application_name",
    ),
    "worker goes elsewhere": (
        OpensNoConnection,
        "an empty queue claims nothing",
        "could not open its worker",
    ),
    "an operation is missing": (LacksAnOperation, "an empty queue claims nothing", "has no reap()"),
    "close leaves sessions": (
        lambda: with_worker(StaysOpen),
        "workers close",
        "session(s) of a closed worker are still open",
    ),
}


@dataclass(frozen=True)
class Follows:
    """What one mistake does to other checks."""

    wrong: frozenset[str] = frozenset()  # that find it as well, each by its own sentence
    not_made: frozenset[str] = frozenset()  # some of those that would mislead


LEANS_ON_LEASES = frozenset(
    {"an expired lease is recovered", "heartbeat extends", "reap recovers", "old tokens are refused"}
)

WRONG |= {
    "reset raises": (
        ResetRaises,
        "observes",
        "reset() of queue 'reference' raised RuntimeError: no such function",
    ),
    "a job too many": (ShowsAJobTooMany, "observes", "shows 1 jobs in a queue that was just reset"),
    "install empties": (InstallsAnew, "installs twice", "lost its jobs"),
    "claim makes jobs up": (
        lambda: with_worker(ClaimsNothingAsSomething),
        "an empty queue claims nothing",
        "got job 0 from an empty queue",
    ),
    "claim is refused": (
        lambda: with_worker(RefusesToClaim),
        "an empty queue claims nothing",
        "claim was refused (every lease lasts 30 s here)",
    ),
    "enqueue is refused": (
        lambda: with_worker(RefusesToEnqueue),
        "an enqueued job is seen",
        "enqueue was refused (the queue is closed)",
    ),
    "claim renames": (
        lambda: with_worker(NamesJobsByToken),
        "reset resets",
        "enqueue called the job '1', claim calls it '1/1'",
    ),
    "nobody tells the end": (tells_no_end, "a claim is seen", "until when the lease lasts"),
    "the end is text in claims": (
        lambda: with_worker(TellsATextualEnd),
        "a claim is seen",
        "lease_until_us of a claim is '",
    ),
    "the end is text in rows": (
        lambda: seen_through(textual_end),
        "a claim is seen",
        "lease_until_us of a job is '",
    ),
    "another payload": (lambda: seen_through(no_payload), "an enqueued job is seen", "is shown as {}"),
    "delayed at first": (
        lambda: seen_through(delayed_at_first),
        "an enqueued job is seen",
        "just enqueued is shown as delayed",
    ),
    "fail is refused": (
        lambda: with_worker(RefusesToFail),
        "fail settles",
        "fail under a live lease was refused (not_leased)",
    ),
    "heartbeat is refused": (
        lambda: with_worker(RefusesToBeat),
        "heartbeat extends",
        "heartbeat under a live lease was refused",
    ),
    "leases never end": (
        lambda: with_worker(KeepsLeasesAlive),
        "an expired lease is recovered",
        "the database's clock has passed the lease",
    ),
    "leases end early": (
        lambda: with_worker(EndsLeasesEarly),
        "the database's clock decides",
        "was lost after nine tenths of it",
    ),
}

FOLLOWS: dict[str, Follows] = {
    "leases never end": Follows(
        wrong=frozenset({"expire touches the lease alone"}), not_made=frozenset({"reap recovers"})
    ),
    "leases not shown": Follows(not_made=LEANS_ON_LEASES | {"raw is JSON", "complete settles"}),
    "ttl in milliseconds": Follows(not_made=LEANS_ON_LEASES | {"a live lease is kept", "complete settles"}),
    "claim steals": Follows(
        not_made=LEANS_ON_LEASES | {"one write touches one job", "the oldest comes first"}
    ),
    "complete does nothing": Follows(
        not_made=frozenset({"old tokens are refused", "completions are in the ledger"})
    ),
    "complete is refused": Follows(
        not_made=frozenset({"old tokens are refused", "completions are in the ledger"})
    ),
    "fail does nothing": Follows(
        not_made=frozenset({"attempts are bounded", "waits grow", "dead letters stay"})
    ),
    "heartbeat does nothing": Follows(
        not_made=frozenset({"heartbeats go on by themselves", "leases have any length"})
    ),
    "fencing is only declared": Follows(
        wrong=frozenset({"repeated writes are recognised"}), not_made=frozenset({"tokens are consecutive"})
    ),
    "the ledger is not shown": Follows(not_made=frozenset({"the guard can be bypassed"})),
    "workers share a connection": Follows(
        not_made=frozenset({"an empty queue claims nothing", "workers close"})
    ),
}


@pytest.mark.parametrize("mistake", WRONG)
def test_a_mistake_is_named(mistake: str, fencepost_lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    make, check, told = WRONG[mistake]
    monkeypatch.setattr(hands, "ANSWER_DEADLINE_S", 2.0 if mistake == "claim waits" else 20.0)
    results = check_of(fencepost_lab, make(), mistake)
    found = failed(results)
    assert check in found, results
    assert told in found[check].wrong
    assert found[check].advice
    follows = FOLLOWS.get(mistake, Follows())
    assert found.keys() == {check} | follows.wrong
    unmade = not_made(results)
    assert {name: unmade.get(name) for name in follows.not_made} == dict.fromkeys(
        follows.not_made, f"'{check}' failed"
    )


def test_after_a_basic_mistake_nothing_else_is_claimed(fencepost_lab: Lab) -> None:
    results = check_adapter(fencepost_lab, LoadedQueue(NeverInstalls(), "tests.test_adapter_check:never"))
    assert results[0].ok is False
    assert {result.ok for result in results[1:]} == {None}
    assert {result.wrong for result in results[1:]} == {"the queue is not installed"}


@pytest.mark.parametrize(
    "queue",
    [
        "reference",
        "fencepost.adapters.procrastinate:ProcrastinateAdapter",
        "fencepost.adapters.pgqueuer:PgQueuerAdapter",
        "fencepost.adapters.forty_lines:FortyLines",
    ],
)
def test_our_own_adapters_are_right(queue: str, fencepost_lab: Lab) -> None:
    if "adapters.p" in queue:
        pytest.importorskip(queue.partition(":")[0].rpartition(".")[2])
    results = check_adapter(fencepost_lab, load_queue(queue))
    assert not failed(results)
    assert all(reason.startswith("the queue does not declare ") for reason in not_made(results).values())
    assert queue != "reference" or not_made(results).keys() == {"only reap recovers"}


def test_every_capability_is_held_to() -> None:
    assert {check.probes for check in CHECKS} - {None} == set(Capability)


def test_what_a_check_leans_on_comes_before_it() -> None:
    names = [check.name for check in CHECKS]
    assert len(set(names)) == len(names)
    for position, check in enumerate(CHECKS):
        assert set(check.after) <= set(names[:position]), check.name
