"""The store's promises: once however many ask, all or nothing at a crash, and deletion only of what nobody uses."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from tests.contract.images.conftest import SMALL
from tests.contract.images.registry_server import Entry, RegistryServer, make_layout

from atoll.domain.errors import ErrorCode, RuntimeFailure
from atoll.drivers.gvisor.images import ImageStore
from atoll.drivers.gvisor.images import store as store_module
from atoll.drivers.gvisor.images.reference import parse_image_digest

ENSURE = """
import asyncio, sys
from pathlib import Path
from atoll.drivers.gvisor.images import ImageStore
store = ImageStore(Path(sys.argv[1]), insecure_registries=frozenset({sys.argv[2]}))
print((asyncio.run(store.ensure(sys.argv[3]))).rootfs.stat().st_ino)
"""


def now() -> datetime:
    return datetime.now(UTC)


@pytest.fixture
def counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file with one line for every call of skopeo copy and of umoci from here on."""
    calls, folder = tmp_path / "calls", tmp_path / "counting"
    folder.mkdir()
    for name in ("skopeo", "umoci"):
        wrapper = folder / name
        wrapper.write_text(f'#!/bin/sh\necho {name} "$@" >>{calls}\nexec /usr/bin/{name} "$@"\n')
        wrapper.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    calls.touch()
    return calls


def count(calls: Path, word: str) -> int:
    return sum(word in line for line in calls.read_text().splitlines())


def ensure_in_a_child(store: ImageStore, registry: RegistryServer, image_digest: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", ENSURE, str(store.root), registry.address, image_digest],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
    )


async def test_a_second_ensure_runs_no_program(store: ImageStore, tool: str, counted: Path) -> None:
    first = await store.ensure(tool)
    made = count(counted, "")
    assert await store.ensure(tool) == first
    assert count(counted, "") == made > 0


async def test_twenty_at_once_do_the_work_once(store: ImageStore, tool: str, counted: Path) -> None:
    images = await asyncio.gather(*(store.ensure(tool) for _ in range(20)))
    assert len(set(images)) == 1
    assert (count(counted, "skopeo --insecure-policy --tmpdir"), count(counted, "umoci")) == (1, 1)


def test_several_processes_at_once_do_the_work_once(
    store: ImageStore, registry: RegistryServer, tool: str, counted: Path
) -> None:
    children = [ensure_in_a_child(store, registry, tool) for _ in range(4)]
    answers = [child.communicate(timeout=60) for child in children]
    assert [child.returncode for child in children] == [0] * 4, answers
    assert len({inode for inode, _ in answers}) == 1
    assert count(counted, "umoci") == 1


async def test_one_that_gives_up_waiting_does_not_disturb_the_others(store: ImageStore, tool: str) -> None:
    impatient, patient = asyncio.create_task(store.ensure(tool)), asyncio.create_task(store.ensure(tool))
    await asyncio.sleep(0.05)
    impatient.cancel()
    assert (await patient).rootfs.is_dir()
    with pytest.raises(asyncio.CancelledError):
        await impatient


@pytest.fixture(scope="session")
def many_files(registry: RegistryServer, tmp_path_factory: pytest.TempPathFactory) -> str:
    """An image that takes a moment to unpack."""
    files = [Entry(f"data/{number:05}", os.urandom(64)) for number in range(4_000)]
    layout, _ = make_layout(tmp_path_factory.mktemp("many") / "image", [files])
    return registry.push(layout, "team/many-files")


@pytest.mark.parametrize("moment", ["layout/blobs", "image/rootfs/data", "image/rootfs/data/01000"])
def test_a_kill_in_the_middle_leaves_nothing_that_is_used_and_the_next_call_makes_it(
    tmp_path: Path, registry: RegistryServer, many_files: str, moment: str
) -> None:
    store = ImageStore(tmp_path / "store", insecure_registries=frozenset({registry.address}))
    child = ensure_in_a_child(store, registry, many_files)
    limit = time.monotonic() + 60
    while not list((store.root / "work").glob(f"*/{moment}")):
        assert child.poll() is None and time.monotonic() < limit, child.communicate(timeout=5)
        time.sleep(0.002)
    child.send_signal(signal.SIGKILL)
    child.communicate(timeout=10)
    assert store.list_images() == []

    image = asyncio.run(store.ensure(many_files))
    assert len(list((image.rootfs / "data").iterdir())) == 4_000
    assert list((store.root / "work").iterdir()) == []


def test_a_kill_takes_the_programs_along(tmp_path: Path, registry: RegistryServer, many_files: str) -> None:
    store = ImageStore(tmp_path / "store", insecure_registries=frozenset({registry.address}))
    child = ensure_in_a_child(store, registry, many_files)
    limit = time.monotonic() + 60
    while not list((store.root / "work").glob("*/image/rootfs/data")):
        assert child.poll() is None and time.monotonic() < limit, child.communicate(timeout=5)
        time.sleep(0.002)
    child.send_signal(signal.SIGKILL)
    child.communicate(timeout=10)
    while any(str(store.root) in line for line in command_lines()):
        assert time.monotonic() < limit
        time.sleep(0.01)
    assert len(list((store.root / "work").glob("*/image/rootfs/data/*"))) < 4_000


def command_lines() -> list[str]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found.append(path.read_bytes().replace(b"\0", b" ").decode("utf-8", "replace"))
        except OSError:
            continue
    return found


