"""Decides what of a workspace goes into its archive: a walk that follows no symbolic link, gitignore patterns, the cap.

Everything in the folder is hostile, and may change while it is looked at: folders are opened with openat2, so that one
that is swapped for a link to the host between two steps is an error and not a way out.
"""

from __future__ import annotations

import ctypes
import os
import re
import stat
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pathspec.patterns.gitignore.spec import GitIgnoreSpecPattern

from atoll.domain.snapshot import SnapshotRules

MAX_ENTRIES = 5_000_000
_OPENAT2 = 437
_RESOLVE_NO_SYMLINKS, _RESOLVE_BENEATH, _RESOLVE_NO_XDEV = 0x04, 0x08, 0x01
_DIRECTORY_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class SnapshotTooLarge(Exception):  # noqa: N818 - reads as what happened
    """The files of the workspace hold more than the cap (SA-155)."""


class _OpenHow(ctypes.Structure):
    _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))


_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(slots=True)
class Listing:
    """What the archive will hold."""

    paths: list[bytes] = field(default_factory=list)
    """Relative to the workspace, folders before what is in them."""
    files: int = 0
    content_bytes: int = 0
    """Bytes that the files hold; hard links count once."""
    skipped: int = 0
    """Sockets and devices."""


def open_beneath(root: int, relative: bytes) -> int:
    """Open a folder below `root` without following any link or leaving its file system. Raises `OSError`."""
    how = _OpenHow(_DIRECTORY_FLAGS, 0, _RESOLVE_NO_SYMLINKS | _RESOLVE_BENEATH | _RESOLVE_NO_XDEV)
    descriptor: int = _libc.syscall(
        ctypes.c_long(_OPENAT2),
        ctypes.c_int(root),
        ctypes.c_char_p(relative or b"."),
        ctypes.byref(how),
        ctypes.c_size_t(ctypes.sizeof(how)),
    )
    if descriptor < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return descriptor


def matcher(patterns: Sequence[str]) -> Callable[[bytes, bool], bool]:
    """Whether an entry is excluded, as git would say of it alone: the last pattern that matches the entry decides.

    Excluded folders are not walked, so nothing below one can be taken in again (SA-036). Patterns that git would not
    understand match nothing.
    """
    compiled = [pattern for line in patterns if (pattern := _compile(line)) is not None]
    compiled.reverse()

    def excluded(relative: bytes, is_folder: bool) -> bool:  # noqa: FBT001 - a fact about the entry
        name = os.fsdecode(relative)
        for include, matches in compiled:
            if matches(name, is_folder):
                return include
        return False

    return excluded


def _compile(line: str) -> tuple[bool, Callable[[str, bool], bool]] | None:
    if line.rstrip().endswith("/**/"):
        line = f"{line.rstrip()}*/"  # the same to git; pathspec would also match the folder above
    try:
        pattern = GitIgnoreSpecPattern(line)
    except ValueError:
        return None
    if pattern.regex is None or pattern.include is None:
        return None
    # pathspec's expression also matches what lies below a folder; bound to the end, it speaks of the entry alone.
    source = pattern.regex.pattern.replace("(?P<ps_d>/)", r"/\Z").replace("|$)", r"|\Z)")
    regex = re.compile(source, re.DOTALL)
    takes_slash = r"/\Z" in source

    def matches(name: str, is_folder: bool) -> bool:  # noqa: FBT001 - as above
        return regex.search(f"{name}/" if is_folder and takes_slash else name) is not None

    return bool(pattern.include), matches


def list_workspace(folder: Path, rules: SnapshotRules) -> Listing:
    """Walk a workspace. Raises `SnapshotTooLarge` as soon as the cap is passed, `OSError` when it cannot be read."""
    listing = Listing()
    excluded = matcher(rules.exclude)
    mount_point = None if rules.mount_point is None else os.fsencode(rules.mount_point)
    linked: set[int] = set()
    root = os.open(folder, _DIRECTORY_FLAGS)
    try:
        pending = [b""]
        while pending:
            below = _list_folder(root, pending.pop(), listing, excluded, mount_point, linked)
            if listing.content_bytes > rules.max_bytes:
                raise SnapshotTooLarge
            if len(listing.paths) > MAX_ENTRIES:
                raise SnapshotTooLarge
            pending.extend(below)
    finally:
        os.close(root)
    return listing


def _list_folder(
    root: int,
    relative: bytes,
    listing: Listing,
    excluded: Callable[[bytes, bool], bool],
    mount_point: bytes | None,
    linked: set[int],
) -> list[bytes]:
    """Add one folder's entries; returns the folders among them."""
    try:
        descriptor = open_beneath(root, relative)
    except OSError:
        if not relative:
            raise
        return []  # it went away, or became something else, since its parent was read
    below: list[bytes] = []
    prefix = relative + b"/" if relative else b""
    try:
        with os.scandir(descriptor) as entries:
            for entry in entries:
                path = prefix + os.fsencode(entry.name)
                try:
                    seen = entry.stat(follow_symlinks=False)
                except FileNotFoundError:
                    continue
                is_folder = stat.S_ISDIR(seen.st_mode)
                if path == mount_point or excluded(path, is_folder):
                    continue
                if not _is_kept(seen.st_mode):
                    listing.skipped += 1
                    continue
                listing.paths.append(path)
                if is_folder:
                    below.append(path)
                    continue
                listing.files += 1
                if stat.S_ISREG(seen.st_mode) and _counts(seen, linked):
                    listing.content_bytes += seen.st_size
    finally:
        os.close(descriptor)
    return below


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
