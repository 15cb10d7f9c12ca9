"""Which variables may carry a credential, and which values can be carried."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.domain.ai_subscription import MAX_VALUE_BYTES, check_value, check_variable
from atoll.domain.errors import Invalid


@pytest.mark.parametrize(
    "name", ["CLAUDE_CODE_OAUTH_TOKEN", "_x", "a", "X9", "MY_PATH", "ATOLLX", "SANDBOX_AGENT", "path"]
)
def test_a_posix_name_is_taken(name: str) -> None:
    check_variable(name)


@pytest.mark.parametrize(
    "name",
    [
        "",
        "9X",
        "A-B",
        "A B",
        "A=B",
        "A\x00",
        "A\n",
        "Ä",
        "A.B",
        "x" * 201,
        "PATH",
        "HOME",
        "LD_PRELOAD",
        "SANDBOX_AGENT_TOKEN",
        "ATOLL_X",
        "BASH_ENV",
        "_",
    ],
)
def test_what_is_no_name_or_means_something_already_is_refused(name: str) -> None:
    with pytest.raises(Invalid) as caught:
        check_variable(name)
    assert caught.value.field == "envVarName"


@given(st.text(max_size=20))
def test_every_name_that_is_taken_can_stand_in_an_environment(name: str) -> None:
    try:
        check_variable(name)
    except Invalid:
        return
    assert name.isascii()
    assert name.isidentifier()


@pytest.mark.parametrize("value", ["", "a\x00b", "x" * (MAX_VALUE_BYTES + 1), "ä" * (MAX_VALUE_BYTES // 2 + 1)])
def test_a_value_that_no_environment_can_hold_is_refused_without_being_repeated(value: str) -> None:
    with pytest.raises(Invalid) as caught:
        check_value(value)
    assert len(value) < 4 or value not in caught.value.message


@pytest.mark.parametrize("value", ["x", '{"tokens": {"a": "b"}}\n', "x" * MAX_VALUE_BYTES, "  "])
def test_any_other_value_is_taken(value: str) -> None:
    check_value(value)
