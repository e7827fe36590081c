"""Scenarios: what is replayed. A function over a Race, with a sentence, its needs and its witnesses."""

from __future__ import annotations

import functools
import importlib
import inspect
import itertools
import pkgutil
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from types import ModuleType
from typing import TYPE_CHECKING, Any

from fencepost.harness.adapter import Capability
from fencepost.harness.errors import UsageError
from fencepost.harness.postgres.provider import ServerFault
from fencepost.harness.witness import Witness

if TYPE_CHECKING:
    from fencepost.harness.race import Race

Body = Callable[..., None]

PATHS = ("direct", "gate", "network", "network_rst")
"""How a participant reaches the server: directly; through the gate, which knows statements; through the network
engine, which can harm its connections, and ends them by FIN or, as `network_rst`, by RST."""


@dataclass(frozen=True)
class Need:
    """What only some runs of a scenario need: those for which these values were chosen."""

    capabilities: frozenset[Capability]
    chosen: Mapping[str, str]

    def __str__(self) -> str:
        values = ", ".join(f"{name} is `{value}`" for name, value in self.chosen.items())
        return f"{', '.join(sorted(self.capabilities))} where {values}"


def where(*capabilities: Capability, **chosen: str) -> Need:
    """`where(RETRY, attempts="five_attempts")`: for `needs_where` of `@scenario`."""
    return Need(frozenset(capabilities), chosen)


@dataclass(frozen=True)
class Scenario:
    """Made by `@scenario`. `each` holds the values a parameter of the function takes, one run per combination."""

    name: str
    family: str
    sentence: str
    body: Body
    requires: frozenset[Capability]
    witnesses: tuple[Witness, ...]
    each: Mapping[str, Sequence[str]] = field(default_factory=dict)
    classified: bool = False
    """Judged by what became of its late writes (harness/classify.py), each run after a control run of its own."""
    foretold: bool = False
    """Judged by the model as well (harness/model.py): each answer must be one it foretold."""
    classified_without_fence: bool = False
    """Judged so too, without a control run, on a queue that promises no fence: no invariant speaks of them there."""
    path: str = "direct"
    """How its participants reach the server, of `PATHS`."""
    processes: bool = False
    """Some of its workers are processes of their own whatever `--actors` says. They take long to start."""
    server_faults: frozenset[ServerFault] = frozenset()
    """What it does to the server: it is skipped where the server's provider cannot."""
    needs_where: tuple[Need, ...] = ()
    __test__ = False  # pytest must not take the class for a test class

    def variants(self) -> Iterator[Variant]:
        names = list(self.each)
        for values in itertools.product(*self.each.values()):
            yield Variant(self, dict(zip(names, values, strict=True)))

    @property
    def variant_names(self) -> frozenset[str]:
        return frozenset(variant.name for variant in self.variants())

    @property
    def has_faults(self) -> bool:
        """Whether it harms the server or paths to it."""
        return bool(self.server_faults) or self.path != "direct"

    @property
    def file(self) -> str:
        return self.body.__code__.co_filename

    @property
    def source(self) -> Mapping[str, str | int] | None:
        """Its text, for traces: a report shows the line of every step without the file at hand."""
        return _source_of(self.body)

    def __call__(self, race: Race, **chosen: str) -> None:
        self.body(race, **chosen)


@functools.cache
def _source_of(body: Body) -> Mapping[str, str | int] | None:
    try:
        lines, first_line = inspect.getsourcelines(body)
    except (OSError, TypeError):  # typed into an interpreter, or made by a program
        return None
    file = body.__code__.co_filename.rpartition("/")[2]
    return {"file": file, "first_line": first_line, "text": "".join(lines).rstrip("\n")}


