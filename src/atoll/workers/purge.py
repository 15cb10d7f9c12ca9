"""Deletes the data of removed volumes once their purge delay is over."""

from __future__ import annotations

import structlog

from atoll.domain.errors import AtollError
from atoll.domain.volume import SharedVolume
from atoll.ops.services import Services
from atoll.storage.objects import StorageFailed
from atoll.store import volumes
from atoll.store.wakes import VOLUMES

log = structlog.get_logger()

_SHORTEST_SLEEP_SECONDS = 0.25


class PurgeWorker:
    """The worker of removed volumes. It sleeps until the next purge it knows of."""

    name = "purge"
    topics: tuple[str, ...] = (VOLUMES,)
    interval = 3_600.0

    def __init__(self, services: Services) -> None:
        self._services = services

    async def run_once(self) -> float | None:
        """Delete everything that is due."""
        for volume in await self._services.database.read(volumes.due_for_purge):
            await self._purge(volume)
        moment = await self._services.database.read(volumes.next_purge)
        if moment is None:
            return None
        return max((moment - self._services.clock()).total_seconds(), _SHORTEST_SLEEP_SECONDS)

    async def close(self) -> None:
        """Nothing is under way between passes."""

    async def _purge(self, volume: SharedVolume) -> None:
        """Delete, then forget: nobody can restore it any more, and one cut short is done again."""
        point = await self._services.database.read(lambda tx: volumes.get_point(tx, volume.storage_point_id))
        if point is None:
            raise AtollError("the storage point of a volume is gone")
        try:
            await self._services.volumes.delete(point, volume.id)
        except (StorageFailed, OSError) as error:
            log.warning("volume_not_deleted", volume_id=volume.id, error=str(error))
            return
        await self._services.database.write(lambda tx: volumes.remove_purged(tx, volume.id))
        log.info("volume_purged", volume_id=volume.id)
