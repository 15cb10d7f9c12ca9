"""Wait for a sandbox to get somewhere: sleeps on wakes, looks at the row, always with a limit."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from atoll.domain.sandbox import Sandbox
from atoll.ops.services import Services
from atoll.store import sandboxes
from atoll.store.wakes import sandbox_topic

_RECHECK_SECONDS = 1.0
"""A wait looks again this often even without a wake: a hint can be lost, or come from another process."""


async def wait_while(
    services: Services,
    sandbox_id: str,
    first_look: Callable[[], Awaitable[Sandbox]],
    unsettled: Callable[[Sandbox], bool],
    seconds: float,
) -> Sandbox:
    """Return the sandbox once `unsettled` is false of it, or as it is after `seconds`.

    Listens before `first_look`, so a change between the look and the wait is not missed.
    """
    loop = asyncio.get_running_loop()
    with services.wakes.listen(sandbox_topic(sandbox_id)) as listener:
        sandbox = await first_look()
        deadline = loop.time() + seconds
        while unsettled(sandbox) and (remaining := deadline - loop.time()) > 0:
            await listener.wait(min(remaining, _RECHECK_SECONDS))
            current = await services.database.read(lambda tx: sandboxes.get(tx, sandbox_id))
            sandbox = current or sandbox
    return sandbox
