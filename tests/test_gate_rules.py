"""Rules as text: what is written is what is read, and what is wrong is said."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fencepost.harness.errors import UsageError
from fencepost.harness.gate import (
    Action,
    Cut,
    CutMidReply,
    Delay,
    InjectError,
    LoseReply,
    LoseRequest,
    ParkAfter,
    ParkBefore,
    Rule,
    SqlPattern,
    StatementNumber,
    parse_action,
    parse_address,
    parse_rule,
)


def _compiles(pattern: str) -> bool:
    try:
        re.compile(pattern)
    except re.error:
        return False
    return "\n" not in pattern


PATTERNS = st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"]), min_size=1).filter(
    _compiles
)
ADDRESSES = st.builds(StatementNumber, st.integers(1, 10**6)) | st.builds(
    SqlPattern, PATTERNS.map(lambda text: text.replace("\\/", "/")).filter(_compiles), st.integers(1, 99)
)
ACTIONS: st.SearchStrategy[Action] = st.one_of(
    st.sampled_from([ParkBefore(), ParkAfter(), LoseRequest(), LoseReply(), CutMidReply()]),
    st.builds(Cut, st.sampled_from(["fin", "rst"]), st.sampled_from(["before", "after"])),
    st.builds(InjectError, st.sampled_from(["40001", "40P01", "57P01", "23505"])),
    st.builds(Delay, st.sampled_from([0.0, 0.001, 0.5, 30.0, 0.00001])),
)


@given(st.builds(Rule, ADDRESSES, ACTIONS))
def test_a_rule_reads_as_it_is_written(rule: Rule) -> None:
    assert parse_rule(str(rule)) == rule
    assert parse_address(str(rule.address)) == rule.address
    assert parse_action(str(rule.action)) == rule.action


@pytest.mark.parametrize(
    ("rule", "text"),
    [
        (Rule(StatementNumber(3), ParkBefore()), "statement 3: park before"),
        (Rule(SqlPattern("COMMIT"), LoseReply()), "/COMMIT/: lose reply"),
        (Rule(SqlPattern("UPDATE", 2), InjectError("40001")), "/UPDATE/#2: error 40001"),
        (Rule(SqlPattern("a/b"), Cut("rst", "after")), r"/a\/b/: cut rst after"),
        (Rule(SqlPattern("x: y"), Delay(0.5)), "/x: y/: delay 0.5 s"),
    ],
)
def test_the_text_form_is_stable(rule: Rule, text: str) -> None:
    assert str(rule) == text


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "is no rule"),
        ("COMMIT: park before", "is no rule"),
        ("statement 0: park before", "counted from 1"),
        ("/(/: park before", "no regular expression"),
        ("/COMMIT/#0: park before", "counted from 1"),
        ("/COMMIT/ park before", "is no rule"),
        ("/COMMIT/: explode", "lose reply"),
        ("/COMMIT/: error 4000", "no SQLSTATE"),
        ("/COMMIT/: error 00000", "no SQLSTATE"),
        ("/COMMIT/: error 53300", "refuse the actor's connections"),
        ("/COMMIT/: delay 99999 s", "0 to 3600"),
    ],
)
def test_a_wrong_rule_is_refused_in_a_sentence(text: str, says: str) -> None:
    with pytest.raises(UsageError, match=re.escape(says)):
        parse_rule(text)


def test_patterns_are_searched_and_case_does_not_matter() -> None:
    assert SqlPattern("update").found_in("WITH x AS (SELECT 1) UPDATE jobs SET a = 1")
    assert not SqlPattern("^update").found_in("WITH x AS (SELECT 1) UPDATE jobs SET a = 1")
