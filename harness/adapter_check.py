"""`fencepost adapter check`: an adapter on its own, before any race. Each check is one sentence of the contract.

A race on a wrong adapter fails in a roundabout way, or passes for nothing. These say what is wrong and what to do.
"""

from __future__ import annotations

import inspect
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import psycopg

from fencepost.harness.actors.base import Actor, ActorFailed
from fencepost.harness.actors.messages import Request
from fencepost.harness.adapter import (
    Capability,
    Claim,
    JobId,
    JobState,
    JobView,
    LedgerEntry,
    Observation,
    Outcome,
)
from fencepost.harness.bench import AdapterBroke, Bench
from fencepost.harness.errors import FencepostError, UsageError
from fencepost.harness.history import Reply
from fencepost.harness.lab import Lab
from fencepost.harness.loading import LoadedQueue
from fencepost.harness.race import DEFAULT_TTL_S
from fencepost.harness.watch import actor_application_name

ANSWER_DEADLINE_S = 20.0
LEAVE_DEADLINE_S = 2.0
CLOCK_TOLERANCE_US = 30_000_000
LEASE_TOLERANCE_US = 1_000_000


@dataclass(frozen=True, slots=True)
class CheckResult:
    """`ok` is None where the check could not be made; `wrong` then says why."""

    name: str
    ok: bool | None
    wrong: str = ""
    advice: str = ""


class Wrong(Exception):
    """What a check found: one sentence on what is wrong, one on what to do."""

    def __init__(self, wrong: str, advice: str) -> None:
        super().__init__(wrong)
        self.wrong = wrong
        self.advice = advice


def check_adapter(lab: Lab, loaded: LoadedQueue) -> list[CheckResult]:
    """Every check in order. One that needs what an earlier one found missing is not made."""
    results: list[CheckResult] = []
    try:
        bench = lab.bench(loaded)
    except UsageError as error:
        results.append(CheckResult("installs", False, str(error), "Let install() work in an empty database."))
        return [*results, *_not_made(CHECKS, "the queue is not installed")]
    results.append(CheckResult("installs", True))
    for position, check in enumerate(CHECKS):
        lacking = check.needs - bench.capabilities
        if lacking:
            told = f"the queue does not declare {', '.join(sorted(lacking))}"
            results.append(CheckResult(check.name, None, told))
            continue
        results.append(_make(check, bench))
        if results[-1].ok is False and check.basic:
            return [*results, *_not_made(CHECKS[position + 1 :], f"'{check.name}' failed")]
    return results


def _make(check: Check, bench: Bench) -> CheckResult:
    hands = Hands(bench)
    try:
        hands.reset()
        check.perform(hands)
    except Wrong as found:
        return CheckResult(check.name, False, found.wrong, found.advice)
    except (FencepostError, UsageError) as error:
        return CheckResult(check.name, False, str(error), "See the contract in docs/adapters.md.")
    finally:
        hands.let_go()
    return CheckResult(check.name, True)


def _not_made(checks: tuple[Check, ...], reason: str) -> list[CheckResult]:
    return [CheckResult(check.name, None, reason) for check in checks]


