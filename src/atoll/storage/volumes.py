"""The data of volumes behind one object: opened points, workspaces, mounts.

Wired by compose, used by ops and workers.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from atoll.domain.volume import StoragePoint
from atoll.sealing import Sealer
from atoll.storage import objects
from atoll.storage.mounts import FindVolume, VolumeMounts
from atoll.storage.objects import OpenPoint
from atoll.storage.workspaces import Workspaces

_SETTLE_SECONDS = 10.0


class VolumeData:
    """What this machine holds and reaches of volumes."""

    def __init__(self, data_dir: Path, sealer: Sealer) -> None:
        root = data_dir.resolve()
        self.workspaces = Workspaces(root / "workspaces", root / "workspaces-removed")
        self.mounts = VolumeMounts(root / "mounts", root / "mount-cache")
        self._sealer = sealer

    def open(self, point: StoragePoint) -> OpenPoint:
        """A point with its secret. Raises `Unsealable` when the secret key is another one by now."""
        if point.sealed_secret is None:
            return OpenPoint(point, None)
        return OpenPoint(point, self._sealer.open(point.sealed_secret, secret_context(point.id)).decode())

    def seal(self, point_id: str, secret_access_key: str) -> bytes:
        """The form in which the secret of a point is stored."""
        return self._sealer.seal(secret_access_key.encode(), secret_context(point_id))

    def instances(self) -> set[str]:
        """Instances of which something is here."""
        return self.workspaces.instances() | self.mounts.instances()

    async def settle(self, instance_id: str, find: FindVolume) -> None:
        """Wait up to ten seconds until what a dead instance closed in its volume is stored (SA-072).

        Raises `StorageFailed` when it is not; it stays on this machine until it is.
        """
        await self.mounts.settle(instance_id, find, seconds=_SETTLE_SECONDS)

    async def release(self, instance_id: str, find: FindVolume) -> None:
        """Let go of everything of an instance that is dead: its workspace, then its mount. Fine when there is none.

        Raises `StorageFailed`, and keeps the mount, while not everything is stored.
        """
        if instance_id in self.instances():
            await self.workspaces.remove(instance_id)
            await self.settle(instance_id, find)
            await self.mounts.detach(instance_id)

    async def probe(self, opened: OpenPoint, name: str) -> None:
        """Find out whether a point can be used; raises `StorageFailed`."""
        await asyncio.to_thread(objects.probe, opened, name)

    async def delete(self, point: StoragePoint, volume_id: str) -> None:
        """Delete all data of a volume; raises `StorageFailed`."""
        await asyncio.to_thread(objects.delete_volume, self.open(point), volume_id)


def secret_context(point_id: str) -> str:
    """Binds a sealed secret to its row."""
    return f"storage_points.sealed_secret:{point_id}"
