"""The checks in the order in which they are made, and which of them can be."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fencepost.harness.adapter_check.basics import BASICS
from fencepost.harness.adapter_check.enqueuing import ENQUEUING
from fencepost.harness.adapter_check.findings import Check, CheckResult, NotMade, Wrong
from fencepost.harness.adapter_check.hands import Hands
from fencepost.harness.adapter_check.leases import LEASES
from fencepost.harness.adapter_check.many import MANY
from fencepost.harness.adapter_check.retries import RETRIES
from fencepost.harness.adapter_check.tokens import TOKENS
from fencepost.harness.adapter_check.writes import WRITES
from fencepost.harness.bench import Bench
from fencepost.harness.errors import FencepostError, UsageError
from fencepost.harness.lab import Lab
from fencepost.harness.loading import LoadedQueue

CHECKS: tuple[Check, ...] = (*BASICS, *LEASES, *WRITES, *TOKENS, *ENQUEUING, *RETRIES, *MANY)


def check_adapter(lab: Lab, loaded: LoadedQueue) -> list[CheckResult]:
    """Every check in order. One that leans on what an earlier one found wrong is not made."""
    try:
        bench = lab.bench(loaded)
    except UsageError as error:
        failed = CheckResult("installs", False, str(error), "Let install() work in an empty database.")
        return [failed, *(CheckResult(check.name, None, "the queue is not installed") for check in CHECKS)]
    return [CheckResult("installs", True), *_in_order(bench, CHECKS)]


def _in_order(bench: Bench, checks: Sequence[Check]) -> list[CheckResult]:
    results: list[CheckResult] = []
    spoiled: dict[str, str] = {}  # a check that cannot be leaned on: by which one that failed
    basic: str | None = None
    for check in checks:
        reason = _obstacle(bench, check, spoiled, basic)
        result = CheckResult(check.name, None, reason) if reason is not None else _make(check, bench)
        results.append(result)
        if result.ok is False:
            spoiled[check.name] = check.name
            basic = check.name if check.basic else basic
        elif result.ok is None and (root := _spoiler(check, spoiled)) is not None:
            spoiled[check.name] = root
    return results


def _obstacle(bench: Bench, check: Check, spoiled: Mapping[str, str], basic: str | None) -> str | None:
    """Why this check cannot be made, in words."""
    lacking = check.needs - bench.queue.capabilities
    if lacking:
        return f"the queue does not declare {', '.join(sorted(lacking))}"
    if basic is not None:
        return f"'{basic}' failed"
    if (root := _spoiler(check, spoiled)) is not None:
        return f"'{root}' failed"
    if check.needs - bench.capabilities:
        return "this server's clock cannot be moved: see `fencepost doctor`"
    return None


def _spoiler(check: Check, spoiled: Mapping[str, str]) -> str | None:
    return next((spoiled[name] for name in check.after if name in spoiled), None)


def _make(check: Check, bench: Bench) -> CheckResult:
    hands = Hands(bench)
    try:
        hands.reset()
        check.perform(hands)
    except NotMade as reason:
        return CheckResult(check.name, None, str(reason))
    except Wrong as found:
        return CheckResult(check.name, False, found.wrong, _with_a_way_out(check, found.advice))
    except (FencepostError, UsageError) as error:
        advice = "See the contract in docs/adapters.md."
        return CheckResult(check.name, False, str(error), _with_a_way_out(check, advice))
    finally:
        hands.let_go()
    return CheckResult(check.name, True)


def _with_a_way_out(check: Check, advice: str) -> str:
    if check.probes is None or "out of the capabilities" in advice:
        return advice
    return f"{advice.rstrip('.')}, or take {check.probes} out of the capabilities."
