"""What the ledger of accepted completions must look like in every observation, and after every answer."""

from __future__ import annotations

from fencepost.harness.adapter import Capability, JobId, JobState, LedgerEntry, Observation
from fencepost.harness.history import Step, Violation
from fencepost.harness.invariants.base import Invariant, answers, same_token, verb, who


def _under(token: int | None) -> str:
    return "" if token is None else f" under token {token}"


class LedgerUnique(Invariant):
    name = "ledger_unique"
    sentence = "No two ledger entries have the same job and token."
    needs = frozenset({Capability.LEDGER})

    def check(self, step: Step) -> Violation | None:
        ledger = step.after.ledger
        if not ledger:
            return None
        self.exercised += 1
        seen: set[tuple[JobId, int | None]] = set()
        for entry in ledger:
            key = (entry.job, entry.token)
            if key in seen:
                return self.violation(
                    step, entry.job, f"the ledger holds the same completion twice{_under(entry.token)}"
                )
            seen.add(key)
        return None


class LedgerOnce(Invariant):
    name = "ledger_once"
    sentence = (
        "A succeeded job has exactly one ledger entry, at its final token, no other job has one, "
        "and an accepted complete is in the ledger."
    )
    needs = frozenset({Capability.LEDGER})

    def check(self, step: Step) -> Violation | None:
        entries = _by_job(step.after)
        spoken_of = bool(entries)
        for view in step.after.jobs:
            mine = entries.get(view.job, ())
            if view.state is not JobState.SUCCEEDED:
                if mine:
                    return self._violated(
                        step, view.job, f"it is {view.state} and has a ledger entry{_under(mine[0].token)}"
                    )
                continue
            spoken_of = True
            if not mine:
                return self._violated(step, view.job, "it succeeded and has no ledger entry")
            if len(mine) > 1:
                return self._violated(step, view.job, f"it succeeded and has {len(mine)} ledger entries")
            if mine[0].token is not None and view.token is not None and mine[0].token != view.token:
                message = f"its ledger entry is under token {mine[0].token}, its final token is {view.token}"
                return self._violated(step, view.job, message)
        self.exercised += spoken_of
        return self._check_answer(step, entries)

    def _check_answer(self, step: Step, entries: dict[JobId, list[LedgerEntry]]) -> Violation | None:
        """Whoever is told that its complete was accepted will not do it again: it must have happened."""
        if step.call is None or verb(step.call) != "complete":
            return None
        for claim, reply in answers(step):
            # Queues may delete what is finished, with its ledger entries.
            if not reply.accepted or claim.job not in step.after.by_job:
                continue
            if not any(same_token(entry.token, claim.token) for entry in entries.get(claim.job, ())):
                write = f"{who(step)}'s {step.call.operation} of it{_under(claim.token)}"
                message = f"{write} was accepted and is not in the ledger"
                return self._violated(step, claim.job, message)
        return None

    def _violated(self, step: Step, job: JobId, message: str) -> Violation:
        self.exercised += 1
        return self.violation(step, job, message)


def _by_job(observation: Observation) -> dict[JobId, list[LedgerEntry]]:
    entries: dict[JobId, list[LedgerEntry]] = {}
    for entry in observation.ledger:
        entries.setdefault(entry.job, []).append(entry)
    return entries
