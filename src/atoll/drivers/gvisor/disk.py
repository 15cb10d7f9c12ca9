"""Watches how much temporary disk each sandbox uses and evicts the one over its limit (SA-409, SA-410).

What a sandbox writes lies in a few files that gVisor holds open and has mostly unlinked, so they are found through the
descriptors of its process and measured by their allocated blocks. Started by the driver; it decides nothing else.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import stat
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import structlog

from atoll.drivers.beneath import DIRECTORY_FLAGS, entries_beneath

MIB = 1024 * 1024
_BLOCK_BYTES = 512
_COUNTING_SHARE = 20
_TOO_MUCH = 1 << 62
_PROC = Path("/proc")
_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Watched:
    """One sandbox to look at."""

    instance_id: str
    disk: Path
    limit_bytes: int
    processes: Callable[[], Iterable[int]]
    folders: tuple[Path, ...] = ()
    """Folders of the machine whose files it writes."""


@dataclass(slots=True)
class _Backing:
    """The open files behind one sandbox's writable layers, by device and inode."""

    descriptors: dict[tuple[int, int], Path]


class DiskWatcher:
    """Looks at every sandbox each `seconds`."""

    def __init__(
        self, sandboxes: Callable[[], list[Watched]], evict: Callable[[str], Awaitable[None]], *, seconds: float
    ) -> None:
        self._sandboxes = sandboxes
        self._evict = evict
        self._seconds = seconds
        self._known: dict[str, _Backing] = {}
        self._folders = FolderUsage()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin looking."""
        self._task = asyncio.create_task(self._keep_looking())

    async def stop(self) -> None:
        """Stop looking."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    async def _keep_looking(self) -> None:
        while True:
            await asyncio.sleep(self._seconds)
            try:
                for instance_id in await asyncio.to_thread(self.over_limit):
                    await self._evict_safely(instance_id)
            except Exception:
                # One look that failed must not end the watching.
                _log.exception("looking at temporary disk failed")

    async def _evict_safely(self, instance_id: str) -> None:
        """One that resists must not protect the others; the next look finds it again."""
        _log.info("temporary disk limit exceeded", instance_id=instance_id)
        try:
            await self._evict(instance_id)
        except Exception:
            _log.exception("eviction failed", instance_id=instance_id)

    def over_limit(self) -> list[str]:
        """The sandboxes over their limit now."""
        watched = self._sandboxes()
        alive = {sandbox.instance_id for sandbox in watched}
        for gone in self._known.keys() - alive:
            del self._known[gone]
        self._folders.keep({folder for sandbox in watched for folder in sandbox.folders})
        return [sandbox.instance_id for sandbox in watched if self._is_over(sandbox)]

    def _is_over(self, sandbox: Watched) -> bool:
        try:
            return self.usage(sandbox) > sandbox.limit_bytes
        except OSError as error:  # of one sandbox: the others are looked at all the same
            _log.warning("temporary disk not measured", instance_id=sandbox.instance_id, error=str(error))
            return False

    def usage(self, sandbox: Watched) -> int:
        """Allocated bytes of its backing files and folders."""
        return self._backing_usage(sandbox) + sum(self._folders.usage(folder) for folder in sandbox.folders)

    def _backing_usage(self, sandbox: Watched) -> int:
        known = self._known.get(sandbox.instance_id)
        if known is not None and (total := _measure(known)) is not None:
            return total
        found = _find(sandbox)
        if not found.descriptors:
            return 0
        self._known[sandbox.instance_id] = found
        return _measure(found) or 0


class FolderUsage:
    """Allocated bytes below folders. One with many files is counted the more seldom the longer that takes."""

    def __init__(self, seconds: Callable[[], float] = time.monotonic) -> None:
        self._seconds = seconds
        self._counted: dict[Path, tuple[float, int]] = {}
        """Until when a count holds, and what it was."""

    def keep(self, folders: set[Path]) -> None:
        """Forget every other folder."""
        for gone in self._counted.keys() - folders:
            del self._counted[gone]

    def usage(self, folder: Path) -> int:
        """Bytes, at most as old as twenty times what counting them takes."""
        begun = self._seconds()
        holds_until, counted = self._counted.get(folder, (0.0, 0))
        if begun < holds_until:
            return counted
        counted = _count_folder(folder)
        ended = self._seconds()
        self._counted[folder] = (ended + _COUNTING_SHARE * (ended - begun), counted)
        return counted


def _count_folder(folder: Path) -> int:
    """Follows no link, and leaves the folder by none. Without recursion: the sandbox chooses how deep its folders nest.

    What lies deeper than any path can name cannot be counted, so it counts as too much. Raises `OSError`.
    """
    total = 0
    linked: set[int] = set()
    try:
        root = os.open(folder, DIRECTORY_FLAGS)
    except FileNotFoundError:
        return 0
    try:
        pending = [b""]
        while pending:
            for path, seen in entries_beneath(root, pending.pop()):
                if stat.S_ISDIR(seen.st_mode):
                    pending.append(path)
                elif seen.st_nlink > 1:
                    if seen.st_ino in linked:
                        continue
                    linked.add(seen.st_ino)
                total += seen.st_blocks * _BLOCK_BYTES
    except OSError as error:
        if error.errno != errno.ENAMETOOLONG:
            raise
        return _TOO_MUCH
    finally:
        os.close(root)
    return total


def _measure(backing: _Backing) -> int | None:
    """None when a descriptor is another file by now, so that the caller looks again."""
    total = 0
    for identity, path in backing.descriptors.items():
        try:
            seen = path.stat()
        except OSError:
            return None
        if (seen.st_dev, seen.st_ino) != identity:
            return None
        total += seen.st_blocks * _BLOCK_BYTES
    return total


def _find(sandbox: Watched) -> _Backing:
    prefix = f"{sandbox.disk}/"
    found: dict[tuple[int, int], Path] = {}
    for pid in sandbox.processes():
        with contextlib.suppress(OSError):
            for descriptor in (_PROC / str(pid) / "fd").iterdir():
                with contextlib.suppress(OSError):
                    if str(descriptor.readlink()).startswith(prefix):
                        seen = descriptor.stat()
                        found.setdefault((seen.st_dev, seen.st_ino), descriptor)
    return _Backing(found)
