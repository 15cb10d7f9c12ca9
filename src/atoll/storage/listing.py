"""Decides what of a workspace goes into its archive: a walk that follows no symbolic link, the caps.

Everything in the folder is hostile, and may change while it is looked at: folders are opened with openat2, so that one
that is swapped for a link to the host between two steps is an error and not a way out.
"""

from __future__ import annotations

import os
import stat
import threading
from dataclasses import dataclass, field
from pathlib import Path

from atoll.domain.snapshot import SnapshotRules
from atoll.drivers.beneath import DIRECTORY_FLAGS, entries_beneath
from atoll.storage.patterns import Cancelled, matcher

MAX_ENTRIES = 5_000_000
MAX_PATH_BYTES = 256 * 1024 * 1024
"""Of all paths together: they are held in memory, and a sandbox chooses how long they are."""


class SnapshotTooLarge(Exception):  # noqa: N818 - reads as what happened
    """The files of the workspace hold more than the cap (SA-155), or are too many to list."""


@dataclass(slots=True)
class Listing:
    """What the archive will hold."""

    paths: list[bytes] = field(default_factory=list)
    """Relative to the workspace, folders before what is in them."""
    path_bytes: int = 0
    """Length of all paths."""
    files: int = 0
    content_bytes: int = 0
    """Bytes that the files hold; hard links count once."""
    skipped: int = 0
    """Sockets and devices."""


def list_workspace(folder: Path, rules: SnapshotRules, cancel: threading.Event) -> Listing:
    """Walk a workspace.

    Raises `SnapshotTooLarge` as soon as a cap is passed, `Cancelled`, and `OSError` when it cannot be read.
    """
    listing = Listing()
    excluded = matcher(rules.exclude, cancel)
    mount_point = None if rules.mount_point is None else os.fsencode(rules.mount_point)
    linked: set[int] = set()
    root = os.open(folder, DIRECTORY_FLAGS)
    try:
        pending = [b""]
        while pending:
            for path, seen in entries_beneath(root, pending.pop()):
                if cancel.is_set():
                    raise Cancelled
                is_folder = stat.S_ISDIR(seen.st_mode)
                if path == mount_point or excluded(os.fsdecode(path), is_folder):
                    continue
                _add(listing, path, seen, linked)
                if is_folder:
                    pending.append(path)
                _check_caps(listing, rules)
    finally:
        os.close(root)
    return listing


def _add(listing: Listing, path: bytes, seen: os.stat_result, linked: set[int]) -> None:
    if not _is_kept(seen.st_mode):
        listing.skipped += 1
        return
    listing.paths.append(path)
    listing.path_bytes += len(path)
    if stat.S_ISDIR(seen.st_mode):
        return
    listing.files += 1
    if stat.S_ISREG(seen.st_mode) and _counts(seen, linked):
        listing.content_bytes += seen.st_size


def _check_caps(listing: Listing, rules: SnapshotRules) -> None:
    if (
        listing.content_bytes > rules.max_bytes
        or len(listing.paths) > MAX_ENTRIES
        or listing.path_bytes > MAX_PATH_BYTES
    ):
        raise SnapshotTooLarge


def _is_kept(mode: int) -> bool:
    return stat.S_ISREG(mode) or stat.S_ISDIR(mode) or stat.S_ISLNK(mode) or stat.S_ISFIFO(mode)


def _counts(seen: os.stat_result, linked: set[int]) -> bool:
    """Whether the file's bytes are not counted yet; a hard link repeats them in no archive."""
    if seen.st_nlink == 1:
        return True
    if seen.st_ino in linked:
        return False
    linked.add(seen.st_ino)
    return True
