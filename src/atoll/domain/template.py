"""Templates and their immutable revisions: what a sandbox runs.

Pure: checks of what a revision may hold, and the values it takes when nothing is said. `atoll.ops` stores them.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from atoll.domain.errors import Invalid

DEFAULT_ZCLOUDS = 1
MAX_ZCLOUDS = 64
DEFAULT_IDLE_TIMEOUT_SECONDS = 1_800
DEFAULT_HARD_LIFETIME_SECONDS = 86_400
DEFAULT_SUSPENDED_RETENTION_SECONDS = 604_800
DEFAULT_SNAPSHOT_MAX_MB = 2_048
DEFAULT_VOLUME_SIZE_MB = 10_240
DEFAULT_MOUNT_PATH = "/workspace/persist"
MEMORY_MB_PER_ZCLOUD = 512
VCPU_PER_ZCLOUD = 0.5

MAX_IMAGE_DIGEST_LENGTH = 500
MAX_SLUG_LENGTH = 200

_IMAGE_DIGEST = re.compile(
    r"^(?P<repository>[A-Za-z0-9](?:[A-Za-z0-9._-]*)(?::[0-9]{1,5})?(?:/[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*)*)"
    r"(?::[A-Za-z0-9_][A-Za-z0-9._-]{0,127})?@sha256:[0-9a-f]{64}$"
)


class PersistenceMode(StrEnum):
    """What is kept beyond a sandbox's life."""

    EPHEMERAL = "EPHEMERAL"
    """Nothing."""
    DIRECTORY = "DIRECTORY"
    """Files under the mount path."""
    SNAPSHOT = "SNAPSHOT"
    """The workspace, archived at each pause."""
    BOTH = "BOTH"
    """A live directory and the archive."""

    @property
    def uses_volume(self) -> bool:
        """Whether a shared volume belongs to the mode."""
        return self is not PersistenceMode.EPHEMERAL

    @property
    def mounts_directory(self) -> bool:
        """Whether the volume is mounted into the sandbox."""
        return self in {PersistenceMode.DIRECTORY, PersistenceMode.BOTH}

    @property
    def takes_snapshots(self) -> bool:
        """Whether a pause archives the workspace."""
        return self in {PersistenceMode.SNAPSHOT, PersistenceMode.BOTH}


class IsolationProfile(StrEnum):
    """How a sandbox is kept apart from its host."""

    GVISOR = "GVISOR"
    """gVisor's own kernel (SA-038)."""


@dataclass(frozen=True, slots=True)
class WarmPool:
    """How many booted sandboxes a revision keeps ready."""

    desired: int
    """Kept waiting."""
    min: int
    """With fewer than these a boot does not wait until whoever claimed one has begun to work."""
    max: int
    """Kept waiting for a while after a create has found none."""


@dataclass(frozen=True, slots=True)
class NetworkControl:
    """Egress restrictions. The two lists are triggers of their own, never an intersection (SA-189 … SA-193)."""

    enabled: bool
    address_allowlist: tuple[str, ...]
    domain_allowlist: tuple[str, ...]

    @property
    def restricts(self) -> bool:
        """Whether anything is to be kept from a sandbox; an empty domain list activates nothing (SA-199)."""
        return self.enabled or bool(self.domain_allowlist)


@dataclass(frozen=True, slots=True)
class Template:
    """A named definition; its current revision holds the runtime configuration."""

    id: str
    account_id: str
    app_id: str | None
    name: str
    slug: str
    description: str | None
    enabled: bool
    deprecated_at: datetime | None
    current_revision_number: int
    created_at: datetime
    updated_at: datetime


