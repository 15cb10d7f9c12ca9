"""Who may open one more connection."""

from __future__ import annotations

import contextlib

from atoll.egress.admission import Admission


def take(admission: Admission, stack: contextlib.ExitStack, peer: str, count: int) -> int:
    """How many of `count` a peer gets and keeps."""
    return sum(stack.enter_context(admission.one(peer)) for _ in range(count))


def test_a_peer_has_its_own_limit_and_gets_back_what_it_gives_back() -> None:
    admission = Admission(a_peer=3, in_all=100)
    with contextlib.ExitStack() as stack:
        assert take(admission, stack, "one", 5) == 3
        assert take(admission, stack, "two", 5) == 3
    with contextlib.ExitStack() as stack:
        assert take(admission, stack, "one", 5) == 3


def test_a_greedy_peer_leaves_room_for_those_that_come_later() -> None:
    admission = Admission(a_peer=1_000, in_all=40)
    with contextlib.ExitStack() as stack:
        assert take(admission, stack, "greedy", 1_000) == 30
        assert take(admission, stack, "two", 5) == 5
        assert take(admission, stack, "three", 5) == 5
        assert not admission.admits("greedy")


def test_never_more_than_there_may_be_in_all() -> None:
    admission = Admission(a_peer=5, in_all=40)
    with contextlib.ExitStack() as stack:
        assert sum(take(admission, stack, f"peer {number}", 5) for number in range(100)) == 40
        assert not admission.admits("one more")
    assert admission.admits("one more")
