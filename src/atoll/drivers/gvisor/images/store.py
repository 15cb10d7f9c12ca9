"""The images on this machine: fetched once, unpacked once, shared by every sandbox, deleted when unused.

The gVisor driver calls `ensure` before it makes a sandbox and `collect` now and then. On disk, all of it below one
directory that only root may enter (unpacked images hold setuid programs):

    images/<hex>/      a finished image: `rootfs/` and `image.json`; its last use is the time of `image.json`
    local/<hex>/       OCI layouts of images built here; kept, since no registry has them
    blobs/<hex>        layers fetched before, so that images which share them fetch them once
    locks/<hex>        flock: one worker an image, in any process
    work/<hex>.*/      what is being made or deleted; anything here whose lock is free is garbage

A finished image appears by one rename, so a crash at any line leaves either nothing or all of it. The store starts no
sandbox and knows nothing of who uses an image.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import json
import os
import shutil
import tempfile
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from atoll.domain.errors import RuntimeFailure
from atoll.drivers.gvisor.images.config import blob_path, read_config, read_layout
from atoll.drivers.gvisor.images.failures import disk_full, invalid_image, not_ready
from atoll.drivers.gvisor.images.reference import ImageReference, parse_image_digest
from atoll.drivers.gvisor.images.registry import Registry
from atoll.drivers.gvisor.images.unpack import Limits, unpack
from atoll.drivers.process import ProgramError, ProgramTimeout, run
from atoll.settings import Settings

LOCK_SECONDS = 3600.0
"""Longest wait for another worker's fetch; that one has limits of its own."""
_DELETE_SECONDS = 600.0
_SYNC_SECONDS = 10.0
_LOCK_POLL_SECONDS = 0.1
_DISK_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})


@dataclass(frozen=True, slots=True)
class Image:
    """An unpacked image. Valid until a `collect` that neither names it nor finds it recently used."""

    digest: str
    """`sha256:<64 hex>`."""
    rootfs: Path
    """Shared by sandboxes: read only."""
    entrypoint: tuple[str, ...]
    cmd: tuple[str, ...]
    env: tuple[str, ...]
    """`NAME=value`, in the image's order."""
    working_dir: str
    """Absolute, inside the image; it may not exist."""
    user: str
    """As the image writes it; empty is root. Commands run as 1001 all the same."""
    home: str
    """Home directory of uid 1001 inside the image."""
    bytes: int
    """On disk, unpacked."""


