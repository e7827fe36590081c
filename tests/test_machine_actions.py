"""What the state machine chooses from."""

from __future__ import annotations

import inspect
from types import SimpleNamespace
from typing import Any

import pytest

from fencepost.harness.adapter import Capability
from fencepost.harness.machine import QueueMachine
from fencepost.harness.machine_actions import ARGUMENTS, BY_THEME, MEANWHILE, THEMES
from fencepost.harness.machine_example import Example
from fencepost.harness.machine_tally import EXAMPLES_THAT_SHOW_ALL, EXAMPLES_THAT_SHOW_DEATHS, Tally
from fencepost.harness.postgres.provider import ServerFault


@pytest.mark.parametrize("action", [name for name in ARGUMENTS if name != "submit"])
def test_every_action_is_a_method_that_takes_what_is_drawn_for_it(action: str) -> None:
    taken = list(inspect.signature(getattr(QueueMachine, action)).parameters)[1:]
    assert sorted(taken) == sorted(ARGUMENTS[action])


def test_every_action_comes_up_in_some_theme() -> None:
    assert {action for theme in THEMES.values() for action in theme} | set(MEANWHILE) == set(ARGUMENTS) | {""}


@pytest.mark.parametrize("theme", THEMES)
def test_actions_are_as_likely_as_it_says(theme: str) -> None:
    drawn = list(BY_THEME[theme].elements)  # type: ignore[attr-defined]
    assert {name: drawn.count(name) for name in drawn} == THEMES[theme]


def test_what_is_drawn_does_not_depend_on_what_the_queue_did() -> None:
    """Or a queue that is not the same twice makes Hypothesis give up, instead of being told of."""
    drawing = inspect.getsource(QueueMachine.act)
    assert drawing.rindex("data.draw") < drawing.index("self._do(")
    assert "self._held" not in drawing and "self._playing" not in drawing
    members = {**vars(Example), **vars(QueueMachine)}
    methods = [member for name, member in members.items() if callable(member) and name != "act"]
    assert not [method for method in methods if "draw(" in _source(method)]


def test_a_search_says_what_did_not_happen() -> None:
    bench: Any = SimpleNamespace(capabilities=frozenset(Capability), server_faults=frozenset(ServerFault))
    tally = Tally(examples=EXAMPLES_THAT_SHOW_ALL, answered=1, in_flight=1)
    lacking = tally.missing(bench)
    assert {"no claim was answered", "no connection was cut", "no answer was lost"} <= set(lacking)
    assert "the server never crashed" not in lacking, "that is rare"
    tally.examples = EXAMPLES_THAT_SHOW_DEATHS
    assert {"no worker was killed", "the server never crashed"} <= set(tally.missing(bench))
    bench.server_faults = frozenset()
    assert "the server never crashed" not in tally.missing(bench)


def _source(method: Any) -> str:
    try:
        return inspect.getsource(method)
    except TypeError:
        return ""