def damage(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[100:200] = bytes(100)
    file.write_bytes(data)


async def test_a_damaged_cached_layer_is_fetched_again_at_the_next_call(
    store: ImageStore, registry: RegistryServer, tmp_path: Path
) -> None:
    layout, _ = make_layout(tmp_path / "image", [[Entry("file", os.urandom(9000))]])
    image_digest = registry.push(layout, "team/damaged")
    image = await store.ensure(image_digest)
    os.utime(image.rootfs.parent / "image.json", (1, 1))
    assert await store.collect(set(), unused_for_seconds=3600, now=now()) == [image.digest]
    damage(max((store.root / "blobs").iterdir(), key=lambda path: path.stat().st_size))
    with pytest.raises(RuntimeFailure):
        await store.ensure(image_digest)
    assert (await store.ensure(image_digest)).rootfs.is_dir()


async def test_a_layer_that_two_images_share_is_fetched_once(
    store: ImageStore, registry: RegistryServer, tmp_path: Path
) -> None:
    shared = [Entry("base", os.urandom(100_000))]
    first, _ = make_layout(tmp_path / "first", [shared])
    second, _ = make_layout(tmp_path / "second", [shared, [Entry("more", b"more")]])
    one, two = registry.push(first, "team/first"), registry.push(second, "team/second")
    await store.ensure(one)
    blobs = registry.storage / "docker/registry/v2/repositories/team/second/_layers"
    base = max((store.root / "blobs").iterdir(), key=lambda path: path.stat().st_size)
    (blobs / "sha256" / base.name / "link").unlink()  # the registry cannot serve it any more
    assert ((await store.ensure(two)).rootfs / "base").stat().st_size == 100_000


async def test_unused_images_are_deleted_with_their_layers(store: ImageStore, tool: str) -> None:
    image = await store.ensure(tool)
    later = now() + timedelta(hours=2)
    assert await store.collect(set(), unused_for_seconds=3600, now=later) == [image.digest]
    assert store.list_images() == []
    assert list((store.root / "blobs").iterdir()) == []
    assert list((store.root / "work").iterdir()) == []
    assert (await store.ensure(tool)).rootfs.is_dir()


async def test_used_and_recently_used_images_are_kept(store: ImageStore, tool: str) -> None:
    image = await store.ensure(tool)
    assert await store.collect({tool}, unused_for_seconds=0, now=now() + timedelta(days=9)) == []
    assert await store.collect(set(), unused_for_seconds=3600, now=now()) == []
    assert store.list_images() == [image]


async def test_asking_for_an_image_counts_as_use(store: ImageStore, tool: str) -> None:
    image = await store.ensure(tool)
    os.utime(image.rootfs.parent / "image.json", (1, 1))
    await store.ensure(tool)
    assert await store.collect(set(), unused_for_seconds=3600, now=now()) == []


async def test_collection_deletes_what_crashes_left_and_not_what_is_being_made(store: ImageStore, tool: str) -> None:
    await store.ensure(tool)
    (store.root / "work" / ("a" * 64 + ".left") / "image").mkdir(parents=True)
    async with store.lock("busy"):
        busy = store.workspace("busy")
        await store.collect(set(), unused_for_seconds=3600, now=now())
        assert list((store.root / "work").iterdir()) == [busy]


async def test_an_image_whose_data_was_not_on_the_disk_at_a_reboot_is_made_again(store: ImageStore, tool: str) -> None:
    image = await store.ensure(tool)
    record = image.rootfs.parent / "image.json"
    record.write_text(json.dumps(json.loads(record.read_text()) | {"boot": "an earlier one"}))
    (image.rootfs / "bin/tool").write_bytes(b"")
    assert store.list_images() == []
    assert ((await store.ensure(tool)).rootfs / "bin/tool").read_bytes() == b"#!/bin/sh\n"


async def test_a_disk_that_is_slow_to_write_does_not_hold_an_image_up(
    store: ImageStore, tool: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "slow").mkdir()
    (tmp_path / "slow/sync").write_text("#!/bin/sh\nsleep 60\n")
    (tmp_path / "slow/sync").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'slow'}:{os.environ['PATH']}")
    monkeypatch.setattr(store_module, "_SYNC_SECONDS", 0.2)
    image = await store.ensure(tool)
    assert '"boot"' in (image.rootfs.parent / "image.json").read_text()
    assert store.list_images() == [image]


async def test_an_image_built_here_is_unpacked_again_after_its_collection(
    store: ImageStore, tool_layout: tuple[Path, str], tmp_path: Path
) -> None:
    layout, digest = tool_layout
    shutil.copytree(layout, tmp_path / "layout")
    store.add_local(tmp_path / "layout", parse_image_digest(f"atoll/tool@{digest}"))
    await store.ensure(f"atoll/tool@{digest}")
    assert await store.collect(set(), unused_for_seconds=-10, now=now()) == [digest]
    assert (await store.ensure(f"atoll/tool@{digest}")).entrypoint == ("/bin/tool",)


async def test_a_local_image_that_was_never_built_is_refused_for_good(store: ImageStore) -> None:
    with pytest.raises(RuntimeFailure) as caught:
        await store.ensure(f"atoll/default@sha256:{'0' * 64}")
    assert caught.value.code is ErrorCode.INVALID_REQUEST


async def test_a_store_that_cannot_be_written_is_not_ready(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(RuntimeFailure) as caught:
        await ImageStore(tmp_path / "file" / "store", limits=SMALL).ensure(f"a/b@sha256:{'0' * 64}")
    assert caught.value.code is ErrorCode.SANDBOX_NOT_READY
