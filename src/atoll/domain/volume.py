"""Shared volumes and the storage points they lie on: what may be made, attached, removed and restored.

Pure. A storage point is a bucket or folder that holds volumes; a shared volume is data of an account that outlives its
sandboxes. `atoll.ops.volume` keeps the rows, `atoll.storage` the data.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from pathlib import PurePosixPath

from atoll.domain.errors import Conflict, Invalid, NotFound

SANDBOX_ID_NUMBER = 1001
"""uid and gid of everything in a sandbox (SA-091)."""
VOLUME_NAME_PREFIX = "sbvol-"
"""Begins the name of a volume that was made for a sandbox (SA-077)."""
WORKSPACE = "/workspace"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_RESERVED_FOLDERS = ("/proc", "/sys", "/dev", "/.atoll", "/etc", "/usr", "/bin", "/sbin", "/lib", "/lib64", "/boot")


class VolumeStatus(StrEnum):
    """Where a volume stands."""

    ACTIVE = "ACTIVE"
    """May be attached."""
    PENDING_PURGE = "PENDING_PURGE"
    """Removed; its data is kept until `purge_at` and can be restored (SA-088)."""


class PointKind(StrEnum):
    """What a storage point is."""

    FOLDER = "FOLDER"
    """A folder of this machine."""
    BUCKET = "BUCKET"
    """A bucket that speaks S3."""


@dataclass(frozen=True, slots=True)
class StoragePoint:
    """A place that holds volumes, of one account or of the platform. Never changed but for its end."""

    id: str
    account_id: str | None
    """None is the platform's: every account of the region may use it."""
    region: str
    name: str
    kind: PointKind
    location: str
    """An absolute folder, or `bucket/prefix`."""
    endpoint: str | None
    """URL of the S3 service; None is the one of AWS."""
    bucket_region: str | None
    access_key_id: str | None
    sealed_secret: bytes | None
    """The secret access key, sealed; None takes the credentials of the server's own environment."""
    uid: int
    gid: int
    """Owner that entries of volumes made here report."""
    created_at: datetime
    retired_at: datetime | None
    """Since when no new volume is made here."""


@dataclass(frozen=True, slots=True)
class SharedVolume:
    """Data of an account."""

    id: str
    account_id: str
    name: str
    region: str
    storage_point_id: str
    status: VolumeStatus
    size_mb: int
    """Nominal (SA-033)."""
    uid: int
    gid: int
    purge_at: datetime | None
    created_at: datetime
    updated_at: datetime


def volume_name_for(sandbox_id: str) -> str:
    """Name of the volume that is made for a sandbox which names none (SA-077)."""
    return f"{VOLUME_NAME_PREFIX}{sandbox_id}"


def check_volume_name(name: str) -> None:
    """Refuse a name that is no plain word, or that is kept for volumes made for sandboxes."""
    if not _NAME.fullmatch(name):
        raise Invalid(
            "name must be 1 to 128 letters, digits, dots, underscores and hyphens, beginning with a letter or digit.",
            field="name",
        )
    if name.startswith(VOLUME_NAME_PREFIX):
        raise Invalid(
            f"Names that begin with {VOLUME_NAME_PREFIX} are given to the volumes of sandboxes.", field="name"
        )


def check_attachable(volume: SharedVolume | None, name: str, region: str) -> SharedVolume:
    """Refuse a volume that is not there (SA-083, SA-085), lies elsewhere (SA-084) or is being removed (SA-086)."""
    if volume is None:
        raise NotFound(f"The account has no shared volume named {name}.")
    if volume.status is VolumeStatus.PENDING_PURGE:
        raise Conflict("The shared volume is pending purge; restore it first.")
    if volume.region != region:
        raise Conflict(f"The shared volume is in the region {volume.region}, not in {region}.")
    return volume


def check_mount_path(mount_path: str) -> None:
    """Refuse a mount path that would hide the system, the workspace or the agent, or is not written plainly."""
    path = PurePosixPath(mount_path)
    if str(path) != mount_path or ".." in path.parts or not path.is_absolute() or mount_path.startswith("//"):
        raise Invalid("mountPath must be an absolute path without '..', '//' or a trailing '/'.", field="mountPath")
    hidden = mount_path in {"/", WORKSPACE} or any(
        mount_path == folder or mount_path.startswith(f"{folder}/") for folder in _RESERVED_FOLDERS
    )
    if hidden:
        raise Invalid("mountPath must not be the workspace itself or a folder of the system.", field="mountPath")


def inside_workspace(mount_path: str | None) -> str | None:
    """The mount path relative to the workspace, when it lies in there."""
    if mount_path is None or not mount_path.startswith(f"{WORKSPACE}/"):
        return None
    return mount_path.removeprefix(f"{WORKSPACE}/")
