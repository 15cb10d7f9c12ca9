"""Gives a sandbox the folders onto which its volume is mounted, without making them in the image.

runsc makes a mount point that is missing in the tree that it is given. That tree is the image, shared by every sandbox
of it: the mount path of one account would show in the sandboxes of all others. So an instance with such a mount gets a
view of its own: a read-only overlay of a few empty folders over the image. Called by the driver; the view lies in the
instance's folder and is found there again after a crash.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from atoll.drivers import process
from atoll.drivers.base import HostMount

_SECONDS = 10.0
_POINTS, _IMAGE, _VIEW = "points", "image", "view"


def missing_points(mounts: Sequence[HostMount]) -> list[str]:
    """Targets that lie in the tree of the image and not in a folder that is mounted before them."""
    needed: list[str] = []
    before: list[str] = []
    for mount in mounts:
        if not any(mount.target.startswith(f"{outer}/") for outer in before):
            needed.append(mount.target)
        before.append(mount.target)
    return needed


async def make_view(folder: Path, rootfs: Path, points: Sequence[str]) -> Path:
    """The tree for an instance: the image, with folders at `points`. Raises `OSError` and `process.ProgramError`."""
    for point in points:
        _make_point(folder / _POINTS, rootfs, point)
    (folder / _VIEW).mkdir()
    (folder / _IMAGE).symlink_to(rootfs)
    # Names relative to the folder: what an operator's paths hold of commas and colons is none of mount's business.
    argv = ["mount", "-t", "overlay", "-o", f"ro,lowerdir={_POINTS}:{_IMAGE}", "overlay", _VIEW]
    await process.run(argv, timeout=_SECONDS, cwd=folder)
    return folder / _VIEW


async def remove_view(folder: Path) -> None:
    """Unmount the view of an instance that is dead; fine when there is none."""
    view = folder / _VIEW
    if view.is_mount():
        await process.run(["umount", str(view)], timeout=_SECONDS)


def _make_point(points: Path, rootfs: Path, target: str) -> None:
    """Make one target below `points`; folders that the image has too keep their owner and mode, as they cover them."""
    made = points
    original: Path | None = rootfs
    points.mkdir(exist_ok=True)
    _copy_traits(original, made)
    for part in PurePosixPath(target).parts[1:]:
        made /= part
        original = None if original is None else _folder_in(original, part)
        if not made.exists():
            made.mkdir()
            _copy_traits(original, made)


def _folder_in(parent: Path, name: str) -> Path | None:
    """The image is hostile: a link in it is not followed, it is covered."""
    try:
        return parent / name if stat.S_ISDIR((parent / name).lstat().st_mode) else None
    except FileNotFoundError:
        return None


def _copy_traits(original: Path | None, made: Path) -> None:
    if original is None:
        made.chmod(0o755)
        return
    seen = original.lstat()
    os.chown(made, seen.st_uid, seen.st_gid)
    made.chmod(stat.S_IMODE(seen.st_mode))
