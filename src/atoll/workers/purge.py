"""Deletes the data of removed volumes once their purge delay is over."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

import structlog

from atoll.domain.errors import AtollError
from atoll.domain.volume import SharedVolume
from atoll.ops.services import Services
from atoll.store import volumes
from atoll.store.wakes import VOLUMES

log = structlog.get_logger()

_SHORTEST_SLEEP_SECONDS = 0.25
_FIRST_RETRY = timedelta(minutes=1)
_LONGEST_RETRY = timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class _Retry:
    """When a volume whose purge failed is tried again, and how long the worker waited for that."""

    at: datetime
    delay: timedelta


class PurgeWorker:
    """The worker of removed volumes. It sleeps until the next purge it knows of."""

    name = "purge"
    topics: tuple[str, ...] = (VOLUMES,)
    interval = 3_600.0
    patience = 0.0

    def __init__(self, services: Services) -> None:
        self._services = services
        self._retries: dict[str, _Retry] = {}

    async def run_once(self) -> float | None:
        """Delete everything that is due; what cannot be deleted holds up nothing else and is tried again ever later."""
        due = await self._services.database.read(volumes.due_for_purge)
        due_ids = {volume.id for volume in due}
        self._retries = {volume_id: retry for volume_id, retry in self._retries.items() if volume_id in due_ids}
        for volume in due:
            await self._try(volume)
        moments = [retry.at for retry in self._retries.values()]
        waiting = set(self._retries)
        moment = await self._services.database.read(lambda tx: volumes.next_purge(tx, except_for=waiting))
        if moment is not None:
            moments.append(moment)
        if not moments:
            return None
        return max((min(moments) - self._services.clock()).total_seconds(), _SHORTEST_SLEEP_SECONDS)

    async def close(self) -> None:
        """Nothing is under way between passes."""

    async def _try(self, volume: SharedVolume) -> None:
        failed_before = self._retries.get(volume.id)
        if failed_before is not None and self._services.clock() < failed_before.at:
            return
        try:
            await self._purge(volume)
        except Exception:
            delay = _FIRST_RETRY if failed_before is None else min(2 * failed_before.delay, _LONGEST_RETRY)
            self._retries[volume.id] = _Retry(self._services.clock() + delay, delay)
            log.exception("volume_not_deleted", volume_id=volume.id, retry_seconds=delay.total_seconds())
        else:
            self._retries.pop(volume.id, None)

    async def _purge(self, volume: SharedVolume) -> None:
        """Delete, then forget: nobody can restore it any more, and one cut short is done again."""
        point = await self._services.database.read(lambda tx: volumes.get_point(tx, volume.storage_point_id))
        if point is None:
            raise AtollError("the storage point of a volume is gone")
        await self._services.volumes.delete(point, volume.id)
        await self._services.database.write(lambda tx: volumes.remove_purged(tx, volume.id))
        log.info("volume_purged", volume_id=volume.id)
