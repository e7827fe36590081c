"""From the runner's history to the lines of a trace."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fencepost.harness.actors.messages import claim_to_json, reply_to_json
from fencepost.harness.adapter import JobView, LedgerEntry, Observation
from fencepost.harness.history import Execution, Lock, Statement, Step, Violation

_JOB_FIELDS = (
    "token",
    "attempts",
    "max_attempts",
    "holder",
    "lease_until_us",
    "next_run_at_us",
    "key",
    "payload",
    "result",
    "requeued_from",
)


def observation_to_json(observation: Observation) -> dict[str, Any]:
    return {
        "at_us": observation.at_us,
        "jobs": [_job_to_json(view) for view in observation.jobs],
        "ledger": [_entry_to_json(entry) for entry in observation.ledger],
    }


def _job_to_json(view: JobView) -> dict[str, Any]:
    data: dict[str, Any] = {"job": view.job, "state": view.state.value}
    for name in _JOB_FIELDS:
        value = getattr(view, name)
        if value is not None:
            data[name] = value
    if view.places is not None:
        data["places"] = sorted(place.value for place in view.places)
    return data


def _entry_to_json(entry: LedgerEntry) -> dict[str, Any]:
    return {"job": entry.job, "token": entry.token, "worker": entry.worker}


def step_to_json(
    step: Step, *, drain: bool, exercised: Sequence[str], violated: Sequence[Violation]
) -> dict[str, Any]:
    data: dict[str, Any] = {"n": step.number, "kind": step.kind.value}
    if step.actor is not None:
        data["actor"] = step.actor
    if step.call is not None:
        call = step.call
        data |= {
            "call": call.number,
            "operation": call.operation,
            "arguments": dict(call.arguments),
            "claims": [claim_to_json(claim) for claim in call.claims],
            "started": call.started_step == step.number,
            "status": step.status.value if step.status else None,
        }
        if call.faults and call.started_step == step.number:
            data["statement_faults"] = list(call.faults)
        if call.worker_name != call.actor:
            data["worker_name"] = call.worker_name
        if step.checkpoint is not None:
            data["checkpoint"] = step.checkpoint
        if step.blocked_by:
            data["blocked_by"] = list(step.blocked_by)
        if step.reply is not None:
            data["passed"] = list(call.passed)
            data["reply"] = reply_to_json(step.reply)
    if step.statements:
        data["statements"] = [_statement_to_json(statement) for statement in step.statements]
    if step.locks:
        data["locks"] = [_lock_to_json(lock) for lock in step.locks]
    if step.clock is not None:
        data["clock"] = {"how": step.clock.how, "moved_s": round(step.clock.seconds, 6)}
    if step.fault is not None:
        data["fault"] = step.fault
    if step.detail:
        data["detail"] = dict(step.detail)
    if step.line is not None:
        data["line"] = step.line
    if drain:
        data["drain"] = True
    data["exercised"] = list(exercised)
    if violated:
        data["violated"] = [violation.invariant for violation in violated]
    data["after"] = observation_to_json(step.after)
    return data


def _statement_to_json(statement: Statement) -> dict[str, Any]:
    return {
        "n": statement.number,
        "sql": statement.sql,
        "parameters": list(statement.parameters),
        "answer": statement.answer,
        "pid": statement.pid,
    }


def _lock_to_json(lock: Lock) -> dict[str, Any]:
    data: dict[str, Any] = {
        "actor": lock.actor,
        "type": lock.kind,
        "mode": lock.mode,
        "granted": lock.granted,
    }
    if lock.relation is not None:
        data["relation"] = lock.relation
    return data


def violation_to_json(violation: Violation) -> dict[str, Any]:
    return {
        "invariant": violation.invariant,
        "job": violation.job,
        "step": violation.step,
        "message": violation.message,
    }


def execution_to_json(execution: Execution) -> dict[str, Any]:
    return {
        "seq": execution.seq,
        "actor": execution.actor,
        "job": execution.job,
        "token": execution.token,
    }
