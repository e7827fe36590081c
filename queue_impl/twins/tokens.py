"""Twins whose tokens stand still, go back or come round again."""

from __future__ import annotations

from fencepost.queue_impl.reference.client import ReferenceQueue
from fencepost.queue_impl.reference.sql import STATEMENTS

from .adapter import reference_twin


class TokenStandsOnReclaim(ReferenceQueue):
    statements = STATEMENTS.edited(
        "claim",
        "fencing_token = jobs.fencing_token + 1",
        "fencing_token = jobs.fencing_token + CASE WHEN jobs.state = 'leased' THEN 0 ELSE 1 END",
    )


class TokenResetOnRequeue(ReferenceQueue):
    statements = STATEMENTS.edited(
        "requeue_expired", "SET state = 'ready',", "SET state = 'ready', fencing_token = 0,"
    )


class TokenResetOnRetry(ReferenceQueue):
    statements = STATEMENTS.edited(
        "record_failure", "last_error = %(error)s,", "last_error = %(error)s, fencing_token = 0,"
    )


class TokenComesRound(ReferenceQueue):
    statements = STATEMENTS.edited(
        "claim",
        "fencing_token = jobs.fencing_token + 1",
        "fencing_token = jobs.fencing_token %% 9223372036854775807 + 1",
    )


class TokenGrowsByTwo(ReferenceQueue):
    statements = STATEMENTS.edited(
        "claim", "fencing_token = jobs.fencing_token + 1", "fencing_token = jobs.fencing_token + 2"
    )


TWINS = (
    reference_twin(
        "token_not_incremented_on_reclaim",
        "A claim of an expired lease keeps the token, so the old holder and the new one have the same.",
        breaks="token_monotone",
        client=TokenStandsOnReclaim,
    ),
    reference_twin(
        "token_reset_on_requeue",
        "A job the reaper requeues begins again with its tokens.",
        breaks="token_monotone",
        client=TokenResetOnRequeue,
    ),
    reference_twin(
        "token_reset_on_retry",
        "A job that failed begins again with its tokens.",
        breaks="token_monotone",
        client=TokenResetOnRetry,
    ),
    reference_twin(
        "token_comes_round",
        "After the largest token comes the first again.",
        breaks="token_monotone",
        client=TokenComesRound,
    ),
    reference_twin(
        "token_grows_by_two",
        "A claim uses up two tokens.",
        breaks="expectation",
        client=TokenGrowsByTwo,
    ),
)
