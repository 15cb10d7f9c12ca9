"""Sealed values open for the one who sealed them, in the place they were sealed for, and nowhere else."""

from __future__ import annotations

import secrets

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.sealing import Sealer, Unsealable

KEY = secrets.token_bytes(32)


@given(st.binary(max_size=2_000), st.text(max_size=100))
def test_a_sealed_value_opens_in_its_own_place(plaintext: bytes, context: str) -> None:
    sealer = Sealer(KEY)
    assert sealer.open(sealer.seal(plaintext, context), context) == plaintext


@given(st.binary(min_size=8, max_size=200))
def test_a_sealed_value_does_not_show_what_it_holds_and_is_never_the_same_twice(plaintext: bytes) -> None:
    sealer = Sealer(KEY)
    first, second = sealer.seal(plaintext, "here"), sealer.seal(plaintext, "here")
    assert first != second
    assert plaintext not in first


def test_a_value_copied_to_another_row_does_not_open() -> None:
    sealer = Sealer(KEY)
    sealed = sealer.seal(b"secret", "ai_subscriptions.value:1")
    with pytest.raises(Unsealable):
        sealer.open(sealed, "ai_subscriptions.value:2")


def test_another_key_does_not_open_it() -> None:
    sealed = Sealer(KEY).seal(b"secret", "here")
    with pytest.raises(Unsealable):
        Sealer(secrets.token_bytes(32)).open(sealed, "here")


@given(st.data())
def test_damage_at_any_byte_is_noticed(data: st.DataObject) -> None:
    sealed = bytearray(Sealer(KEY).seal(b"a secret of some length", "here"))
    at = data.draw(st.integers(0, len(sealed) - 1))
    sealed[at] ^= data.draw(st.integers(1, 255))
    with pytest.raises(Unsealable):
        Sealer(KEY).open(bytes(sealed), "here")


@given(st.binary(max_size=40))
def test_what_was_never_sealed_does_not_open(noise: bytes) -> None:
    with pytest.raises(Unsealable):
        Sealer(KEY).open(noise, "here")
