"""The files of an instance and the measuring of its disk, on real files."""

import asyncio
import os
from dataclasses import replace
from pathlib import Path

import pytest

from atoll.domain.errors import ErrorCode, RuntimeFailure
from atoll.drivers.base import HostMount, InstanceSpec
from atoll.drivers.gvisor import records
from atoll.drivers.gvisor.disk import MIB, DiskWatcher, Watched
from atoll.drivers.gvisor.driver import GvisorDriver
from atoll.drivers.gvisor.images import ImageStore
from atoll.drivers.gvisor.layout import InstancePaths, Layout
from atoll.drivers.gvisor.settings import GvisorSettings
from atoll.drivers.removal import remove_tree

SPEC = InstanceSpec("one", "debian@sha256:" + "0" * 64, ("sh", "-c", "x"), None, 2, 64, None)


def paths(tmp_path: Path) -> InstancePaths:
    return Layout.of(tmp_path / "data", tmp_path / "run").instance("one")


def test_a_spec_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    records.write_spec(paths(tmp_path), SPEC)
    assert records.read_spec(paths(tmp_path)) == SPEC


def test_a_torn_or_missing_record_is_no_record(tmp_path: Path) -> None:
    found = paths(tmp_path)
    assert records.read_spec(found) is None
    assert records.read_slot(found) is None
    found.folder.mkdir(parents=True)
    found.spec.write_text('{"instance_id": "o')
    found.network.write_text("")
    assert records.read_spec(found) is None
    assert records.read_slot(found) is None


@pytest.mark.parametrize("name", ["", "..", "a/b", "a\0b", ".hidden", "x" * 49, "a b"])
def test_an_id_that_is_no_file_name_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(RuntimeFailure) as caught:
        Layout.of(tmp_path, tmp_path).instance(name)
    assert caught.value.code is ErrorCode.INVALID_REQUEST


def test_two_data_directories_share_no_name(tmp_path: Path) -> None:
    one, two = (Layout.of(tmp_path / name, tmp_path / "run") for name in ("a", "b"))
    for attribute in ("cgroup_name", "interface_prefix", "namespace_prefix", "table", "instances_dir"):
        assert getattr(one, attribute) != getattr(two, attribute)


def test_names_fit_the_kernels_limits(tmp_path: Path) -> None:
    layout = Layout.of(tmp_path, Path("/run/atoll"))
    assert len(f"{layout.interface_prefix}16383") <= 15
    socket = layout.instance("x" * 48).runsc_root / "runsc-sandbox.sock"
    assert len(os.fsencode(socket)) < 108


@pytest.mark.spec("SA-409")
def test_unlinked_files_that_a_process_holds_open_count(tmp_path: Path) -> None:
    disk = tmp_path / "one"
    disk.mkdir()

    async def never(instance_id: str) -> None:
        raise AssertionError(instance_id)

    sandbox = Watched("one", disk, MIB, lambda: [os.getpid()])
    watcher = DiskWatcher(lambda: [sandbox], never, seconds=1)
    assert watcher.over_limit() == []
    with (disk / "backing").open("w+b") as file, (disk / "second").open("w+b") as second:
        (disk / "backing").unlink()
        file.write(os.urandom(2 * MIB))
        file.flush()
        os.fsync(file.fileno())
        assert watcher.usage(sandbox) >= 2 * MIB
        assert watcher.over_limit() == ["one"]
        second.write(os.urandom(MIB))
        os.fsync(second.fileno())
        assert watcher.usage(sandbox) >= 3 * MIB
        # A hole costs nothing.
        file.truncate(0)
        file.truncate(900 * MIB)
        second.truncate(0)
        assert watcher.over_limit() == []
    assert watcher.usage(sandbox) == 0


@pytest.mark.spec("SA-409", "SA-411")
def test_the_write_cache_of_a_volume_counts_and_the_volume_does_not(tmp_path: Path) -> None:
    workspace, volume, cache = (tmp_path / name for name in ("workspace", "volume", "cache"))
    for folder in (workspace, volume, cache):
        folder.mkdir()
    mounts = (
        HostMount(str(workspace), "/workspace", counts_as_disk=True),
        HostMount(str(volume), "/data", counts_as_disk=False, cache=str(cache)),
    )
    settings = GvisorSettings(data_dir=tmp_path / "data", run_base=tmp_path / "run")
    driver = GvisorDriver(settings, ImageStore(tmp_path / "images"), agent=tmp_path / "agent")
    found = driver.layout.instance("one")
    records.write_spec(found, replace(SPEC, mounts=mounts, ephemeral_disk_mb=1))
    records.write_whole(found.ready, "")
    (volume / "kept").write_bytes(os.urandom(2 * MIB))
    assert driver._disk.over_limit() == []
    (cache / "written").write_bytes(os.urandom(2 * MIB))
    assert driver._disk.over_limit() == ["one"]


def _nest(folder: Path, depth: int) -> None:
    """Folders in one another, deeper than Python walks and than a path can name."""
    descriptor = os.open(folder, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir("abcdefgh", dir_fd=descriptor)
        below = os.open("abcdefgh", os.O_RDONLY, dir_fd=descriptor)
        os.close(descriptor)
        descriptor = below
    os.close(descriptor)


@pytest.mark.spec("SA-409", "SA-410")
@pytest.mark.parametrize(("depth", "over"), [(300, ["loud"]), (1_100, ["deep", "loud"])])
def test_folders_in_one_another_hide_nothing_and_protect_nobody(tmp_path: Path, depth: int, over: list[str]) -> None:
    deep, loud = tmp_path / "deep", tmp_path / "loud"
    for folder in (deep, loud):
        folder.mkdir()
    _nest(deep, depth)
    (loud / "file").write_bytes(os.urandom(2 * MIB))
    disks = {name: tmp_path / f"disk-{name}" for name in ("deep", "loud")}
    for disk in disks.values():
        disk.mkdir()
    watched = [
        Watched("deep", disks["deep"], 64 * MIB, list, (deep,)),
        Watched("loud", disks["loud"], MIB, list, (loud,)),
    ]

    async def never(instance_id: str) -> None:
        raise AssertionError(instance_id)

    watcher = DiskWatcher(lambda: watched, never, seconds=1)
    assert watcher.over_limit() == over
    remove_tree(deep)


@pytest.mark.spec("SA-410")
async def test_an_eviction_that_fails_does_not_spare_the_next(tmp_path: Path) -> None:
    evicted: list[str] = []

    async def evict(instance_id: str) -> None:
        evicted.append(instance_id)
        if instance_id == "first":
            raise OSError("it resists")

    watched = []
    for name in ("first", "second"):
        folder, disk = tmp_path / name, tmp_path / f"disk-{name}"
        folder.mkdir()
        disk.mkdir()
        (folder / "file").write_bytes(os.urandom(2 * MIB))
        watched.append(Watched(name, disk, MIB, list, (folder,)))
    watcher = DiskWatcher(lambda: watched, evict, seconds=0.01)
    watcher.start()
    async with asyncio.timeout(10):
        while "second" not in evicted:  # noqa: ASYNC110 - there is nothing to wait on
            await asyncio.sleep(0.01)
    await watcher.stop()
