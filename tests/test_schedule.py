"""Schedule text: what it says as data, that data and text are the same, and where it says what is wrong."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fencepost.harness.errors import UsageError
from fencepost.harness.schedule import (
    ACTOR_FAULTS,
    SERVER_FAULTS,
    STATEMENT_FAULTS,
    ActorFault,
    AtCheckpoint,
    AtEveryStatement,
    AtStatement,
    ClaimRef,
    ClockBy,
    ClockPast,
    Exit,
    GoOn,
    JobRef,
    Join,
    Schedule,
    ScheduleError,
    ServerFault,
    Start,
    Statement,
    StatementFault,
    Then,
    parse_schedule,
)

RESERVED = {*ACTOR_FAULTS, *SERVER_FAULTS, "clock", "join", "exit"}


def only(text: str) -> object:
    (step,) = parse_schedule(text)
    return step


@pytest.mark.parametrize(
    ("text", "step"),
    [
        ("A:claim", Start("A", "claim")),
        ("B:claim!", Start("B", "claim", then=Then.BLOCKED)),
        ("B:claim?", Start("B", "claim", then=Then.ANY)),
        ("A>", GoOn("A")),
        ("A>!", GoOn("A", Then.BLOCKED)),
        ("A:complete(#1)", Start("A", "complete", (ClaimRef(1),))),
        (
            "A:complete_batch(#2, #1, #1?)",
            Start("A", "complete_batch", (ClaimRef(2), ClaimRef(1), ClaimRef(1, True))),
        ),
        ("P:cancel(j2)", Start("P", "cancel", job=JobRef(2))),
        ("A:set_token(j1, token=5)", Start("A", "set_token", job=JobRef(1), arguments={"token": 5})),
        (
            'P:enqueue(key="a|b", payload={"n":[1,")"]})',
            Start("P", "enqueue", arguments={"key": "a|b", "payload": {"n": [1, ")"]}}),
        ),
        ("A:complete@after_guard", Start("A", "complete", holds=(AtCheckpoint("after_guard"),))),
        ("A:complete@before_commit", Start("A", "complete", holds=(AtCheckpoint("before_commit"),))),
        (
            "A:complete@before/COMMIT/",
            Start("A", "complete", holds=(AtStatement("before", Statement("COMMIT")),)),
        ),
        ("A:complete@after#3", Start("A", "complete", holds=(AtStatement("after", Statement(None, 3)),))),
        (r"A:x@after/a\/b/#2", Start("A", "x", holds=(AtStatement("after", Statement("a/b", 2)),))),
        ("A:complete@*", Start("A", "complete", holds=(AtEveryStatement(),))),
        (
            "A:complete~lose_reply/COMMIT/",
            Start("A", "complete", faults=(StatementFault("lose_reply", Statement("COMMIT")),)),
        ),
        (
            "A:fail~error40001#2",
            Start("A", "fail", faults=(StatementFault("error40001", Statement(None, 2)),)),
        ),
        ("clock+31s", ClockBy(31)),
        ("clock-5s", ClockBy(-5)),
        ("clock+0.5s", ClockBy(0.5)),
        ("clock>A", ClockPast("A")),
        ("clock>#2", ClockPast(ClaimRef(2))),
        ("clock>j1-10s", ClockPast(JobRef(1), -10)),
        ("clock>j", ClockPast("j")),
        ("crash", ServerFault("crash")),
        ("kill_postmaster", ServerFault("kill_postmaster")),
        ("crash(notice=false)", ServerFault("crash", {"notice": False})),
        ("A:cut", ActorFault("A", "cut")),
        ('A:cut(how="rst")', ActorFault("A", "cut", {"how": "rst"})),
        ("A:exit", Exit("A")),
        ('C:join(known_as="A", time_zone="Asia/Tokyo")', Join("C", "A", "Asia/Tokyo")),
        ('C:join(path="gate", process=true, clock_skew_s=-3600)', Join("C", None, None, "gate", True, -3600)),
    ],
)
def test_a_step_is_what_it_says(text: str, step: object) -> None:
    assert only(text) == step
    assert str(parse_schedule(text)) == text


def test_blanks_and_line_ends_separate_nothing() -> None:
    assert str(parse_schedule("A:claim|\n\tB:claim!  |A>")) == "A:claim | B:claim! | A>"


@pytest.mark.parametrize(
    ("text", "column", "problem"),
    [
        ("", 1, "a step should stand here"),
        ("A:claim |", 10, "a step should stand here"),
        ("A:claim | | B:claim", 11, "a step should stand here"),
        ("A:", 3, "what A does should stand here"),
        ("A", 1, "after an actor's name"),
        ("A claim", 2, "after an actor's name"),
        ("crush", 1, "after an actor's name"),
        ("A:claim B:claim", 9, "'|' or the end"),
        ("A:claim!!", 9, "'|' or the end"),
        ("clock31s", 1, "after an actor's name"),
        ("clock", 6, "one of +, - and >"),
        ("clock+31", 9, "seconds should stand here"),
        ("clock+s", 7, "seconds should stand here"),
        ("clock>", 7, "an actor, a claim (#1) or a job"),
        ("A:complete(#0)", 13, "a number from 1 on"),
        ("A:complete(1)", 12, "a claim (#1), a job (j1) or name=value"),
        ("A:complete(#1", 14, "',' or ')'"),
        ("A:complete(n=)", 14, "a JSON value"),
        ("A:complete(n=01)", 14, "no JSON number"),
        ("A:complete(n=NaN)", 14, "a JSON value"),
        ("A:complete(n=1e999)", 14, "a JSON value"),
        (r'A:complete(n="\ud800")', 14, "a JSON value"),
        ("A:complete(n=" + "[" * 60 + "]" * 60 + ")", 14, "a JSON value"),
        ("A:complete(n=" + "[" * 100_000, 14, "a JSON value"),
        ("A:complete(n=\ud800)", 14, "half a character"),
        ("A:complete(#9999999999)", 13, "at most 9 digits"),
        (f"A:complete(#{'9' * 5000})", 13, "at most 9 digits"),
        ("A:cancel(j99999999999999999999)", 11, "at most 9 digits"),
        ("clock>j99999999999999999999", 8, "at most 9 digits"),
        ("A:cancel(j\u0663)", 11, "'=' and a JSON value"),
        ("clock+\u0663s", 7, "seconds should stand here"),
        ("clock+99999999999s", 7, "at most 10 digits and 6 decimals"),
        ("clock>A-0.0000001s", 9, "at most 10 digits and 6 decimals"),
        ("A:complete(n=1, n=2)", 17, "n is given twice"),
        ("A:complete(n=1, #1)", 17, "a claim (#1), a job (j1) or name=value"),
        ("A:complete@", 12, "a checkpoint"),
        ("A:complete@before/COMMIT", 18, "a statement should stand here"),
        ("A:complete@before/(/", 18, "no regular expression"),
        ("A:complete@before/a{99999999999999}/", 18, "no regular expression"),
        ("A:complete@before/(?L)a/", 18, "no regular expression"),
        ("A:complete@before/[[a]/", 18, "no regular expression (Possible nested set"),
        ("A:complete@before/" + "(" * 5000 + ")" * 5000 + "/", 18, "no regular expression (nested too deep"),
        ("A:complete~eat/COMMIT/", 12, "one of lose_reply"),
        ("A:complete~error4/COMMIT/", 12, "one of lose_reply"),
        ("A:complete~lose_reply", 22, "a statement should stand here"),
        ("C:join(nick=1)", 3, "join takes known_as"),
        ("C:join(known_as=1)", 3, "join takes known_as"),
        ('C:join(known_as="")', 3, "join takes known_as"),
        ("C:join(clock_skew_s=true)", 3, "join takes known_as"),
        ("A:cut(#1)", 6, "no claim and no job is named here"),
    ],
)
def test_an_error_points_at_the_place(text: str, column: int, problem: str) -> None:
    with pytest.raises(ScheduleError) as caught:
        parse_schedule(text)
    first, line, caret = str(caught.value).split("\n")
    assert problem in first
    assert first.startswith(f"Column {column} of the schedule: ")
    assert line == f"  {text}"
    assert caret == "  " + " " * (column - 1) + "^"
    assert isinstance(caught.value, UsageError)


def test_in_several_lines_the_caret_stands_below_its_own() -> None:
    with pytest.raises(ScheduleError) as caught:
        parse_schedule("A:claim |\nB:claim |\n  C:?")
    assert str(caught.value).endswith("\n    C:?\n      ^")


names = st.from_regex(r"[A-Za-z][A-Za-z0-9_]{0,8}", fullmatch=True).filter(lambda name: name not in RESERVED)
jsons = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)
numbers = st.integers(1, 999)
patterns = st.sampled_from(["COMMIT", "a/b", r"\d+ /", "x|y", r"FROM\s+jobs", "~!@#"])
statements = st.builds(Statement, st.none() | patterns, numbers)
places = st.one_of(
    st.builds(AtCheckpoint, names),
    st.builds(AtStatement, st.sampled_from(["before", "after"]), statements),
    st.just(AtEveryStatement()),
)
faults = st.builds(
    StatementFault, st.sampled_from([*STATEMENT_FAULTS, "error40001", "error40P01"]), statements
)
thens = st.sampled_from(list(Then))
seconds = st.integers(-(10**6), 10**6).filter(bool) | st.integers(1, 999).map(lambda ms: ms / 1000)
claims = st.builds(ClaimRef, numbers, st.booleans())
starts = st.builds(
    Start,
    names,
    names,
    st.lists(claims, max_size=3).map(tuple),
    st.none() | st.builds(JobRef, numbers),
    st.dictionaries(names, jsons, max_size=3),
    st.lists(places, max_size=3).map(tuple),
    st.lists(faults, max_size=2).map(tuple),
    thens,
)
nicks = st.text(min_size=1)
steps = st.one_of(
    starts,
    st.builds(GoOn, names, thens),
    st.builds(
        Join,
        names,
        st.none() | nicks,
        st.none() | nicks,
        st.none() | nicks,
        st.booleans(),
        st.sampled_from([0.0, 3600]),
    ),
    st.builds(Exit, names),
    st.builds(ActorFault, names, st.sampled_from(ACTOR_FAULTS), st.dictionaries(names, jsons, max_size=2)),
    st.builds(ServerFault, st.sampled_from(SERVER_FAULTS)),
    st.builds(ClockBy, seconds),
    st.builds(ClockPast, names | claims | st.builds(JobRef, numbers), st.just(0.0) | seconds),
)


@given(st.lists(steps, min_size=1, max_size=6).map(lambda made: Schedule(tuple(made))))
def test_what_is_printed_is_read_back(schedule: Schedule) -> None:
    text = str(schedule)
    assert "\n" not in text
    again = parse_schedule(text)
    assert again == schedule
    assert str(again) == text


STEPS_OF_EVERY_KIND = (
    'P:enqueue(key="a", payload={"n":[1,"x"]})',
    "A:claim@after_claim@before/UPDATE jobs/#2~lose_reply/COMMIT/!",
    "A:complete_batch(#2, #1?)@*~error40001#2?",
    'A:join(known_as="B", clock_skew_s=-3.5, process=true)',
    "P:set_token(j1, token=9223372036854775808)",
    "clock+0.5s",
    "clock>j1-10s",
    "clock>#1+3s",
    "crash(notice=false)",
    'A:cut(how="rst")',
    "A>!",
    "A:exit",
)
OUT_OF_PLACE = st.sampled_from(
    [
        *"|:>@~#/!?()[]{}=,+-*.sj\\\"'\n\t\x00\u0663\u00b2\ud800\udfff",
        *("j0", "#0", "9" * 20, "9" * 5000, "1e999", "-1e999", "NaN", "Infinity", "0.0000001", "null", '""'),
        *(r'"\ud800"', "{9999999999999}", "(?L)", "(?i)", "[[a]", "[" * 60, "]" * 60, "(" * 200, ")" * 200),
    ]
)


@st.composite
def nearly_schedules(draw: st.DrawFn) -> str:
    """A schedule with characters taken out, put in and exchanged."""
    text = " | ".join(draw(st.lists(st.sampled_from(STEPS_OF_EVERY_KIND), min_size=1, max_size=4)))
    for _ in range(draw(st.integers(1, 4))):
        marks = [at for at in range(len(text)) if text[at - 1 : at] in {*"#j=+-/["}]
        at = draw(st.integers(0, len(text)) | st.sampled_from([0, *marks]))
        match draw(st.sampled_from(["out", "in", "swap"])):
            case "out":
                text = text[:at] + text[at + draw(st.integers(1, 4)) :]
            case "in":
                text = text[:at] + draw(OUT_OF_PLACE | st.characters()) + text[at:]
            case "swap":
                text = text[:at] + text[at + 1 : at + 2] + text[at : at + 1] + text[at + 2 :]
    return text


@given(
    nearly_schedules()
    | st.text(st.characters(exclude_categories=()), max_size=40)
    | st.text(alphabet='AB:>|@~#/!?()=+-sj1 "{}\\clockrash*', max_size=40)
)
@settings(max_examples=500, deadline=timedelta(seconds=5))
def test_any_text_is_read_or_refused_with_a_place(text: str) -> None:
    try:
        schedule = parse_schedule(text)
    except ScheduleError as error:
        assert 0 <= error.column <= len(text)
    else:
        assert parse_schedule(str(schedule)) == schedule


def test_a_move_of_the_clock_too_small_to_print_is_printed_as_none() -> None:
    assert str(ClockBy(1e-7)) == "clock+0s"
