"""What a check does with the adapter. Everything that can go wrong on the way is already a finding."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields
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
    Observation,
)
from fencepost.harness.adapter_check.findings import Wrong, first_line, told, why
from fencepost.harness.bench import AdapterBroke, Bench
from fencepost.harness.errors import FencepostError
from fencepost.harness.history import Reply
from fencepost.harness.race import DEFAULT_TTL_S

ANSWER_DEADLINE_S = 20.0
PAYLOAD = {"checked": True}


class Hands:
    """One check's own: its actors are opened when they are first needed, and closed when it is over."""

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
                f"{first_line(error)}.",
                f"Let {method}() work at any time after install().",
            ) from error

    def reset(self) -> None:
        self.ask("reset", self.bench.dsn)

    def observe(self) -> Observation:
        observation = self.ask("observe", self.bench.dsn)
        if not isinstance(observation, Observation):
            raise Wrong(
                f"observe() returned {told(observation)}.", "Return an Observation from harness.adapter."
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
        self.begin(actor, operation, *claims, **arguments)
        reply = self.answer(actor, operation, ANSWER_DEADLINE_S)
        if reply is None:
            self._abandon(actor)
            raise Wrong(
                f"{operation} has not answered within {ANSWER_DEADLINE_S:.0f} s.",
                "Let every operation answer at once; a claim that finds nothing answers None.",
            )
        return reply

    def begin(self, actor: str, operation: str, *claims: Claim, **arguments: Any) -> None:
        """Let it go, and do not wait: `answer` does."""
        if actor not in self._actors:
            self._actors[actor] = self._open(actor)
        self._actors[actor].take_passed()
        self._actors[actor].submit(Request(operation, arguments, claims))

    def answer(self, actor: str, operation: str, timeout_s: float) -> Reply | None:
        try:
            return self._actors[actor].poll(timeout_s)
        except ActorFailed as error:
            told_by = str(error).partition(": ")[2] or str(error)
            raise Wrong(
                f"{told_by}.",
                f"Give back from {operation} what the contract names, and raise no programming error.",
            ) from error

    def finish(self, actor: str, operation: str) -> None:
        """Wait for what was let go; one that does not come to an end is given up with its backends."""
        try:
            if self.answer(actor, operation, ANSWER_DEADLINE_S) is None:
                self._abandon(actor)
        except Wrong:
            pass  # the check has its finding, or another check will

    def passed(self, actor: str) -> list[str]:
        """The checkpoints its last operation came by."""
        return self._actors[actor].take_passed()

    def _open(self, actor: str) -> Actor:
        try:
            return self.bench.open_actor(actor)
        except ActorFailed as error:
            raise Wrong(
                f"{error}.", "Let worker() open its own connection with the DSN it is given."
            ) from error

    def enqueue(self, **options: Any) -> JobId:
        reply = self.do("P", "enqueue", **{"payload": PAYLOAD, **options})
        if reply.job is None:
            given = f" with {', '.join(sorted(options))}" if options else ""
            raise Wrong(
                f"enqueue{given} was refused ({why(reply)}).",
                f"Take {', '.join(sorted(options))}."
                if options
                else "Take a plain job without key, delay or priority.",
            )
        return reply.job

    def try_claim(self, actor: str, ttl_s: float = DEFAULT_TTL_S) -> Claim | None:
        reply = self.do(actor, "claim", ttl_s=ttl_s)
        if not reply.accepted:
            raise Wrong(
                f"claim was refused ({why(reply)}).",
                f"Take a ttl_s of {ttl_s:.0f}, and answer None where there is nothing to claim.",
            )
        return reply.claims[0] if reply.claims else None

    def claim(self, actor: str, job: JobId, ttl_s: float = DEFAULT_TTL_S) -> Claim:
        claim = self.try_claim(actor, ttl_s)
        if claim is None:
            raise Wrong(
                f"claim found nothing although job {job} can be claimed.",
                "Let claim take any job that is due.",
            )
        if claim.job != job:
            raise Wrong(
                f"enqueue called the job {job!r}, claim calls it {claim.job!r}.",
                "Use one text form of the job's id everywhere.",
            )
        return claim

    def reap(self) -> int:
        return self.accepted("R", "reap").count or 0

    def accepted(self, actor: str, operation: str, *claims: Claim, **arguments: Any) -> Reply:
        """What a lease's holder, or anybody, may do."""
        reply = self.do(actor, operation, *claims, **arguments)
        if not reply.accepted:
            whose = " under a live lease" if claims else ""
            raise Wrong(
                f"{operation}{whose} was {reply.outcome.value} ({why(reply)}).",
                "Accept what the lease's holder writes." if claims else f"Let {operation} do it.",
            )
        return reply

    def recover(self) -> None:
        if Capability.DEFERRED_RECLAIM in self.capabilities:
            self.reap()

    def lose(self, actor: str, job: JobId) -> Claim:
        """Claim it and let the lease expire."""
        claim = self.claim(actor, job)
        self.pass_lease(claim)
        return claim

    def make_due(self, job: JobId) -> bool:
        """Let a wait before a retry pass. Whether the job is due now, as far as rows say."""
        observation = self.observe()
        view = observation.by_job.get(job)
        if view is None or view.state not in (JobState.READY, JobState.DELAYED):
            return False
        due_us = view.next_run_at_us or observation.at_us
        if due_us <= observation.at_us:
            return view.state is JobState.READY
        if self.can_move_the_clock:
            self.bench.lease_time.advance_to(due_us)
        return self.can_move_the_clock

    def unchanged(self, before: Iterable[JobView], by: str) -> None:
        after = self.observe().by_job
        for view in before:
            now = after.get(view.job)
            if now != view:
                raise Wrong(
                    f"{by} changed another job as well, job {view.job}: {_difference(view, now)}.",
                    "Let every write name the one job it is about.",
                )

    # -- the server ---------------------------------------------------------------------------------------

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


def _difference(was: JobView, now: JobView | None) -> str:
    if now is None:
        return "it is gone"
    if was.state is not now.state:
        return f"it was {was.state} and is {now.state}"
    names = [field.name for field in fields(was) if getattr(was, field.name) != getattr(now, field.name)]
    return f"its {', '.join(names)} changed"
