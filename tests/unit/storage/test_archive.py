"""An archive brings back what was there, takes in nothing of the host, and a damaged or hostile one does no harm."""

from __future__ import annotations

import contextlib
import io
import os
import socket
import stat
import tarfile
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
import zstandard

from atoll.domain.snapshot import Snapshot, SnapshotRules
from atoll.domain.volume import PointKind, StoragePoint
from atoll.drivers.beneath import open_beneath
from atoll.storage import archive, listing, snapshots
from atoll.storage.objects import OpenPoint
from atoll.storage.patterns import Cancelled

NOW = datetime(2026, 1, 2, tzinfo=UTC)
MIB = 1024 * 1024
needs_root = pytest.mark.skipif(os.getuid() != 0, reason="mount namespaces and owners need root")


@pytest.fixture
def point(tmp_path: Path) -> OpenPoint:
    folder = str(tmp_path / "store")
    return OpenPoint(
        StoragePoint("p", None, "r", "n", PointKind.FOLDER, folder, None, None, None, None, 1001, 1001, NOW, None), None
    )


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    folder = tmp_path / "workspace"
    folder.mkdir()
    return folder


@pytest.fixture
def restored(tmp_path: Path) -> Path:
    folder = tmp_path / "restored"
    folder.mkdir()
    os.chown(folder, 1001, 1001)
    return folder


def rules(*exclude: str, max_bytes: int = 64 * MIB, mount_point: str | None = None) -> SnapshotRules:
    return SnapshotRules(exclude, max_bytes, mount_point)


async def take(point: OpenPoint, folder: Path, what: SnapshotRules) -> Snapshot:
    return await snapshots.take(
        point, folder, what, snapshot_id="s", volume_id="v", sandbox_id="x", now=NOW, timeout=60
    )


def everything(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*"))


def look(folder: Path) -> dict[str, tuple[object, ...]]:
    """Everything that an archive must keep."""
    found: dict[str, tuple[object, ...]] = {}
    for path in everything(folder):
        seen = path.lstat()
        content: object = None
        if stat.S_ISLNK(seen.st_mode):
            content = path.readlink()
        elif stat.S_ISREG(seen.st_mode):
            content = path.read_bytes()
        mode = None if stat.S_ISLNK(seen.st_mode) else oct(seen.st_mode)
        moment = None if stat.S_ISDIR(seen.st_mode) and not any(path.iterdir()) else seen.st_mtime_ns
        found[os.fsencode(path.relative_to(folder)).decode("latin-1")] = (mode, seen.st_nlink, moment, content)
    return found


@needs_root
@pytest.mark.spec("SA-096")
async def test_nasty_trees_come_back_as_they_were(point: OpenPoint, workspace: Path, restored: Path) -> None:
    (workspace / "-rf").write_text("a name like an option")
    (workspace / "new\nline").write_text("x")
    (workspace / "back\\slash*?[").write_text("x")
    os.close(os.open(os.fsencode(workspace) + b"/not-\xff-utf8", os.O_CREAT | os.O_WRONLY, 0o600))
    (workspace / ("n" * 255)).write_text("long")
    deep = workspace
    for _ in range(12):
        deep /= "d" * 100
        deep.mkdir()
    (deep / "bottom").write_text("deep")
    (workspace / "empty").touch()
    (workspace / "none").mkdir()
    secret = workspace / "secret"
    secret.write_text("only mine")
    secret.chmod(0)
    script = workspace / "script"
    script.write_text("#!/bin/sh")
    script.chmod(0o4755)
    os.link(script, workspace / "hard")
    (workspace / "to-host").symlink_to("/etc")
    (workspace / "dangling").symlink_to("nowhere/at/all")
    (workspace / "up").symlink_to("../..")
    os.mkfifo(workspace / "pipe", 0o640)
    with (workspace / "sparse").open("wb") as file:
        file.seek(40 * MIB)
        file.write(b"end")
    os.utime(workspace / "empty", ns=(1, 981_173_106_123_456_789))
    closed = workspace / "closed"
    closed.mkdir()
    (closed / "in").write_text("x")
    closed.chmod(0o500)
    before = look(workspace)
    taken = await take(point, workspace, rules())
    assert taken.skipped_count == 0
    await snapshots.restore(point, taken, restored, timeout=60)
    assert look(restored) == before
    assert {path.lstat().st_uid for path in everything(restored)} == {1001}
    assert (restored / "sparse").stat().st_blocks * 512 < MIB


@needs_root
async def test_sockets_and_devices_are_left_out_and_counted(point: OpenPoint, workspace: Path, restored: Path) -> None:
    (workspace / "file").write_text("x")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(workspace / "socket"))
        os.mknod(workspace / "device", stat.S_IFCHR | 0o666, os.makedev(1, 3))
        taken = await take(point, workspace, rules())
    assert (taken.file_count, taken.skipped_count) == (1, 2)
    await snapshots.restore(point, taken, restored, timeout=60)
    assert [path.name for path in everything(restored)] == ["file"]


