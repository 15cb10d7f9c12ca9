"""How many connections there may be: of one peer, and of all together. Pure counting.

Descriptors are what a process runs out of. So the last quarter of them goes to peers that hold less than an equal
share, and a few greedy sandboxes cannot keep the others out.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator


class Admission:
    """Counts what is open."""

    def __init__(self, *, a_peer: int, in_all: int) -> None:
        self._a_peer = a_peer
        self._in_all = in_all
        self._held: Counter[str] = Counter()
        self._total = 0

    def admits(self, peer: str) -> bool:
        """Whether the peer may open one more now."""
        held = self._held.get(peer, 0)
        if held >= self._a_peer or self._total >= self._in_all:
            return False
        if 4 * self._total < 3 * self._in_all:
            return True
        # Of those that hold some, and one that is still to come.
        return held < max(1, self._in_all // (len(self._held) + 1))

    @contextlib.contextmanager
    def one(self, peer: str) -> Iterator[bool]:
        """Hold one for the length of the block; False, and nothing is held, when there may be no more."""
        if not self.admits(peer):
            yield False
            return
        self._held[peer] += 1
        self._total += 1
        try:
            yield True
        finally:
            self._total -= 1
            self._held[peer] -= 1
            if not self._held[peer]:
                del self._held[peer]
