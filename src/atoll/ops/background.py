"""Work that an answer does not wait for and that nothing depends on. What must happen is a row, not one of these."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

_running: set[asyncio.Task[None]] = set()


def spawn(work: Coroutine[Any, Any, None]) -> None:
    """Run it; it handles its own errors and has its own time limit."""
    task = asyncio.create_task(work)
    _running.add(task)
    task.add_done_callback(_running.discard)
