"""What the page of one run shows, as data: built from a trace and from nothing else.

`run_model` interprets; the page's script only places and draws. Rows travel as changes (`jobs`, `ledger_added`, …),
so that a long run with many jobs stays small.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fencepost.harness.trace import Trace
from fencepost.reports import words
from fencepost.reports.calls import CallSpan, actors_of, arrows, call_spans, role
from fencepost.reports.leases import Lease, leases
from fencepost.reports.rows import FIELDS, change_words, job_changes, ledger_change
from fencepost.reports.timeline import Timeline
from fencepost.reports.verdict_words import headline, lateness, opening_step

Json = dict[str, Any]

HOW_TIME_MOVED = {
    "clock": "by moving the server's clock",
    "expire": "by rewriting the lease",
    "wait": "by really waiting",
}


def run_model(trace: Trace) -> Json:
    header, end = trace.header, trace.end
    timeline = Timeline(header["first_observation"], trace.steps)
    names = list(end["invariants"])
    spans = call_spans(trace.steps)
    found = leases(header["first_observation"], trace.steps, timeline)
    return {
        "name": header["scenario"]["name"],
        "family": header["scenario"].get("family"),
        "sentence": header["scenario"]["sentence"],
        "source": header["scenario"].get("source"),
        "queue": header["queue"]["name"],
        "verdict": end["verdict"],
        "headline": headline(trace),
        "reasons": list(end["reasons"]),
        "facts": facts(trace),
        "replay": replay_command(header),
        "schedule": header.get("schedule"),
        "opens_at": opening_step(trace),
        "actors": [{"name": name, "role": role(name, trace.steps)} for name in actors_of(trace.steps)],
        "fields": list(FIELDS),
        "first": _first_rows(header["first_observation"], timeline),
        "steps": _steps(trace, timeline, names),
        "calls": [_call(span) for span in spans],
        "arrows": [[a.step, a.holder, a.blocked, a.freed_step] for a in arrows(spans)],
        "leases": [_lease_bar(lease, timeline) for lease in found],
        "beliefs": beliefs(trace.steps, found, timeline),
        "invariants": [
            {"name": name, "evaluated": count["evaluated"], "exercised": count["exercised"]}
            for name, count in end["invariants"].items()
        ],
        "violations": [dict(violation) for violation in end["violations"]],
        "witnesses": [dict(witness) for witness in end["witnesses"]],
        "journal": [dict(entry) for entry in end["journal"]],
    }


def beliefs(
    steps: Sequence[Mapping[str, Any]], found: Sequence[Lease], timeline: Timeline
) -> list[list[Any]]:
    """[actor, token, claimed in step, last write started in step, moment it was lost or None], one per claim.

    From its claim to its last write under it an actor takes the job for its own, whatever the rows say by then.
    """
    lost_us = {(lease.job, lease.token, lease.holder): lease.lost_us for lease in found}
    open_claims: dict[tuple[Any, ...], list[Any]] = {}
    told = []
    for step in steps:
        actor = step.get("actor")
        for claim in step.get("claims", ()):
            belief = open_claims.get((actor, claim["job"], claim.get("token")))
            if belief is not None and step.get("started"):
                belief[3] = step["n"]
        for claim in step.get("reply", {}).get("claims", ()):
            name = step.get("worker_name", actor)
            lost = lost_us.get((claim["job"], claim.get("token"), name))
            belief = [actor, claim.get("token"), step["n"], step["n"], lost]
            open_claims[actor, claim["job"], claim.get("token")] = belief
            told.append(belief)
    return [belief for belief in told if belief[3] > belief[2]]


def facts(trace: Trace) -> list[tuple[str, str]]:
    """The head's small print, by name. What a trace does not say is left out."""
    header, end = trace.header, trace.end
    server = header["server"]
    told = [
        ("queue", f"{header['queue']['name']} ({header['queue']['path']})"),
        ("PostgreSQL", f"{server['version']} ({server['provider']})"),
        ("leases expire", HOW_TIME_MOVED.get(header["clock"], str(header["clock"]))),
        ("actors", {"thread": "threads", "process": "processes"}.get(header["actors"], header["actors"])),
    ]
    if "network" in header:
        told.append(("network", str(header["network"])))
    if "step" in header:
        told.append(("one step is", f"one {header['step']}"))
    if "seed" in header:
        told.append(("seed", str(header["seed"])))
    if "class" in end:
        told.append(("the late write was", str(end["class"])))
    if header["scenario"].get("part") == "control":
        told.append(("part", "control run, without the fault"))
    elif "control" in end:
        told.append(("control run", str(end["control"]["verdict"])))
    if "elapsed_ms" in end:
        told.append(("took", f"{end['elapsed_ms']:.0f} ms"))
    told.append(("written by", str(header.get("tool", "unknown"))))
    return told


