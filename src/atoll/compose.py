"""The only place where objects are wired: settings in, a running control plane out."""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import Callable
from contextlib import AsyncExitStack
from datetime import datetime
from pathlib import Path
from types import TracebackType

from sqlalchemy import text

from atoll.data_dir import RUNNER_ID, lock_data_dir, record_image_dir, recorded_image_dir
from atoll.domain.errors import Invalid
from atoll.drivers.base import Driver
from atoll.drivers.connections import AgentConnections
from atoll.ops.services import Services
from atoll.ops.storage_point import sync_platform_points
from atoll.outbound.destinations import Destinations
from atoll.sealing import Sealer
from atoll.secret_key import derive_key, load_secret
from atoll.settings import Settings
from atoll.storage.volumes import VolumeData
from atoll.store import sandboxes, webhooks
from atoll.store.database import Database, Transaction
from atoll.store.listener import relay_notifications
from atoll.store.opening import open_database
from atoll.store.sole import sole_control_plane
from atoll.store.wakes import Wakes
from atoll.system import random_id, utc_now
from atoll.workers.base import Worker, run_forever
from atoll.workers.expiry import ExpiryWorker
from atoll.workers.images import ImageWorker, images_in_use
from atoll.workers.orphans import OrphanWorker
from atoll.workers.pools import PoolWorker
from atoll.workers.purge import PurgeWorker
from atoll.workers.retention import RetentionWorker
from atoll.workers.sandboxes import SandboxWorker
from atoll.workers.watch import WatchWorker
from atoll.workers.webhooks import WebhookWorker

Clock = Callable[[], datetime]


def make_driver(settings: Settings) -> Driver:
    """The driver that the settings name."""
    if settings.driver == "gvisor":
        from atoll.drivers.gvisor.driver import GvisorDriver

        return GvisorDriver.from_settings(settings)
    raise Invalid(f"There is no driver {settings.driver!r}; use gvisor.", field="driver")


class ControlPlane:
    """One running control plane: its services and its workers."""

    def __init__(self, services: Services, workers: list[Worker], taken: AsyncExitStack) -> None:
        self.services = services
        self._workers = workers
        self._taken = taken
        self._tasks: list[asyncio.Task[None]] = []

    @classmethod
    async def open(
        cls,
        settings: Settings,
        *,
        driver: Driver | None = None,
        clock: Clock = utc_now,
        new_id: Callable[[], str] = random_id,
    ) -> ControlPlane:
        """Take the data directory, bring the database up to date, start the driver and the workers."""
        settings.data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        # What was taken is given back in reverse order, also when a later step fails.
        async with AsyncExitStack() as taken:
            taken.callback(os.close, lock_data_dir(settings.data_dir))
            secret = load_secret(settings.secret_key_file or settings.data_dir / "secret.key")
            wakes = Wakes()
            database = await asyncio.to_thread(open_database, settings.store_url, clock=clock, wakes=wakes)
            taken.push_async_callback(database.close)
            await taken.enter_async_context(sole_control_plane(database))
            if driver is None:
                driver = make_driver(settings)
                await _bring_images(settings, database)
            sealer = Sealer(derive_key(secret, "sealed secrets"))
            services = Services(
                settings=settings,
                database=database,
                driver=driver,
                agents=AgentConnections(driver),
                wakes=wakes,
                clock=clock,
                new_id=new_id,
                fingerprint_key=derive_key(secret, "command fingerprints"),
                sealer=sealer,
                destinations=Destinations(settings.webhook_test_destinations),
                volumes=VolumeData(settings.data_dir, sealer),
            )
            runner_id = _runner_id(settings.data_dir, new_id)
            await database.write(lambda tx: _drop_leases(tx, runner_id))
            await database.write(lambda tx: sync_platform_points(tx, settings, new_id))
            taken.push_async_callback(driver.stop)
            await driver.start()
            taken.push_async_callback(services.agents.close)
            workers: list[Worker] = [
                SandboxWorker(services, f"{runner_id}.{secrets.token_hex(8)}"),
                WatchWorker(services),
                ExpiryWorker(services),
                OrphanWorker(services),
                PoolWorker(services),
                ImageWorker(services),
                PurgeWorker(services),
                RetentionWorker(services),
                WebhookWorker(services, f"{runner_id}.{secrets.token_hex(8)}"),
            ]
            plane = cls(services, workers, taken.pop_all())
        plane._start()
        return plane

    def _start(self) -> None:
        for worker in self._workers:
            self._tasks.append(asyncio.create_task(run_forever(worker, self.services.wakes), name=worker.name))
        if self.services.database.dialect == "postgresql":
            self._tasks.append(asyncio.create_task(relay_notifications(self.services.database), name="listener"))

    async def readiness(self) -> dict[str, str | None]:
        """What each dependency lacks; None where it lacks nothing."""
        return {"database": await self._database_trouble(), "workers": self._worker_trouble()}

    async def _database_trouble(self) -> str | None:
        try:
            async with asyncio.timeout(2):
                await self.services.database.read(lambda tx: tx.connection.execute(text("SELECT 1")).scalar())
        except Exception as error:
            return f"the database does not answer ({type(error).__name__})"
        return None

    def _worker_trouble(self) -> str | None:
        ended = [task.get_name() for task in self._tasks if task.done()]
        return f"workers have ended: {', '.join(ended)}" if ended else None

    async def close(self) -> None:
        """Stop the workers, let go of agents and driver; sandboxes and their commands go on."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for worker in self._workers:
            await worker.close()
        await self._taken.aclose()

    async def __aenter__(self) -> ControlPlane:
        """Enter a block that closes the control plane at its end."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close."""
        await self.close()


async def _bring_images(settings: Settings, database: Database) -> None:
    """Take over the images built here that revisions name, from where an earlier server or a bootstrap kept them: no
    registry has those."""
    from atoll.drivers.gvisor.images import ImageStore

    earlier = recorded_image_dir(settings.data_dir)
    if earlier is not None and earlier != settings.image_dir:
        named = await database.read(images_in_use)
        await asyncio.to_thread(ImageStore.from_settings(settings).adopt_local, earlier, named)
    record_image_dir(settings.data_dir, settings.image_dir)


def _drop_leases(tx: Transaction, runner_id: str) -> None:
    """What an earlier life of this runner was at is free again: the lock says that it is over."""
    sandboxes.drop_leases(tx, runner_id)
    webhooks.drop_leases(tx, runner_id)


def _runner_id(data_dir: Path, new_id: Callable[[], str]) -> str:
    """The name of this machine's control plane, the same at every start."""
    file = data_dir / RUNNER_ID
    if not file.exists():
        temporary = file.with_suffix(".new")
        temporary.write_text(new_id())
        temporary.replace(file)
    return file.read_text().strip()
