"""The fingerprint of a command: the same for the same command, another for any other, and nothing of it can be read."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.domain.execution import fingerprint
from atoll.domain.pool import pool_target, shortfall
from atoll.domain.template import WarmPool

KEY = b"k" * 32
argvs = st.lists(st.text(max_size=20), min_size=1, max_size=4)
envs = st.none() | st.dictionaries(st.text(max_size=8), st.text(max_size=8), max_size=3)
commands = st.tuples(argvs, st.none() | st.text(max_size=10), envs, st.none() | st.integers(1, 604_800))


@pytest.mark.spec("SA-251", "SA-399")
@given(commands, commands)
def test_two_commands_have_one_fingerprint_only_when_they_are_the_same(
    one: tuple[list[str], str | None, dict[str, str] | None, int | None],
    other: tuple[list[str], str | None, dict[str, str] | None, int | None],
) -> None:
    def plain(command: tuple[list[str], str | None, dict[str, str] | None, int | None]) -> object:
        return command[0], command[1], command[2] or {}, command[3]

    assert (fingerprint(KEY, *one) == fingerprint(KEY, *other)) is (plain(one) == plain(other))


def test_the_order_of_variables_is_no_difference() -> None:
    assert fingerprint(KEY, ["a"], None, {"A": "1", "B": "2"}, None) == fingerprint(
        KEY, ["a"], None, {"B": "2", "A": "1"}, None
    )


@pytest.mark.spec("SA-248")
def test_a_fingerprint_needs_the_key_to_be_guessed() -> None:
    assert fingerprint(KEY, ["a"], None, None, None) != fingerprint(b"other", ["a"], None, None, None)
    assert len(fingerprint(KEY, ["secret" * 1_000], None, {"TOKEN": "x" * 1_000}, None)) == 64


@pytest.mark.parametrize(("state", "missing"), [((2, 0, 0), 2), ((2, 1, 0), 1), ((2, 1, 1), 0), ((0, 1, 2), -3)])
def test_a_pool_lacks_what_neither_waits_nor_boots(state: tuple[int, int, int], missing: int) -> None:
    assert shortfall(*state) == missing


def test_a_pool_that_was_found_empty_grows_to_its_maximum() -> None:
    assert pool_target(WarmPool(2, 1, 5), missed=False) == 2
    assert pool_target(WarmPool(2, 1, 5), missed=True) == 5
