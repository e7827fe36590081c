"""Twins in which one item of a batch harms the others, or gets another's answer."""

from __future__ import annotations

from collections.abc import Sequence

from fencepost.queue_impl.reference.client import ReferenceQueue
from fencepost.queue_impl.reference.model import Claim, Decision, JobToken, Json
from fencepost.queue_impl.reference.sql import REFERENCE_SCHEMA, STATEMENTS, replace_once

from .adapter import reference_twin


class BatchCompleteStopsAtTheFirstStaleItem(ReferenceQueue):
    def _lock_all(self, job_ids: Sequence[int]) -> set[int]:
        self._stopped = False
        return super()._lock_all(job_ids)

    def _complete_locked(self, claim: JobToken, result: Json) -> Decision:
        if self._stopped:
            return Decision(True)
        decision = super()._complete_locked(claim, result)
        self._stopped = not decision.accepted
        return decision


class BatchCompleteWritesADuplicateTwice(ReferenceQueue):
    def _complete_locked(self, claim: JobToken, result: Json) -> Decision:
        decision = super()._complete_locked(claim, result)
        if decision.repeated:
            self._record_success(self._write_parameters(claim) | {"result": None})
        return decision


class BatchCompleteAnswersWithoutTheUnknown(ReferenceQueue):
    def complete_batch(
        self, claims: Sequence[JobToken], results: Sequence[Json] | None = None
    ) -> list[Decision]:
        decisions = super().complete_batch(claims, results)
        return [decision for decision in decisions if decision.reason != "unknown_job"]


class BatchCompleteWithoutRowLocks(ReferenceQueue):
    statements = STATEMENTS.edited("lock_jobs", "FOR UPDATE", "")


class BatchClaimTakesMoreThanItGives(ReferenceQueue):
    def claim_batch(self, ttl_s: float, limit: int) -> list[Claim]:
        return super().claim_batch(ttl_s, limit if limit == 1 else limit + 1)[:limit]


class BatchCompleteOverwritesWhatHasEnded(ReferenceQueue):
    def _complete_locked(self, claim: JobToken, result: Json) -> Decision:
        decision = super()._complete_locked(claim, result)
        if decision.reason == "terminal":
            self._record_success(self._write_parameters(claim) | {"result": None})
            return Decision(True)
        return decision


class BatchClaimIgnoresNextRunAt(ReferenceQueue):
    statements = STATEMENTS.edited(
        "claim",
        "AND claimable_at <= (SELECT clock_timestamp())",
        "AND (claimable_at <= (SELECT clock_timestamp()) OR (state = 'ready' AND %(limit)s > 1))",
    )


TWINS = (
    reference_twin(
        "batch_complete_stops_at_the_first_stale_item",
        "A batch complete stops at the first item that is refused and answers as if it had done the rest.",
        breaks="ledger_once",
        client=BatchCompleteStopsAtTheFirstStaleItem,
    ),
    reference_twin(
        "batch_complete_writes_a_duplicate_twice",
        "A job that stands in a batch twice is entered in the ledger twice, and the ledger lets it happen.",
        breaks="ledger_unique",
        client=BatchCompleteWritesADuplicateTwice,
        schema=replace_once(
            REFERENCE_SCHEMA, "CONSTRAINT ledger_once_per_token UNIQUE (job_id, fencing_token),", ""
        ),
    ),
    reference_twin(
        "batch_complete_answers_without_the_unknown",
        "A batch complete has no answer for a job that is not there, so every later item gets the next one's.",
        breaks="fence",
        client=BatchCompleteAnswersWithoutTheUnknown,
    ),
    reference_twin(
        "batch_complete_without_row_locks",
        "A batch complete does not lock its rows, so a job can be cancelled between judgement and write.",
        breaks="terminal_absorbing",
        client=BatchCompleteWithoutRowLocks,
    ),
    reference_twin(
        "batch_claim_takes_more_than_it_gives",
        "A batch claim leases one job more than it hands out: nobody works on it until its lease expires.",
        breaks="expectation",
        client=BatchClaimTakesMoreThanItGives,
    ),
    reference_twin(
        "batch_complete_overwrites_what_has_ended",
        "A batch complete counts for a job that was cancelled or has failed meanwhile.",
        breaks="terminal_absorbing",
        client=BatchCompleteOverwritesWhatHasEnded,
    ),
    reference_twin(
        "batch_claim_ignores_next_run_at",
        "A batch claim takes waiting jobs before their time.",
        breaks="not_before",
        client=BatchClaimIgnoresNextRunAt,
    ),
)
