"""What a volume mode adds to the making of an instance: its workspace with the latest snapshot in it, and its volume.

Called by the sandbox worker before it makes an instance. Every step may be repeated.
"""

from __future__ import annotations

from pathlib import Path

import structlog

from atoll.domain.errors import AtollError
from atoll.domain.sandbox import Sandbox
from atoll.domain.snapshot import Snapshot
from atoll.domain.volume import WORKSPACE, SharedVolume, inside_workspace
from atoll.drivers.base import HostMount
from atoll.ops.services import Services
from atoll.storage import snapshots as archives
from atoll.storage.objects import OpenPoint
from atoll.store import snapshots, volumes
from atoll.store.database import Transaction

log = structlog.get_logger()


async def find_volume(services: Services, volume_id: str) -> tuple[SharedVolume, OpenPoint] | None:
    """A volume with its storage point opened; None when it is gone."""

    def look(tx: Transaction) -> tuple[SharedVolume, OpenPoint] | None:
        volume = volumes.get(tx, volume_id)
        point = None if volume is None else volumes.get_point(tx, volume.storage_point_id)
        return None if volume is None or point is None else (volume, services.volumes.open(point))

    return await services.database.read(look)


async def open_volume(services: Services, sandbox: Sandbox) -> tuple[SharedVolume, OpenPoint]:
    """The volume of a sandbox, with its storage point opened."""
    found = None if sandbox.volume_id is None else await find_volume(services, sandbox.volume_id)
    if found is None:
        raise AtollError("the volume of a sandbox is gone")
    return found


async def prepare_mounts(services: Services, sandbox: Sandbox) -> tuple[HostMount, ...]:
    """What is to be bound into the instance of a sandbox, outer folders first. Nothing in EPHEMERAL.

    A restore that fails leaves an empty workspace and its reason in the row: the sandbox starts all the same (SA-050).
    """
    if not sandbox.persistence_mode.uses_volume:
        return ()
    instance_id = str(sandbox.instance_id)
    volume, opened = await open_volume(services, sandbox)
    mounts = []
    if sandbox.persistence_mode.takes_snapshots:

        async def fill(folder: Path) -> None:
            await _restore(services, sandbox, opened, folder)

        folder = await services.volumes.workspaces.prepare(instance_id, fill)
        mounts.append(HostMount(str(folder), WORKSPACE, counts_as_disk=True))
    if sandbox.mount_path is not None:
        source = await services.volumes.mounts.attach(instance_id, opened, volume)
        cache = services.volumes.mounts.cache(instance_id)
        mounts.append(HostMount(str(source), sandbox.mount_path, counts_as_disk=False, cache=str(cache)))
    return tuple(mounts)


async def _restore(services: Services, sandbox: Sandbox, opened: OpenPoint, folder: Path) -> None:
    """Fill a new workspace from the latest snapshot, if there is one, and write down how that went before any boot."""
    snapshot = await services.database.read(lambda tx: snapshots.latest(tx, sandbox))
    error = None if snapshot is None else await _try_restore(services, sandbox, snapshot, opened, folder)
    _make_mount_point(folder, inside_workspace(sandbox.mount_path))
    await services.database.write(lambda tx: snapshots.record_restore(tx, sandbox.id, error=error))


async def _try_restore(
    services: Services, sandbox: Sandbox, snapshot: Snapshot, opened: OpenPoint, folder: Path
) -> str | None:
    limit = services.settings.snapshot_timeout_seconds
    try:
        await archives.restore(opened, snapshot, folder, timeout=limit)
    except archives.StorageFailed as error:
        reason, detail = "The latest snapshot is missing or cannot be read.", str(error)
    except archives.ArchiveFailed as error:
        reason, detail = "The latest snapshot is damaged.", str(error)
    except TimeoutError:
        reason, detail = "The latest snapshot could not be restored in time.", f"after {limit:g} s"
    except OSError as error:
        reason, detail = "The latest snapshot could not be written to the workspace.", str(error)
    else:
        return None
    log.warning("restore_failed", sandbox_id=sandbox.id, snapshot_id=snapshot.id, error=detail)
    return reason


def _make_mount_point(folder: Path, relative: str | None) -> None:
    """Make the folder onto which the volume is mounted. The archive may hold something else of that name."""
    if relative is None:
        return
    path = folder
    for part in Path(relative).parts:
        path /= part
        if path.is_symlink() or (path.exists() and not path.is_dir()):
            path.unlink()
        path.mkdir(exist_ok=True)
        archives.own(path)
