"""Volumes as folders: one rclone mount for each instance that wants one, whatever the kind of the storage point.

Called by workers. A mount outlives the control plane: it is named after its instance, made before it, and found again
by looking. What a sandbox has closed and rclone not stored yet lies in the mount's cache, on this machine's disk, and
is given up by nothing here: a mount goes once it holds nothing more, and one whose rclone has died is served again.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path

import structlog

from atoll.domain.errors import AtollError, ErrorCode, RuntimeFailure
from atoll.domain.volume import PointKind, SharedVolume
from atoll.drivers import process
from atoll.drivers.removal import remove_tree
from atoll.storage import rclone
from atoll.storage.objects import OpenPoint, StorageFailed

_log = structlog.get_logger(__name__)

FindVolume = Callable[[str], Awaitable[tuple[SharedVolume, OpenPoint] | None]]
"""Looks up a volume by its id; None when it is gone for good, and nothing can be stored in it."""

_MOUNT_SECONDS = 30.0
_UNMOUNT_SECONDS = 20.0
_EXIT_SECONDS = 20.0
_SYNC_SECONDS = 60.0
_LOOK_SECONDS = 0.05
_LONGEST_LOOK_SECONDS = 1.0
_LOOKS = 2
"""In a row that find no rclone before it counts as gone."""
_LOG = "rclone.log"
_LOG_BYTES = 2_000
_VOLUME = "volume"
"""In the cache of a mount: what it serves, for whoever has to serve it again."""


def _detached(argv: list[str]) -> list[str]:
    """The command line that starts a program which outlives its starter, and returns at once.

    Raises `ProgramMissing` at once, since the wrapper would hide it.
    """
    if shutil.which(argv[0]) is None:
        raise process.ProgramMissing(argv[0], "cannot be executed (not found)")
    return ["sh", "-c", 'exec setsid --fork "$@" </dev/null >/dev/null 2>&1', "sh", *argv]


class VolumeMounts:
    """The mounts below one root."""

    def __init__(self, root: Path, cache: Path) -> None:
        # As the kernel names them, which is asked what is mounted.
        self._root = root.resolve()
        self._cache = cache.resolve()

    def folder(self, instance_id: str) -> Path:
        """Where the volume of an instance is mounted."""
        return self._root / instance_id

    def cache(self, instance_id: str) -> Path:
        """Where the mount of an instance keeps what is not stored yet, and its log."""
        return self._cache / instance_id

    def instances(self) -> set[str]:
        """Instances that have a mount, or what is left of one."""
        return {entry.name for folder in (self._root, self._cache) if folder.exists() for entry in os.scandir(folder)}

    def broken(self) -> set[str]:
        """Instances whose mount has no living rclone. Looks at every process of the machine: not for the event loop."""
        folders = {os.fsencode(self.folder(instance_id)): instance_id for instance_id in self.instances()}
        if not folders:
            return set()
        lines = (_command_line(int(entry.name)) for entry in os.scandir("/proc") if entry.name.isdecimal())
        served = {folders[word] for words in lines if b"mount" in words for word in words if word in folders}
        return set(folders.values()) - served

    async def attach(self, instance_id: str, opened: OpenPoint, volume: SharedVolume) -> Path:
        """Mount a volume; twice is once. Raises SANDBOX_NOT_READY when the machine cannot."""
        folder, cache = self.folder(instance_id), self.cache(instance_id)
        if await asyncio.to_thread(self._is_served, folder):
            return folder
        await self.unmount(instance_id)
        try:
            for made in (self._root, self._cache, folder, cache):
                made.mkdir(mode=0o700, parents=True, exist_ok=True)
            await asyncio.to_thread(_write_once, cache / _VOLUME, json.dumps([volume.id, _folder_of(opened)]))
            await asyncio.to_thread(rclone.mend_marks, cache, opened.folder(volume.id))
            source = rclone.source(opened, volume)
            argv = _detached(rclone.mount_argv(source, folder, volume, cache=cache, log=cache / _LOG))
            await process.run(argv, timeout=_MOUNT_SECONDS, env=rclone.environment(opened))
            await self._mounted(folder)
        except (process.ProgramError, OSError) as error:
            _log.warning("a volume cannot be mounted", instance_id=instance_id, error=str(error))
            await self.unmount(instance_id)
            missing = isinstance(error, process.ProgramMissing)
            raise RuntimeFailure(
                "the machine has no rclone to mount volumes with" if missing else "the volume could not be mounted",
                code=ErrorCode.SANDBOX_NOT_READY,
            ) from error
        return folder

    async def settle(self, instance_id: str, find: FindVolume, *, seconds: float) -> None:
        """Wait until everything that was closed in an instance, dead by now, is stored. Fine when it has no mount.

        Serves the volume again when its rclone has died. Raises `StorageFailed` when that cannot be done in time; the
        files stay here and wait for the next call.
        """
        cache = self.cache(instance_id)
        pause = _LOOK_SECONDS
        try:
            async with asyncio.timeout(seconds):
                # rclone tells nobody; it tries again by itself for as long as it lives, so it is looked after too.
                while await asyncio.to_thread(rclone.holds_unstored, cache):
                    if not await asyncio.to_thread(self._is_served, self.folder(instance_id)):
                        found = await find(_volume_of(cache)[0])
                        if found is None:
                            _log.warning("files of a volume that is gone are dropped", instance_id=instance_id)
                            return
                        volume, opened = found
                        await self.attach(instance_id, opened, volume)
                    await asyncio.sleep(pause)
                    pause = min(pause * 1.5, _LONGEST_LOOK_SECONDS)
        except TimeoutError:
            said = await asyncio.to_thread(_end_of, cache / _LOG)
            raise StorageFailed(f"what was written is not stored after {seconds:g} s: {said or 'no reason'}") from None
        except (AtollError, OSError, ValueError, process.ProgramError) as error:
            raise StorageFailed(f"what was written is not stored: {error}") from error

    async def detach(self, instance_id: str) -> None:
        """Unmount the volume of a dead instance and drop its cache, which has settled or is given up by the caller.

        What was stored in a folder of this machine survives a loss of power before the cache goes; raises
        `StorageFailed` when the machine cannot promise that.
        """
        folder = await asyncio.to_thread(_served_folder, self.cache(instance_id))
        if folder is not None:
            try:
                await process.run(["sync", "--file-system", str(folder)], timeout=_SYNC_SECONDS)
            except process.ProgramError as error:
                raise StorageFailed(f"what was written is not on disk: {error}") from error
        await self.unmount(instance_id)
        await asyncio.to_thread(self._remove, instance_id)

    async def unmount(self, instance_id: str) -> None:
        """End the mount of an instance; fine when there is none. What is not stored stays and waits for `settle`."""
        folder = self.folder(instance_id)
        if await asyncio.to_thread(self._is_mounted, folder):
            with contextlib.suppress(process.ProgramError):
                await process.run(["umount", str(folder)], timeout=_UNMOUNT_SECONDS)
        servers = await asyncio.to_thread(self._servers, folder)
        for signal_number in (signal.SIGTERM, signal.SIGKILL):
            await asyncio.to_thread(self._signal, folder, servers, signal_number)
            if await self._gone(folder, servers):
                break
        if await asyncio.to_thread(self._is_mounted, folder):
            with contextlib.suppress(process.ProgramError):
                await process.run(["umount", "--lazy", str(folder)], timeout=_UNMOUNT_SECONDS)

    def _remove(self, instance_id: str) -> None:
        # rmdir, not rmtree: should it still be mounted, the volume's files must not be taken for our own.
        with contextlib.suppress(FileNotFoundError):
            self.folder(instance_id).rmdir()
        remove_tree(self.cache(instance_id))  # the sandbox chose the names in it, and how deep they nest

    async def _mounted(self, folder: Path) -> None:
        """Wait until rclone serves. Raises `OSError` when it gave up or takes too long."""
        servers: list[int] = []
        missed = 0

        def is_waited_for() -> bool:
            nonlocal servers, missed
            if self._is_mounted(folder):
                return False
            servers = [pid for pid in servers if self._serves(pid, folder)] or self._servers(folder)
            # One look may miss it: a process has no command line for the moment in which a program replaces another.
            missed = 0 if servers else missed + 1
            return missed < _LOOKS

        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_MOUNT_SECONDS):
                # It outlives us, so it is no child of ours that could be waited on.
                while await asyncio.to_thread(is_waited_for):  # noqa: ASYNC110 - see above
                    await asyncio.sleep(_LOOK_SECONDS)
        if not await asyncio.to_thread(self._is_mounted, folder):
            said = await asyncio.to_thread(_end_of, self.cache(folder.name) / _LOG)
            raise OSError(f"rclone did not mount and said: {said or 'nothing'}")

    @staticmethod
    def _is_mounted(folder: Path) -> bool:
        wanted = str(folder).replace("\\", "\\134").replace(" ", "\\040")
        lines = Path("/proc/self/mountinfo").read_text().splitlines()
        return any(line.split(" ", 5)[4] == wanted for line in lines)

    @classmethod
    def _is_served(cls, folder: Path) -> bool:
        return cls._is_mounted(folder) and bool(cls._servers(folder))

    @classmethod
    def _servers(cls, folder: Path) -> list[int]:
        """The rclone processes that serve a folder. Looks at every process of the machine: not for the event loop."""
        return [
            int(entry.name)
            for entry in os.scandir("/proc")
            if entry.name.isdecimal() and cls._serves(int(entry.name), folder)
        ]

    @staticmethod
    def _serves(pid: int, folder: Path) -> bool:
        """Whether a process serves a folder, by its command line: a number alone proves nothing."""
        words = _command_line(pid)
        return b"mount" in words and os.fsencode(folder) in words[words.index(b"mount") :]

    @classmethod
    def _signal(cls, folder: Path, servers: list[int], signal_number: signal.Signals) -> None:
        for pid in servers:
            if cls._serves(pid, folder):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal_number)

    async def _gone(self, folder: Path, servers: list[int]) -> bool:
        def is_served() -> bool:
            return any(self._serves(pid, folder) for pid in servers)

        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_EXIT_SECONDS):
                # There is nothing to wait on: the process is no child of ours.
                while await asyncio.to_thread(is_served):  # noqa: ASYNC110 - see above
                    await asyncio.sleep(_LOOK_SECONDS)
                return True
        return False


def _folder_of(opened: OpenPoint) -> str | None:
    return opened.point.location if opened.point.kind is PointKind.FOLDER else None


def _write_once(file: Path, text: str) -> None:
    """Whole and durable, or not at all: without it nobody knows where the files of a cache belong."""
    if file.exists():
        return
    partial = file.with_suffix(".partial")
    with partial.open("w") as written:
        written.write(text)
        written.flush()
        os.fsync(written.fileno())
    partial.replace(file)


def _volume_of(cache: Path) -> tuple[str, str | None]:
    """What a mount serves: the volume's id, and the folder of its point, if it is one.

    Raises `OSError` and `ValueError`.
    """
    volume_id, folder = json.loads((cache / _VOLUME).read_text())
    return str(volume_id), folder


def _served_folder(cache: Path) -> Path | None:
    """The folder of this machine that a mount writes into; None for a bucket, or when there was no mount."""
    with contextlib.suppress(OSError, ValueError):
        folder = _volume_of(cache)[1]
        return Path(folder) if folder is not None and Path(folder).is_dir() else None
    return None


def _command_line(pid: int) -> list[bytes]:
    """The words a process was started with; none when it is gone. Raises `OSError` when they cannot be read."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    return []


def _end_of(log: Path) -> str:
    """The last of a log, which may be long: what a sandbox does can make errors in it."""
    try:
        with log.open("rb") as file:
            file.seek(max(os.fstat(file.fileno()).st_size - _LOG_BYTES, 0))
            return file.read(_LOG_BYTES).decode("utf-8", "replace")
    except FileNotFoundError:
        return ""
