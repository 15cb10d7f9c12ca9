"""Where the gVisor driver keeps what belongs to an instance, and under which names the machine knows it.

Every name of the machine (folders, cgroups, namespaces, interfaces, nftables table) carries a mark made from the data
directory, so that two servers, or a server and the tests, on one machine do not touch each other's. The other modules
of this package use it; it only computes names and makes no file.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path

from atoll.domain.errors import ErrorCode, RuntimeFailure

MARK_LENGTH = 6
_INSTANCE_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,47}\Z")


def machine_mark(data_dir: Path) -> str:
    """Six hex digits that tell the owner of a name on this machine."""
    return hashlib.sha256(str(data_dir.resolve()).encode()).hexdigest()[:MARK_LENGTH]


def is_instance_id(name: str) -> bool:
    """Whether a name of the machine can be that of an instance."""
    return _INSTANCE_ID.match(name) is not None


def check_instance_id(instance_id: str) -> str:
    """The id itself, when it can be a file name; INVALID_REQUEST otherwise. Keeps `..` and `/` out of every path
    below."""
    if not is_instance_id(instance_id):
        raise RuntimeFailure("the instance id is malformed", code=ErrorCode.INVALID_REQUEST)
    return instance_id


@dataclass(frozen=True, slots=True)
class InstancePaths:
    """The files of one instance.

    `folder` lies under /run: short enough for socket paths, and gone after a reboot as the processes are. Only what the
    sandbox writes is on the data disk.
    """

    instance_id: str
    folder: Path
    """Holds everything below but `disk`; also the folder of the shim (`agent.sock`, `shim.pid`, `exit`,
    `runsc.log`)."""
    disk: Path
    """Backing files of the root overlay and of /tmp."""

    @property
    def spec(self) -> Path:
        """The instance spec; written before anything is made."""
        return self.folder / "spec.json"

    @property
    def network(self) -> Path:
        """Which network namespace it was given; written before its start."""
        return self.folder / "network.json"

    @property
    def bundle(self) -> Path:
        """The OCI bundle."""
        return self.folder / "bundle"

    @property
    def meminfo(self) -> Path:
        """The sandbox's memory, in the form of /proc/meminfo."""
        return self.folder / "meminfo"

    @property
    def runsc_root(self) -> Path:
        """State of runsc, one folder an instance: removing it replaces the slow `runsc delete`."""
        return self.folder / "runsc"

    @property
    def ready(self) -> Path:
        """Exists once `create` has returned."""
        return self.folder / "ready"

    @property
    def ending(self) -> Path:
        """Why the driver itself ended it, in words for a status reason."""
        return self.folder / "ending"

    @property
    def socket(self) -> Path:
        """The agent, through the shim."""
        return self.folder / "agent.sock"

    @property
    def shim_pid(self) -> Path:
        """Written by the shim."""
        return self.folder / "shim.pid"

    @property
    def exit(self) -> Path:
        """Written by the shim when the sandbox has ended."""
        return self.folder / "exit"

    @property
    def log(self) -> Path:
        """Standard error of runsc."""
        return self.folder / "runsc.log"

    @property
    def overlay_dir(self) -> Path:
        """runsc makes (and unlinks at once) the file behind the root overlay here."""
        return self.disk / "root"

    @property
    def tmp_dir(self) -> Path:
        """runsc keeps the file behind /tmp here."""
        return self.disk / "tmp"


@dataclass(frozen=True, slots=True)
class Layout:
    """The names of one data directory."""

    mark: str
    run_dir: Path
    disk_dir: Path

    @classmethod
    def of(cls, data_dir: Path, run_base: Path) -> Layout:
        """The layout of a data directory. `run_base` (`/run/atoll`) is on a file system that a reboot empties."""
        mark = machine_mark(data_dir)
        return cls(mark=mark, run_dir=run_base / mark, disk_dir=data_dir.resolve() / "ephemeral")

    @property
    def instances_dir(self) -> Path:
        """One folder an instance."""
        return self.run_dir / "i"

    @property
    def egress_dir(self) -> Path:
        """What the egress proxy lets through, one file an address of a restricted sandbox."""
        return self.run_dir / "egress"

    @property
    def resolv_conf(self) -> Path:
        """Shared by all sandboxes, read-only."""
        return self.run_dir / "resolv.conf"

    @property
    def hosts(self) -> Path:
        """Shared by all sandboxes, read-only."""
        return self.run_dir / "hosts"

    @property
    def cgroup_name(self) -> str:
        """The parent cgroup of all instances."""
        return f"atoll-{self.mark}"

    @property
    def interface_prefix(self) -> str:
        """Host-side interfaces; the slot number follows. At most 9 of the 15 characters the kernel allows."""
        return f"at{self.mark}n"

    @property
    def namespace_prefix(self) -> str:
        """Network namespaces; the slot number follows."""
        return f"atoll-{self.mark}-"

    @property
    def table(self) -> str:
        """The nftables table (family inet)."""
        return f"atoll_{self.mark}"

    def instance(self, instance_id: str) -> InstancePaths:
        """The files of one instance. Raises INVALID_REQUEST for an id that is no file name."""
        check_instance_id(instance_id)
        return InstancePaths(instance_id, self.instances_dir / instance_id, self.disk_dir / instance_id)