def replay_command(header: Mapping[str, Any]) -> str:
    """As the trace has it; else the command that replays the scenario with all its variants."""
    if "replay" in header:
        return str(header["replay"])
    scenario = header["scenario"]["name"].partition("[")[0]
    told = f"fencepost run {scenario} --queue {header['queue']['path']}"
    if header.get("step") == "statement":
        told += " --step statement"
    return told + (" --network toxiproxy" if header.get("network") == "toxiproxy" else "")


def _first_rows(observation: Mapping[str, Any], timeline: Timeline) -> Json:
    return {
        "jobs": [_row(job, 0, timeline) for job in observation["jobs"]],
        "ledger": [dict(entry) for entry in observation["ledger"]],
    }


def _row(job: Mapping[str, Any], number: int, timeline: Timeline) -> Json:
    """A row with its times on the page's axis, and its payload as text."""
    row = dict(job)
    for name in ("lease_until_us", "next_run_at_us"):
        if name in row:
            row[name] = timeline.seen_at(number, row[name])
    for name in ("payload", "result", "places"):
        if name in row:
            row[name] = words.value_text(row[name])
    return row


def _steps(trace: Trace, timeline: Timeline, invariants: list[str]) -> list[Json]:
    place = {name: index for index, name in enumerate(invariants)}
    before: Mapping[str, Any] = trace.header["first_observation"]
    messages: dict[int, list[Json]] = {}
    for violation in trace.end["violations"]:
        messages.setdefault(violation["step"], []).append(
            {"invariant": violation["invariant"], "message": violation["message"], "job": violation["job"]}
        )
    steps = []
    for step in trace.steps:
        steps.append(_step(step, before, timeline, place, messages.get(step["n"], [])))
        before = step["after"]
    return steps


def _step(
    step: Mapping[str, Any],
    before: Mapping[str, Any],
    timeline: Timeline,
    place: Mapping[str, int],
    broken: list[Json],
) -> Json:
    number = step["n"]
    jobs, ledger = job_changes(before, step["after"]), ledger_change(before, step["after"])
    late = lateness(step, before)
    shown: Json = {
        "n": number,
        "kind": step["kind"],
        "at": timeline.after(number),
        "what": words.what(step),
        "answer": words.answer(step) or "; ".join(words.expired(before, step["after"])),
        "look": look(step, late, changed=bool(jobs or ledger)),
    }
    for name in ("actor", "call", "operation", "checkpoint", "line", "fault", "worker_name", "status"):
        if step.get(name) is not None:
            shown[name] = step[name]
    for name in ("blocked_by", "passed", "statements", "locks"):
        if step.get(name):
            shown[name] = list(step[name])
    if step.get("drain"):
        shown["drain"] = True
    if late is not None:
        shown["late"] = late
    shown["about"] = _about(step, [change.job for change in jobs])
    _put(shown, "arguments", _named(step.get("arguments", {})))
    _put(shown, "detail", _named(step.get("detail", {})))
    _put(shown, "claims", [_claim(claim, number, timeline) for claim in step.get("claims", ())])
    if "reply" in step:
        shown["reply"] = _reply(step["reply"], number, timeline)
    if "clock" in step:
        shown["clock"] = dict(step["clock"])
    _put(shown, "changes", change_words(jobs, ledger))
    _put(
        shown,
        "jobs",
        [
            [change.job, None if change.after is None else _row(change.after, number, timeline)]
            for change in jobs
        ],
    )
    _put(shown, "ledger_removed", [dict(entry) for entry in ledger.removed])
    _put(shown, "ledger_added", [dict(entry) for entry in ledger.added])
    _put(shown, "exercised", [place[name] for name in step.get("exercised", ()) if name in place])
    _put(shown, "violated", [place[name] for name in step.get("violated", ()) if name in place])
    _put(shown, "broken", broken)
    return shown