class ImageStore:
    """Images below `root`. Any number of stores, in any number of processes, may share one directory."""

    def __init__(
        self,
        root: Path,
        *,
        auth_file: Path | None = None,
        insecure_registries: frozenset[str] = frozenset(),
        allowed_registries: frozenset[str] | None = None,
        limits: Limits | None = None,
    ) -> None:
        self.root = root
        self._limits = limits or Limits()
        self._registry = Registry(auth_file or root / "no-auth.json", insecure_registries, allowed_registries)

    @classmethod
    def from_settings(cls, settings: Settings) -> ImageStore:
        """The store of this machine."""
        return cls(
            settings.image_dir,
            auth_file=settings.registry_auth_file,
            insecure_registries=settings.insecure_registries,
            allowed_registries=settings.allowed_registries,
        )

    async def ensure(self, image_digest: str) -> Image:
        """Have an image unpacked and return it; the work is done once however many ask at the same time.

        Raises `RuntimeFailure`: INVALID_REQUEST when there is no such image, it may not be had, or it is none;
        SANDBOX_NOT_READY when the registry, the disk or a program is what failed.
        """
        reference = parse_image_digest(image_digest)
        try:
            self._make_directories()
            if found := self._touch(reference.hex):
                return found
            async with self._lock(reference.hex):
                if found := self._touch(reference.hex):
                    return found
                await self._make(reference)
                made = self._touch(reference.hex)
        except OSError as error:
            raise (
                disk_full() if error.errno in _DISK_FULL else not_ready("The images cannot be read or written.")
            ) from error
        except ProgramError as error:
            raise not_ready("The image cannot be written to the disk of the sandbox machine.") from error
        if made is None:
            raise not_ready("The image was deleted while it was being made.")
        return made

    def list_images(self) -> list[Image]:
        """Every finished image."""
        images = (self._read(entry.name) for entry in _entries(self.root / "images"))
        return [image for image in images if image is not None]

    async def collect(self, in_use: set[str], *, unused_for_seconds: float, now: datetime) -> list[str]:
        """Delete images that are neither in `in_use` nor were asked for in `unused_for_seconds`, and what crashes left.

        `in_use` holds image digests, with or without repository. Returns the digests (`sha256:…`) of images deleted.
        """
        keep = {name.rpartition("sha256:")[2] for name in in_use}
        for name in keep:
            self._touch(name)  # other control planes share the directory and cannot know what this one uses
        before = now.timestamp() - unused_for_seconds
        deleted = [
            f"sha256:{entry.name}"
            for entry in _entries(self.root / "images")
            if entry.name not in keep and await self._delete_unused(entry.name, before)
        ]
        for entry in _entries(self.root / "work"):
            async with self._try_lock(entry.name.partition(".")[0]) as locked:
                if locked:
                    await _delete(Path(entry.path))
        self._drop_unused_blobs(before)
        return deleted

    def add_local(self, layout: Path, reference: ImageReference) -> None:
        """Take over an OCI layout built here, by rename from the same file system; fine when it is there already."""
        self._make_directories()
        with contextlib.suppress(OSError):
            layout.rename(self.root / "local" / reference.hex)
        if not self.has_local(reference):
            raise not_ready("The image that was built cannot be kept.")

    def adopt_local(self, other: Path, image_digests: Iterable[str]) -> None:
        """Take over images that were built into another directory; those that are not there are left out. Blocks."""
        for image_digest in image_digests:
            reference = parse_image_digest(image_digest)
            source = other / "local" / reference.hex
            if reference.local and not self.has_local(reference) and source.is_dir():
                layout = self.workspace(reference.hex) / "layout"
                shutil.copytree(source, layout)
                self.add_local(layout, reference)

    def has_local(self, reference: ImageReference) -> bool:
        """Whether an image built here is kept."""
        return (self.root / "local" / reference.hex / "index.json").is_file()

    def forget_local(self, reference: ImageReference) -> None:
        """Delete an image built here, which turned out to be damaged; the next build makes it anew."""
        with contextlib.suppress(FileNotFoundError):
            (self.root / "local" / reference.hex).rename(self.workspace(reference.hex) / "layout")

    def workspace(self, name: str) -> Path:
        """A new empty directory on the store's file system for building; garbage once the lock `name` is free."""
        self._make_directories()
        return Path(tempfile.mkdtemp(prefix=f"{name}.", dir=self.root / "work"))

    async def clear(self, name: str) -> None:
        """Delete every workspace of this name, whose lock the caller holds."""
        for entry in _entries(self.root / "work"):
            if entry.name.startswith(f"{name}."):
                await _delete(Path(entry.path))

    @asynccontextmanager
    async def lock(self, name: str) -> AsyncIterator[None]:
        """One worker of this name, in any process. Waits an hour at most."""
        self._make_directories()
        async with self._lock(name):
            yield

    async def _make(self, reference: ImageReference) -> None:
        await self.clear(reference.hex)
        work = self.workspace(reference.hex)
        try:
            layout = await self._layout(reference, work)
            try:
                await self._unpack(reference, layout, work)
            except RuntimeFailure:
                # A blob that a power cut left damaged must not spoil every later attempt.
                self._forget_blobs(layout)
                raise
        finally:
            await self.clear(reference.hex)

    async def _layout(self, reference: ImageReference, work: Path) -> Path:
        """An OCI layout with the image: one built here, or one that is fetched now."""
        local = self.root / "local" / reference.hex
        if local.is_dir():
            return local
        if reference.local:
            raise invalid_image("This machine has no image of its own with this digest; atoll bootstrap builds it.")
        digest, manifest = await self._registry.resolve(reference)
        # Compressed layers are seldom larger than what they unpack to, so this refuses early and is no promise.
        self._limits.check_room(self.root, manifest.bytes)
        layout = work / "layout"
        known = layout / "blobs" / "sha256"
        known.mkdir(parents=True)
        for name in {digest, manifest.config_digest, *manifest.layer_digests}:
            with contextlib.suppress(FileNotFoundError):
                os.link(self.root / "blobs" / name.removeprefix("sha256:"), blob_path(layout, name))
        await self._registry.copy(reference, digest, layout, work)
        for blob in _entries(known):
            with contextlib.suppress(FileExistsError):
                os.link(blob.path, self.root / "blobs" / blob.name)
        return layout

    async def _unpack(self, reference: ImageReference, layout: Path, work: Path) -> None:
        manifest = read_layout(layout)
        config = read_config(blob_path(layout, manifest.config_digest).read_bytes())
        image = work / "image"
        image.mkdir(mode=0o700)
        unpacked = await unpack(layout, image / "rootfs", self._limits)
        record = {"config": asdict(config), "blobs": _blobs(layout), **asdict(unpacked)}
        # After a power cut an image must not have empty files: until its data is known to be on the disk it counts for
        # this boot only. Not waited for longer, since other writers on the same disk can hold that up for minutes.
        _write_record(image, record | {"boot": _boot_id()})
        with contextlib.suppress(ProgramTimeout):
            await run(["sync", "--file-system", str(image)], timeout=_SYNC_SECONDS)
            _write_record(image, record)
        finished = self.root / "images" / reference.hex
        if finished.exists():
            finished.rename(work / "unreliable")
        image.rename(finished)

    def _make_directories(self) -> None:
        if not (self.root / "no-auth.json").exists():
            self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
            for name in ("images", "local", "blobs", "locks", "work"):
                (self.root / name).mkdir(mode=0o700, exist_ok=True)
            # Last, since it says that the rest is there.
            (self.root / "no-auth.json").write_text("{}")

    def _read(self, hex_digest: str) -> Image | None:
        directory = self.root / "images" / hex_digest
        try:
            record = json.loads((directory / "image.json").read_text())
        except (FileNotFoundError, ValueError):
            return None
        if record.get("boot", _boot_id()) != _boot_id():
            return None
        config = record["config"]
        return Image(
            digest=f"sha256:{hex_digest}",
            rootfs=directory / "rootfs",
            entrypoint=tuple(config["entrypoint"]),
            cmd=tuple(config["cmd"]),
            env=tuple(config["env"]),
            working_dir=config["working_dir"],
            user=config["user"],
            home=record["home"],
            bytes=record["bytes"],
        )

    def _touch(self, hex_digest: str) -> Image | None:
        """The image if it is finished, marked as used now, so that a `collect` that looks later leaves it."""
        try:
            os.utime(self.root / "images" / hex_digest / "image.json")
        except FileNotFoundError:
            return None
        return self._read(hex_digest)

    async def _delete_unused(self, hex_digest: str, before: float) -> bool:
        directory = self.root / "images" / hex_digest
        async with self._try_lock(hex_digest) as locked:
            try:
                if not locked or (directory / "image.json").stat().st_mtime > before:
                    return False
                trash = self.workspace(hex_digest) / "image"
                directory.rename(trash)
                if (trash / "image.json").stat().st_mtime > before:
                    # Somebody asked for it between the look and the rename.
                    trash.rename(directory)
                    return False
            except FileNotFoundError:
                return False
            await _delete(trash.parent)
        return True

    def _drop_unused_blobs(self, before: float) -> None:
        used = set()
        for entry in _entries(self.root / "images"):
            with contextlib.suppress(FileNotFoundError, ValueError):
                used.update(json.loads((Path(entry.path) / "image.json").read_text())["blobs"])
        for blob in _entries(self.root / "blobs"):
            with contextlib.suppress(FileNotFoundError):
                if blob.name not in used and blob.stat().st_ctime <= before:
                    Path(blob.path).unlink()

    def _forget_blobs(self, layout: Path) -> None:
        for name in _blobs(layout):
            (self.root / "blobs" / name).unlink(missing_ok=True)

    @asynccontextmanager
    async def _lock(self, name: str) -> AsyncIterator[None]:
        until = time.monotonic() + LOCK_SECONDS
        while True:
            async with self._try_lock(name) as locked:
                if locked:
                    yield
                    return
            if time.monotonic() > until:
                raise not_ready("Another fetch of the same image takes too long.")
            await asyncio.sleep(_LOCK_POLL_SECONDS)

    @asynccontextmanager
    async def _try_lock(self, name: str) -> AsyncIterator[bool]:
        """The lock dies with the process, however it dies. Its file stays: deleting it would race with who opens it."""
        descriptor = os.open(self.root / "locks" / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield False
            else:
                yield True
        finally:
            os.close(descriptor)


def _entries(directory: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(directory) as entries:
            return sorted(entries, key=lambda entry: entry.name)
    except FileNotFoundError:
        return []


def _boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def _write_record(image: Path, record: dict[str, Any]) -> None:
    partial = image / "image.json.partial"
    partial.write_text(json.dumps(record))
    partial.rename(image / "image.json")


def _blobs(layout: Path) -> list[str]:
    return [entry.name for entry in _entries(layout / "blobs" / "sha256")]


async def _delete(path: Path) -> None:
    """Delete a tree of strangers. Not with `shutil`, whose recursion a deeply nested image exhausts.

    What cannot be deleted stays in `work/`, where the next `collect` finds it.
    """
    with contextlib.suppress(ProgramError):
        await run(["rm", "-rf", "--one-file-system", "--", str(path)], timeout=_DELETE_SECONDS)
