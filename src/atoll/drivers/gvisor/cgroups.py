"""Control groups of sandboxes: memory, processors and processes, on version 1 and version 2 behind one interface.

Called by the driver. Only folders and files under the hierarchy's root are touched, so both versions are tested
against plain trees.

    v1   <root>/{memory,cpu,pids,cpuset}/atoll-<mark>/<instance>      v2   <root>/atoll-<mark>/<instance>

The hard memory limit is the sandbox's memory, plus what gVisor itself needs, plus a reserve. The shim watches the limit
without the reserve and has the greedy process killed there (SA-099); the hard limit only protects the machine.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from atoll.domain.errors import ErrorCode, RuntimeFailure
from atoll.drivers.gvisor.bundle import MemoryWatch

CGROUP_ROOT = Path("/sys/fs/cgroup")
_PERIOD_MICROSECONDS = 100_000
_SHARES_A_CPU = 1024
_WEIGHT_A_CPU = 100
_LOOK_SECONDS = 0.005
_CPUSET = "cpuset"
"""Used where the machine has it: without it sandboxes are only slower."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What one sandbox may use of the machine."""

    memory_bytes: int
    """Where a process is killed: the sandbox's own memory and gVisor's."""
    reserve_bytes: int
    cpus: float
    host_tasks: int
    """Threads on the machine, a backstop: gVisor itself enforces the sandbox's own process limit."""


class Cgroups(ABC):
    """The control groups of one data directory."""

    def __init__(self, root: Path, parent: str) -> None:
        self._root = root
        self._parent = parent

    @abstractmethod
    def start(self) -> None:
        """Make the parent group. Raises UNKNOWN with what is missing."""

    @abstractmethod
    def create(self, instance_id: str, limits: Limits) -> None:
        """Make the group of an instance with every limit but those of the processors. Fine when it exists."""

    @abstractmethod
    def limit_cpu(self, instance_id: str, limits: Limits) -> None:
        """Put the processor limit in force: after the boot, which is mostly computing, so that it runs at full
        speed."""

    @abstractmethod
    def cpuset(self, instance_id: str) -> Path:
        """The folder with the instance's `cpuset.cpus`."""

    def confine(self, instance_id: str, processor: int) -> None:
        """Keep every process of the instance on one processor. Does nothing on a machine without cpusets."""
        with contextlib.suppress(FileNotFoundError):
            _write_existing(self.cpuset(instance_id) / "cpuset.cpus", str(processor))

    def confined_to(self, instance_id: str) -> int | None:
        """The processor it is kept on; None when it may use several."""
        try:
            cpus = (self.cpuset(instance_id) / "cpuset.cpus").read_text().strip()
        except OSError:
            return None
        return int(cpus) if cpus.isdecimal() else None

    @abstractmethod
    def memory_watch(self, instance_id: str, limits: Limits) -> MemoryWatch:
        """What the shim watches."""

    @abstractmethod
    def folders(self, instance_id: str) -> list[Path]:
        """The folders of an instance, whether they exist or not."""

    @abstractmethod
    def parents(self) -> list[Path]:
        """The folders that hold the instances' folders."""

    def join_files(self, instance_id: str) -> list[Path]:
        """Where a process with one thread writes itself to be in the group."""
        return self._process_files(instance_id)

    def kill_folders(self, instance_id: str) -> list[Path]:
        """Folders that together hold every process of the instance. All of them, as one may have been joined and
        another not yet."""
        return self.folders(instance_id)

    def exists(self, instance_id: str) -> bool:
        """Whether anything of the group is there."""
        return any(folder.exists() for folder in self.folders(instance_id))

    def instances(self) -> set[str]:
        """The ids that have a group."""
        found: set[str] = set()
        for parent in self.parents():
            with contextlib.suppress(FileNotFoundError):
                found |= {entry.name for entry in parent.iterdir() if entry.is_dir()}
        return found

    def processes(self, instance_id: str) -> set[int]:
        """The living processes of the group."""
        found: set[int] = set()
        for path in self._process_files(instance_id):
            # The file vanishes, or its reading fails with ENODEV, when the group is removed meanwhile.
            with contextlib.suppress(OSError):
                found |= {int(line) for line in path.read_text().split()}
        found.discard(0)
        return found

    def kill(self, instance_id: str, *, seconds: float = 5.0) -> bool:
        """Kill every process, over and over until none is left; False when some live after `seconds`. Blocks: call it
        in a thread."""
        deadline = time.monotonic() + seconds
        while processes := self.processes(instance_id):
            for pid in processes:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            if time.monotonic() > deadline:
                return False
            time.sleep(_LOOK_SECONDS)
        return True

    def _process_files(self, instance_id: str) -> list[Path]:
        return [folder / "cgroup.procs" for folder in self.folders(instance_id)]

    def remove(self, instance_id: str) -> None:
        """Remove the group; its processes must be dead. Fine when there is none. Raises `OSError` (EBUSY) while some
        live."""
        _remove(self.folders(instance_id))

    def remove_parent(self) -> None:
        """Remove the parent group when it is empty; only when no sandbox is left (tests, uninstalling)."""
        with contextlib.suppress(OSError):
            _remove(self.parents())


