"""Takes a snapshot of a workspace into object storage, and restores one from there.

Called by workers. An archive is one object, written once under its own name and recorded by the caller afterwards, so a
snapshot that fails leaves the earlier ones as they were. A restore leaves the workspace whole or empty.
"""

from __future__ import annotations

import asyncio
import contextvars
import hashlib
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path
from typing import TypeVar

from atoll.domain.snapshot import Snapshot, SnapshotRules
from atoll.domain.volume import SANDBOX_ID_NUMBER
from atoll.drivers.removal import empty_folder
from atoll.storage import archive, objects
from atoll.storage.archive import ArchiveFailed
from atoll.storage.listing import SnapshotTooLarge, list_workspace
from atoll.storage.objects import OpenPoint, StorageFailed
from atoll.storage.patterns import Cancelled

T = TypeVar("T")

_AT_ONCE = 8
_threads = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="archive")
"""Of their own: a slow bucket must not hold up everything else that is done in threads."""


async def take(
    opened: OpenPoint,
    folder: Path,
    rules: SnapshotRules,
    *,
    snapshot_id: str,
    volume_id: str,
    sandbox_id: str,
    now: datetime,
    timeout: float,
) -> Snapshot:
    """Archive a workspace, also while its sandbox runs.

    Raises `SnapshotTooLarge`, `ArchiveFailed`, `StorageFailed`, `OSError`, or `TimeoutError` after `timeout` seconds of
    work.
    """

    def work(cancel: threading.Event) -> Snapshot:
        listing = list_workspace(folder, rules, cancel)
        digest = hashlib.sha256()
        counted = [0]
        stored = [0]

        def measured() -> Iterator[bytes]:
            for chunk in archive.pack(folder, listing, rules.max_bytes, cancel, counted):
                digest.update(chunk)
                stored[0] += len(chunk)
                yield chunk

        objects.put(opened, objects.snapshot_key(volume_id, snapshot_id), measured())
        return Snapshot(
            id=snapshot_id,
            volume_id=volume_id,
            sandbox_id=sandbox_id,
            archive_bytes=stored[0],
            content_bytes=counted[0],
            file_count=listing.files,
            skipped_count=listing.skipped,
            sha256=digest.hexdigest(),
            created_at=now,
        )

    return await _in_thread(work, timeout)


async def restore(opened: OpenPoint, snapshot: Snapshot, folder: Path, *, timeout: float) -> None:
    """Fill an empty workspace from an archive; when this raises, the workspace is empty again.

    Raises `ArchiveFailed` (damaged, hostile or not the one recorded), `StorageFailed` (missing, unreachable), `OSError`
    or `TimeoutError`.
    """

    def work(cancel: threading.Event) -> None:
        digest = hashlib.sha256()
        length = 0

        def measured() -> Iterator[bytes]:
            nonlocal length
            for chunk in objects.get(opened, objects.snapshot_key(snapshot.volume_id, snapshot.id)):
                digest.update(chunk)
                length += len(chunk)
                if length > snapshot.archive_bytes:
                    raise ArchiveFailed("the archive is longer than it was")
                yield chunk

        try:
            archive.unpack(measured(), folder, snapshot.content_bytes, cancel)
            if digest.hexdigest() != snapshot.sha256 or length != snapshot.archive_bytes:
                raise ArchiveFailed("the archive is not the one that was recorded")
        except BaseException:
            empty_folder(folder)
            raise

    await _in_thread(work, timeout)


async def _in_thread(work: Callable[[threading.Event], T], timeout: float) -> T:
    """Run blocking work; on the time limit and on cancellation it is told to stop, and waited for.

    The limit begins with the work. Waiting for a thread has none of its own: all work before it has one.
    """
    loop = asyncio.get_running_loop()
    begun = asyncio.Event()
    cancel = threading.Event()

    def run() -> T:
        loop.call_soon_threadsafe(begun.set)
        return work(cancel)

    job = _threads.submit(contextvars.copy_context().run, run)
    result = asyncio.wrap_future(job)
    try:
        await begun.wait()
        async with asyncio.timeout(timeout):
            return await asyncio.shield(result)
    finally:
        if not result.done():
            cancel.set()
            job.cancel()  # only what has not begun
            await asyncio.gather(result, return_exceptions=True)


def own(path: Path) -> None:
    """Give a folder to the sandbox's user."""
    if os.getuid() == 0:
        os.chown(path, SANDBOX_ID_NUMBER, SANDBOX_ID_NUMBER, follow_symlinks=False)


__all__ = ["ArchiveFailed", "Cancelled", "SnapshotTooLarge", "StorageFailed", "own", "restore", "take"]
