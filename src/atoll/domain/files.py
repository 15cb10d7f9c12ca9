"""Files of a sandbox as the rest of Atoll speaks of them: entries, changes, and why an operation fails. Pure.

Names and paths are bytes: a sandbox's programs choose them, and nothing makes them text.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum, StrEnum


class Fault(IntEnum):
    """Why an operation on files did not succeed; a worker's exit code."""

    UNKNOWN = 1
    """The file system failed in a way that has no better name."""
    NOT_FOUND = 2
    """There is nothing of that name."""
    ESCAPE = 3
    """The path or a link of it leads outside the roots."""
    IS_FOLDER = 4
    """It is a folder."""
    NOT_FOLDER = 5
    """It, or something above it, is no folder."""
    DENIED = 6
    """The sandbox's user may not."""
    NO_SPACE = 7
    """The disk is full."""
    EXISTS = 8
    """The name is taken."""
    NOT_EMPTY = 9
    """The folder is not empty."""
    LINK_LOOP = 10
    """More than 40 links."""
    READ_ONLY = 11
    """The file system takes no change."""
    NAME_TOO_LONG = 12
    """A name beyond 255 bytes or a path beyond 16,383."""
    TOO_DEEP = 13
    """More than 256 folders in one another."""
    NOT_REGULAR = 14
    """A device, a pipe or a socket."""
    OTHER_FILE_SYSTEM = 15
    """Moving would mean copying."""
    BAD_INPUT = 16
    """What was sent cannot be used."""
    CUT = 17
    """The input ended before its end."""
    CHANGED = 18
    """It kept changing while it was worked on."""
    BUSY = 19
    """A root or a mount point."""
    TOO_MANY = 20
    """More to watch than there may be."""
    NO_PROCESS = 126
    """No process could be made."""
    STOPPED = 254
    """The sandbox is being paused or stopped."""


class EntryType(StrEnum):
    """What an entry is."""

    FILE = "file"
    """A regular file."""
    DIRECTORY = "directory"
    """A folder."""
    SYMLINK = "symlink"
    """A symbolic link; its target may be missing or outside."""
    OTHER = "other"
    """A device, a pipe or a socket."""


@dataclass(frozen=True, slots=True)
class FileEntry:
    """One file, folder or link as it was when it was looked at."""

    path: bytes
    """Absolute, without links except its own."""
    type: EntryType
    mode: int
    """The permission bits, 0 … 0o7777."""
    size: int
    """Bytes of a file; 0 for everything else."""
    modified_ns: int
    """Since the epoch."""
    inode: int
    target: bytes
    """Of a link; empty otherwise."""


class ChangeKind(StrEnum):
    """What happened to a watched path."""

    CREATED = "created"
    """It is there now, also by being moved there."""
    MODIFIED = "modified"
    """Its content, mode or times changed."""
    DELETED = "deleted"
    """It is gone, also by being moved away."""
    READY = "ready"
    """From here on nothing is missed."""
    OVERFLOW = "overflow"
    """Changes were lost; look again."""


@dataclass(frozen=True, slots=True)
class Change:
    """One change of something watched."""

    kind: ChangeKind
    path: bytes


@dataclass(frozen=True, slots=True)
class Counts:
    """What an archive held."""

    files: int
    folders: int
    links: int
    skipped: int
    """Devices, pipes and what else is not made."""
    bytes: int
