"""Deletes folders that a sandbox filled.

Called from threads by storage and drivers. Such a tree may be nested deeper than Python can recurse or hold open, and
may change while it is deleted; `rm` copes with both in constant memory and follows no link.
"""

from __future__ import annotations

import errno
import itertools
import os
import subprocess
from pathlib import Path

_SECONDS = 1_800.0
_AT_ONCE = 200
_MESSAGE_BYTES = 2_000
_ENVIRONMENT = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C"}


def remove_tree(*paths: Path, seconds: float = _SECONDS) -> None:
    """Delete what is at `paths`, if anything is; other file systems mounted below are left. Blocks.

    Raises `OSError` when something could not be deleted, or not within `seconds`; a second call goes on from there.
    """
    try:
        ended = subprocess.run(  # noqa: S603 - no shell sees a name
            ["rm", "-rf", "--one-file-system", "--", *paths],  # noqa: S607 - found in the PATH above
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env=_ENVIRONMENT,
            check=False,
            timeout=seconds,
        )
    except subprocess.TimeoutExpired:
        raise OSError(errno.ETIMEDOUT, f"rm took longer than {seconds:g} s") from None
    if ended.returncode != 0:
        said = ended.stderr[:_MESSAGE_BYTES].decode("utf-8", "replace").strip()
        raise OSError(errno.EIO, f"rm ended with {ended.returncode}: {said}")


def empty_folder(folder: Path) -> None:
    """Delete what is in a folder, following no link. Raises `OSError` like `remove_tree`. Blocks."""
    while found := _some(folder):
        remove_tree(*found)


def _some(folder: Path) -> list[Path]:
    with os.scandir(folder) as entries:
        return [Path(entry.path) for entry in itertools.islice(entries, _AT_ONCE)]
