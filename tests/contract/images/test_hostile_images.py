"""Images made to harm the machine: nothing of them reaches outside their own directory."""

from __future__ import annotations

import os
import stat
import tarfile
from datetime import UTC, datetime
from pathlib import Path

import pytest
from tests.contract.images.registry_server import Entry, RegistryServer, make_layout

from atoll.domain.errors import ErrorCode, RuntimeFailure
from atoll.drivers.gvisor.images import Image, ImageStore
from atoll.drivers.gvisor.images.oci_layout import write_layout
from atoll.drivers.gvisor.images.registry import machine_architecture


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A directory of the host that images try to reach."""
    place = tmp_path / "outside"
    place.mkdir()
    (place / "passwd").write_text("root:x:0:0::/root:/bin/sh\n")
    (place / "secret").write_text("secret")
    return place


def snapshot(place: Path) -> dict[str, tuple[int, int, bytes]]:
    return {
        path.name: (path.stat().st_mode, path.stat().st_uid, path.read_bytes() if path.is_file() else b"")
        for path in [place, *place.iterdir()]
    }


async def unpack(store: ImageStore, registry: RegistryServer, tmp_path: Path, *layers: list[Entry]) -> Image:
    layout, _ = make_layout(tmp_path / "image", layers)
    return await store.ensure(registry.push(layout, "hostile/image"))


def deeply(name: str, levels: int) -> str:
    return "/".join([name] * levels)


@pytest.mark.parametrize("up", ["../../../../../../../../../../../../../../..", "/../../../../../../../../../../.."])
async def test_a_path_that_climbs_out_stays_inside(
    store: ImageStore, registry: RegistryServer, tmp_path: Path, outside: Path, up: str
) -> None:
    before = snapshot(outside)
    image = await unpack(store, registry, tmp_path, [Entry(f"{up}{outside}/secret", b"overwritten")])
    assert snapshot(outside) == before
    assert (image.rootfs / str(outside)[1:] / "secret").read_bytes() == b"overwritten"


@pytest.mark.parametrize("name", ["etc", "workspace", "tmp", "home", ".atoll", "proc"])
async def test_a_directory_that_is_a_symlink_to_the_host_is_not_followed(
    store: ImageStore, registry: RegistryServer, tmp_path: Path, outside: Path, name: str
) -> None:
    before = snapshot(outside)
    image = await unpack(store, registry, tmp_path, [Entry(name, kind=tarfile.SYMTYPE, link=str(outside))])
    assert snapshot(outside) == before
    if name in ("workspace", ".atoll", "proc"):
        assert (image.rootfs / name).is_dir() and not (image.rootfs / name).is_symlink()


async def test_writing_through_a_symlink_of_an_earlier_layer_stays_inside(
    store: ImageStore, registry: RegistryServer, tmp_path: Path, outside: Path
) -> None:
    before = snapshot(outside)
    lower = [Entry("door", kind=tarfile.SYMTYPE, link=str(outside))]
    await unpack(store, registry, tmp_path, lower, [Entry("door/secret", b"overwritten"), Entry("door/.wh.passwd")])
    assert snapshot(outside) == before


@pytest.mark.parametrize("name", ["passwd", "group", "hosts", "resolv.conf", "hostname"])
async def test_an_account_or_mount_file_that_is_a_symlink_to_the_host_is_not_followed(
    store: ImageStore, registry: RegistryServer, tmp_path: Path, outside: Path, name: str
) -> None:
    before = snapshot(outside)
    entries = [Entry("etc", kind=tarfile.DIRTYPE, mode=0o755)]
    entries.append(Entry(f"etc/{name}", kind=tarfile.SYMTYPE, link=str(outside / "passwd")))
    image = await unpack(store, registry, tmp_path, entries)
    assert snapshot(outside) == before
    if name in ("hosts", "resolv.conf", "hostname"):
        assert not (image.rootfs / "etc" / name).is_symlink()


async def test_a_hard_link_to_the_host_is_none(
    store: ImageStore, registry: RegistryServer, tmp_path: Path, outside: Path
) -> None:
    before = snapshot(outside)
    entries = [Entry("link", kind=tarfile.LNKTYPE, link=f"../../../../../../../../../../..{outside}/secret")]
    with pytest.raises(RuntimeFailure) as caught:
        await unpack(store, registry, tmp_path, entries)
    assert caught.value.code is ErrorCode.INVALID_REQUEST
    assert snapshot(outside) == before
    assert (outside / "secret").stat().st_nlink == 1


async def test_device_nodes_are_not_kept_and_setuid_files_are_out_of_reach(
    store: ImageStore, registry: RegistryServer, tmp_path: Path
) -> None:
    entries = [
        Entry("dev", kind=tarfile.DIRTYPE, mode=0o755),
        Entry("dev/null", kind=tarfile.CHRTYPE),
        Entry("opt/disk", kind=tarfile.BLKTYPE),
        Entry("opt/su", b"x", mode=0o4755),
    ]
    image = await unpack(store, registry, tmp_path, entries)
    nodes = [path for path in image.rootfs.rglob("*") if stat.S_ISCHR(path.lstat().st_mode) or path.is_block_device()]
    assert nodes == []
    assert stat.S_IMODE((image.rootfs / "opt/su").stat().st_mode) & 0o4000
    assert stat.S_IMODE(store.root.stat().st_mode) == 0o700


async def test_attributes_that_an_overlay_of_the_host_would_obey_are_not_kept(
    store: ImageStore, registry: RegistryServer, tmp_path: Path
) -> None:
    hostile = {"trusted.overlay.redirect": "/etc", "trusted.overlay.opaque": "y"}
    image = await unpack(store, registry, tmp_path, [Entry("file", b"x", attributes=hostile)])
    assert [name for name in os.listxattr(image.rootfs / "file") if name.startswith("trusted.")] == []


async def test_a_tree_as_deep_as_linux_allows_is_unpacked_and_deleted(
    store: ImageStore, registry: RegistryServer, tmp_path: Path
) -> None:
    image = await unpack(store, registry, tmp_path, [Entry(deeply("d", 1800), kind=tarfile.DIRTYPE, mode=0o755)])
    assert image.rootfs.is_dir()
    assert await store.collect(set(), unused_for_seconds=-10, now=datetime.now(UTC)) == [image.digest]
    assert not image.rootfs.exists()


async def test_a_directory_in_the_place_of_a_mount_point_is_refused_in_words(
    store: ImageStore, registry: RegistryServer, tmp_path: Path
) -> None:
    with pytest.raises(RuntimeFailure, match=r"resolv\.conf") as caught:
        await unpack(store, registry, tmp_path, [Entry("etc/resolv.conf", kind=tarfile.DIRTYPE, mode=0o755)])
    assert caught.value.code is ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize(
    "config",
    [{"Entrypoint": "not a list"}, {"Env": [1]}, {"Cmd": ["a\0b"]}, {"User": 5}, {"WorkingDir": ["/"]}],
)
async def test_a_malformed_configuration_is_refused_for_good(
    store: ImageStore, registry: RegistryServer, tmp_path: Path, config: dict[str, object]
) -> None:
    layout, _ = make_layout(tmp_path / "image", [[Entry("file", b"x")]], config=config)
    with pytest.raises(RuntimeFailure) as caught:
        await store.ensure(registry.push(layout, "hostile/config"))
    assert caught.value.code in (ErrorCode.INVALID_REQUEST, ErrorCode.SANDBOX_NOT_READY)
    assert store.list_images() == []


async def test_a_layer_that_is_no_tar_is_refused_for_good(
    store: ImageStore, registry: RegistryServer, tmp_path: Path
) -> None:
    noise = tmp_path / "noise"
    noise.write_bytes(os.urandom(20_000))
    layout, created = tmp_path / "image" / "oci", datetime(2025, 1, 1, tzinfo=UTC)
    layout.parent.mkdir()
    write_layout(layout, [noise], {}, architecture=machine_architecture(), created=created)
    with pytest.raises(RuntimeFailure) as caught:
        await store.ensure(registry.push(layout, "hostile/random"))
    assert caught.value.code is ErrorCode.INVALID_REQUEST
