"""Actors without a runner: what is asked of them, where they are held, and which of their processes are there."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import psycopg

from fencepost.harness.actors.base import Actor
from fencepost.harness.actors.messages import Request
from fencepost.harness.actors.process import ProcessActor
from fencepost.harness.adapter import Claim, JobView, Json
from fencepost.harness.bench import Bench
from fencepost.harness.history import Reply
from fencepost.tests.fix_commands import children_of, eventually

ANSWER_DEADLINE_S = 60.0
TTL_S = 60.0


def actor_processes() -> set[int]:
    """The processes of actors that this process has started and not ended."""
    return {pid for pid, command in children_of(os.getpid()).items() if "process_main" in command}


@dataclass
class Stage:
    """One bench, emptied, and the actors a test opens on it."""

    bench: Bench
    actors: list[Actor] = field(default_factory=list)

    def process(self, name: str, **seating: Any) -> ProcessActor:
        actor = self.open(name, kind="process", **seating)
        assert isinstance(actor, ProcessActor)
        return actor

    def open(self, name: str, **seating: Any) -> Actor:
        self.actors.append(self.bench.open_actor(name, **seating))
        return self.actors[-1]

    def ask(self, actor: Actor, operation: str, *claims: Claim, **arguments: Json) -> Reply:
        actor.submit(Request(operation, arguments, claims))
        return self.answer(actor)

    def answer(self, actor: Actor) -> Reply:
        reply = actor.poll(ANSWER_DEADLINE_S)
        assert reply is not None, f"no answer within {ANSWER_DEADLINE_S:g} s"
        return reply

    def claim(self, actor: Actor) -> Claim:
        (claim,) = self.ask(actor, "claim", ttl_s=TTL_S).claims
        return claim

    def hold(self, actor: Actor, checkpoint: str, operation: str, *claims: Claim, **arguments: Json) -> int:
        """Let it go up to the checkpoint; the key of the barrier it stands at."""
        key = self.bench._control.raise_barrier()
        actor.submit(Request(operation, arguments, claims, {checkpoint: key}))
        eventually(lambda: self.bench._control.is_parked(key), f"{operation} held at {checkpoint}")
        return key

    def open_barrier(self, key: int) -> None:
        self.bench._control.open_barrier(key)

    def view(self, job: str) -> JobView:
        view: JobView = self.bench.ask("observe", self.bench.dsn).by_job[job]
        return view

    def sessions(self, name: str) -> list[tuple[Any, ...]]:
        """What each session of an actor did last: the same again, if nothing came from it meanwhile."""
        with psycopg.connect(self.bench.dsn, autocommit=True) as looking:
            return looking.execute(
                "SELECT pid, backend_start, query_start, state_change, query FROM pg_stat_activity"
                " WHERE application_name = %s ORDER BY pid",
                (f"fencepost:{name}",),
            ).fetchall()

    def wait_until_left(self, name: str) -> None:
        """A server finds out by itself that a client is dead."""
        eventually(lambda: not self.sessions(name), f"the sessions of {name} gone")


@contextmanager
def stage_on(bench: Bench) -> Iterator[Stage]:
    bench.ask("reset", bench.dsn)
    stage = Stage(bench)
    try:
        yield stage
    finally:
        bench._control.open_all_barriers()
        for actor in stage.actors:
            actor.abandon()
