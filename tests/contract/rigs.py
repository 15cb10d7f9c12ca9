"""Rigs for the driver contract: a driver on this machine, and the proof afterwards that nothing of it is left."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from atoll.agent.binary import agent_binary
from atoll.drivers import shim
from atoll.drivers.base import Driver
from atoll.drivers.fake import FakeDriver
from atoll.drivers.gvisor.cgroups import Cgroups, find_cgroups
from atoll.drivers.gvisor.driver import GvisorDriver
from atoll.drivers.gvisor.images import ImageStore
from atoll.drivers.gvisor.layout import Layout
from atoll.drivers.gvisor.network import Network
from atoll.drivers.gvisor.probe import RunscTraits
from atoll.drivers.gvisor.settings import GvisorSettings

MISSING_DIGEST = "atoll/none@sha256:" + "0" * 64
_GONE_SECONDS = 10.0
_TICKS = os.sysconf("SC_CLK_TCK")


def processes_naming(text: str) -> list[str]:
    """Processes with the text in their command line."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() and int(folder.name) != os.getpid():
            with contextlib.suppress(OSError):
                words = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
                if text in words:
                    found.append(f"process {folder.name}: {words[:100]}")
    return found


def _poll_until_empty(look: Callable[[], list[str]]) -> list[str]:
    deadline = time.monotonic() + _GONE_SECONDS
    while (left := look()) and time.monotonic() < deadline:
        time.sleep(0.02)
    return left


@dataclass
class FakeRig:
    """The fake driver below a folder of its own."""

    driver: FakeDriver
    root: Path
    image_digest: str = "debian@sha256:" + "1" * 64
    missing_digest: str = MISSING_DIGEST

    async def restarted(self) -> Driver:
        driver = _fake(self.root)
        await driver.start()
        return driver

    async def kill_from_outside(self, instance_id: str) -> None:
        await self.driver.kill_from_outside(instance_id)

    def remains(self, instance_id: str) -> list[str]:
        folder = self.root / instance_id
        found = _poll_until_empty(lambda: processes_naming(str(folder)))
        if folder.exists():
            found.append(f"file {folder}")
        return found


def _fake(root: Path) -> FakeDriver:
    return FakeDriver(root, agent=agent_binary(), missing_images=frozenset({MISSING_DIGEST}))


@asynccontextmanager
async def fake_rig() -> AsyncIterator[FakeRig]:
    root = Path(tempfile.mkdtemp(prefix="atoll-fake-"))
    driver = _fake(root)
    await driver.start()
    try:
        yield FakeRig(driver, root)
    finally:
        await _end_all(driver)
        await driver.stop()
        shutil.rmtree(root, ignore_errors=True)
    assert _poll_until_empty(lambda: processes_naming(str(root))) == []


@dataclass
class GvisorRig:
    """The gVisor driver with a data directory, and so a mark, of its own."""

    driver: GvisorDriver
    layout: Layout
    cgroups: Cgroups
    network: Network
    image_digest: str
    make: Callable[[], GvisorDriver]
    missing_digest: str = MISSING_DIGEST
    slots: dict[str, int] = field(default_factory=dict)

    async def restarted(self) -> GvisorDriver:
        driver = self.make()
        await driver.start()
        return driver

    async def kill_from_outside(self, instance_id: str) -> None:
        folder = self.layout.instance(instance_id).folder
        for pid in self.cgroups.processes(instance_id) | {shim.alive(folder) or 0} - {0}:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def remains(self, instance_id: str) -> list[str]:
        paths = self.layout.instance(instance_id)

        def look() -> list[str]:
            found = processes_naming(str(paths.folder))
            found += [f"process {pid} in a control group" for pid in self.cgroups.processes(instance_id)]
            return found

        found = _poll_until_empty(look)
        found += [f"file {path}" for path in (paths.folder, paths.disk) if path.exists()]
        found += [f"group {folder}" for folder in self.cgroups.folders(instance_id) if folder.exists()]
        mounts = Path("/proc/self/mountinfo").read_text()
        found += [f"mount {line}" for line in mounts.splitlines() if str(paths.folder) in line]
        return found

    def cpu_seconds(self, instance_id: str) -> float:
        total = 0
        for pid in self.cgroups.processes(instance_id):
            with contextlib.suppress(OSError):
                fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
                total += int(fields[11]) + int(fields[12])
        return total / _TICKS

    def machine_remains(self) -> list[str]:
        """What is left of the whole data directory once the driver is stopped."""

        def look() -> list[str]:
            found = processes_naming(str(self.layout.run_dir))
            found += [f"namespace {slot}" for slot in self.network.existing()]
            found += [f"interface {slot}" for slot in self.network.interfaces()]
            found += [f"group of {name}" for name in self.cgroups.instances()]
            return found

        return _poll_until_empty(look)


@asynccontextmanager
async def gvisor_rig(
    store: ImageStore, image_digest: str, traits: RunscTraits, *, runsc: Path, **settings: object
) -> AsyncIterator[GvisorRig]:
    agent = agent_binary()
    data_dir = Path(tempfile.mkdtemp(prefix="atoll-gvisor-"))
    values: dict[str, object] = {"runsc": runsc, "namespace_pool": 2, "disk_look_seconds": 0.2}
    made = GvisorSettings(data_dir, **(values | settings))  # type: ignore[arg-type]  # callers name settings

    def make() -> GvisorDriver:
        return GvisorDriver(made, store, agent=agent, traits=traits)

    driver = make()
    layout = Layout.of(data_dir, made.run_base)
    cgroups = find_cgroups(layout.cgroup_name)
    network = Network(layout, pool_size=0, address_range=made.address_range)
    await driver.start()
    rig = GvisorRig(driver, layout, cgroups, network, image_digest, make)
    try:
        yield rig
    finally:
        await _end_all(driver)
        await driver.stop()
        left = rig.machine_remains()
        await network.remove(network.existing())
        await network.remove_rules()
        cgroups.remove_parent()
        shutil.rmtree(layout.run_dir, ignore_errors=True)
        shutil.rmtree(data_dir, ignore_errors=True)
    assert left == []


async def _end_all(driver: Driver) -> None:
    seen = await driver.list_instances()
    await asyncio.gather(*(driver.destroy(found.instance_id) for found in seen))
    await asyncio.gather(*(driver.cleanup(found.instance_id) for found in seen))
