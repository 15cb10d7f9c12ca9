"""Volumes as folders: one rclone mount for each instance that wants one, whatever the kind of the storage point.

rclone gives what the specification says of a volume (SA-072, SA-092 … SA-097): every file 0664 and every folder 2775 of
the volume's owner, changed modes and times accepted and not kept, a file stored when it is closed. Called by workers.
A mount outlives the control plane: it is named after its instance, made before it, and found again by looking.
Credentials reach rclone in its environment, which root alone can read, never in its arguments.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
from pathlib import Path

import structlog

from atoll.domain.errors import ErrorCode, RuntimeFailure
from atoll.domain.volume import PointKind, SharedVolume
from atoll.drivers import process
from atoll.drivers.removal import remove_tree
from atoll.storage.objects import OpenPoint

_log = structlog.get_logger(__name__)

_MOUNT_SECONDS = 30.0
_UNMOUNT_SECONDS = 20.0
_FLUSH_SECONDS = 20.0
_LOOK_SECONDS = 0.1
_DIRECTORY_MODE = "20000775"
"""2775 as rclone understands it: the set-group-id bit has another place in Go's modes."""
_OPTIONS = (
    *("--file-perms", "0664", "--dir-perms", _DIRECTORY_MODE, "--umask", "0", "--no-modtime", "--allow-other"),
    # Written back when the file is closed, before close returns.
    *("--vfs-cache-mode", "writes", "--vfs-write-back", "0s"),
    # What is stored leaves the machine's disk soon. What is open or not stored yet is bounded by no option: the driver
    # counts the cache as temporary disk of the sandbox.
    *("--vfs-cache-max-age", "10s", "--vfs-cache-poll-interval", "5s", "--vfs-cache-max-size", "64M"),
    # How soon one sandbox sees what another one wrote.
    *("--dir-cache-time", "1s", "--attr-timeout", "1s", "--poll-interval", "0"),
    *("--config", "/dev/null", "--log-level", "ERROR", "--use-mmap", "--buffer-size", "4M"),
)
_LOG = "rclone.log"
_LOG_BYTES = 2_000
_RESTING_MEMORY = "32MiB"


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
        self._root = root
        self._cache = cache

    def folder(self, instance_id: str) -> Path:
        """Where the volume of an instance is mounted."""
        return self._root / instance_id

    def cache(self, instance_id: str) -> Path:
        """Where the mount of an instance keeps what is not stored yet, and its log."""
        return self._cache / instance_id

    def instances(self) -> set[str]:
        """Instances that have a mount, or what is left of one."""
        return {entry.name for folder in (self._root, self._cache) if folder.exists() for entry in os.scandir(folder)}

    async def attach(self, instance_id: str, opened: OpenPoint, volume: SharedVolume) -> Path:
        """Mount a volume; twice is once. Raises SANDBOX_NOT_READY when the machine cannot."""
        folder = self.folder(instance_id)
        if await asyncio.to_thread(lambda: self._is_mounted(folder) and self._servers(folder)):
            return folder
        await self.detach(instance_id)
        try:
            for made in (self._root, self._cache, folder, self.cache(instance_id)):
                made.mkdir(mode=0o700, parents=True, exist_ok=True)
            source = self._source(opened, volume)
            await process.run(self._argv(source, folder, volume), timeout=_MOUNT_SECONDS, env=self._environment(opened))
            await self._mounted(folder)
        except (process.ProgramError, OSError) as error:
            _log.warning("a volume cannot be mounted", instance_id=instance_id, error=str(error))
            await self.detach(instance_id)
            missing = isinstance(error, process.ProgramMissing)
            raise RuntimeFailure(
                "the machine has no rclone to mount volumes with" if missing else "the volume could not be mounted",
                code=ErrorCode.SANDBOX_NOT_READY,
            ) from error
        return folder

    async def detach(self, instance_id: str) -> None:
        """Unmount the volume of an instance that is dead, once everything closed is stored; fine when there is none."""
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
        await asyncio.to_thread(self._remove, instance_id)

    def _remove(self, instance_id: str) -> None:
        # rmdir, not rmtree: should it still be mounted, the volume's files must not be taken for our own.
        with contextlib.suppress(FileNotFoundError):
            self.folder(instance_id).rmdir()
        remove_tree(self.cache(instance_id))  # the sandbox chose the names in it, and how deep they nest

    async def _mounted(self, folder: Path) -> None:
        """Wait until rclone serves. Raises `OSError` when it gave up or takes too long."""
        servers: list[int] = []

        def is_waited_for() -> bool:
            nonlocal servers
            if self._is_mounted(folder):
                return False
            servers = [pid for pid in servers if self._serves(pid, folder)] or self._servers(folder)
            return bool(servers)

        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_MOUNT_SECONDS):
                # It outlives us, so it is no child of ours that could be waited on.
                while await asyncio.to_thread(is_waited_for):  # noqa: ASYNC110 - see above
                    await asyncio.sleep(_LOOK_SECONDS)
        if not await asyncio.to_thread(self._is_mounted, folder):
            said = await asyncio.to_thread(_end_of, self.cache(folder.name) / _LOG)
            raise OSError(f"rclone did not mount and said: {said or 'nothing'}")

    def _argv(self, source: str, folder: Path, volume: SharedVolume) -> list[str]:
        return [
            *_detached(["rclone", "mount", source, str(folder)]),
            *("--uid", str(volume.uid), "--gid", str(volume.gid), "--cache-dir", str(self.cache(folder.name))),
            *("--log-file", str(self.cache(folder.name) / _LOG)),
            *_OPTIONS,
        ]

    @staticmethod
    def _source(opened: OpenPoint, volume: SharedVolume) -> str:
        data = opened.folder(volume.id)
        if data is None:
            return f":s3:{opened.point.location.rstrip('/')}/{volume.id}/data"
        data.mkdir(mode=0o2775, parents=True, exist_ok=True)
        return f":local:{data}"

    @staticmethod
    def _environment(opened: OpenPoint) -> dict[str, str]:
        point = opened.point
        environment = {"PATH": os.environ.get("PATH", "/usr/bin:/bin"), "GOMEMLIMIT": _RESTING_MEMORY}
        if point.kind is PointKind.FOLDER:
            return environment
        environment |= {
            "RCLONE_S3_PROVIDER": "AWS" if point.endpoint is None else "Other",
            "RCLONE_S3_REGION": point.bucket_region or "us-east-1",
            "RCLONE_S3_NO_CHECK_BUCKET": "true",
            "RCLONE_S3_DIRECTORY_MARKERS": "true",
        }
        if point.endpoint is not None:
            environment["RCLONE_S3_ENDPOINT"] = point.endpoint
        if point.access_key_id is not None and opened.secret_access_key is not None:
            environment["RCLONE_S3_ACCESS_KEY_ID"] = point.access_key_id
            environment["RCLONE_S3_SECRET_ACCESS_KEY"] = opened.secret_access_key
        else:
            environment["RCLONE_S3_ENV_AUTH"] = "true"
            environment |= {name: value for name, value in os.environ.items() if name.startswith("AWS_")}
        return environment

    @staticmethod
    def _is_mounted(folder: Path) -> bool:
        wanted = str(folder).replace("\\", "\\134").replace(" ", "\\040")
        lines = Path("/proc/self/mountinfo").read_text().splitlines()
        return any(line.split(" ", 5)[4] == wanted for line in lines)

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
        with contextlib.suppress(OSError):
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            return b"mount" in words and os.fsencode(folder) in words[words.index(b"mount") :]
        return False

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
            async with asyncio.timeout(_FLUSH_SECONDS):
                # There is nothing to wait on: the process is no child of ours.
                while await asyncio.to_thread(is_served):  # noqa: ASYNC110 - see above
                    await asyncio.sleep(_LOOK_SECONDS)
                return True
        return False


def _end_of(log: Path) -> str:
    """The last of a log, which may be long: what a sandbox does can make errors in it."""
    try:
        with log.open("rb") as file:
            file.seek(max(os.fstat(file.fileno()).st_size - _LOG_BYTES, 0))
            return file.read(_LOG_BYTES).decode("utf-8", "replace")
    except FileNotFoundError:
        return ""
