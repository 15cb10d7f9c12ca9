"""What one data directory has on the machine: processes, namespaces, interfaces, control groups, mounts, files.

Every name carries the mark of the data directory, so what other servers and tests own is never counted or touched. Only
the names come from the product; what exists is read from the machine, so a driver that forgets something is found out.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path

from atoll.drivers.gvisor.layout import Layout

RUN_BASE = Path("/run/atoll")
CGROUPS = Path("/sys/fs/cgroup")
NAMESPACE_POOL = 8
"""Namespaces that a running server keeps ready (`GvisorSettings.namespace_pool`)."""
_PROGRAM_SECONDS = 30.0
_SWEEP_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One look. Every entry reads as what it is."""

    processes: frozenset[str]
    namespaces: frozenset[str]
    interfaces: frozenset[str]
    cgroups: frozenset[str]
    mounts: frozenset[str]
    files: frozenset[str]


@dataclass(frozen=True, slots=True)
class Resources:
    """What one process holds."""

    descriptors: int
    threads: int
    resident_kb: int
    pss_kb: int
    zombies: int
    """Children that it has not reaped."""


def layout_of(data_dir: Path) -> Layout:
    """The names of a data directory."""
    return Layout.of(data_dir, RUN_BASE)


def snapshot(data_dir: Path) -> Snapshot:
    """Everything of this data directory but its server, its database and its packet rules, which stay."""
    layout = layout_of(data_dir)
    return Snapshot(
        processes=frozenset(f"{pid} {name_of(pid)}" for pid in processes(data_dir)),
        namespaces=frozenset(_names(Path("/run/netns"), layout.namespace_prefix)),
        interfaces=frozenset(_names(Path("/sys/class/net"), layout.interface_prefix)),
        cgroups=frozenset(str(path) for path in _cgroups(layout)),
        mounts=frozenset(_mounts(layout, data_dir)),
        files=frozenset(str(path) for folder in (layout.instances_dir, layout.disk_dir) for path in _entries(folder)),
    )


def left_over(before: Snapshot, after: Snapshot, *, pool: int = NAMESPACE_POOL) -> dict[str, list[str]]:
    """What is there now and was not before, by kind. Of namespaces and interfaces, as many as the pool holds may be
    others than before; pass 0 when the server has been stopped."""
    found: dict[str, list[str]] = {}
    for field in fields(Snapshot):
        earlier, now = getattr(before, field.name), getattr(after, field.name)
        more = sorted(now - earlier)
        if field.name in {"namespaces", "interfaces"} and len(now) <= max(len(earlier), pool):
            more = []
        if more:
            found[field.name] = more
    return found


def assert_nothing_left(before: Snapshot, after: Snapshot, *, pool: int = NAMESPACE_POOL) -> None:
    """Fail with the names of what is left."""
    found = left_over(before, after, pool=pool)
    assert not found, f"left on the machine: {found}"


def wait_until_nothing_left(
    data_dir: Path, before: Snapshot, *, seconds: float = 20.0, pool: int = NAMESPACE_POOL
) -> None:
    """Cleaning up goes on after the answer: look until nothing is left, or fail with what is."""
    deadline = time.monotonic() + seconds
    while left_over(before, snapshot(data_dir), pool=pool) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert_nothing_left(before, snapshot(data_dir), pool=pool)


def processes(data_dir: Path) -> list[int]:
    """Living processes of the sandboxes: in a control group of ours, or with a folder of ours on their command line."""
    layout = layout_of(data_dir)
    marks = (os.fsencode(layout.run_dir), os.fsencode(layout.disk_dir))
    found = {pid for group in _cgroups(layout) for pid in _members(group)}
    for pid in _all_processes():
        with contextlib.suppress(OSError):
            command_line = Path(f"/proc/{pid}/cmdline").read_bytes()
            if any(mark in command_line for mark in marks):
                found.add(pid)
    return sorted(pid for pid in found if _state(pid) not in {"", "Z", "X"})