@dataclass(frozen=True)
class Variant:
    """One run's worth of a scenario."""

    scenario: Scenario
    chosen: Mapping[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        if not self.chosen:
            return self.scenario.name
        return f"{self.scenario.name}[{','.join(self.chosen.values())}]"

    @property
    def requires(self) -> frozenset[Capability]:
        also = (
            need.capabilities
            for need in self.scenario.needs_where
            if need.chosen.items() <= self.chosen.items()
        )
        return self.scenario.requires.union(*also)

    def perform(self, race: Race) -> None:
        self.scenario.body(race, **self.chosen)


def scenario(
    *,
    requires: Collection[Capability] = (),
    needs_where: Sequence[Need] = (),
    witnesses: Sequence[Witness],
    family: str | None = None,
    each: Mapping[str, Sequence[str]] | None = None,
    classified: bool = False,
    foretold: bool = False,
    path: str = "direct",
    processes: bool = False,
    server_faults: Collection[ServerFault] = (),
) -> Callable[[Body], Scenario]:
    """Declare a scenario. Its docstring's first line is its sentence; `witnesses` is what a pass rests on."""
    _check_at_the_door(requires, witnesses, each)
    _check_needs(needs_where, each)
    if path not in PATHS:
        raise UsageError(f"`path` is one of {', '.join(PATHS)}, not {path!r}.")

    def make(body: Body) -> Scenario:
        sentence = (inspect.getdoc(body) or "").split("\n\n", 1)[0].replace("\n", " ")
        if not sentence:
            raise UsageError(
                f"Scenario {body.__name__} has no docstring: its first paragraph is its sentence."
            )
        parameters = list(inspect.signature(body).parameters)[1:]
        if sorted(parameters) != sorted(each or ()):
            raise UsageError(
                f"Scenario {body.__name__} takes {parameters}, `each` gives {sorted(each or ())}: "
                "they must be the same."
            )
        return Scenario(
            name=body.__name__,
            family=family or body.__module__.rpartition(".")[2].removeprefix("test_"),
            sentence=sentence,
            body=body,
            requires=frozenset(requires),
            needs_where=tuple(needs_where),
            witnesses=tuple(witnesses),
            each=dict(each or {}),
            classified=classified,
            foretold=foretold,
            path=path,
            processes=processes,
            server_faults=frozenset(server_faults),
        )

    return make


def _check_at_the_door(requires: Any, witnesses: Any, each: Any) -> None:
    if not witnesses:
        raise UsageError("A scenario declares at least one witness: what proves that its race happened.")
    wrong = [item for item in witnesses if not isinstance(item, Witness)]
    if wrong:
        raise UsageError(f"`witnesses` takes Witness objects, not {wrong[0]!r}.")
    for witness in witnesses:
        for name, value in witness.chosen.items():
            if value not in (each or {}).get(name, ()):
                raise UsageError(
                    f"A witness is asked only where {name} is {value!r}: `each` has no such value."
                )
    _check_capabilities("requires", requires)
    for name, values in (each or {}).items():
        if not values or isinstance(values, str):
            raise UsageError(f"`each` needs a list of values for {name!r}, got {values!r}.")


def _check_capabilities(name: str, given: Any) -> None:
    wrong = [item for item in given if not isinstance(item, Capability)]
    if wrong:
        raise UsageError(f"`{name}` takes Capability members, not {wrong[0]!r}.")


def _check_needs(needs: Any, each: Any) -> None:
    for need in needs:
        if not isinstance(need, Need):
            raise UsageError(f"`needs_where` takes what `where(...)` makes, not {need!r}.")
        _check_capabilities("where", need.capabilities)
        for name, value in need.chosen.items():
            if value not in (each or {}).get(name, ()):
                raise UsageError(
                    f"Something is needed only where {name} is {value!r}: `each` has no such value."
                )


def scenarios_in(module: ModuleType) -> list[Scenario]:
    return [found for found in vars(module).values() if isinstance(found, Scenario)]


def installed_scenarios() -> list[Scenario]:
    """Every scenario of every package registered under the entry point group `fencepost.scenarios`."""
    found: list[Scenario] = []
    for point in entry_points(group="fencepost.scenarios"):
        package = point.load()
        for module in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
            if module.name.rpartition(".")[2].startswith("test_"):
                found.extend(scenarios_in(importlib.import_module(module.name)))
    return found


def choose(scenarios: Sequence[Scenario], names: Sequence[str]) -> list[Scenario]:
    """Those with one of these names or families; all of them without a name."""
    if not names:
        return list(scenarios)
    known = {scenario.name for scenario in scenarios} | {scenario.family for scenario in scenarios}
    unknown = [name for name in names if name not in known]
    if unknown:
        families = ", ".join(sorted({scenario.family for scenario in scenarios}))
        raise UsageError(
            f"No scenario or family is called {unknown[0]!r}; families: {families}; "
            "`fencepost list` shows every scenario."
        )
    return [scenario for scenario in scenarios if scenario.name in names or scenario.family in names]
