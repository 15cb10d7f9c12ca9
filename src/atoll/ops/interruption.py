"""Ends work under way when something else happens: the one way in which the gateway cuts off what it does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager


@asynccontextmanager
async def interrupted_by(reason: Callable[[], Awaitable[Exception]]) -> AsyncIterator[None]:
    """Cancel what is inside once `reason` returns, and raise what it returned. Else `reason` ends with what is inside.

    `reason` must not raise: an error of its own would interrupt nothing.
    """
    task = asyncio.current_task()
    assert task is not None  # noqa: S101 - a context manager is entered by a task
    came: list[Exception] = []

    async def wait() -> None:
        came.append(await reason())
        task.cancel()

    watcher = asyncio.create_task(wait())
    try:
        yield
    except asyncio.CancelledError:
        # Not when somebody else has cancelled it too.
        if came and task.uncancel() == 0:
            raise came[0] from None
        raise
    finally:
        watcher.cancel()
