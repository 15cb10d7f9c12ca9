"""One control plane's workers over a scripted driver and a real database, which can die and live again."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any
from uuid import uuid4

from tests.databases import Store
from tests.samples import create_request
from tests.scripted_driver import ScriptedDriver, services_of

from atoll.domain.sandbox import Sandbox, SandboxStatus, TerminationReason
from atoll.domain.template import Revision
from atoll.ops.sandbox_create import create_sandbox
from atoll.ops.sandbox_terminate import begin_termination
from atoll.store import sandboxes, templates
from atoll.store.database import Transaction
from atoll.store.wakes import POOLS
from atoll.system import random_id
from atoll.workers.expiry import ExpiryWorker
from atoll.workers.orphans import OrphanWorker
from atoll.workers.pools import PoolWorker
from atoll.workers.sandboxes import SandboxWorker
from atoll.workers.watch import WatchWorker

SETTLED = {SandboxStatus.READY, SandboxStatus.BUSY, SandboxStatus.FAILED, SandboxStatus.TERMINATED}


class World:
    """The parts, and the few moves that tests make."""

    def __init__(self, store: Store, folder: Path, **settings: Any) -> None:
        self.store = store
        self.folder = folder
        self.driver = ScriptedDriver()
        self.settings = {"warm_pool_size": 0, **settings}
        self.begin_life()

    def begin_life(self) -> None:
        """Make the workers and connections of one life of a control plane."""
        self.services = services_of(self.store.database, self.driver, self.folder, **self.settings)
        self.sandboxes = SandboxWorker(self.services, f"runner.{uuid4().hex[:8]}")
        self.watch = WatchWorker(self.services)
        self.expiry = ExpiryWorker(self.services)
        self.orphans = OrphanWorker(self.services)
        self.pools = PoolWorker(self.services)

    async def end_life(self) -> None:
        """Stop everything where it is, as a kill would."""
        for worker in (self.sandboxes, self.watch, self.pools):
            await worker.close()
        await self.services.agents.close()
        self.driver.forget_connections()

    async def next_life(self) -> None:
        """Die and live again on the same database and machine."""
        await self.end_life()
        self.begin_life()
        await self.store.write(lambda tx: sandboxes.drop_leases(tx, "runner"))

    async def create(self, **changes: Any) -> Sandbox:
        """Ask for a sandbox."""
        made = self.store.made
        known = {
            "account_id": made.account_id,
            "app_id": made.app_id,
            "template_id": made.template_id,
            "idempotency_key": random_id(),
        }
        created = await create_sandbox(
            self.services, self.store.principal, create_request(**{**known, **changes}), "correlation"
        )
        return created.sandbox

    async def ready(self) -> Sandbox:
        """A sandbox that runs."""
        sandbox = await self.create()
        await self.work()
        ready = await self.get(sandbox)
        assert ready.status is SandboxStatus.READY, ready
        return ready

    async def get(self, sandbox: Sandbox) -> Sandbox:
        """A sandbox as it is now."""
        return await self.store.sandbox(sandbox.id)

    async def terminate(self, sandbox: Sandbox) -> None:
        """Ask for a sandbox's end."""

        def begin(tx: Transaction) -> None:
            current = sandboxes.get(tx, sandbox.id, lock=True)
            assert current is not None
            begin_termination(tx, current, TerminationReason.USER_REQUESTED)

        await self.store.write(begin)

    async def begin_work(self) -> None:
        """Let the worker of sandboxes claim what there is, without waiting for it."""
        await self.sandboxes.run_once()

    async def work(self, *, passes: int = 20) -> None:
        """Let the worker of sandboxes do all that there is to do."""
        for _ in range(passes):
            await self.sandboxes.run_once()
            if not self.sandboxes._tasks:
                return
            await settle(self.sandboxes._tasks)
        raise AssertionError("the worker does not come to rest")

    async def fill_pools(self, *, passes: int = 20) -> None:
        """Let the worker of pools do all that there is to do."""
        with self.services.wakes.listen(POOLS) as listener:
            for _ in range(passes):
                await self.pools.run_once()
                if self.pools._tasks:
                    await settle(self.pools._tasks)
                elif not await listener.wait(0):
                    return
        raise AssertionError("the worker does not come to rest")

    async def watch_once(self) -> None:
        """Let the watch look, and do what comes of that."""
        await self.watch.run_once()
        for _ in range(3):
            if self.watch._tasks:
                await asyncio.wait(self.watch._tasks, timeout=0.2)

    async def revision(self) -> Revision:
        """The current revision of the default template."""

        def look(tx: Transaction) -> Revision | None:
            template = templates.get(tx, self.store.made.template_id)
            assert template is not None
            return templates.current_revision(tx, template)

        found = await self.store.read(look)
        assert found is not None
        return found


async def settle(tasks: dict[str, asyncio.Task[None]]) -> None:
    """Wait, with a limit, until the tasks there are have ended."""
    _, pending = await asyncio.wait(list(tasks.values()), timeout=10)
    assert not pending, "it does not end"
    await asyncio.sleep(0)


async def until(condition: Any, *, seconds: float = 10) -> None:
    """Wait, with a limit, until a look at something gives a truth."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        await asyncio.sleep(0.002)