class Hands:
    """What a check does with the adapter. Everything that can go wrong on the way is already a finding."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self._actors: dict[str, Actor] = {}

    @property
    def capabilities(self) -> frozenset[Capability]:
        return self.bench.capabilities

    @property
    def can_move_the_clock(self) -> bool:
        return self.bench.lease_time.how == "clock"

    # -- the queue ----------------------------------------------------------------------------------------

    def ask(self, method: str, *arguments: Any) -> Any:
        try:
            return self.bench.ask(method, *arguments)
        except AdapterBroke as error:
            raise Wrong(
                f"{_first_line(error)}.",
                f"Let {method}() work at any time after install().",
            ) from error

    def reset(self) -> None:
        self.ask("reset", self.bench.dsn)

    def observe(self) -> Observation:
        observation = self.ask("observe", self.bench.dsn)
        if not isinstance(observation, Observation):
            raise Wrong(
                f"observe() returned {_told(observation)}.", "Return an Observation from harness.adapter."
            )
        return observation

    def view(self, job: JobId, when: str) -> JobView:
        view = self.observe().by_job.get(job)
        if view is None:
            raise Wrong(
                f"observe() does not show job {job} {when}.",
                "Show every job that is in the queue's rows, under the id that enqueue and claim give it.",
            )
        return view

    def pass_lease(self, claim: Claim) -> None:
        view = self.observe().by_job.get(claim.job)
        until_us = view.lease_until_us if view is not None else None
        self.bench.lease_time.pass_lease(claim, until_us if until_us is not None else claim.lease_until_us)

    # -- workers ------------------------------------------------------------------------------------------

    def do(self, actor: str, operation: str, *claims: Claim, **arguments: Any) -> Reply:
        if actor not in self._actors:
            self._actors[actor] = self._open(actor)
        try:
            self._actors[actor].submit(Request(operation, arguments, claims))
            reply = self._actors[actor].poll(ANSWER_DEADLINE_S)
        except ActorFailed as error:
            told = str(error).partition(": ")[2] or str(error)
            raise Wrong(
                f"{told}.",
                f"Give back from {operation} what the contract names, and raise no programming error.",
            ) from error
        if reply is None:
            self._abandon(actor)
            raise Wrong(
                f"{operation} has not answered within {ANSWER_DEADLINE_S:.0f} s.",
                "Let every operation answer at once; a claim that finds nothing answers None.",
            )
        return reply

    def _open(self, actor: str) -> Actor:
        try:
            return self.bench.open_actor(actor)
        except ActorFailed as error:
            raise Wrong(
                f"{error}.", "Let worker() open its own connection with the DSN it is given."
            ) from error

    def enqueue(self) -> JobId:
        reply = self.do("P", "enqueue", payload={"checked": True})
        if reply.job is None:
            raise Wrong(
                f"enqueue was refused ({_why(reply)}).", "Take a plain job without key, delay or priority."
            )
        return reply.job

    def try_claim(self, actor: str) -> Claim | None:
        reply = self.do(actor, "claim", ttl_s=DEFAULT_TTL_S)
        if not reply.accepted:
            raise Wrong(
                f"claim was refused ({_why(reply)}).",
                f"Take a ttl_s of {DEFAULT_TTL_S:.0f}, and answer None where there is nothing to claim.",
            )
        return reply.claims[0] if reply.claims else None

    def claim(self, actor: str, job: JobId) -> Claim:
        claim = self.try_claim(actor)
        if claim is None:
            raise Wrong(
                f"claim found nothing although job {job} was just enqueued.",
                "Let claim take any job that is due.",
            )
        if claim.job != job:
            raise Wrong(
                f"enqueue called the job {job!r}, claim calls it {claim.job!r}.",
                "Use one text form of the job's id everywhere.",
            )
        return claim

    def reap(self) -> int:
        return self.do("R", "reap").count or 0

    def recover(self) -> None:
        if Capability.DEFERRED_RECLAIM in self.capabilities:
            self.reap()

    def backends(self) -> dict[str, set[int]]:
        """The server's sessions in this database, by application name."""
        found: dict[str, set[int]] = {}
        with psycopg.connect(self.bench.dsn, autocommit=True) as connection:
            rows = connection.execute(
                "SELECT application_name, pid FROM pg_stat_activity"
                " WHERE datname = current_database() AND pid <> pg_backend_pid()"
            ).fetchall()
        for name, pid in rows:
            found.setdefault(name, set()).add(pid)
        return found

    def _abandon(self, actor: str) -> None:
        self.bench.end_backends(actor)
        self._actors.pop(actor).abandon()

    def close(self, actor: str) -> None:
        try:
            self._actors.pop(actor).close()
        except ActorFailed as error:
            raise Wrong(f"{error}.", "Let close() end the worker's connections at once.") from error

    def let_go(self) -> None:
        for name, actor in list(self._actors.items()):
            try:
                actor.close()
            except FencepostError:
                self.bench.end_backends(name)
        self._actors.clear()


# -- the checks, in the order they are made ---------------------------------------------------------------


@dataclass(frozen=True)
class Check:
    name: str
    perform: Callable[[Hands], None]
    needs: frozenset[Capability] = frozenset()
    basic: bool = False  # without it the later ones cannot be made


def installs_twice(hands: Hands) -> None:
    job = hands.enqueue()
    try:
        hands.bench.ask("install", hands.bench.dsn)
    except AdapterBroke as error:
        raise Wrong(
            f"In a database that has the queue, {_first_line(error)}.",
            "Let install() leave what is there alone: create if not exists, or look first.",
        ) from error
    if job not in hands.observe().by_job:
        raise Wrong(
            "install() in a database that has the queue lost its jobs.",
            "Let install() leave what is there alone.",
        )


