"""How much a stream may send beyond what its client has acknowledged. No I/O.

A client that never acknowledges is held back by TCP alone. From its first acknowledgement on, at most WINDOW_BYTES are
under way, so a client that shows output slowly need not take in all of it: what it does not take stays at the agent.
"""

from __future__ import annotations

from collections import deque

WINDOW_BYTES = 2 * 1024 * 1024
"""Output under way to a client that acknowledges."""
EVENT_BYTES = 64
"""What an event counts beside its bytes, so that a flood of small ones is held back too."""


class Window:
    """What was sent and not acknowledged yet; empty until the client acknowledges for the first time."""

    def __init__(self) -> None:
        self._acknowledged = False
        self._sent: deque[tuple[int, int]] = deque()
        self._under_way = 0

    def sent(self, seq: int, size: int) -> None:
        """An event went out."""
        if self._acknowledged:
            self._sent.append((seq, size + EVENT_BYTES))
            self._under_way += size + EVENT_BYTES

    def acknowledge(self, seq: int) -> None:
        """The client has taken this event and all before it; a number twice, or one never sent, does no harm."""
        self._acknowledged = True
        while self._sent and self._sent[0][0] <= seq:
            self._under_way -= self._sent.popleft()[1]

    @property
    def full(self) -> bool:
        """Whether to wait for an acknowledgement before the next event."""
        return self._under_way >= WINDOW_BYTES
