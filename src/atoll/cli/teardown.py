"""`atoll teardown`: take a control plane off this machine for good."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Annotated

import typer

from atoll.cli.options import AsJson, DataDir
from atoll.cli.output import emit, reported_errors
from atoll.data_dir import RUNNER_ID, lock_data_dir
from atoll.domain.errors import Conflict, Invalid
from atoll.domain.volume import SharedVolume
from atoll.drivers.gvisor.driver import GvisorDriver
from atoll.drivers.removal import remove_tree
from atoll.settings import DATABASE_FILE, Settings, load_settings
from atoll.storage.mounts import VolumeMounts
from atoll.storage.objects import OpenPoint, StorageFailed

_SETTLE_SECONDS = 10.0


def teardown(
    data_dir: DataDir,
    delete_data: Annotated[
        bool, typer.Option("--delete-data", help="Delete the data directory too: accounts, volumes, snapshots, keys.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    as_json: AsJson = False,
) -> None:
    """End every sandbox of a control plane and take all of it off this machine: processes, networks, packet rules,
    control groups, mounts and its folder under /run.

    The server must be stopped. The data directory stays unless --delete-data is given; a PostgreSQL database, buckets
    and the images, which other control planes may use, always do.
    """
    with reported_errors(as_json=as_json):
        if not any((data_dir / name).is_file() for name in (RUNNER_ID, DATABASE_FILE)):
            raise Invalid(f"{data_dir} is not the data directory of a control plane.", field="data-dir")
        settings = load_settings(data_dir)
        descriptor = lock_data_dir(settings.data_dir)
        try:
            driver = GvisorDriver.from_settings(settings)
            sandboxes = len(asyncio.run(driver.list_instances()))
            if not yes:
                _ask(settings.data_dir, sandboxes, delete_data=delete_data, as_json=as_json)
            asyncio.run(_take_down(settings, driver, delete_data=delete_data))
        finally:
            os.close(descriptor)
        value = {"dataDir": str(settings.data_dir), "sandboxes": sandboxes, "dataDeleted": delete_data}
        kept = "deleted" if delete_data else "kept"
        emit(value, as_json=as_json, text=lambda: f"Ended {sandboxes} sandboxes; {settings.data_dir} was {kept}.")


def _ask(data_dir: Path, sandboxes: int, *, delete_data: bool, as_json: bool) -> None:
    if as_json:
        raise Invalid("With --json nothing is asked; say --yes too.", field="yes")
    data = f" and deletes {data_dir} with every account, volume and snapshot" if delete_data else ""
    if not typer.confirm(f"This ends {sandboxes} sandboxes for good{data}. Go on?", err=True):
        raise typer.Exit(1)


async def _take_down(settings: Settings, driver: GvisorDriver, *, delete_data: bool) -> None:
    """Sandboxes first: they write into what is mounted, and what is mounted leads into volumes."""
    await driver.remove_all()
    unstored = await _take_mounts(VolumeMounts(settings.data_dir / "mounts", settings.data_dir / "mount-cache"))
    if not delete_data:
        return
    if unstored:
        raise Conflict(
            f"The files of {unstored} ended sandboxes are not in their volumes yet, so {settings.data_dir} was kept. "
            "Serve it once more while the object storage can be reached, or delete it by hand."
        )
    await asyncio.to_thread(remove_tree, settings.data_dir)


async def _take_mounts(mounts: VolumeMounts) -> int:
    """Unmount every volume; returns how many hold something that is not stored. That stays in the data directory, and
    whoever serves it next stores it."""
    unstored = 0
    for instance_id in mounts.instances():
        try:
            await mounts.settle(instance_id, _unknown_here, seconds=_SETTLE_SECONDS)
            await mounts.detach(instance_id)
        except StorageFailed:
            unstored += 1
            await mounts.unmount(instance_id)
    return unstored


async def _unknown_here(volume_id: str) -> tuple[SharedVolume, OpenPoint] | None:
    raise StorageFailed(f"the volume {volume_id} is not served")
