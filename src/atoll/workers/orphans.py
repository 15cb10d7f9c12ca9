"""Reaps what nobody owns: instances on the machine that the store does not know."""

from __future__ import annotations

from functools import partial

import structlog

from atoll.ops.services import Services
from atoll.store import pools, sandboxes
from atoll.store.database import Transaction
from atoll.workers.persistence import find_volume

log = structlog.get_logger()


class OrphanWorker:
    """The worker that compares what the driver finds with what the store knows.

    The other direction, a sandbox on record whose instance is gone, is the watch worker's.
    """

    name = "orphans"
    topics: tuple[str, ...] = ()
    interval = 60.0
    patience = 0.0

    def __init__(self, services: Services) -> None:
        self._services = services
        self._find_volume = partial(find_volume, services)

    async def run_once(self) -> float | None:
        """Destroy every orphan. The machine is looked at before the store: ids are stored before they are used."""
        found = await self._services.driver.list_instances()
        left = self._services.volumes.instances()
        owned = await self._services.database.read(_owned)
        for observation in found:
            if observation.instance_id in owned:
                continue
            try:
                await self._reap(observation.instance_id)
            except Exception:  # one that resists must not protect the others; the next pass tries again
                log.exception("orphan_resists", instance_id=observation.instance_id)
            else:
                log.warning("orphan_reaped", instance_id=observation.instance_id, observed=observation.observed)
        self._services.volumes.workspaces.sweep()
        # Mounts and workspaces of instances that the driver has nothing of any more.
        for instance_id in left - owned - {observation.instance_id for observation in found}:
            try:
                await self._services.volumes.release(instance_id, self._find_volume)
            except Exception as error:  # a bucket that cannot be reached must not keep the rest
                log.warning("volume_not_stored_yet", instance_id=instance_id, error=str(error))
            else:
                log.warning("orphaned_volume_released", instance_id=instance_id)
        return None

    async def _reap(self, instance_id: str) -> None:
        await self._services.agents.drop(instance_id)
        await self._services.driver.destroy(instance_id)
        await self._services.driver.cleanup(instance_id)
        await self._services.volumes.release(instance_id, self._find_volume)

    async def close(self) -> None:
        """Nothing is under way between passes."""


def _owned(tx: Transaction) -> set[str]:
    ids = {sandbox.instance_id for sandbox in sandboxes.with_instances(tx)}
    ids |= {instance.id for instance in pools.list_all(tx)}
    return {instance_id for instance_id in ids if instance_id is not None}
