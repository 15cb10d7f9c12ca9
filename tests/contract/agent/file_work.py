"""Asking the real agent for work on files, for its tests."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from atoll.agent.connection import AgentClient
from atoll.agent.files import FileFault, FileWorker, Record, worker_arguments
from atoll.domain.files import Fault, FileEntry

OWNER = 1001


@pytest.fixture
def root() -> Iterator[Path]:
    """A folder that the sandbox's user owns."""
    folder = Path(tempfile.mkdtemp(prefix="atoll-files-"))
    inner = folder / "workspace"
    inner.mkdir()
    folder.chmod(0o755)
    os.chown(inner, OWNER, OWNER)
    (folder / "secret").write_text("outside")
    try:
        yield inner
    finally:
        shutil.rmtree(folder)


@contextlib.asynccontextmanager
async def worker(
    agent: AgentClient, root: Path, operation: str, *arguments: bytes | str, volume: Path | None = None
) -> AsyncIterator[FileWorker]:
    words = [word.encode() if isinstance(word, str) else word for word in arguments]
    roots = [os.fsencode(folder) for folder in (root, volume) if folder is not None]
    stream = await agent.open_files(worker_arguments(operation, *words, roots=roots))
    async with asyncio.timeout(60), FileWorker(stream) as made:
        yield made


async def records(agent: AgentClient, root: Path, operation: str, *arguments: bytes | str) -> list[Record]:
    found = []
    async with worker(agent, root, operation, *arguments) as work:
        while (record := await work.record()) is not None:
            found.append(record)
    return found


async def fault(agent: AgentClient, root: Path, operation: str, *arguments: bytes | str) -> Fault:
    with pytest.raises(FileFault) as caught:
        await records(agent, root, operation, *arguments)
    return caught.value.fault


async def read(agent: AgentClient, root: Path, path: bytes | str, offset: int = 0, length: int | None = None) -> bytes:
    async with worker(agent, root, "read", path) as work:
        entry = await work.entry()
        await work.ask_range(offset, entry.size - offset if length is None else length)
        data = b""
        while part := await work.data():
            data += part
    return data


async def write(agent: AgentClient, root: Path, path: bytes | str, data: bytes, mode: str = "") -> FileEntry:
    async with worker(agent, root, "write", path, mode) as work:
        await work.send(data)
        work.finish()
        return await work.entry()


def content(folder: Path) -> list[str]:
    return sorted(os.listdir(folder))  # noqa: PTH208 - the names alone


def exchange(one: Path, other: Path) -> None:
    """Both names change places in one step."""
    at_cwd, rename_exchange = -100, 2
    assert ctypes.CDLL(None).renameat2(at_cwd, os.fsencode(one), at_cwd, os.fsencode(other), rename_exchange) == 0


async def unpack(agent: AgentClient, root: Path, path: str, data: bytes) -> tuple[Record | None, Fault | None]:
    async with worker(agent, root, "unpack", path) as work:
        await work.send(data)
        work.finish()
        record = None
        try:
            record = await work.record()
            await work.finished()
        except FileFault as failure:
            return record, failure.fault
        return record, None


async def pack(agent: AgentClient, root: Path, path: str) -> bytes:
    async with worker(agent, root, "pack", path) as work:
        await work.entry()
        data = b""
        while part := await work.data():
            data += part
    return data


def names(found: list[Record]) -> list[str]:
    return [os.fsdecode(entry.path).rpartition("/workspace/")[2] for entry in found if isinstance(entry, FileEntry)]
