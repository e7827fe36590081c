"""Twins whose answers cannot be trusted after a fault."""

from __future__ import annotations

import psycopg

from fencepost.queue_impl.reference.client import ReferenceQueue
from fencepost.queue_impl.reference.model import Decision, JobToken, Json
from fencepost.queue_impl.reference.sql import STATEMENTS

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
)