def observes(hands: Hands) -> None:
    observation = hands.observe()
    now_us = _server_now_us(hands.bench.dsn)
    if not isinstance(observation.at_us, int) or abs(observation.at_us - now_us) > CLOCK_TOLERANCE_US:
        raise Wrong(
            f"the observation's at_us is {observation.at_us!r}, the server's clock says {now_us}.",
            "Give the database's time, read in the same statement, in microseconds since the epoch.",
        )
    if observation.jobs:
        raise Wrong(
            f"observe() shows {len(observation.jobs)} jobs in a queue that was just reset.",
            "Let reset() remove every job, or observe() show only what is there.",
        )


def empty_queue(hands: Hands) -> None:
    claim = hands.try_claim("A")
    if claim is not None:
        raise Wrong(
            f"claim got job {claim.job} from an empty queue.", "Answer None where nothing can be claimed."
        )


def enqueued_job_is_seen(hands: Hands) -> None:
    job = hands.enqueue()
    view = hands.view(job, "after it was enqueued")
    _check_types(view)
    if view.state is not JobState.READY:
        raise Wrong(
            f"a job that was just enqueued is shown as {view.state}.",
            "Show a job that can be claimed now as ready; look at how the state is worked out.",
        )
    if view.payload not in (None, {"checked": True}):
        raise Wrong(
            f"the payload {{'checked': True}} is shown as {view.payload!r}.",
            "Show the payload as it was enqueued, or leave it None.",
        )


def claim_is_seen(hands: Hands) -> None:
    job = hands.enqueue()
    claim = hands.claim("A", job)
    view = hands.view(job, "after it was claimed")
    if view.state is not JobState.LEASED:
        raise Wrong(
            f"a job that was just claimed is shown as {view.state}.",
            "Show it as leased, and commit the claim before answering.",
        )
    if claim.token != view.token:
        raise Wrong(
            f"the claim carries token {claim.token!r}, the rows show {view.token!r}.",
            "Give the same token in both, or None in both.",
        )
    if view.lease_until_us is None and claim.lease_until_us is None:
        raise Wrong(
            "neither the claim nor the observation says until when the lease lasts.",
            "Give lease_until_us in one of them: without it no lease can be made to expire.",
        )


def lease_has_its_length(hands: Hands) -> None:
    job = hands.enqueue()
    claim = hands.claim("A", job)
    observation = hands.observe()
    until_us = observation.by_job[job].lease_until_us or claim.lease_until_us or 0
    length_us = until_us - observation.at_us
    if abs(length_us - int(DEFAULT_TTL_S * 1e6)) > LEASE_TOLERANCE_US:
        raise Wrong(
            f"a lease asked for {DEFAULT_TTL_S:.0f} s ends in {length_us / 1e6:.1f} s by the database's clock.",
            "Give lease_until_us in microseconds of database time, and leases the length asked for.",
        )


def raw_is_json(hands: Hands) -> None:
    claim = hands.claim("A", hands.enqueue())
    try:
        again = json.loads(json.dumps(claim.raw))
    except (TypeError, ValueError) as error:
        raise Wrong(
            f"the claim's raw is not JSON: {error}.",
            "Keep live objects in the adapter, in a table keyed by something in raw.",
        ) from error
    if again != claim.raw:
        raise Wrong(
            f"the claim's raw is {claim.raw!r} and comes back from JSON as {again!r}.",
            "Use lists, not tuples, and text for the keys of dictionaries.",
        )


def live_lease_is_kept(hands: Hands) -> None:
    job = hands.enqueue()
    hands.claim("A", job)
    if Capability.REAPER in hands.capabilities:
        recovered = hands.reap()
        if recovered:
            raise Wrong(
                f"reap recovered {recovered} leases although the only one was live.",
                "Recover only what has expired; look at how long the reaper takes a lease to last.",
            )
    if hands.try_claim("B") is not None:
        raise Wrong(
            "a second worker got the job while the first one's lease was live.",
            "Let claim leave a live lease alone; look at how long it takes a lease to last.",
        )


def completes(hands: Hands) -> None:
    job = hands.enqueue()
    reply = hands.do("A", "complete", hands.claim("A", job))
    if reply.outcome is not Outcome.ACCEPTED:
        raise Wrong(
            f"complete under a live lease was {reply.outcome.value} ({_why(reply)}).",
            "Accept what the lease's holder writes.",
        )
    view = hands.observe().by_job.get(job)
    if view is not None and view.state is not JobState.SUCCEEDED:
        raise Wrong(
            f"a completed job is shown as {view.state}.",
            "Show it as succeeded or, where the row is deleted, not at all; commit before answering.",
        )


