"""What an operator can set of the gVisor driver, with the defaults. Made by `compose`, read by this package only."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from ipaddress import IPv4Network
from pathlib import Path

from atoll.settings import Settings

DEFAULT_RANGE = IPv4Network("10.231.0.0/16")
MIB = 1024 * 1024
ZCLOUD_MEMORY_BYTES = 512 * MIB
"""Memory of one zCloud (SA-029)."""
ZCLOUD_CPUS = 0.5
"""Processors of one zCloud (SA-029)."""


@dataclass(frozen=True, slots=True)
class GvisorSettings:
    """Settings of one driver on one machine."""

    data_dir: Path
    run_base: Path = Path("/run/atoll")
    runsc: Path = Path("/usr/bin/runsc")
    name_servers: tuple[str, ...] = ("1.1.1.1", "8.8.8.8", "2606:4700:4700::1111")
    """Must be reachable through the egress rules; private ones are not, unless `allowed_private` names them."""
    allowed_private: tuple[str, ...] = ()
    """Networks inside the denied ranges that sandboxes may reach all the same, e.g. a resolver of the site."""
    address_range: IPv4Network = DEFAULT_RANGE
    """At least a /24, four addresses a sandbox. A /20 of it that the machine does not use is taken."""
    namespace_pool: int = 8
    """Network namespaces kept ready."""
    boots_at_once: int = 3
    """More only queue for the processors: a boot is mostly computing."""
    boot_timeout_seconds: float = 30.0
    default_pid_limit: int = 4096
    default_ephemeral_disk_mb: int = 10_240
    disk_look_seconds: float = 2.0
    image_unused_seconds: float = 86_400.0
    """How long an image that no sandbox uses is kept."""
    sentry_allowance_bytes: int = 48 * MIB
    """What gVisor itself needs on top of the sandbox's memory."""
    memory_reserve_bytes: int = 128 * MIB
    """Between the sandbox's limit, where a process is killed, and the limit of the machine, where all of it would
    freeze."""


def from_operator(settings: Settings) -> GvisorSettings:
    """The driver's settings out of the control plane's."""
    return GvisorSettings(
        data_dir=settings.data_dir,
        runsc=settings.runsc or Path(shutil.which("runsc") or "/usr/bin/runsc"),
        boots_at_once=settings.concurrent_boots,
        address_range=IPv4Network(settings.sandbox_network),
        name_servers=settings.sandbox_dns,
        default_ephemeral_disk_mb=settings.sandbox_disk_mb,
        default_pid_limit=settings.sandbox_pid_limit,
        image_unused_seconds=settings.image_retention_seconds,
    )
