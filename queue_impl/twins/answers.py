"""Twins whose answers cannot be trusted after a fault."""

from __future__ import annotations

import psycopg

from fencepost.queue_impl.reference.client import ReferenceQueue
from fencepost.queue_impl.reference.model import Decision, JobToken, Json
from fencepost.queue_impl.reference.sql import REFERENCE_SCHEMA, STATEMENTS, replace_once

from .adapter import reference_twin


class AnswersOnlyOnce(ReferenceQueue):
    statements = STATEMENTS.edited(
        "judge_job",
        "        WHEN state <> 'leased' AND settled_token = %(token)s AND settled_as = %(operation)s THEN 'repeated'\n",
        "",
    )


class ErrorTakenForSuccess(ReferenceQueue):
    def complete(self, claim: JobToken, result: Json = None) -> Decision:
        try:
            return super().complete(claim, result)
        except (psycopg.errors.SerializationFailure, psycopg.errors.DeadlockDetected):
            return Decision(True)


class CancelNotedFirst(ReferenceQueue):
    """Keeps a note of every cancel in a transaction of its own, which comes before the one that cancels."""

    def cancel(self, job_id: int) -> Decision:
        connection = self._session.connection
        noted = connection.execute(
            "SELECT cancel_noted FROM lease_queue.jobs WHERE id = %s", [job_id]
        ).fetchone()
        if noted is not None and noted[0]:
            return Decision(True)
        connection.execute("UPDATE lease_queue.jobs SET cancel_noted = true WHERE id = %s", [job_id])
        return super().cancel(job_id)


WITH_NOTES = replace_once(
    REFERENCE_SCHEMA,
    "    created_at       timestamptz",
    "    cancel_noted     boolean     NOT NULL DEFAULT false,\n    created_at       timestamptz",
)


TWINS = (
    reference_twin(
        "answers_only_once",
        "A write whose answer was lost is refused when its worker asks again, although it has happened.",
        breaks="expectation",
        client=AnswersOnlyOnce,
    ),
    reference_twin(
        "error_taken_for_success",
        "A complete that the server rolled back as a conflict is taken for done.",
        breaks="ledger_once",
        client=ErrorTakenForSuccess,
    ),
    reference_twin(
        "cancel_noted_before_it_happens",
        "A cancel is noted as done before its COMMIT, so after a lost one it is not tried again.",
        breaks="expectation",
        client=CancelNotedFirst,
        schema=WITH_NOTES,
    ),
)
