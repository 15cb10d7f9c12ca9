"""Wakes: hints that something changed. The row is the truth; a lost wake costs a timer's delay and nothing else.

Published by the database after each commit, by `PostgresListener` for other processes, heard by workers and long waits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

SANDBOXES = "sandboxes"
"""Some sandbox has work for the worker that brings sandboxes where they should be."""
STATUSES = "statuses"
"""The status of some sandbox changed, and with it what runs and until when."""
POOLS = "pools"
"""Some pool may be short."""
VOLUMES = "volumes"
"""Some volume waits to be purged."""
WEBHOOKS = "webhooks"
"""Some delivery is due, or there is room for one."""


def sandbox_topic(sandbox_id: str) -> str:
    """The topic of one sandbox."""
    return f"sandbox:{sandbox_id}"


class Listener:
    """Hears one topic from the moment it was made: no wake between a read and a wait is missed."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def notify(self) -> None:
        """Wake the waiter, now or at its next wait."""
        self._event.set()

    async def wait(self, timeout: float) -> bool:
        """Wait for a wake for up to `timeout` seconds; True when there was one."""
        try:
            # Not wait_for: before Python 3.12 it loses a cancellation that comes together with the wake, and a worker
            # that is told to stop would go on.
            async with asyncio.timeout(max(timeout, 0)):
                await self._event.wait()
        except TimeoutError:
            return False
        self._event.clear()
        return True


class Wakes:
    """The topics and who listens to them, in this process."""

    def __init__(self) -> None:
        self._listeners: dict[str, set[Listener]] = {}

    @contextmanager
    def listen(self, topic: str) -> Iterator[Listener]:
        """Listen for as long as the block runs."""
        listener = Listener()
        self._listeners.setdefault(topic, set()).add(listener)
        try:
            yield listener
        finally:
            listeners = self._listeners[topic]
            listeners.discard(listener)
            if not listeners:
                del self._listeners[topic]

    def publish(self, topics: Iterable[str]) -> None:
        """Wake everyone who listens to one of the topics."""
        for topic in topics:
            for listener in self._listeners.get(topic, ()):
                listener.notify()