@needs_root
@pytest.mark.spec("SA-036", "SA-075")
async def test_excludes_and_the_mount_point_are_left_out(point: OpenPoint, workspace: Path, restored: Path) -> None:
    for name in ("kept/a", "node_modules/b", "x.log", "build/tmp/c", "persist/d", "kept/persist/e"):
        (workspace / name).parent.mkdir(parents=True, exist_ok=True)
        (workspace / name).write_text("x")
    what = rules("node_modules", "*.log", "build/tmp", mount_point="persist")
    await snapshots.restore(point, await take(point, workspace, what), restored, timeout=60)
    files = [str(path.relative_to(restored)) for path in everything(restored) if path.is_file()]
    assert files == ["kept/a", "kept/persist/e"]


@pytest.mark.spec("SA-155")
def test_the_cap_counts_what_files_hold_and_hard_links_once(workspace: Path) -> None:
    (workspace / "a").write_bytes(bytes(MIB))
    os.link(workspace / "a", workspace / "b")
    assert listing.list_workspace(workspace, rules(max_bytes=MIB), threading.Event()).content_bytes == MIB
    (workspace / "c").write_bytes(b"x")
    with pytest.raises(listing.SnapshotTooLarge):
        listing.list_workspace(workspace, rules(max_bytes=MIB), threading.Event())
    assert listing.list_workspace(workspace, rules("c", max_bytes=MIB), threading.Event()).files == 2


