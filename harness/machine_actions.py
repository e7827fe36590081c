"""What the state machine can do next, and how likely each of it is.

An example has a theme, so that a few kinds of action meet often in it: with all of them equally likely, two that must
meet rarely do within one example.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hypothesis import strategies as st

WORKERS = ("A", "B", "C")
REAPERS = ("R", "R2")
PRODUCERS = ("P", "P2")

KEYS = ("key-1", "key_1", "KEY-1", "key-1-long", "key-1-longer")
"""Two of them are the same to a queue that compares patterns, ignores case or cuts keys short."""
PAYLOADS: tuple[Any, ...] = ({}, {"n": 1})
TTLS_S = (60.0, 20.0, 600.0)
MOVES_S = (45.0, 5.0, 400.0)
DELAYS_S = (0.0, 30.0)
ATTEMPTS = (None, 1, 2, 2)
PRIORITIES = (0, 5)
AT_THE_START = ((0,), (0,), (5, 0))
"""By priority, the jobs an example begins with."""
STATEMENTS_AT_MOST = 8
SETTLEMENTS = ("complete", "fail")
WRITES = (*SETTLEMENTS, "heartbeat")
LOST = (*WRITES, "complete", "claim", "reap", "enqueue", "cancel")
LOSSES = ("lose_reply", "lose_request", "error40001")
OVERTAKINGS = ("claim", "settle", "expire", "cancel")
INTERFERENCES = ("settle", "settle", "claim", "expire", "sweep", "cancel", "cancel")
BATCHES = ("twice", "never_was", "others", "claim")
ENDS = ("cancel", "cancel", "requeue")
ODDITIES = ("bypass", "bypass", "exhaust", "retry")
DEATHS = ("crash", "kill")

picks = st.integers(0, 5)
"""Which of those there are, counted from the latest."""

places = st.none() | st.integers(0, STATEMENTS_AT_MOST) | st.integers(0, 4)
"""Whether an operation is to be left held on its way, and at which of its places."""

sweeps = st.sampled_from((None, None, 0, 0, 0, 1, 1, 2, 3, 4))
"""The same for a reap: what it has listed and not yet locked is what others can still change."""

judgements = st.sampled_from((None, None, 0, 1, 2, 2, 3, 4))
"""The same for a cancel: what it has judged and not yet written is what others can still change."""

workers = st.sampled_from(WORKERS)
producers = st.sampled_from(PRODUCERS)
writes = st.sampled_from(WRITES)

_submission: Mapping[str, st.SearchStrategy[Any]] = {
    "who": producers,
    "payload": st.sampled_from(PAYLOADS),
    "delay_s": st.sampled_from(DELAYS_S),
    "attempts": st.sampled_from(ATTEMPTS),
    "priority": st.sampled_from(PRIORITIES),
    "where": places,
}

ARGUMENTS: Mapping[str, Mapping[str, st.SearchStrategy[Any]]] = {
    "work": {
        "who": workers,
        "operation": st.sampled_from(("claim", *WRITES)),
        "pick": picks,
        "ttl_s": st.sampled_from(TTLS_S),
        "fresh": st.booleans(),
        "where": places,
    },
    "settle": {"operation": writes, "fresh": st.booleans(), "where": places},
    "overtake": {
        "pick": picks,
        "how": st.sampled_from(OVERTAKINGS),
        "operation": writes,
        "back": st.sampled_from((None, *WRITES, "fail")),
    },
    "pass_time": {"what": st.sampled_from(("lease", "near", "wait", *MOVES_S)), "pick": picks},
    "reap": {
        "who": st.sampled_from(REAPERS),
        "limit": st.sampled_from((None, 1)),
        "lease": st.sampled_from((None, "lost", "lost", "near")),
        "back": st.sampled_from((None, None, *WRITES)),
        "where": sweeps,
    },
    "enqueue": {"key": st.none() | st.sampled_from(KEYS), **_submission},
    "submit": {"key": st.sampled_from(KEYS), **_submission},
    "end": {
        "who": producers,
        "operation": st.sampled_from(ENDS),
        "pick": picks,
        "fresh": st.booleans(),
        "where": judgements,
    },
    "batch": {
        "who": workers,
        "pick": picks,
        "how": st.sampled_from(BATCHES),
        "fresh": st.booleans(),
        "where": places,
    },
    "lose_an_answer": {
        "what": st.sampled_from(LOST),
        "loss": st.sampled_from(LOSSES),
        "pick": picks,
        "again": st.booleans(),
    },
    "interfere": {"pick": picks, "how": st.sampled_from(INTERFERENCES), "operation": writes},
    "go_on": {"pick": picks},
    "cut": {"pick": picks},
    "odd": {"what": st.sampled_from(ODDITIES), "who": workers, "pick": picks},
    "die": {"how": st.sampled_from(DEATHS)},
}
"""By action, which is a method of the machine: what is drawn for it."""

ANYTHING = {
    "work": 4,
    "settle": 2,
    "overtake": 3,
    "pass_time": 2,
    "reap": 2,
    "enqueue": 2,
    "end": 1,
    "batch": 2,
    "lose_an_answer": 1,
}
THEMES: Mapping[str, Mapping[str, int]] = {
    "anything": ANYTHING,
    "writes": {"work": 3, "settle": 4, "overtake": 5, "pass_time": 1, "reap": 1},
    "keys": {"submit": 6, "work": 2, "settle": 2, "end": 1},
    "reapers": {"work": 3, "settle": 2, "overtake": 1, "pass_time": 3, "reap": 5, "enqueue": 1},
    "retries": {"work": 4, "settle": 3, "pass_time": 3, "enqueue": 2, "end": 2},
    "batches": {"batch": 5, "work": 3, "overtake": 2, "pass_time": 1, "end": 1, "enqueue": 2},
    "ends": {"end": 5, "work": 2, "settle": 3, "batch": 1, "enqueue": 1},
    "losses": {"lose_an_answer": 6, "work": 3, "overtake": 2, "pass_time": 1, "reap": 1},
    "oddities": ANYTHING | {"odd": 6},
    "deaths": ANYTHING | {"die": 3},
}
"""By theme: how often each action comes up in its examples."""

SHARES = {"anything": 4, "writes": 4, "reapers": 4, "batches": 3, "oddities": 3}
"""Of the examples, for themes that have not two. Deaths are no more: one takes as long as a hundred steps."""

themes = st.sampled_from([name for name in THEMES for _ in range(SHARES.get(name, 2))])

MEANWHILE = {"": 10, "interfere": 14, "go_on": 8, "cut": 1}
"""While somebody is held: how often one of these is done instead of what the theme has. Drawn also while nobody is, and
put aside then: what is drawn must not depend on what the queue did, or Hypothesis could not draw it again."""


def _weighted(weights: Mapping[str, int]) -> st.SearchStrategy[str]:
    return st.sampled_from([name for name, weight in weights.items() for _ in range(weight)])


BY_THEME = {theme: _weighted(weights) for theme, weights in THEMES.items()}
meanwhile = _weighted(MEANWHILE)

ACTIONS: Mapping[str, st.SearchStrategy[dict[str, Any]]] = {
    name: st.builds(dict, **arguments) for name, arguments in ARGUMENTS.items()
}
"""Not fixed_dictionaries: that shuffles the order in which it draws, which takes longer than the drawing."""
