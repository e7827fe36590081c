"""Operations as they lie on their actor's lane: an operation that is held or blocked spans several steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

WAITING = frozenset({"parked", "blocked", "cut_off"})


@dataclass(frozen=True)
class Part:
    """One step of an operation: where the call stood when the step was over."""

    step: int
    status: str
    checkpoint: str | None
    blocked_by: tuple[str, ...]


@dataclass
class CallSpan:
    number: int
    actor: str
    operation: str
    parts: list[Part] = field(default_factory=list)

    @property
    def first(self) -> int:
        return self.parts[0].step

    @property
    def last(self) -> int:
        return self.parts[-1].step

    @property
    def open_end(self) -> bool:
        """It had not answered when the run was over."""
        return self.parts[-1].status in WAITING


@dataclass(frozen=True)
class Arrow:
    """From the holder of a lock to the actor that waits for it, from `step` to the step that freed it."""

    step: int
    holder: str
    blocked: str
    freed_step: int | None


def call_spans(steps: Sequence[Mapping[str, Any]]) -> list[CallSpan]:
    spans: dict[int, CallSpan] = {}
    for step in steps:
        if "operation" not in step:
            continue
        span = spans.setdefault(
            step["call"], CallSpan(step["call"], str(step["actor"]), str(step["operation"]))
        )
        span.parts.append(
            Part(
                step["n"],
                str(step.get("status")),
                step.get("checkpoint"),
                tuple(step.get("blocked_by", ())),
            )
        )
    return list(spans.values())


def arrows(spans: Sequence[CallSpan]) -> list[Arrow]:
    found = []
    for span in spans:
        for place, part in enumerate(span.parts):
            freed = span.parts[place + 1].step if place + 1 < len(span.parts) else None
            found += [Arrow(part.step, holder, span.actor, freed) for holder in part.blocked_by]
    return sorted(found, key=lambda arrow: (arrow.step, arrow.blocked, arrow.holder))


def actors_of(steps: Sequence[Mapping[str, Any]]) -> list[str]:
    """Whoever has a lane: in order of first appearance, who drains at the end last."""
    seen: dict[str, bool] = {}
    for step in steps:
        for name in (step.get("actor"), *step.get("blocked_by", ())):
            if name is not None:
                seen[name] = seen.get(name, True) and bool(step.get("drain"))
    return sorted(seen, key=lambda name: seen[name])


def role(actor: str, steps: Sequence[Mapping[str, Any]]) -> str:
    own = [step for step in steps if step.get("actor") == actor]
    operations = {step["operation"].removesuffix("_batch") for step in own if "operation" in step}
    if own and all(step.get("drain") for step in own):
        return "drain"
    if operations and operations <= {"enqueue", "requeue", "cancel"}:
        return "producer"
    return "reaper" if operations == {"reap"} else "worker"
