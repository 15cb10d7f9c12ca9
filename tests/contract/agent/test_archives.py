"""Archives in the real agent, packed and unpacked below a folder of its own on this machine."""

from __future__ import annotations

import io
import os
import tarfile
from pathlib import Path

import pytest
from tests.contract.agent.file_work import (
    OWNER,
    content,
    pack,
    unpack,
)

from atoll.agent.connection import AgentClient
from atoll.agent.files import FileFault, Refused
from atoll.domain.files import Counts, Fault


@pytest.mark.spec("SA-453")
async def test_an_archive_comes_back_as_it_went(agent: AgentClient, root: Path) -> None:
    source = root / "source"
    for folder in (source, source / "empty", source / ("long" * 40)):
        folder.mkdir()
    (source / "file").write_bytes(os.urandom(700_001))
    (source / "file").chmod(0o751)
    os.utime(source / "file", (1_000_000_000, 1_000_000_000))
    (source / "link").symlink_to("/usr/bin/python3")
    os.link(source / "file", source / "twin")
    (source / ("long" * 40) / ("name" * 60)).write_text("deep")
    (source / os.fsdecode(b"\xff\xfe")).write_text("odd")
    os.mkfifo(source / "pipe")
    for path in (source, *source.rglob("*")):
        os.lchown(path, OWNER, OWNER)
    data = await pack(agent, root, "source")
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        assert archive.getmember("file").mtime == 1_000_000_000 or archive.getmember("file").islnk()
        assert not [member for member in archive.getmembers() if member.isfifo()]
    record, failed = await unpack(agent, root, "copy", data)
    assert (record, failed) == (Counts(3, 2, 2, 0, 700_001 + 7), None)
    copy = root / "copy"
    (source / "pipe").unlink()
    assert content(copy) == content(source)
    for name in ("file", "twin"):
        assert (copy / name).read_bytes() == (source / "file").read_bytes()
        assert (copy / name).stat().st_mode == (source / "file").stat().st_mode
        assert (copy / name).stat().st_mtime == 1_000_000_000
    assert (copy / "file").stat().st_ino == (copy / "twin").stat().st_ino
    assert str((copy / "link").readlink()) == "/usr/bin/python3"
    assert (copy / ("long" * 40) / ("name" * 60)).read_text() == "deep"


def archive(*members: tarfile.TarInfo | tuple[tarfile.TarInfo, bytes], kind: int = tarfile.PAX_FORMAT) -> bytes:
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w", format=kind) as made:
        for member in members:
            info, content = member if isinstance(member, tuple) else (member, b"")
            info.size = len(content)
            made.addfile(info, io.BytesIO(content))
    return data.getvalue()


def info(name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
    made = tarfile.TarInfo(name)
    made.type, made.linkname, made.mode = kind, link, 0o644
    return made


@pytest.mark.spec("SA-453", "SA-456")
@pytest.mark.parametrize(
    "members",
    [
        [(info("../evil"), b"x")],
        [(info("/tmp/evil"), b"x")],
        [(info("a/../../evil"), b"x")],
        [info("out", tarfile.SYMTYPE, "/tmp"), (info("out/evil"), b"x")],
        [info("up", tarfile.SYMTYPE, ".."), (info("up/evil"), b"x")],
        [info("one", tarfile.SYMTYPE, "."), info("one/two", tarfile.SYMTYPE, ".."), (info("two/evil"), b"x")],
        [info("copy", tarfile.LNKTYPE, "../secret")],
        [info("copy", tarfile.LNKTYPE, "/etc/passwd")],
        [info("up", tarfile.SYMTYPE, ".."), info("copy", tarfile.LNKTYPE, "up/secret")],
        [info("out", tarfile.SYMTYPE, "/tmp"), info("out/evil", tarfile.DIRTYPE)],
    ],
)
async def test_a_hostile_archive_writes_nothing_outside(
    agent: AgentClient, root: Path, members: list[tarfile.TarInfo | tuple[tarfile.TarInfo, bytes]]
) -> None:
    _, failed = await unpack(agent, root, "into", archive(*members))
    assert failed is Fault.ESCAPE
    for place in (root, root.parent, Path("/tmp")):
        assert "evil" not in content(place)
    assert not (root / "into/copy").exists()


@pytest.mark.spec("SA-453")
async def test_devices_are_passed_over_and_set_user_bits_dropped(agent: AgentClient, root: Path) -> None:
    device = info("device", tarfile.CHRTYPE)
    device.devmajor, device.devminor = 1, 3
    mighty = info("mighty")
    mighty.mode = 0o4755
    record, failed = await unpack(agent, root, "", archive(device, info("pipe", tarfile.FIFOTYPE), (mighty, b"x")))
    assert failed is None and record == Counts(1, 0, 0, 2, 1)
    assert content(root) == ["mighty"] and (root / "mighty").stat().st_mode & 0o7777 == 0o755


async def test_an_entry_replaces_what_is_there_and_not_what_a_link_leads_to(agent: AgentClient, root: Path) -> None:
    (root / "precious").write_text("kept")
    (root / "name").symlink_to("precious")
    _, failed = await unpack(agent, root, "", archive((info("name"), b"new")))
    assert failed is None and (root / "precious").read_text() == "kept" and (root / "name").read_text() == "new"
    (root / "folder").mkdir()
    record, failed = await unpack(agent, root, "", archive((info("folder"), b"new")))
    assert (record, failed) == (Refused(b"folder"), Fault.IS_FOLDER)


@pytest.mark.parametrize("kind", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
async def test_every_dialect_of_tar_is_understood(agent: AgentClient, root: Path, kind: int) -> None:
    long = "folder/" * 12 + "n" * 60 if kind == tarfile.USTAR_FORMAT else "folder/" * 30 + "n" * 200
    record, failed = await unpack(agent, root, "", archive((info(long), b"x" * 1000), (info("b"), b""), kind=kind))
    assert failed is None and isinstance(record, Counts) and record.files == 2
    assert (root / long).read_bytes() == b"x" * 1000


@pytest.mark.parametrize("data", [b"no tar at all" * 100, b"x", archive((info("a"), b"x" * 5000))[:2000]])
async def test_what_is_no_archive_is_refused(agent: AgentClient, root: Path, data: bytes) -> None:
    _, failed = await unpack(agent, root, "", data)
    assert failed is Fault.BAD_INPUT
    assert content(root) == []


UNREADABLE = Path("/sys/devices/virtual/net/lo/speed")
"""Has a size, and every read of it fails."""


async def test_a_file_that_cannot_be_read_to_its_end_breaks_the_archive_off(agent: AgentClient) -> None:
    """Filled up with zeros it would look whole."""
    with pytest.raises(FileFault):
        await pack(agent, UNREADABLE.parent, UNREADABLE.name)


@pytest.mark.spec("SA-453")
async def test_entries_that_may_not_be_looked_at_break_the_archive_off(agent: AgentClient, root: Path) -> None:
    (root / "closed").mkdir()
    (root / "closed" / "file").write_text("x")
    (root / "closed").chmod(0o744)
    with pytest.raises(FileFault) as caught:
        await pack(agent, root, "")
    assert caught.value.fault is Fault.DENIED
