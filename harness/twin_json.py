"""What a hunt found as JSON, and read from it again: for fewer scenarios or twins too, and never for others."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from fencepost.harness.scenario import Variant
from fencepost.harness.twins import (
    NOT_PASSED,
    Asked,
    Catch,
    SuiteReport,
    TwinReport,
    TwinSuite,
    catches_nothing,
)


class OfOthers(Exception):
    """It is of other scenarios or twins than those that are asked for. The end of a sentence."""


def as_json(report: SuiteReport) -> dict[str, Any]:
    return {
        "asked": {"scenarios": list(report.asked.names), "twins": list(report.asked.twins)},
        "scenarios": [variant.name for variant in report.variants],
        "left_out": report.left_out,
        "clean": not report.unclean,
        "not_run": list(report.not_run),
        "unclean": [_catch_as_json(catch) for catch in report.unclean],
        "all_caught": report.all_caught,
        "catches_nothing": catches_nothing(report),
        "twins": [
            {
                "name": entry.twin.name,
                "sentence": entry.twin.sentence,
                "breaks": entry.twin.breaks,
                "stands_for": entry.twin.stands_for,
                "caught": entry.caught,
                "catches": [_catch_as_json(catch) for catch in entry.catches],
            }
            for entry in report.twins
        ],
    }


def asked_in(told: Mapping[str, Any]) -> Asked:
    """What the hunt was asked that `as_json` told of."""
    return Asked(tuple(told["asked"]["scenarios"]), tuple(told["asked"]["twins"]))


def from_json(
    told: Mapping[str, Any], suite: TwinSuite, variants: Sequence[Variant], asked: Asked
) -> SuiteReport:
    """Of what `as_json` told, these twins and scenarios. Raises OfOthers where it says nothing of one of them."""
    by_name = {variant.name: variant for variant in variants}
    twins = {entry["name"]: entry for entry in told["twins"]}
    _all_are_there("scenarios", by_name, told["scenarios"])
    _all_are_there("twins", [twin.name for twin in suite.twins], twins)

    def catches(entries: Sequence[Mapping[str, Any]]) -> list[Catch]:
        return [
            Catch(by_name[c["scenario"]], NOT_PASSED[c["verdict"]], tuple(c["broke"]), c["step"])
            for c in entries
            if c["scenario"] in by_name
        ]

    return SuiteReport(
        suite,
        variants,
        [TwinReport(twin, catches(twins[twin.name]["catches"])) for twin in suite.twins],
        catches(told["unclean"]),
        [name for name in told["not_run"] if name in by_name],
        asked,
    )


def _all_are_there(what: str, wanted: Collection[str], there: Collection[str]) -> None:
    missing = [name for name in wanted if name not in there]
    if missing:
        more = f" and {len(missing) - 1} more" if missing[1:] else ""
        raise OfOthers(f"it is of other {what}: it says nothing of {missing[0]!r}{more}")


def _catch_as_json(catch: Catch) -> dict[str, Any]:
    return {
        "scenario": catch.variant.name,
        "verdict": catch.verdict.value,
        "broke": list(catch.broke),
        "step": catch.step,
    }