def fails(hands: Hands) -> None:
    job = hands.enqueue()
    reply = hands.do("A", "fail", hands.claim("A", job), error="checked")
    if reply.outcome is not Outcome.ACCEPTED:
        raise Wrong(
            f"fail under a live lease was {reply.outcome.value} ({_why(reply)}).",
            "Accept what the lease's holder writes.",
        )
    view = hands.observe().by_job.get(job)
    if view is not None and view.state in (JobState.LEASED, JobState.SUCCEEDED):
        raise Wrong(
            f"a job whose holder reported a failure is shown as {view.state}.",
            "Show it as ready or delayed if it is tried again, as failed if not.",
        )


def expired_lease_is_recovered(hands: Hands) -> None:
    job = hands.enqueue()
    hands.pass_lease(hands.claim("A", job))
    deferred = Capability.DEFERRED_RECLAIM in hands.capabilities
    if deferred:
        if hands.try_claim("B") is not None:
            raise Wrong(
                "a claim took the expired lease although the queue declares DEFERRED_RECLAIM.",
                "Take DEFERRED_RECLAIM out of the capabilities.",
            )
        hands.reap()
    claim = hands.try_claim("B")
    if claim is not None:
        return
    how = hands.bench.lease_time.how
    if how == "clock":
        raise Wrong(
            f"the database's clock has passed the lease, and {'reap and ' if deferred else ''}claim bring nothing.",
            "If a worker's own clock decides, take CLOCK out; if only reap recovers, declare DEFERRED_RECLAIM.",
        )
    raise Wrong(
        f"the lease was made to expire ({how}), and {'reap and ' if deferred else ''}claim bring nothing.",
        "Look at expire() and lease_until_us; if only reap recovers, declare REAPER and DEFERRED_RECLAIM.",
    )


def heartbeat_extends(hands: Hands) -> None:
    job = hands.enqueue()
    claim = hands.claim("A", job)
    if not hands.can_move_the_clock:
        reply = hands.do("A", "heartbeat", claim, ttl_s=DEFAULT_TTL_S)
        if not reply.accepted:
            raise Wrong(
                f"heartbeat under a live lease was refused ({_why(reply)}).", "Accept the holder's heartbeat."
            )
        return
    for _ in range(2):
        hands.bench.lease_time.advance(DEFAULT_TTL_S * 2 / 3)
        reply = hands.do("A", "heartbeat", claim, ttl_s=DEFAULT_TTL_S)
        if not reply.accepted:
            raise Wrong(
                f"heartbeat under a live lease was refused ({_why(reply)}).", "Accept the holder's heartbeat."
            )
    hands.recover()
    if hands.try_claim("B") is not None:
        raise Wrong(
            "a lease that was renewed in time was taken all the same.",
            "Let heartbeat extend the lease in the queue, by the database's clock, and commit.",
        )


def expire_touches_the_lease_alone(hands: Hands) -> None:
    job = hands.enqueue()
    claim = hands.claim("A", job)
    before = hands.view(job, "while it was leased")
    hands.ask("expire", hands.bench.dsn, claim)
    observation = hands.observe()
    after = observation.by_job.get(job)
    if after is None or (before.state, before.token, before.attempts) != (
        after.state,
        after.token,
        after.attempts,
    ):
        raise Wrong(
            "expire() changed more than the lease's end.",
            "Let expire() touch liveness data only: never state, token or attempts.",
        )
    if after.lease_until_us is not None and after.lease_until_us > observation.at_us:
        raise Wrong(
            "after expire() the lease is still live by its rows.",
            "Put the lease's end, or the heartbeat it is counted from, into the past.",
        )


def fencing_is_there(hands: Hands) -> None:
    job = hands.enqueue()
    stale = hands.claim("A", job)
    hands.pass_lease(stale)
    hands.recover()
    fresh = hands.claim("B", job)
    if stale.token is None or fresh.token is None or fresh.token <= stale.token:
        raise Wrong(
            f"the first claim's token is {stale.token!r}, the second's {fresh.token!r}.",
            "Give each claim of a job a higher token, or take FENCING out of the capabilities.",
        )
    reply = hands.do("A", "complete", stale)
    if reply.outcome is not Outcome.REFUSED:
        raise Wrong(
            f"complete under an old token was {reply.outcome.value}.",
            "Answer refused where the token is not the current one, or take FENCING out of the capabilities.",
        )


