"""Mounts with the real rclone and FUSE, on a folder: what is closed is stored, whatever happens to the mount."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import signal
import subprocess
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import pytest

from atoll.domain.volume import PointKind, SharedVolume, StoragePoint, VolumeStatus
from atoll.drivers.process import run
from atoll.storage import rclone
from atoll.storage.mounts import VolumeMounts
from atoll.storage.objects import OpenPoint, StorageFailed

INSTANCE = "11111111-2222-3333-4444-555555555555"
NOW = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass
class Rig:
    mounts: VolumeMounts
    opened: OpenPoint
    volume: SharedVolume
    looked_up: list[str]

    @property
    def data(self) -> Path:
        return Path(self.opened.point.location, self.volume.id, "data")

    async def attach(self) -> Path:
        return await self.mounts.attach(INSTANCE, self.opened, self.volume)

    async def find(self, volume_id: str) -> tuple[SharedVolume, OpenPoint] | None:
        self.looked_up.append(volume_id)
        return self.volume, self.opened

    async def settle(self, *, seconds: float = 20.0) -> None:
        await self.mounts.settle(INSTANCE, self.find, seconds=seconds)


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    location = tmp_path / "volumes"
    location.mkdir()
    point = StoragePoint(
        *("point", None, "local", "platform", PointKind.FOLDER, str(location)),
        *(None, None, None, None, 1001, 1001, NOW, None),
    )
    volume = SharedVolume(
        *("vol", "account", "work", "local", "point", VolumeStatus.ACTIVE, 1, 1001, 1001, None, NOW, NOW)
    )
    made = Rig(VolumeMounts(tmp_path / "mounts", tmp_path / "cache"), OpenPoint(point, None), volume, [])
    try:
        yield made
    finally:
        await made.mounts.detach(INSTANCE)


def _write(path: Path, text: str) -> None:
    path.write_text(text)


@pytest.mark.spec("SA-072")
async def test_a_file_renamed_right_behind_its_close_is_stored_under_its_new_name(rig: Rig) -> None:
    """As git renames its every lock."""
    folder = await rig.attach()

    def work() -> None:
        for number in range(200):
            lock = folder / f"f{number % 20}.lock"
            _write(lock, f"{number}\n")
            lock.rename(folder / f"f{number % 20}")

    await asyncio.to_thread(work)
    await rig.settle()
    stored = {entry.name: entry.read_text() for entry in rig.data.iterdir()}
    assert stored == {f"f{number % 20}": f"{number}\n" for number in range(180, 200)}


@pytest.mark.spec("SA-072")
@pytest.mark.parametrize("way", [signal.SIGKILL, signal.SIGTERM])
async def test_what_a_dead_rclone_had_not_stored_is_stored_by_the_next(rig: Rig, way: signal.Signals) -> None:
    folder = await rig.attach()
    [server] = VolumeMounts._servers(folder)

    def write_and_kill() -> None:
        for number in range(50):
            _write(folder / f"f{number}", "x" * 100_000)
        os.kill(server, way)

    await asyncio.to_thread(write_and_kill)
    await rig.settle()
    await rig.mounts.detach(INSTANCE)
    stored = {entry.name for entry in rig.data.iterdir() if entry.stat().st_size == 100_000}
    assert stored == {f"f{number}" for number in range(50)}
    assert rig.mounts.instances() == set()


async def test_a_mount_without_a_living_rclone_is_broken_and_says_so(rig: Rig) -> None:
    folder = await rig.attach()
    assert rig.mounts.broken() == set()
    [server] = VolumeMounts._servers(folder)
    os.kill(server, signal.SIGKILL)
    async with asyncio.timeout(10):
        while rig.mounts.broken() != {INSTANCE}:  # noqa: ASYNC110 - there is nothing to wait on
            await asyncio.sleep(0.05)
    assert await rig.attach() == folder
    assert rig.mounts.broken() == set()


async def test_folders_just_written_keep_their_times_for_a_while(rig: Rig) -> None:
    """Else tar, on its way back to a folder that it left a while ago, says that it has changed as it was read."""
    folder = await rig.attach()

    def work() -> os.stat_result:
        (folder / "d" / "below").mkdir(parents=True)
        _write(folder / "d" / "below" / "file", "x")
        return (folder / "d").stat()

    written = await asyncio.to_thread(work)
    await asyncio.sleep(1.5)
    await asyncio.to_thread(lambda: list(os.walk(folder)))
    await asyncio.sleep(3)
    seen = await asyncio.to_thread((folder / "d").stat)
    assert (seen.st_ctime_ns, seen.st_ino) == (written.st_ctime_ns, written.st_ino)


@pytest.fixture
def small_disk(rig: Rig) -> Iterator[Path]:
    """The volume lies on a disk of 1 MB."""
    rig.data.mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(rig.data)], check=True)
    try:
        yield rig.data
    finally:
        subprocess.run(["umount", "--lazy", str(rig.data)], check=True)


async def test_what_cannot_be_stored_in_time_stays_until_it_can(rig: Rig, small_disk: Path) -> None:
    folder = await rig.attach()
    await asyncio.to_thread(_write, folder / "kept", "x" * 3_000_000)
    with pytest.raises(StorageFailed, match="not stored"):
        await rig.settle(seconds=0.5)
    await run(["mount", "-o", "remount,size=16m", str(small_disk)], timeout=10)
    await rig.mounts.unmount(INSTANCE)
    await rig.settle()
    assert rig.looked_up == ["vol"]
    assert (small_disk / "kept").stat().st_size == 3_000_000


@pytest.mark.spec("SA-092")
async def test_symbolic_links_are_stored_as_objects_that_nothing_on_the_machine_follows(rig: Rig) -> None:
    folder = await rig.attach()

    def work() -> str:
        (folder / "target").write_text("inside\n")
        (folder / "link").symlink_to("target")
        (folder / "out").symlink_to("/etc/hostname")
        return f"{(folder / 'link').read_text()}{(folder / 'out').readlink()}"

    assert await asyncio.to_thread(work) == "inside\n/etc/hostname"
    await rig.settle()
    assert not any(entry.is_symlink() for entry in rig.data.iterdir())
    assert {entry.name for entry in rig.data.iterdir()} == {"target", "link.rclonelink", "out.rclonelink"}


async def test_a_data_directory_behind_a_symbolic_link_is_as_good(rig: Rig, tmp_path: Path) -> None:
    (tmp_path / "alias").symlink_to(tmp_path)
    rig.mounts = VolumeMounts(tmp_path / "alias" / "mounts", tmp_path / "alias" / "cache")
    folder = await rig.attach()
    await asyncio.to_thread(_write, folder / "f", "one\n")
    assert rig.mounts.broken() == set()
    await rig.settle()
    await rig.mounts.detach(INSTANCE)
    assert (rig.data / "f").read_text() == "one\n"
    assert rig.mounts.instances() == set()


@pytest.mark.parametrize("torn", [b"", b'{"Dirty": ', b"[]"])
def test_a_mark_that_is_being_written_counts_as_unstored(tmp_path: Path, torn: bytes) -> None:
    (tmp_path / "vfsMeta").mkdir()
    assert not rclone.holds_unstored(tmp_path)
    (tmp_path / "vfsMeta" / "file").write_bytes(torn)
    assert rclone.holds_unstored(tmp_path)
    (tmp_path / "vfsMeta" / "file").write_bytes(b'{"Dirty": false}')
    assert not rclone.holds_unstored(tmp_path)


def test_marks_that_cannot_be_read_prove_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "vfsMeta").mkdir()

    def refuse(path: object) -> None:
        raise OSError(errno.EMFILE, "too many open files")

    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(OSError, match="too many"):
        rclone.holds_unstored(tmp_path)


async def test_what_a_cache_belongs_to_is_never_guessed(rig: Rig, tmp_path: Path) -> None:
    marks = tmp_path / "cache" / INSTANCE / "vfsMeta"
    marks.mkdir(parents=True)
    (marks / "file").write_text('{"Dirty": true}')
    for text in (None, "", "[]"):
        if text is not None:
            (marks.parent / "volume").write_text(text)
        with pytest.raises(StorageFailed):
            await rig.settle(seconds=1)
    assert rig.looked_up == []
    assert marks.exists()


@pytest.mark.spec("SA-072")
@pytest.mark.parametrize(
    ("cached", "stored", "mended"),
    [
        (b"all of it", b"before", True),
        (b"new\0and whole", None, True),
        (b"\0\0\0end", b"begin", False),  # what is zero may be what was not cached
        (b"whole" * 300_000 + b"\0", b"begin", False),
        (b"", b"before", False),  # it may not have been given its size yet
        (b"", None, True),
    ],
)
def test_a_torn_mark_is_made_whole_where_the_cache_surely_has_the_file(
    tmp_path: Path, cached: bytes, stored: bytes | None, mended: bool
) -> None:
    """What a rclone leaves that is killed while it rewrites the mark of a file that was just closed."""
    cache, data = tmp_path / "cache", tmp_path / "data"
    data.mkdir()
    if stored is not None:
        (data / "file").write_bytes(stored)
    mark, file = (cache / kind / ":local" / data.relative_to("/") / "file" for kind in ("vfsMeta", "vfs"))
    for path, content in ((mark, b""), (file, cached)):
        path.parent.mkdir(parents=True)
        path.write_bytes(content)
    rclone.mend_marks(cache, data)
    found = mark.read_bytes()
    assert (json.loads(found)["Rs"] if found else None) == ([{"Pos": 0, "Size": len(cached)}] if mended else None)
    assert rclone.holds_unstored(cache)


@pytest.mark.spec("SA-072")
async def test_a_file_whose_mark_is_torn_is_stored_all_the_same(rig: Rig) -> None:
    folder = await rig.attach()
    [server] = VolumeMounts._servers(folder)
    os.kill(server, signal.SIGKILL)
    await rig.mounts.unmount(INSTANCE)
    cache = rig.mounts.cache(INSTANCE)
    for kind, content in (("vfsMeta", ""), ("vfs", "closed\n")):
        path = cache / kind / ":local" / rig.data.relative_to("/") / "file"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    await rig.settle()
    assert (rig.data / "file").read_text() == "closed\n"
