"""Twins whose ledger and jobs can disagree."""

from __future__ import annotations

from fencepost.queue_impl.reference.client import ReferenceQueue, WriteParameters
from fencepost.queue_impl.reference.sql import REFERENCE_SCHEMA, replace_once

from .adapter import reference_twin
from .guards import WITHOUT_FOREIGN_KEY

WITHOUT_UNIQUE = replace_once(
    REFERENCE_SCHEMA, "    CONSTRAINT ledger_once_per_token UNIQUE (job_id, fencing_token),\n", ""
)


class LedgerBeforeStateChange(ReferenceQueue):
    def _record_success(self, write: WriteParameters) -> None:
        self._checkpoint("before_ledger")
        self._session.run("insert_ledger", write)
        self._session.commit()
        self._session.begin()
        self._checkpoint("after_ledger")
        self._session.run("mark_succeeded", write)


TWINS = (
    reference_twin(
        "ledger_before_state_change",
        "The ledger entry is committed before the change of state.",
        breaks="ledger_once",
        client=LedgerBeforeStateChange,
    ),
    reference_twin(
        "ledger_without_foreign_key",
        "The second protection is lost: the guard still stands, and nothing but it refuses a stale token.",
        breaks="fence",
        schema=WITHOUT_FOREIGN_KEY,
    ),
    reference_twin(
        "ledger_without_unique",
        "The second protection is lost: the guard still stands, and nothing but it refuses a second entry.",
        breaks="ledger_unique",
        schema=WITHOUT_UNIQUE,
    ),
)
