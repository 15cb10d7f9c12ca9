"""What comes out of a sandbox for as long as somebody takes it: a file, an archive, the changes of something watched.

`Transfer` holds one worker. Whoever opens one closes it, in any case; a caller that goes away ends the worker that way.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

from atoll.agent.files import FileFault, FileWorker, Record
from atoll.domain.errors import ErrorCode, RuntimeFailure
from atoll.domain.files import Change, FileEntry
from atoll.ops.gateway_files import SHORT_LIMIT_SECONDS, STALL_LIMIT_SECONDS, open_worker, refusal, translated
from atoll.ops.gateway_session import GatewayCaller
from atoll.ops.services import Services

HEARTBEAT_SECONDS = 15.0
"""A watch says something at least this often, so that no proxy takes it for dead."""


class Transfer:
    """A file or archive that was found and can be sent now."""

    def __init__(self, worker: FileWorker, entry: FileEntry) -> None:
        self._worker = worker
        self.entry = entry

    async def select(self, offset: int, length: int) -> None:
        """Which bytes of a file to send; a file that is shorter by then breaks the transfer off."""
        async with translated(STALL_LIMIT_SECONDS):
            await self._worker.ask_range(offset, length)

    async def parts(self) -> AsyncGenerator[bytes, None]:
        """The bytes, no faster than they are taken. Raises what broke the transfer off."""
        while True:
            async with translated(STALL_LIMIT_SECONDS):
                part = await self._worker.data()
            if not part:
                return
            yield part

    def close(self) -> None:
        """End it."""
        self._worker.close()


class Watch:
    """Something that is watched from now on."""

    def __init__(self, worker: FileWorker, first: Change) -> None:
        self._worker = worker
        self._first = first

    async def changes(self) -> AsyncGenerator[Change | None, None]:
        """Each change, beginning with READY; None where nothing has happened for a while. Raises why it ended."""
        yield self._first
        while True:
            asking: asyncio.Task[Record | None] = asyncio.create_task(self._worker.record())
            try:
                while not (await asyncio.wait({asking}, timeout=HEARTBEAT_SECONDS))[0]:
                    yield None
                record = asking.result()
            except FileFault as failure:
                raise refusal(failure) from None
            finally:
                asking.cancel()
            if not isinstance(record, Change):
                return
            yield record

    def close(self) -> None:
        """End it."""
        self._worker.close()


async def open_file(services: Services, caller: GatewayCaller, path: bytes) -> Transfer:
    """Open a file to read. Raises `NotFound`, PATH_ESCAPE, `Conflict` for what is no file."""
    return await _open(await open_worker(services, caller, "read", path))


async def open_archive(services: Services, caller: GatewayCaller, path: bytes) -> Transfer:
    """Open a folder or file as a tar stream (SA-453)."""
    return await _open(await open_worker(services, caller, "pack", path))


async def open_watch(services: Services, caller: GatewayCaller, path: bytes, *, recursive: bool) -> Watch:
    """Watch a file or folder. Raises `LimitReached` for more than 1,024 folders."""
    worker = await open_worker(services, caller, "watch", path, b"tree" if recursive else b"flat")
    try:
        async with translated(SHORT_LIMIT_SECONDS):
            first = await worker.record()
        if not isinstance(first, Change):
            raise RuntimeFailure("The sandbox watches in a form without sense.", code=ErrorCode.UNKNOWN)
    except BaseException:
        worker.close()
        raise
    return Watch(worker, first)


async def _open(worker: FileWorker) -> Transfer:
    try:
        async with translated(SHORT_LIMIT_SECONDS):
            return Transfer(worker, await worker.entry())
    except BaseException:
        worker.close()
        raise
