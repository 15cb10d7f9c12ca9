"""The loop that every worker runs in."""

from __future__ import annotations

import asyncio
import random
from contextlib import ExitStack
from typing import Protocol

import structlog

from atoll.store.wakes import Listener, Wakes

log = structlog.get_logger()

_MAX_BACKOFF_SECONDS = 30.0


class Worker(Protocol):
    """One reconciler."""

    name: str
    topics: tuple[str, ...]
    """What wakes it."""
    interval: float
    """Seconds after which it looks without a wake."""
    patience: float
    """Seconds it lets go by after a wake: whoever changed something is mostly in the middle of more, and a worker for
    which nothing is urgent must not slow that down."""

    async def run_once(self) -> float | None:
        """Do what there is to do. Returns the seconds after which there will be more, if it knows."""
        ...

    async def close(self) -> None:
        """End what it still does."""
        ...


async def run_forever(worker: Worker, wakes: Wakes) -> None:
    """Run a worker until cancelled. A pass that fails is logged and repeated with a growing, jittered delay."""
    failures = 0
    with ExitStack() as stack:
        listeners = [stack.enter_context(wakes.listen(topic)) for topic in worker.topics]
        while True:
            delay = worker.interval
            try:
                next_due = await worker.run_once()
            except Exception:
                failures += 1
                log.exception("worker_failed", worker=worker.name, failures=failures)
                delay = min(2.0**failures, _MAX_BACKOFF_SECONDS) * random.uniform(0.8, 1.2)  # noqa: S311 - jitter
            else:
                failures = 0
                if next_due is not None:
                    delay = min(delay, max(next_due, 0.0))
            if await _wait_any(listeners, delay) and worker.patience:
                await asyncio.sleep(worker.patience)


async def _wait_any(listeners: list[Listener], delay: float) -> bool:
    """Whether there was a wake."""
    if not listeners:
        await asyncio.sleep(delay)
        return False
    waits = [asyncio.create_task(listener.wait(delay)) for listener in listeners]
    try:
        done, _ = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        return any(wait.result() for wait in done)
    finally:
        for wait in waits:
            wait.cancel()