@dataclass(frozen=True, slots=True)
class Revision:
    """One immutable runtime configuration."""

    id: str
    template_id: str
    revision: int
    image_digest: str
    image_ref: str | None
    command: tuple[str, ...] | None
    working_dir: str | None
    ports: tuple[int, ...] | None
    zclouds: int
    ephemeral_disk_mb: int | None
    pid_limit: int | None
    persistence_mode: PersistenceMode
    volume_size_mb: int | None
    mount_path: str | None
    snapshot_exclude: tuple[str, ...] | None
    snapshot_max_mb: int | None
    isolation_profile: IsolationProfile
    idle_timeout_seconds: int
    hard_lifetime_seconds: int
    suspended_retention_seconds: int
    warm_pool: WarmPool | None
    network_control: NetworkControl | None
    created_at: datetime


def slug_of(name: str) -> str:
    """Return the URL-safe identifier of a name: lower-case ASCII letters, digits and hyphens, at most 200 (SA-017)."""
    ascii_name = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode()
    hyphenated = re.sub(r"[^a-z0-9]+", "-", ascii_name.lower()).strip("-")
    # One character may decompose into several ("⑽" into "(10)"), so a name within its limit can give a slug beyond it.
    return hyphenated[:MAX_SLUG_LENGTH].strip("-") or "template"


def check_image_digest(image_digest: str) -> None:
    """Refuse anything but `repo/image@sha256:<64 hex>` (SA-201)."""
    if len(image_digest) > MAX_IMAGE_DIGEST_LENGTH or not _IMAGE_DIGEST.fullmatch(image_digest):
        raise Invalid(
            "imageDigest must be pinned by digest: repo/image@sha256: followed by 64 hexadecimal characters.",
            field="imageDigest",
        )


def check_network_control(control: NetworkControl) -> None:
    """Refuse lists that name nothing (SA-190, SA-194); their syntax is checked where they are put in force."""
    if control.enabled and not _non_blank(control.address_allowlist):
        raise Invalid(
            "networkControl.addressAllowlist needs at least one address while networkControl.enabled is true.",
            field="networkControl.addressAllowlist",
        )
    if control.domain_allowlist and not _non_blank(control.domain_allowlist):
        raise Invalid(
            "networkControl.domainAllowlist holds only blank entries.", field="networkControl.domainAllowlist"
        )


def check_persistence_fields(
    mode: PersistenceMode,
    *,
    volume_size_mb: int | None,
    mount_path: str | None,
    snapshot_exclude: Sequence[str] | None,
    snapshot_max_mb: int | None,
) -> None:
    """Refuse fields that the mode has no use for (SA-208 … SA-210)."""
    if volume_size_mb is not None and not mode.uses_volume:
        raise Invalid("volumeSizeMb is for the volume modes DIRECTORY, SNAPSHOT and BOTH.", field="volumeSizeMb")
    if mount_path is not None and not mode.mounts_directory:
        raise Invalid("mountPath is for the modes DIRECTORY and BOTH.", field="mountPath")
    if snapshot_exclude is not None and not mode.takes_snapshots:
        raise Invalid("snapshotExclude is for the modes SNAPSHOT and BOTH.", field="snapshotExclude")
    if snapshot_max_mb is not None and not mode.takes_snapshots:
        raise Invalid("snapshotMaxMb is for the modes SNAPSHOT and BOTH.", field="snapshotMaxMb")


def check_warm_pool(
    pool: WarmPool, mode: PersistenceMode, *, pid_limit: int | None, ephemeral_disk_mb: int | None
) -> None:
    """Refuse a pool of wrong bounds, with a volume mode (SA-042), or with per-sandbox limits (SA-408)."""
    if not 0 <= pool.min <= pool.desired <= pool.max:
        raise Invalid("warmPool needs 0 <= min <= desired <= max.", field="warmPool")
    if mode.uses_volume:
        raise Invalid("persistence modes with a volume are not available on warm pools", field="warmPool")
    if pid_limit is not None:
        raise Invalid("pidLimit cannot be applied to sandboxes that wait in a warm pool.", field="pidLimit")
    if ephemeral_disk_mb is not None:
        raise Invalid(
            "ephemeralDiskMb cannot be applied to sandboxes that wait in a warm pool.", field="ephemeralDiskMb"
        )


def _non_blank(entries: Sequence[str]) -> list[str]:
    return [entry for entry in entries if entry.strip()]
