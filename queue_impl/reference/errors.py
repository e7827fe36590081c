"""What the queue raises. A refused write by a worker is an answer (`Decision`) and never an exception."""

from __future__ import annotations


class QueueError(Exception):
    """The base of all of them."""


class IdempotencyConflict(QueueError):
    """The idempotency key belongs to a job with another payload."""

    def __init__(self, key: str, job_id: int) -> None:
        super().__init__(f"the idempotency key {key!r} belongs to job {job_id}, which has another payload")
        self.key = key
        self.job_id = job_id


class TokenExhausted(QueueError):
    """The next job's fencing token is at BIGINT's maximum. Nothing was claimed and nothing changed."""

    def __init__(self) -> None:
        super().__init__(
            "a claimable job has the largest fencing token there is (9223372036854775807) and cannot be "
            "claimed again; find it by that token in lease_queue.jobs and cancel it"
        )


class RequeueRefused(QueueError):
    """Only a dead letter (a job in state `failed`) can be requeued."""

    def __init__(self, job_id: int, state: str | None) -> None:
        found = "does not exist" if state is None else f"is {state}"
        super().__init__(f"job {job_id} {found}; only a failed job can be requeued")
        self.job_id = job_id
        self.reason = "unknown_job" if state is None else "not_failed"