def instance_processes(data_dir: Path, instance_id: str) -> list[int]:
    """Every process of one instance: its shim, and what is in its control groups or descends from the shim."""
    layout = layout_of(data_dir)
    found = {pid for group in _cgroups(layout) if group.name == instance_id for pid in _members(group)}
    with contextlib.suppress(OSError, ValueError):
        found.add(int(layout.instance(instance_id).shim_pid.read_text()))
    parents = {pid: _parent(pid) for pid in _all_processes()}
    while True:
        children = {pid for pid, parent in parents.items() if parent in found} - found
        if not children:
            return sorted(pid for pid in found if _state(pid) not in {"", "Z", "X"})
        found |= children


def instances(data_dir: Path) -> list[str]:
    """The instances that have a folder."""
    return sorted(path.name for path in _entries(layout_of(data_dir).instances_dir))


def resources(pid: int) -> Resources:
    """What a process holds now."""
    status = _status(pid)
    rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
    return Resources(
        descriptors=len(list(Path(f"/proc/{pid}/fd").iterdir())),
        threads=int(status["Threads"]),
        resident_kb=int(status["VmRSS"].split()[0]),
        pss_kb=next(int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Pss:")),
        zombies=sum(_state(child) == "Z" for child in _all_processes() if _parent(child) == pid),
    )


def pss_kb(pids: list[int]) -> int:
    """Proportional set size of several processes together; those that have ended meanwhile count nothing."""
    total = 0
    for pid in pids:
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
                if line.startswith("Pss:"):
                    total += int(line.split()[1])
    return total


def reset_peak_resident(pid: int) -> None:
    """Let the peak of the resident set begin anew."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")


def peak_resident_kb(pid: int) -> int:
    """The peak of the resident set since the reset."""
    return int(_status(pid)["VmHWM"].split()[0])


def name_of(pid: int) -> str:
    """The short name of a process."""
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return "?"


def sweep(data_dir: Path) -> None:
    """Take everything of a data directory off the machine; what a failed test, or a server that was killed, left."""
    layout = layout_of(data_dir)
    deadline = time.monotonic() + _SWEEP_SECONDS
    while (alive := processes(data_dir)) and time.monotonic() < deadline:
        for pid in alive:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)
    for name in _names(Path("/run/netns"), layout.namespace_prefix):
        _program("ip", "netns", "del", name)
    for name in _names(Path("/sys/class/net"), layout.interface_prefix):
        _program("ip", "link", "del", name)
    _program("nft", "delete", "table", "inet", layout.table)
    for group in [*_cgroups(layout), *_parent_cgroups(layout)]:
        with contextlib.suppress(OSError):
            group.rmdir()
    for point in reversed(_mounts(layout, data_dir)):
        _program("umount", "--lazy", point)
    for folder in (layout.run_dir, layout.disk_dir):
        shutil.rmtree(folder, ignore_errors=True)


def _program(*argv: str) -> None:
    subprocess.run(argv, capture_output=True, timeout=_PROGRAM_SECONDS, check=False)


def _all_processes() -> Iterator[int]:
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            yield int(entry.name)


def _names(folder: Path, prefix: str) -> list[str]:
    return [path.name for path in _entries(folder) if path.name.startswith(prefix)]


def _entries(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []


def _parent_cgroups(layout: Layout) -> list[Path]:
    candidates = [CGROUPS / layout.cgroup_name, *(top / layout.cgroup_name for top in _entries(CGROUPS))]
    return [path for path in candidates if path.is_dir()]


def _cgroups(layout: Layout) -> list[Path]:
    return [path for parent in _parent_cgroups(layout) for path in _entries(parent) if path.is_dir()]


def _members(group: Path) -> list[int]:
    try:
        return [int(line) for line in (group / "cgroup.procs").read_text().split() if line != "0"]
    except OSError:
        return []


def _mounts(layout: Layout, data_dir: Path) -> list[str]:
    """Mount points below our folders; the data directory itself may be one that a test made."""
    below = tuple(f"{folder}/" for folder in (layout.run_dir, data_dir.resolve()))
    points = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    return [point for point in points if point.startswith(below)]


def _status(pid: int) -> dict[str, str]:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def _stat(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ["", "0"]


def _state(pid: int) -> str:
    return _stat(pid)[0]


def _parent(pid: int) -> int:
    return int(_stat(pid)[1])
