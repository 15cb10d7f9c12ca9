"""A volume that cannot be deleted is tried again ever later, and holds up no other."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest
from tests.unit.workers.world import World

from atoll.domain.volume import PointKind, SharedVolume, StoragePoint, VolumeStatus
from atoll.store import volumes
from atoll.store.database import Transaction
from atoll.workers.purge import PurgeWorker


async def add_volumes(world: World, folder: Path, delays: dict[str, timedelta]) -> None:
    now = world.store.clock()
    account = world.store.made.account_id
    point = StoragePoint(
        "point", None, "local", "here", PointKind.FOLDER, str(folder), None, None, None, None, 1001, 1001, now, None
    )

    def add(tx: Transaction) -> None:
        volumes.add_point(tx, point)
        for name, delay in delays.items():
            (folder / name / "data").mkdir(parents=True)
            status = VolumeStatus.PENDING_PURGE
            volumes.add(
                tx,
                SharedVolume(name, account, name, "local", "point", status, 1, 1001, 1001, now + delay, now, now),
            )

    await world.store.write(add)


async def known(world: World, *names: str) -> list[bool]:
    def look(tx: Transaction) -> list[bool]:
        return [volumes.get(tx, name) is not None for name in names]

    return await world.store.read(look)


@pytest.mark.parametrize("error", [OSError("denied"), RuntimeError("unforeseen")])
async def test_a_volume_that_cannot_be_deleted_holds_up_no_other(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    past, later = timedelta(seconds=-1), timedelta(hours=5)
    await add_volumes(world, tmp_path / "v", {"bad": 2 * past, "good": past, "later": later})
    really_delete = world.services.volumes.delete
    tries = 0

    async def delete(point: StoragePoint, volume_id: str) -> None:
        nonlocal tries
        if volume_id == "bad":
            tries += 1
            raise error
        await really_delete(point, volume_id)

    monkeypatch.setattr(world.services.volumes, "delete", delete)
    worker = PurgeWorker(world.services)
    assert await worker.run_once() == 60
    assert await known(world, "bad", "good", "later") == [True, False, True]
    assert not (tmp_path / "v" / "good").exists()
    world.store.clock.pass_seconds(20)
    assert await worker.run_once() == 40
    assert tries == 1
    for wait in (40, 120, 240, 480, 960, 1920, 3600):
        world.store.clock.pass_seconds(wait)
        sleep = await worker.run_once()
    assert sleep == 3600
    assert tries == 8
    monkeypatch.undo()
    world.store.clock.pass_seconds(3600)
    assert await worker.run_once() == 5 * 3600 - 3600 - sum((20, 40, 120, 240, 480, 960, 1920, 3600))
    assert await known(world, "bad", "later") == [False, True]


async def test_a_volume_restored_after_a_failed_purge_is_forgotten(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await add_volumes(world, tmp_path / "v", {"bad": timedelta(seconds=-1)})

    async def delete(point: StoragePoint, volume_id: str) -> None:
        raise OSError("denied")

    monkeypatch.setattr(world.services.volumes, "delete", delete)
    worker = PurgeWorker(world.services)
    assert await worker.run_once() == 60
    await world.store.write(lambda tx: volumes.restore(tx, "bad"))
    assert await worker.run_once() is None
