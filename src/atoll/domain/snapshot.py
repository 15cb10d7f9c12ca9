"""Snapshots of a workspace, and the pause that takes one. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum


class PauseFailure(StrEnum):
    """Why a pause was given up; the sandbox runs on in all three (SA-163 … SA-166)."""

    SNAPSHOT_FAILED = "SNAPSHOT_FAILED"
    """The archive could not be made or stored, or the workspace is over its cap."""
    UNREACHABLE = "UNREACHABLE"
    """The instance does not answer yet."""
    TIMED_OUT = "TIMED_OUT"
    """The archive was not finished in time."""


@dataclass(frozen=True, slots=True)
class Pause:
    """One pause: what was asked, how far it is, and why it was given up. Kept in the sandbox's row while it counts."""

    attempt: str
    """Tells the request that waits for it from any other."""
    snapshot_exclude: tuple[str, ...] | None = None
    """For this pause only; None is the revision's (SA-153)."""
    snapshot_max_mb: int | None = None
    """For this pause only; None is the revision's (SA-154)."""
    archived: bool = False
    """What the mode keeps is stored and recorded: from here the pause only goes forward."""
    failure: PauseFailure | None = None
    message: str | None = None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One archive of one workspace: an object on a volume, written once and never again (SA-074)."""

    id: str
    volume_id: str
    sandbox_id: str
    archive_bytes: int
    """Size of the object."""
    content_bytes: int
    """Length of the archive before compression; a restore that gets more is refused."""
    file_count: int
    skipped_count: int
    """Sockets and devices, which no archive can keep."""
    sha256: str
    """Of the object, in hex."""
    created_at: datetime


@dataclass(frozen=True, slots=True)
class SnapshotRules:
    """What goes into a snapshot."""

    exclude: tuple[str, ...]
    """Gitignore-like patterns relative to the workspace (SA-036)."""
    max_bytes: int
    """Cap on the bytes that the files hold (SA-155)."""
    mount_point: str | None
    """Relative path of the volume's mount inside the workspace, which is no part of the snapshot."""
