"""Twins that submit one key twice, or take two keys for one."""

from __future__ import annotations

from fencepost.queue_impl.reference.client import ReferenceQueue, WriteParameters
from fencepost.queue_impl.reference.sql import REFERENCE_SCHEMA, STATEMENTS, Statements, replace_once

from .adapter import reference_twin

ON_CONFLICT = "ON CONFLICT (idempotency_key) WHERE idempotency_key IS NOT NULL DO NOTHING"
KEY_INDEX = "ON lease_queue.jobs (idempotency_key) WHERE idempotency_key IS NOT NULL"

WITHOUT_UNIQUE_KEY = replace_once(REFERENCE_SCHEMA, "UNIQUE INDEX jobs_idempotency", "INDEX jobs_idempotency")
CHECK_THEN_INSERT = STATEMENTS.edited("insert_job", ON_CONFLICT, "")


def unique_only_while(state: str) -> tuple[str, Statements]:
    """Schema and statements of a queue in which a key is looked for among the jobs in these states alone."""
    schema = replace_once(REFERENCE_SCHEMA, KEY_INDEX, f"{KEY_INDEX} AND {state}")
    statements = STATEMENTS.edited(
        "insert_job", "idempotency_key IS NOT NULL", f"idempotency_key IS NOT NULL AND {state}"
    ).edited("find_by_key", "idempotency_key = %(key)s", f"idempotency_key = %(key)s AND {state}")
    return schema, statements


UNIQUE_WHILE_READY, LOOKED_UP_WHILE_READY = unique_only_while("state = 'ready'")
UNIQUE_WHILE_LIVE, LOOKED_UP_WHILE_LIVE = unique_only_while("state IN ('ready', 'leased')")


class KeyByCheckThenInsert(ReferenceQueue):
    statements = CHECK_THEN_INSERT


class KeyCheckedInTheInsert(ReferenceQueue):
    """Sees what is committed when the statement begins, so not what another producer is about to commit."""

    statements = CHECK_THEN_INSERT.edited("insert_job", "VALUES (", "SELECT").edited(
        "insert_job", "%(key)s\n)", f"%(key)s WHERE NOT EXISTS ({STATEMENTS['find_by_key']})"
    )


class KeyForgottenWhenClaimed(ReferenceQueue):
    statements = LOOKED_UP_WHILE_READY


class KeyForgottenWhenFinished(ReferenceQueue):
    statements = LOOKED_UP_WHILE_LIVE


class OtherPayloadAccepted(ReferenceQueue):
    statements = STATEMENTS.edited("find_by_key", "payload = %(payload)s::jsonb", "true")


class OtherPayloadAcceptedFromTheSlower(ReferenceQueue):
    """Compares at the first look-up; whoever loses the insert to another producer takes what is there."""

    statements = STATEMENTS.edited(
        "insert_job", "DO NOTHING", "DO UPDATE SET idempotency_key = EXCLUDED.idempotency_key"
    )


class KeyComparedAsPattern(ReferenceQueue):
    statements = STATEMENTS.edited("find_by_key", "idempotency_key =", "idempotency_key LIKE")


class KeyComparedWithoutCase(ReferenceQueue):
    statements = STATEMENTS.edited(
        "find_by_key", "idempotency_key = %(key)s", "lower(idempotency_key) = lower(%(key)s)"
    )


class KeyCutShort(ReferenceQueue):
    def _find_or_insert(self, key: str, job: WriteParameters) -> int:
        return super()._find_or_insert(key[:7], job | {"key": key[:7]})


TWINS = (
    reference_twin(
        "key_by_check_then_insert",
        "A key is looked up and then inserted, and nothing keeps two producers from doing so at once.",
        breaks="idempotent_submit",
        client=KeyByCheckThenInsert,
        schema=WITHOUT_UNIQUE_KEY,
        stands_for="owncloud/core#25322",
    ),
    reference_twin(
        "key_checked_in_the_insert",
        "The insert itself looks whether the key is there, and does not see what is not committed yet.",
        breaks="idempotent_submit",
        client=KeyCheckedInTheInsert,
        schema=WITHOUT_UNIQUE_KEY,
    ),
    reference_twin(
        "key_forgotten_when_claimed",
        "A key counts only while its job waits: submitted again during the work, it makes a second job.",
        breaks="idempotent_submit",
        client=KeyForgottenWhenClaimed,
        schema=UNIQUE_WHILE_READY,
    ),
    reference_twin(
        "key_forgotten_when_finished",
        "A key counts only until its job has ended: submitted again, it makes a second job.",
        breaks="idempotent_submit",
        client=KeyForgottenWhenFinished,
        schema=UNIQUE_WHILE_LIVE,
    ),
    reference_twin(
        "other_payload_accepted",
        "A key submitted with another payload is answered with the job there is.",
        breaks="idempotent_submit",
        client=OtherPayloadAccepted,
    ),
    reference_twin(
        "other_payload_accepted_from_the_slower",
        "The payload is compared at the look-up, and not where another producer was faster to insert.",
        breaks="idempotent_submit",
        client=OtherPayloadAcceptedFromTheSlower,
    ),
    reference_twin(
        "key_compared_as_pattern",
        "A key is looked up with LIKE, so an underscore in it finds another key's job.",
        breaks="idempotent_submit",
        client=KeyComparedAsPattern,
    ),
    reference_twin(
        "key_compared_without_case",
        "A key is looked up without regard to case.",
        breaks="idempotent_submit",
        client=KeyComparedWithoutCase,
    ),
    reference_twin(
        "key_cut_short",
        "A key is kept up to a certain length, and what comes after does not count.",
        breaks="idempotent_submit",
        client=KeyCutShort,
    ),
)