def test_names_that_would_fill_the_memory_are_too_large(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a", "b", "c"):
        (workspace / (name * 100)).touch()
    monkeypatch.setattr(listing, "MAX_PATH_BYTES", 300)
    assert listing.list_workspace(workspace, rules(), threading.Event()).path_bytes == 300
    (workspace / "d").touch()
    with pytest.raises(listing.SnapshotTooLarge):
        listing.list_workspace(workspace, rules(), threading.Event())


def test_a_walk_that_nobody_wants_any_more_stops(workspace: Path) -> None:
    (workspace / "a").touch()
    cancel = threading.Event()
    cancel.set()
    with pytest.raises(Cancelled):
        listing.list_workspace(workspace, rules(), cancel)


@needs_root
async def test_a_folder_swapped_for_a_link_to_the_host_gives_nothing_away(
    point: OpenPoint, workspace: Path, restored: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = tmp_path / "host"
    host.mkdir()
    (host / "file").write_text("of the host")
    (workspace / "folder").mkdir()
    (workspace / "folder" / "file").write_text("mine")
    real = listing.list_workspace

    def list_then_swap(folder: Path, what: SnapshotRules, cancel: threading.Event) -> listing.Listing:
        found = real(folder, what, cancel)
        (folder / "folder").rename(folder / "away")
        (folder / "folder").symlink_to(host)
        return found

    monkeypatch.setattr(snapshots, "list_workspace", list_then_swap)
    try:
        taken = await take(point, workspace, rules())
    except archive.ArchiveFailed:
        return  # refused as a whole is as good
    await snapshots.restore(point, taken, restored, timeout=60)
    assert not [path for path in everything(restored) if path.is_file() and path.read_text() == "of the host"]


def test_the_walk_does_not_follow_a_link(workspace: Path) -> None:
    (workspace / "link").symlink_to("/")
    root = os.open(workspace, os.O_RDONLY | os.O_DIRECTORY)
    try:
        for escape in (b"link", b"link/etc", b"..", b"/etc"):
            with pytest.raises(OSError, match=r"symbolic links|cross-device|Not a directory"):
                open_beneath(root, escape)
    finally:
        os.close(root)
    assert listing.list_workspace(workspace, rules(), threading.Event()).paths == [b"link"]


def _hostile(kind: str) -> bytes:
    plain = io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w") as tar:
        entry = tarfile.TarInfo()
        match kind:
            case "parent":
                entry.name, entry.size = "../escaped", 1
            case "absolute":
                entry.name, entry.size = f"/tmp/atoll-escaped-{os.getpid()}", 1
            case "device":
                entry.name, entry.type, entry.devmajor, entry.devminor = "device", tarfile.CHRTYPE, 1, 3
            case "link":
                link = tarfile.TarInfo("link")
                link.type, link.linkname = tarfile.SYMTYPE, ".."
                tar.addfile(link)
                entry.name, entry.size = "link/escaped", 1
            case "hardlink":
                entry.name, entry.type, entry.linkname = "passwd", tarfile.LNKTYPE, "/etc/passwd"
        tar.addfile(entry, io.BytesIO(b"x"))
    return plain.getvalue()


@needs_root
@pytest.mark.parametrize("kind", ["parent", "absolute", "device", "link", "hardlink"])
def test_a_hostile_archive_reaches_nothing_outside(tmp_path: Path, restored: Path, kind: str) -> None:
    plain = _hostile(kind)
    with contextlib.suppress(archive.ArchiveFailed):
        archive.unpack(_chunks(zstandard.compress(plain)), restored, len(plain), threading.Event())
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["restored"]
    assert not Path(f"/tmp/atoll-escaped-{os.getpid()}").exists()
    for path in restored.rglob("*"):
        assert not stat.S_ISCHR(path.lstat().st_mode)
        assert path.lstat().st_ino != Path("/etc/passwd").stat().st_ino
        assert path.lstat().st_uid == 1001


def test_an_archive_that_unfolds_without_end_is_refused(restored: Path) -> None:
    bomb = zstandard.compress(bytes(512 * MIB))
    with pytest.raises(archive.ArchiveFailed, match="unfolds"):
        archive.unpack(_chunks(bomb), restored, MIB, threading.Event())


@needs_root
@pytest.mark.parametrize("damage", ["first byte", "middle", "end cut", "something added", "emptied"])
async def test_any_damage_is_found_and_leaves_the_folder_empty(
    point: OpenPoint, workspace: Path, restored: Path, damage: str
) -> None:
    (workspace / "a").write_bytes(os.urandom(300_000))
    (workspace / "b").write_text("x" * 100_000)
    taken = await take(point, workspace, rules())
    file = Path(point.point.location) / "v" / "snapshots" / "s.tar.zst"
    good = bytearray(file.read_bytes())
    match damage:
        case "first byte":
            good[0] ^= 1
        case "middle":
            good[len(good) // 2] ^= 1
        case "end cut":
            del good[-1]
        case "something added":
            good += b"\0"
        case _:
            good.clear()
    file.write_bytes(good)
    with pytest.raises(archive.ArchiveFailed):
        await snapshots.restore(point, taken, restored, timeout=60)
    assert everything(restored) == []


@needs_root
async def test_a_snapshot_that_fails_stores_nothing(
    point: OpenPoint, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (workspace / "a").write_bytes(os.urandom(30 * MIB))
    monkeypatch.setattr(archive, "_GROWTH_BYTES", -20 * MIB)
    with pytest.raises(listing.SnapshotTooLarge):
        await take(point, workspace, rules(max_bytes=31 * MIB))
    assert not [path for path in everything(Path(point.point.location)) if path.name.endswith(".tar.zst")]


def _chunks(data: bytes) -> Iterator[bytes]:
    for start in range(0, len(data), 65_536):
        yield data[start : start + 65_536]
