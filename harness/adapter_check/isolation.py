"""Every worker has connections of its own: by name, by backend, while another's is busy, and after another's ended."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
from psycopg import sql

from fencepost.harness.adapter_check.findings import NotMade, Wrong, why
from fencepost.harness.adapter_check.hands import Hands
from fencepost.harness.errors import FencepostError
from fencepost.harness.history import Reply
from fencepost.harness.race import DEFAULT_TTL_S
from fencepost.harness.watch import actor_application_name

LEAVE_DEADLINE_S = 2.0
REACH_DEADLINE_S = 5.0
"""For an operation that was let go to be seen at work in the server, or to answer."""
LOOK_S = 0.002

OWN_CONNECTION = "Let every worker open its own connection with the DSN it is given, in worker()"

_SESSIONS = """
SELECT application_name, pid, query_start::text, wait_event_type = 'Lock' FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid()
"""

_TABLES = """
SELECT n.nspname, c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind IN ('r', 'p') AND n.nspname !~ '^pg_' AND n.nspname <> 'information_schema'
"""


def actors_are_isolated(hands: Hands) -> None:
    try:
        hands.try_claim("A")
    except (Wrong, FencepostError) as error:
        raise NotMade("A alone cannot claim as it should: see the checks below") from error
    with _watching(hands) as watch:
        _each_has_its_backend(hands, watch)
        _each_can_act_while_another_waits(hands, watch)
        _each_survives_the_other(hands, watch)


class _Watch:
    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self._connection = connection

    def sessions(self, actor: str) -> dict[int, tuple[str | None, bool]]:
        """An actor's backends: when each began its last statement, and whether it waits for a lock."""
        rows = self._connection.execute(_SESSIONS).fetchall()
        name = actor_application_name(actor)
        return {pid: (start, bool(waits)) for named, pid, start, waits in rows if named == name}

    def tables(self) -> list[tuple[str, str]]:
        return self._connection.execute(_TABLES).fetchall()


@contextmanager
def _watching(hands: Hands) -> Iterator[_Watch]:
    with psycopg.connect(hands.bench.dsn, autocommit=True) as connection:
        yield _Watch(connection)


def _each_has_its_backend(hands: Hands, watch: _Watch) -> None:
    """At the moment it has acted: a session may be given another name for the next actor."""
    seen: dict[str, set[int]] = {}
    for actor in ("A", "B"):
        _claims(hands, actor)  # it may connect only now
        before = watch.sessions(actor)
        _claims(hands, actor)
        after = watch.sessions(actor)
        name = actor_application_name(actor)
        if not after:
            raise Wrong(
                f"the server knows no session with the application_name {name!r}.",
                f"{OWN_CONNECTION}, and keep its application_name.",
            )
        if all(pid in before and before[pid][0] == start for pid, (start, _) in after.items()):
            raise Wrong(
                f"{actor}'s claim passed none of the sessions with the application_name {name!r}.",
                f"{OWN_CONNECTION}, keep its application_name, and let every operation use it.",
            )
        seen[actor] = set(after)
    if shared := seen["A"] & seen["B"]:
        raise Wrong(
            f"A and B are served by one backend (pid {', '.join(map(str, sorted(shared)))}).",
            f"{OWN_CONNECTION}: no connection is shared, also not a module's or a class's.",
        )


def _each_can_act_while_another_waits(hands: Hands, watch: _Watch) -> None:
    """With its tables locked every operation of a queue waits in the server: two of them, in two backends."""
    tables = watch.tables()
    if not tables:
        return
    with psycopg.connect(hands.bench.dsn) as holder:
        names = sql.SQL(", ").join(sql.Identifier(*table) for table in tables)
        holder.execute(sql.SQL("LOCK TABLE {} IN ACCESS EXCLUSIVE MODE").format(names))
        answers: dict[str, Reply | None] = {}
        try:
            for actor in ("A", "B"):
                hands.begin(actor, "claim", ttl_s=DEFAULT_TTL_S)
                answers[actor] = None
                if _until(lambda: _is_at_work(hands, watch, actor, answers)):  # noqa: B023 - called here
                    continue
                if actor == "A":
                    return  # it stands still in another way: what holds it would hold B, too
                raise Wrong(
                    "while A's claim waited for a lock in the server, B's did not get there.",
                    f"{OWN_CONNECTION}, and hold no lock of the program's own over an operation.",
                )
        finally:
            holder.rollback()
            for actor, reply in answers.items():
                if reply is None:
                    hands.finish(actor, "claim")


def _is_at_work(hands: Hands, watch: _Watch, actor: str, answers: dict[str, Reply | None]) -> bool:
    answers[actor] = hands.answer(actor, "claim", LOOK_S)
    return answers[actor] is not None or any(waits for _, waits in watch.sessions(actor).values())


def _each_survives_the_other(hands: Hands, watch: _Watch) -> None:
    hands.bench.end_backends("A")
    if not _until(lambda: not watch.sessions("A")):
        return  # the server takes its time; nothing was seen
    reply = hands.do("B", "claim", ttl_s=DEFAULT_TTL_S)
    if not reply.accepted:
        raise Wrong(
            f"A's session was ended by the server, and B's claim was {reply.outcome.value} ({why(reply)}).",
            f"{OWN_CONNECTION}: no connection is shared, also not a module's or a class's.",
        )


def _claims(hands: Hands, actor: str) -> None:
    try:
        hands.try_claim(actor)
    except Wrong as found:
        raise Wrong(
            f"beside another worker: {found.wrong}", f"{OWN_CONNECTION}: nothing of a worker is shared."
        ) from found


def _until(seen: Callable[[], bool]) -> bool:
    """Each look takes milliseconds."""
    deadline = time.monotonic() + REACH_DEADLINE_S
    while not seen():
        if time.monotonic() > deadline:
            return False
    return True


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