class CgroupsV1(Cgroups):
    """One hierarchy a controller."""

    _CONTROLLERS = ("memory", "cpu", "pids")

    def __init__(self, root: Path, parent: str) -> None:
        super().__init__(root, parent)
        self._controllers = tuple(
            controller for controller in (*self._CONTROLLERS, _CPUSET) if (root / controller / "cgroup.procs").exists()
        )

    def start(self) -> None:
        """Make the parent in each hierarchy."""
        for controller in self._CONTROLLERS:
            if controller not in self._controllers:
                raise _missing(controller)
        for parent in self.parents():
            parent.mkdir(exist_ok=True)
        if _CPUSET in self._controllers:
            self._inherit_cpuset()
        # All sandboxes together weigh as much as one busy process of the machine on each processor, not as one in all.
        _write(self._root / "cpu" / self._parent / "cpu.shares", str(_SHARES_A_CPU * (os.cpu_count() or 1)))

    def _inherit_cpuset(self) -> None:
        """A new group of this version has no processor and no memory node at all until it is given some."""
        parent = self._root / _CPUSET / self._parent
        for name in ("cpuset.cpus", "cpuset.mems"):
            _write(parent / name, (self._root / _CPUSET / name).read_text().strip())
        _write(parent / "cgroup.clone_children", "1")

    def create(self, instance_id: str, limits: Limits) -> None:
        """Memory with a hard limit that freezes instead of killing the sandbox, and tasks."""
        for folder in self.folders(instance_id):
            folder.mkdir(parents=True, exist_ok=True)
        memory = self._folder("memory", instance_id)
        _write(memory / "memory.limit_in_bytes", str(limits.memory_bytes + limits.reserve_bytes))
        _write(memory / "memory.oom_control", "1")
        _write(self._folder("pids", instance_id) / "pids.max", str(limits.host_tasks))

    def limit_cpu(self, instance_id: str, limits: Limits) -> None:
        """Weight, quota, and where the kernel has it a burst of one period, which helps short commands."""
        folder = self._folder("cpu", instance_id)
        quota = round(limits.cpus * _PERIOD_MICROSECONDS)
        _write(folder / "cpu.shares", str(round(limits.cpus * _SHARES_A_CPU)))
        _write(folder / "cpu.cfs_period_us", str(_PERIOD_MICROSECONDS))
        _write(folder / "cpu.cfs_quota_us", str(quota))
        _write_if_there(folder / "cpu.cfs_burst_us", str(quota))

    def join_files(self, instance_id: str) -> list[Path]:
        """`tasks`: joining by `cgroup.procs` waits up to 16 ms for a lock that one thread alone does not need."""
        return [folder / "tasks" for folder in self.folders(instance_id)]

    def memory_watch(self, instance_id: str, limits: Limits) -> MemoryWatch:
        """The memory controller's folder."""
        return MemoryWatch("v1", self._folder("memory", instance_id), limits.memory_bytes, limits.reserve_bytes)

    def cpuset(self, instance_id: str) -> Path:
        """In its own hierarchy."""
        return self._folder(_CPUSET, instance_id)

    def folders(self, instance_id: str) -> list[Path]:
        """One a controller."""
        return [self._folder(controller, instance_id) for controller in self._controllers]

    def parents(self) -> list[Path]:
        """One a controller."""
        return [self._root / controller / self._parent for controller in self._controllers]

    def _folder(self, controller: str, instance_id: str) -> Path:
        return self._root / controller / self._parent / instance_id


