"""Many callers at the same moment, each on a connection of its own."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from threading import Barrier

from tests.client import Json
from tests.server import AtollServer

MEET_SECONDS = 60.0
SETTLE_SECONDS = 300.0
_TERMINATING_AT_ONCE = 10


@dataclass(frozen=True, slots=True)
class Created:
    """One create, waited for."""

    sandbox: Json
    milliseconds: float
    """To the end of provisioning."""


def create_at_once(server: AtollServer, keys: Sequence[str], *, template_id: str | None = None) -> list[Created]:
    """Create with these idempotency keys at the same moment, and wait until each sandbox is no longer provisioning."""
    barrier = Barrier(len(keys))

    def create(key: str) -> Created:
        with server.client() as client:
            client.call("GET", "/sandbox-templates")
            barrier.wait(MEET_SECONDS)
            began = time.perf_counter()
            sandbox = client.settled(client.create(key, template_id=template_id)["sandboxId"], seconds=SETTLE_SECONDS)
            return Created(sandbox, (time.perf_counter() - began) * 1000)

    with ThreadPoolExecutor(len(keys)) as pool:
        return list(pool.map(create, keys))


def terminate_at_once(server: AtollServer, sandbox_ids: Sequence[str]) -> None:
    """Terminate all of them."""

    def terminate(sandbox_id: str) -> None:
        with server.client() as client:
            client.terminate(sandbox_id)

    with ThreadPoolExecutor(_TERMINATING_AT_ONCE) as pool:
        list(pool.map(terminate, sandbox_ids))
