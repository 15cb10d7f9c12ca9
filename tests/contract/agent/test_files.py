"""Work on files in the real agent, below a folder of its own on this machine."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
import time
from pathlib import Path

import pytest
from tests.contract.agent.conftest import Sandbox, until_true
from tests.contract.agent.file_work import (
    OWNER,
    content,
    exchange,
    fault,
    names,
    pack,
    read,
    records,
    worker,
    write,
)

from atoll.agent.connection import AgentClient
from atoll.agent.files import FileFault, More, worker_arguments
from atoll.domain.files import Change, ChangeKind, EntryType, Fault, FileEntry
from atoll.drivers.process import run


@pytest.mark.spec("SA-451")
async def test_a_written_file_is_read_again_and_belongs_to_the_user(agent: AgentClient, root: Path) -> None:
    data = os.urandom(3_000_000)
    entry = await write(agent, root, "made/on/the/way/file", data, "640")
    path = root / "made/on/the/way/file"
    assert path.read_bytes() == data and path.stat().st_mode & 0o7777 == 0o640
    assert (path.stat().st_uid, path.parent.stat().st_uid) == (OWNER, OWNER)
    assert (entry.type, entry.size, entry.mode) == (EntryType.FILE, len(data), 0o640)
    assert await read(agent, root, "made/on/the/way/file") == data
    assert await read(agent, root, str(path), 1_000_000, 5) == data[1_000_000:1_000_005]


async def test_a_replaced_file_keeps_its_mode_and_its_name(agent: AgentClient, root: Path) -> None:
    await write(agent, root, "tool", b"one", "755")
    (root / "link").symlink_to("tool")
    entry = await write(agent, root, "link", b"two")
    assert (root / "tool").read_bytes() == b"two" and (root / "link").is_symlink()
    assert (entry.mode, os.fsdecode(entry.path)) == (0o755, str(root / "tool"))


@pytest.mark.spec("SA-451")
async def test_a_write_that_is_given_up_leaves_the_old_file_and_nothing_else(agent: AgentClient, root: Path) -> None:
    await write(agent, root, "file", b"old")
    async with worker(agent, root, "write", "file", "") as work:
        await work.send(b"x" * 5_000_000)
        until_true(lambda: len(list(root.iterdir())) == 2)
    until_true(lambda: [path.name for path in root.iterdir()] == ["file"])
    assert (root / "file").read_bytes() == b"old"


async def test_a_client_that_dies_in_the_middle_of_a_write_leaves_nothing(sandbox: Sandbox, root: Path) -> None:
    sandbox.start()
    client = await AgentClient.connect(sandbox.socket, timeout=10)
    stream = await client.open_files(worker_arguments("write", b"file", b"", roots=[os.fsencode(root)]))
    await stream.send(b"x" * 100_000)
    until_true(lambda: len(list(root.iterdir())) == 1)
    client.abort()
    async with sandbox.client() as successor:
        until_true(lambda: not list(root.iterdir()))
        until_true(lambda: len(sandbox.descendants()) == 3)  # unshare, the agent, the entrypoint
        assert not successor.closed


@pytest.mark.spec("SA-451")
async def test_a_reader_sees_the_old_file_or_the_new_one_and_never_a_part(agent: AgentClient, root: Path) -> None:
    await write(agent, root, "file", b"0" * 500_000)
    seen: set[bytes] = set()
    stop = threading.Event()

    def look() -> None:
        while not stop.is_set():
            data = (root / "file").read_bytes()
            seen.add(data[:1] if data == data[:1] * 500_000 else b"torn")

    thread = threading.Thread(target=look)
    thread.start()
    try:
        for number in range(1, 10):
            await write(agent, root, "file", str(number).encode() * 500_000)
    finally:
        stop.set()
        thread.join()
    assert b"torn" not in seen and len(seen) > 1


@pytest.mark.spec("SA-456")
@pytest.mark.parametrize(
    "path",
    ["../secret", "/etc/passwd", "a/../../secret", "out", "out/passwd", "up/secret", "hop", "/", "/proc/self/root"],
)
async def test_nothing_leads_outside(agent: AgentClient, root: Path, path: str) -> None:
    (root / "a").mkdir()
    (root / "out").symlink_to("/etc")
    (root / "up").symlink_to("..")
    (root / "hop").symlink_to("a/../../secret")
    for operation, *rest in (("read",), ("write", ""), ("list", "1", "10", ""), ("mkdir", "755"), ("pack",)):
        assert await fault(agent, root, operation, path, *rest) is Fault.ESCAPE, operation


@pytest.mark.spec("SA-456")
async def test_links_are_followed_inside(agent: AgentClient, root: Path) -> None:
    (root / "real").mkdir()
    (root / "real" / "file").write_text("found")
    (root / "relative").symlink_to("real")
    (root / "absolute").symlink_to(root / "real" / "file")
    assert await read(agent, root, "relative/file") == b"found"
    assert await read(agent, root, "absolute") == b"found"
    (root / "a").symlink_to("b")
    (root / "b").symlink_to("a")
    assert await fault(agent, root, "read", "a") is Fault.LINK_LOOP


@pytest.mark.spec("SA-456")
async def test_a_folder_that_is_swapped_for_a_link_never_leads_a_write_outside(agent: AgentClient, root: Path) -> None:
    outside = root.parent / "outside"
    outside.mkdir()
    outside.chmod(0o777)
    (root / "folder").mkdir()
    os.chown(root / "folder", OWNER, OWNER)
    (root / "trap").symlink_to(outside)
    stop = threading.Event()

    def swap() -> None:
        while not stop.is_set():
            exchange(root / "folder", root / "trap")

    thread = threading.Thread(target=swap)
    thread.start()
    outcomes: set[Fault | None] = set()
    try:
        for number in range(150):
            try:
                await write(agent, root, f"folder/deep/file-{number}", b"data")
                outcomes.add(None)
            except FileFault as failure:
                outcomes.add(failure.fault)
    finally:
        stop.set()
        thread.join()
    assert list(outside.rglob("*")) == []
    assert outcomes <= {None, Fault.ESCAPE, Fault.NOT_FOUND, Fault.CHANGED, Fault.NOT_FOLDER}
    assert {None, Fault.ESCAPE} <= outcomes, "the race was not run"


async def test_what_is_not_a_file_is_refused_and_does_not_hang(agent: AgentClient, root: Path) -> None:
    os.mkfifo(root / "pipe")
    (root / "folder").mkdir()
    assert await fault(agent, root, "read", "pipe") is Fault.NOT_REGULAR
    assert await fault(agent, root, "write", "pipe", "") is Fault.NOT_REGULAR
    assert await fault(agent, root, "read", "folder") is Fault.IS_FOLDER
    assert await fault(agent, root, "read", "nothing") is Fault.NOT_FOUND
    assert await fault(agent, root, "read", "pipe/x") is Fault.NOT_FOLDER
    assert await fault(agent, root, "read", "n" * 256) is Fault.NAME_TOO_LONG


@pytest.mark.parametrize("path", ["volume", "above"])
async def test_a_delete_that_meets_the_volume_takes_nothing_from_it(agent: AgentClient, root: Path, path: str) -> None:
    volume = root / "volume" if path == "volume" else root / "above" / "volume"
    volume.mkdir(parents=True)
    await run(["mount", "-t", "tmpfs", "-o", "mode=777", "none", str(volume)], timeout=10)
    try:
        (volume / "kept").write_text("stored")
        os.chown(volume.parent, OWNER, OWNER)
        async with worker(agent, root, "delete", path, "recursive", volume=volume) as work:
            with pytest.raises(FileFault) as caught:
                await work.finished()
        assert caught.value.fault is Fault.BUSY
        assert content(volume) == ["kept"]
    finally:
        await run(["umount", str(volume)], timeout=10)


@pytest.mark.spec("SA-452")
async def test_a_folder_is_listed_in_order_and_in_pages(agent: AgentClient, root: Path) -> None:
    for name in ("b/2", "b/1", "a", "c/d/e", "b.txt"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()
    whole = ["a", "b", "b/1", "b/2", "b.txt", "c", "c/d", "c/d/e"]
    assert names(await records(agent, root, "list", "", "1", "100", "")) == ["a", "b", "b.txt", "c"]
    assert names(await records(agent, root, "list", ".", "32", "100", "")) == whole
    for size in range(1, 9):
        seen: list[str] = []
        after = b""
        while True:
            page = await records(agent, root, "list", "", "32", str(size), after)
            seen += names(page)
            if not isinstance(page[-1] if page else None, More):
                break
            assert len(names(page)) == size
            after = page[-1].after  # type: ignore[union-attr]  # checked above
        assert seen == whole, size


async def test_a_folder_of_100000_files_is_listed_page_by_page(agent: AgentClient, root: Path) -> None:
    for number in range(100_000):
        os.mknod(root / f"{number:06}")
    first = await records(agent, root, "list", "", "1", "10000", "")
    assert names(first) == [f"{number:06}" for number in range(10_000)]
    assert first[-1] == More(b"009999")
    assert names(await records(agent, root, "list", "", "1", "3", "099990")) == ["099991", "099992", "099993"]


async def test_a_page_of_links_that_lead_far_is_shorter(agent: AgentClient, root: Path) -> None:
    for number in range(1_500):
        (root / f"{number:04}").symlink_to("t" * 4_000)
    seen: list[str] = []
    after = b""
    sizes = []
    while True:
        page = await records(agent, root, "list", "", "1", "10000", after)
        sizes.append(sum(len(e.path) + len(e.target) for e in page if isinstance(e, FileEntry)))
        seen += names(page)
        if not isinstance(page[-1], More):
            break
        after = page[-1].after
    assert seen == [f"{number:04}" for number in range(1_500)]
    assert len(sizes) == 2 and 4_000_000 < sizes[0] <= 4 * 1024 * 1024


async def test_names_are_bytes(agent: AgentClient, root: Path) -> None:
    odd = [b"\xff\xfe", "snow\u2603".encode(), b"new\nline", b" ", b"-rf", b"\x01\x7f", "e\u0301".encode()]
    for name in odd:
        await write(agent, root, name, name)
        assert await read(agent, root, name) == name
    listed = await records(agent, root, "list", "", "1", "100", "")
    assert sorted(odd) == [e.path.rpartition(b"/")[2] for e in listed if isinstance(e, FileEntry)]


@pytest.mark.spec("SA-450", "SA-452")
async def test_folders_are_made_moved_and_deleted(agent: AgentClient, root: Path) -> None:
    await records(agent, root, "mkdir", "one/two", "750")
    assert (root / "one/two").stat().st_mode & 0o7777 == 0o750 and (root / "one/two").stat().st_uid == OWNER
    await records(agent, root, "mkdir", "one/two", "700")
    await write(agent, root, "one/two/file", b"x")
    assert await fault(agent, root, "mkdir", "one/two/file", "755") is Fault.EXISTS
    await write(agent, root, "other", b"y")
    assert await fault(agent, root, "move", "other", "one/two/file", "keep") is Fault.EXISTS
    await records(agent, root, "move", "other", "one/two/file", "replace")
    assert (root / "one/two/file").read_bytes() == b"y"
    await records(agent, root, "move", "one", "new/place", "keep")
    assert await fault(agent, root, "delete", "new", "empty") is Fault.NOT_EMPTY
    (root / "new/link").symlink_to(root.parent)
    await records(agent, root, "delete", "new", "recursive")
    assert content(root) == [] and (root.parent / "secret").exists()
    assert await fault(agent, root, "delete", "", "recursive") is Fault.BUSY


async def test_a_nest_of_folders_deeper_than_the_limit_is_refused_and_harms_nothing(
    agent: AgentClient, root: Path
) -> None:
    folder = os.open(root, os.O_RDONLY)
    for _ in range(400):
        os.mkdir("d", dir_fd=folder)
        os.chown("d", OWNER, OWNER, dir_fd=folder)
        inner = os.open("d", os.O_RDONLY, dir_fd=folder)
        os.close(folder)
        folder = inner
    os.close(folder)
    assert await fault(agent, root, "delete", "d", "recursive") is Fault.TOO_DEEP
    assert await fault(agent, root, "read", "/".join(["d"] * 400)) is Fault.TOO_DEEP
    with pytest.raises(FileFault):
        await pack(agent, root, "d")


@pytest.mark.spec("SA-452")
async def test_changes_are_told_as_they_happen(agent: AgentClient, root: Path) -> None:
    async with worker(agent, root, "watch", "", "tree") as work:
        assert await work.record() == Change(ChangeKind.READY, os.fsencode(root))
        (root / "file").write_text("one")
        (root / "folder").mkdir()
        seen: list[tuple[ChangeKind, str]] = []

        async def until(kind: ChangeKind, name: str) -> None:
            while (kind, name) not in seen:
                change = await work.record()
                assert isinstance(change, Change)
                seen.append((change.kind, os.fsdecode(change.path).rpartition("/workspace/")[2]))

        await until(ChangeKind.CREATED, "folder")
        assert seen[:2] == [(ChangeKind.CREATED, "file"), (ChangeKind.MODIFIED, "file")]
        (root / "folder" / "inner").write_text("two")
        await until(ChangeKind.MODIFIED, "folder/inner")
        (root / "file").rename(root / "moved")
        await until(ChangeKind.DELETED, "file")
        await until(ChangeKind.CREATED, "moved")
    until_true(lambda: not _workers())


def _workers() -> list[str]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            words = path.read_bytes().split(b"\0")
            if b"files" in words[1:2] and b"watch" in words[2:3]:
                found.append(path.parent.name)
    return found


async def test_a_transfer_that_nobody_reads_holds_up_nothing_else(sandbox: Sandbox, root: Path) -> None:
    sandbox.start()
    with (root / "big").open("wb") as file:
        file.truncate(200_000_000)
    async with sandbox.client() as agent:
        stalled = []
        for _ in range(20):
            stream = await agent.open_files(worker_arguments("read", b"big", roots=[os.fsencode(root)]))
            await stream.send((0).to_bytes(8, "big") + (200_000_000).to_bytes(8, "big"))
            stalled.append(stream)
        await asyncio.sleep(0.5)
        memory = sandbox.agent_memory()
        slowest = 0.0
        for _ in range(20):
            began = time.monotonic()
            assert (await agent.stats()).running_commands == 0
            slowest = max(slowest, time.monotonic() - began)
        assert slowest < 0.5
        assert len(await read(agent, root, "big", 0, 50_000_000)) == 50_000_000
        if not sandbox.sanitized:
            assert sandbox.agent_memory() - memory < 16_000_000
        for stream in stalled:
            stream.close()
        until_true(lambda: sandbox.agent_files() < 20)


async def test_transfers_end_when_quiet_is_asked_for_and_leave_nothing(agent: AgentClient, root: Path) -> None:
    async with worker(agent, root, "write", "file", "") as work, worker(agent, root, "watch", "", "flat") as watch:
        await watch.record()
        await work.send(b"x" * 100_000)
        until_true(lambda: len(content(root)) == 1)
        await agent.end_streams()
        assert content(root) == []
        with pytest.raises(FileFault) as caught:
            await work.finished()
        assert caught.value.fault is Fault.STOPPED
    await write(agent, root, "file", b"later")