def _put(shown: Json, name: str, value: Any) -> None:
    """Empty fields are left out: most steps have few of them."""
    if value:
        shown[name] = value


def look(step: Mapping[str, Any], late: str | None, *, changed: bool) -> str:
    """The shape a step is drawn with. A late write is never drawn like one that came in time."""
    if step["kind"] in ("clock", "fault", "exit", "end"):
        return str(step["kind"])
    status = step.get("status")
    if status != "answered":
        return {"parked": "held", "blocked": "blocked", "cut_off": "cut"}.get(str(status), "held")
    reply = step["reply"]
    if reply["outcome"] == "unknown":
        return "unknown"
    if reply["outcome"] == "refused":
        return "error" if "error" in reply and not reply.get("reason") else "refused"
    if late == "stale" and not reply.get("repeated") and not reply.get("items"):
        return "stale" if changed else "ignored"
    if step["operation"] in ("claim", "claim_batch") and not reply.get("claims"):
        return "nothing"
    return "accepted"


def _about(step: Mapping[str, Any], changed: list[str]) -> list[str]:
    """Every job this step speaks of, for the filter."""
    reply = step.get("reply", {})
    named = [claim["job"] for claim in (*step.get("claims", ()), *reply.get("claims", ()))]
    for source in (reply, step.get("arguments", {})):
        if source.get("job") is not None:
            named.append(str(source["job"]))
    past = step.get("detail", {}).get("past_lease_of")
    return list(dict.fromkeys([*named, *changed, *([str(past)] if past is not None else [])]))


def _named(values: Mapping[str, Any]) -> list[list[str]]:
    return [[name, words.value_text(value)] for name, value in values.items()]


def _claim(claim: Mapping[str, Any], number: int, timeline: Timeline) -> Json:
    shown: Json = {"job": claim["job"], "token": claim.get("token")}
    if claim.get("lease_until_us") is not None:
        shown["until"] = timeline.seen_at(number, claim["lease_until_us"])
    return shown


def _reply(reply: Mapping[str, Any], number: int, timeline: Timeline) -> Json:
    shown = {name: reply[name] for name in ("outcome", "reason", "error", "message") if name in reply}
    for name in ("current_token", "repeated", "job", "count"):
        if name in reply:
            shown[name] = reply[name]
    _put(shown, "claims", [_claim(claim, number, timeline) for claim in reply.get("claims", ())])
    _put(shown, "items", [_reply(item, number, timeline) for item in reply.get("items", ())])
    return shown


def _call(span: CallSpan) -> Json:
    return {
        "n": span.number,
        "actor": span.actor,
        "operation": span.operation,
        "parts": [[part.step, part.status, part.checkpoint] for part in span.parts],
        "open": span.open_end,
    }


def _lease_bar(lease: Lease, timeline: Timeline) -> Json:
    return {
        "job": lease.job,
        "token": lease.token,
        "holder": lease.holder,
        "step": lease.step,
        "from": lease.from_us,
        "until": lease.until_us,
        "ended_step": lease.ended_step,
        "ended": lease.ended_us,
        "how": lease.ended_how,
        "pieces": [list(piece) for piece in lease.pieces(timeline.end)],
        "renewals": [[r.step, r.at_us, r.until_us, r.earlier] for r in lease.renewals],
    }
