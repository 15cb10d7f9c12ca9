"""Unpacks an OCI layout into a directory with umoci, within limits, and makes the result fit for sandboxes.

The image store calls it with a directory that nobody else uses yet. umoci confines every path of a layer to the
directory (`../` and symlinks included) and applies whiteouts; this module bounds what a hostile layer can cost.
"""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass
from pathlib import Path

from atoll.domain.errors import RuntimeFailure
from atoll.drivers.gvisor.images import rootfs as tree
from atoll.drivers.gvisor.images.failures import disk_full, invalid_image, unpack_failure
from atoll.drivers.process import ProgramError, ProgramMissing, run, tied

GIB = 1 << 30
UNPACK_SECONDS = 1800.0
_WATCH_SECONDS = 1.0
LAYOUT_TAG = "image"
"""The name of the only image in every layout of the store."""


@dataclass(frozen=True, slots=True)
class Limits:
    """How much of the machine an image may take."""

    unpacked_bytes: int = 20 * GIB
    free_bytes: int = 2 * GIB
    """Stays free on the disk; an image that would need it is refused as SANDBOX_NOT_READY."""

    def check_room(self, directory: Path, needed: int) -> None:
        """Refuse `needed` more bytes when they are over the limit, or when the disk would be left too full."""
        if needed > self.unpacked_bytes:
            raise self.too_large()
        disk = os.statvfs(directory)
        if disk.f_bavail * disk.f_frsize < needed + self.free_bytes:
            raise disk_full()

    def too_large(self) -> RuntimeFailure:
        """The image is over the limit."""
        return invalid_image(f"The image is larger than {self.unpacked_bytes / GIB:g} GiB.")


@dataclass(frozen=True, slots=True)
class Unpacked:
    """What was found in the tree."""

    home: str
    """Home directory of the sandbox's user."""
    bytes: int


async def unpack(layout: Path, root: Path, limits: Limits) -> Unpacked:
    """Unpack the image of `layout` into `root`, which does not exist yet.

    Raises `RuntimeFailure`: INVALID_REQUEST when the image is damaged or over a limit, SANDBOX_NOT_READY when the disk
    is full.
    """
    try:
        command = tied(["umoci", "raw", "unpack", "--image", f"{layout}:{LAYOUT_TAG}", str(root)])
    except ProgramMissing as error:
        raise unpack_failure(error) from error
    unpacking = asyncio.create_task(
        run(
            command,
            timeout=UNPACK_SECONDS,
            env={"PATH": os.environ.get("PATH", os.defpath), "HOME": str(layout)},
        )
    )
    try:
        # A few kilobytes of layer can unpack to terabytes: watch, and kill.
        while not (await asyncio.wait({unpacking}, timeout=_WATCH_SECONDS))[0]:
            limits.check_room(layout, 0)
            if (await asyncio.to_thread(tree.measure, root)).bytes > limits.unpacked_bytes:
                raise limits.too_large()
        await unpacking
    except ProgramError as error:
        raise unpack_failure(error) from error
    finally:
        unpacking.cancel()
        await asyncio.gather(unpacking, return_exceptions=True)
    contents = await asyncio.to_thread(tree.strip, root)
    if contents.bytes > limits.unpacked_bytes:
        raise limits.too_large()
    return Unpacked(await asyncio.to_thread(tree.prepare, root), contents.bytes)
