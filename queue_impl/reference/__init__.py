"""A lease-based job queue on PostgreSQL: leases, fencing tokens and a ledger that PostgreSQL alone decides.

It works without the harness; `adapter.py`, which is not imported here, is what connects the two.
"""

from .checkpoints import CHECKPOINTS, Checkpoint, no_checkpoint
from .client import ReferenceQueue
from .errors import IdempotencyConflict, QueueError, RequeueRefused, TokenExhausted
from .model import MAX_BATCH, Claim, DeadLetter, Decision, JobToken, Judgement, ReapedJob, Settings
from .sql import REFERENCE_SCHEMA, STATEMENTS, SqlError, Statements, replace_once
from .worker import Lease, Worker

__all__ = [
    "CHECKPOINTS",
    "MAX_BATCH",
    "REFERENCE_SCHEMA",
    "STATEMENTS",
    "Checkpoint",
    "Claim",
    "DeadLetter",
    "Decision",
    "IdempotencyConflict",
    "JobToken",
    "Judgement",
    "Lease",
    "QueueError",
    "ReapedJob",
    "ReferenceQueue",
    "RequeueRefused",
    "Settings",
    "SqlError",
    "Statements",
    "TokenExhausted",
    "Worker",
    "no_checkpoint",
    "replace_once",
]
