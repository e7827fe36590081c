"""How many orders `explore` runs until it meets what a concurrency twin breaks, with the operations alone given.

    python benchmarks/explore_twins.py [--twin NAME …] [--budget 5000]

Each twin is hunted twice, by `reduced` and by `exhaustive`; what each needed is written to docs/figures/explore.json,
for the table of docs/what-it-catches.md. Exit code 1 if one is not found, or if reduced needs more than exhaustive.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from fencepost.docs.twin_figures import FIGURES, Figures
from fencepost.harness.explore.program import Program, parse
from fencepost.harness.explore.real import QueueExecutor, close_stages
from fencepost.harness.explore.result import Result
from fencepost.harness.explore.scale import Here
from fencepost.harness.explore.search import explore
from fencepost.harness.explore.strategies import make_strategy
from fencepost.harness.lab import LabOptions
from fencepost.queue_impl.twins import TWINS

CONCURRENCY_TWINS: Final[Mapping[str, tuple[str, str]]] = MappingProxyType(
    {
        "claim_without_lock": ("A:claim B:claim", ""),
        "guard_without_row_lock": ("A:claim,complete B:claim", "expire"),
        "guard_before_the_lock": ("A:claim,complete C:cancel", ""),
        "cancel_without_row_lock": ("A:claim,complete C:cancel", ""),
        "batch_complete_without_row_locks": ("A:claim,complete_batch C:cancel", ""),
        "key_by_check_then_insert": ("A:enqueue B:enqueue", ""),
        "key_checked_in_the_insert": ("A:enqueue B:enqueue", ""),
        "other_payload_accepted_from_the_slower": ("A:enqueue B:enqueue-other", ""),
        "reaper_double_requeue": ("A:claim R:reap S:reap", "expire"),
        "reaper_without_recheck": ("A:claim,heartbeat R:reap", "expire"),
        "reaper_overwrites_succeeded": ("A:claim,complete R:reap", "expire"),
        "reaper_forgets_backoff": ("A:claim,fail R:reap", "expire"),
        "reaper_spares_only_the_renewed": ("A:claim B:claim R:reap", "expire"),
        "guard_in_where": ("A:claim,complete", "expire"),
        "guard_at_frozen_now": ("A:claim,complete", "expire"),
        "heartbeat_at_frozen_now": ("A:claim,heartbeat", "expire"),
        "ledger_before_state_change": ("A:claim,complete B:claim", "expire"),
    }
)
"""What breaks only if something comes between two statements of one operation, and an invariant shows. The operations
and faults alone: nothing says in which order."""

SEQUENTIAL: Final[Mapping[str, str]] = MappingProxyType(
    {
        "wrong however its operations are ordered": """
            batch_complete_stops_at_the_first_stale_item batch_complete_writes_a_duplicate_twice
            batch_complete_answers_without_the_unknown batch_claim_takes_more_than_it_gives no_guard
            fence_by_worker_name late_fail_requeues late_fail_ends_job heartbeat_by_job_only
            heartbeat_by_worker_name heartbeat_revives_expired_lease heartbeat_takes_back_requeued_job
            heartbeat_shortens heartbeat_without_effect heartbeat_silently_capped trusts_its_last_heartbeat
            steal_of_live_lease ledger_without_foreign_key ledger_without_unique reaper_comes_early
            expiry_spends_no_attempt lost_last_attempt_never_ends reaped_job_is_invisible
            unordered_bounded_sweep claim_ignores_next_run_at claim_ignores_the_time_of_a_retry delay_ignored
            retry_never_claimed backoff_not_capped backoff_does_not_grow backoff_from_the_old_next_run_at
            last_attempt_requeued_again priority_lost_on_retry failed_jobs_go_first key_forgotten_when_claimed
            key_forgotten_when_finished other_payload_accepted key_compared_as_pattern
            key_compared_without_case key_cut_short guard_without_state cancel_overwrites_succeeded
            failed_claimable_again late_write_revives_a_reaped_dead_letter
            cancel_overwrites_a_reaped_dead_letter requeue_forgets_what_was_asked_for
            result_kept_before_the_judgement batch_complete_overwrites_what_has_ended
            batch_claim_ignores_next_run_at sweep_ignores_its_bound priority_lost_with_the_lease
            requeue_revives_the_dead_letter requeue_of_any_finished_job
            token_not_incremented_on_reclaim token_reset_on_requeue token_reset_on_retry token_comes_round
            token_grows_by_two heartbeat_gives_a_new_token failed_claimable_after_a_while""",
        "needs a clock of its own or another time zone": "expiry_by_worker_clock timestamps_without_time_zone",
        "needs a fault and no second actor": """
            answers_only_once cancel_noted_before_it_happens error_taken_for_success unlogged_tables""",
        "a race that no invariant speaks of, only a scenario's expectation": """
            requeue_twice_makes_two_jobs sweep_spent_on_held_rows""",
    }
)
"""The other twins, and why a search for an order has nothing to find there."""

STRATEGIES: Final = ("reduced", "exhaustive")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--twin", action="append", choices=CONCURRENCY_TWINS, default=[])
    parser.add_argument("--budget", type=int, default=5_000)
    arguments = parser.parse_args()
    found = _known()
    wrong = []
    try:
        for twin in arguments.twin or CONCURRENCY_TWINS:
            needed = {strategy: orders_needed(twin, strategy, arguments.budget) for strategy in STRATEGIES}
            program = parse(*CONCURRENCY_TWINS[twin])
            sys.stdout.write(f"{twin}: {program}: {needed}\n")
            sys.stdout.flush()
            reduced, exhaustive = needed["reduced"], needed["exhaustive"]
            if reduced is None or (exhaustive is not None and reduced > exhaustive):
                wrong.append(twin)
            most = f"more than {arguments.budget:,}"
            found[twin] = {
                "program": str(program),
                "needed": " / ".join(most if each is None else f"{each:,}" for each in needed.values()),
            }
    finally:
        close_stages()
    figures(found).write("explore")
    if wrong:
        sys.stderr.write(f"not found, or later than by exhaustive: {', '.join(wrong)}\n")
    return 1 if wrong else 0


def _known() -> dict[str, Mapping[str, str]]:
    """What the file says of twins that are not hunted now."""
    path = FIGURES / "explore.json"
    known = json.loads(path.read_text())["twins"] if path.exists() else {}
    return {twin: told for twin, told in known.items() if twin in CONCURRENCY_TWINS}


def orders_needed(twin: str, strategy: str, budget: int) -> int | None:
    """The number of the first order that breaks the invariant the twin names; None: none within the budget."""
    breaks = next(known.breaks for known in TWINS if known.name == twin)
    result = searched(twin, parse(*CONCURRENCY_TWINS[twin]), strategy, budget)
    numbers = [failure.number for failure in result.tally.failures if breaks in failure.outcome.broken]
    return min(numbers, default=None)


def searched(twin: str, program: Program, strategy: str, budget: int) -> Result:
    here = Here(QueueExecutor(f"fencepost.queue_impl.twins:{twin}", LabOptions()), program)
    try:
        return explore(program, make_strategy(strategy, program, budget=budget), here, stop_at_first=True)
    finally:
        here.close()


def figures(found: Mapping[str, Mapping[str, str]]) -> Figures:
    others = "; ".join(f"{why}: {len(names.split())}" for why, names in SEQUENTIAL.items())
    return Figures(
        command="make hunts",
        says=(
            "`fencepost explore` with these operations and faults, and no hint of an order, until an order breaks "
            "the invariant the twin names: how many orders were run, by the strategies reduced and exhaustive. Only "
            "for twins that break because something comes between two statements of one operation. The others "
            f"({others}) are left to the scenarios."
        ),
        columns={
            "program": "explore: operations [faults]",
            "needed": "schedules needed (reduced / exhaustive)",
        },
        twins=found,
    )


if __name__ == "__main__":
    raise SystemExit(main())
