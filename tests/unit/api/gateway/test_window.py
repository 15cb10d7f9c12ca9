"""How much goes out beyond what a client has acknowledged."""

from __future__ import annotations

from atoll.api.gateway.window import WINDOW_BYTES, Window


def test_a_client_that_never_acknowledges_is_not_held_back() -> None:
    window = Window()
    for seq in range(10):
        window.sent(seq, WINDOW_BYTES)
    assert not window.full


def test_a_client_that_acknowledges_is_held_back_until_it_does_again() -> None:
    window = Window()
    window.acknowledge(0)
    window.sent(1, WINDOW_BYTES // 2)
    assert not window.full
    window.sent(2, WINDOW_BYTES // 2)
    assert window.full
    window.acknowledge(0)
    assert window.full
    window.acknowledge(1)
    assert not window.full
    window.acknowledge(99)
    window.sent(3, WINDOW_BYTES)
    assert window.full


def test_a_flood_of_small_events_is_held_back_too() -> None:
    window = Window()
    window.acknowledge(0)
    count = 0
    while not window.full:
        count += 1
        window.sent(count, 1)
    assert count < 40_000