class CgroupsV2(Cgroups):
    """The unified hierarchy."""

    _CONTROLLERS = ("memory", "cpu", "pids")

    def start(self) -> None:
        """Make the parent and hand the controllers down to its children."""
        there = (self._root / "cgroup.controllers").read_text().split()
        for controller in self._CONTROLLERS:
            if controller not in there:
                raise _missing(controller)
        handed = [controller for controller in (*self._CONTROLLERS, _CPUSET) if controller in there]
        self._hand_down(self._root, handed)
        parent = self._root / self._parent
        parent.mkdir(exist_ok=True)
        self._hand_down(parent, handed)
        _write_if_there(parent / "cpu.weight", str(min(10_000, _WEIGHT_A_CPU * (os.cpu_count() or 1))))

    def create(self, instance_id: str, limits: Limits) -> None:
        """`memory.high` where the shim begins to act, `memory.max` above it; no swap, so that the limit means
        memory."""
        folder = self._folder(instance_id)
        folder.mkdir(parents=True, exist_ok=True)
        _write(folder / "memory.high", str(limits.memory_bytes))
        _write(folder / "memory.max", str(limits.memory_bytes + limits.reserve_bytes))
        _write_if_there(folder / "memory.swap.max", "0")
        _write(folder / "pids.max", str(limits.host_tasks))

    def limit_cpu(self, instance_id: str, limits: Limits) -> None:
        """Weight, quota and burst."""
        folder = self._folder(instance_id)
        quota = round(limits.cpus * _PERIOD_MICROSECONDS)
        _write(folder / "cpu.weight", str(max(1, round(limits.cpus * _WEIGHT_A_CPU))))
        _write(folder / "cpu.max", f"{quota} {_PERIOD_MICROSECONDS}")
        _write_if_there(folder / "cpu.max.burst", str(quota))

    def memory_watch(self, instance_id: str, limits: Limits) -> MemoryWatch:
        """The instance's folder."""
        return MemoryWatch("v2", self._folder(instance_id), limits.memory_bytes, limits.reserve_bytes)

    def cpuset(self, instance_id: str) -> Path:
        """The instance's folder."""
        return self._folder(instance_id)

    def folders(self, instance_id: str) -> list[Path]:
        """One."""
        return [self._folder(instance_id)]

    def parents(self) -> list[Path]:
        """One."""
        return [self._root / self._parent]

    def kill(self, instance_id: str, *, seconds: float = 5.0) -> bool:
        """`cgroup.kill` reaches also what forks meanwhile; kernels before 5.14 lack it and get signals."""
        _write_if_there(self._folder(instance_id) / "cgroup.kill", "1")
        return super().kill(instance_id, seconds=seconds)

    @staticmethod
    def _hand_down(folder: Path, controllers: list[str]) -> None:
        control = folder / "cgroup.subtree_control"
        handed = control.read_text().split() if control.exists() else []
        missing = [controller for controller in controllers if controller not in handed]
        if missing:
            _write(control, " ".join(f"+{controller}" for controller in missing))

    def _folder(self, instance_id: str) -> Path:
        return self._root / self._parent / instance_id


def find_cgroups(parent: str, root: Path = CGROUP_ROOT) -> Cgroups:
    """The version this machine uses; a hybrid set-up, where version 1 has the controllers, counts as version 1."""
    controllers = root / "cgroup.controllers"
    if controllers.exists() and "memory" in controllers.read_text().split():
        return CgroupsV2(root, parent)
    return CgroupsV1(root, parent)


def _missing(controller: str) -> RuntimeFailure:
    return RuntimeFailure(
        f"the machine offers no {controller} control group; `atoll doctor` says how to mend that",
        code=ErrorCode.UNKNOWN,
    )


def _write(path: Path, value: str) -> None:
    with path.open("w") as file:
        file.write(value)


def _write_existing(path: Path, value: str) -> None:
    # Opened without O_CREAT: on a real hierarchy a missing file is a kernel without the feature.
    descriptor = os.open(path, os.O_WRONLY | os.O_TRUNC)
    try:
        os.write(descriptor, value.encode())
    finally:
        os.close(descriptor)


def _write_if_there(path: Path, value: str) -> None:
    with contextlib.suppress(OSError):
        _write_existing(path, value)


def _remove(folders: Iterable[Path]) -> None:
    for folder in folders:
        deadline = time.monotonic() + 1.0
        while True:
            try:
                folder.rmdir()
            except FileNotFoundError:
                break
            except OSError as error:
                # A process that has just died is still counted for a moment.
                if error.errno != errno.EBUSY or time.monotonic() > deadline:
                    raise
                time.sleep(_LOOK_SECONDS)
            else:
                break