def ledger_is_there(hands: Hands) -> None:
    job = hands.enqueue()
    hands.do("A", "complete", hands.claim("A", job))
    entries = hands.observe().ledger_of(job)
    if len(entries) != 1 or not isinstance(entries[0], LedgerEntry):
        raise Wrong(
            f"the ledger shows {len(entries)} entries for one completed job.",
            "Show one LedgerEntry for each accepted completion, or take LEDGER out of the capabilities.",
        )


def actors_are_isolated(hands: Hands) -> None:
    for actor in ("A", "B"):
        hands.try_claim(actor)
    sessions = hands.backends()
    for actor in ("A", "B"):
        name = actor_application_name(actor)
        if not sessions.get(name):
            raise Wrong(
                f"the server knows no session with the application_name {name!r}.",
                "Let every worker open its own connection with the DSN it is given, and keep its application_name.",
            )


def workers_close(hands: Hands) -> None:
    hands.try_claim("A")
    hands.close("A")
    name = actor_application_name("A")
    deadline = time.monotonic() + LEAVE_DEADLINE_S
    # A session whose client has gone takes a moment to leave the server's list. Each look takes milliseconds.
    while (left := hands.backends().get(name, set())) and time.monotonic() < deadline:
        pass
    if left:
        hands.bench.end_backends("A")
        raise Wrong(
            f"{len(left)} session(s) of a closed worker are still open.",
            "Let close() end every connection the worker opened.",
        )


def resets(hands: Hands) -> None:
    waiting, leased = hands.enqueue(), hands.enqueue()
    hands.try_claim("A")
    hands.reset()
    left = sorted({waiting, leased} & hands.observe().by_job.keys())
    if left:
        raise Wrong(
            f"after reset() observe() still shows {len(left)} of two jobs.",
            "Let reset() remove waiting, leased and finished jobs, and commit.",
        )
    if hands.try_claim("B") is not None:
        raise Wrong("after reset() a job can still be claimed.", "Let reset() remove every job.")
    job = hands.enqueue()
    hands.claim("B", job)


CHECKS: tuple[Check, ...] = (
    Check("observes", observes, basic=True),
    Check("an empty queue claims nothing", empty_queue, basic=True),
    Check("an enqueued job is seen", enqueued_job_is_seen, basic=True),
    Check("reset resets", resets, basic=True),
    Check("a claim is seen", claim_is_seen, basic=True),
    Check("raw is JSON", raw_is_json),
    Check("a lease has its length", lease_has_its_length),
    Check("installs twice", installs_twice),
    Check("a live lease is kept", live_lease_is_kept),
    Check("complete settles", completes),
    Check("fail settles", fails),
    Check("an expired lease is recovered", expired_lease_is_recovered),
    Check("heartbeat extends", heartbeat_extends, frozenset({Capability.HEARTBEAT})),
    Check("expire touches the lease alone", expire_touches_the_lease_alone, frozenset({Capability.EXPIRE})),
    Check("old tokens are refused", fencing_is_there, frozenset({Capability.FENCING})),
    Check("completions are in the ledger", ledger_is_there, frozenset({Capability.LEDGER})),
    Check("actors are isolated", actors_are_isolated),
    Check("workers close", workers_close),
)


_NUMBERS = ("token", "attempts", "max_attempts", "lease_until_us", "next_run_at_us")
_TEXTS = ("holder", "key", "requeued_from")


def _check_types(view: JobView) -> None:
    if not isinstance(view.state, JobState):
        raise Wrong(f"the state of a job is {_told(view.state)}.", "Give it as a JobState.")
    for names, kind in ((_NUMBERS, int), (_TEXTS, str)):
        for name in names:
            value = getattr(view, name)
            if value is not None and (not isinstance(value, kind) or isinstance(value, bool)):
                raise Wrong(
                    f"{name} of a job is {_told(value)}.", f"Give {name} as {kind.__name__}, or None."
                )


def _server_now_us(dsn: str) -> int:
    with psycopg.connect(dsn, autocommit=True) as connection:
        row = connection.execute(
            "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint"
        ).fetchone()
    assert row is not None
    return int(row[0])


def _told(value: object) -> str:
    text = repr(value)
    if inspect.isawaitable(value):
        return "a coroutine nobody awaited"
    return f"{text[:80]} ({type(value).__name__})"


def _why(reply: Reply) -> str:
    return reply.message or reply.reason or reply.outcome.value


def _first_line(error: Exception) -> str:
    text = str(error).strip()
    return text.splitlines()[0].rstrip(".") if text else "no message"
