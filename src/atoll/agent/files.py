"""What a worker of the agent says about files, and how it is asked: the records and faults of docs/agent-protocol.md.

Ops use it through `FileWorker`; paths are bytes all the way. Everything read here comes from inside a sandbox and is
hostile: what does not parse raises AGENT_UNREACHABLE, and nothing is gathered beyond the limit of its record.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from atoll.agent.streams import AgentStream
from atoll.domain.errors import ErrorCode, RuntimeFailure
from atoll.domain.files import Change, ChangeKind, Counts, EntryType, Fault, FileEntry

_MAX_RECORD_BYTES = 65_536
_HEAD = struct.Struct(">IB")
_ENTRY = struct.Struct(">BHQqIQ")
_U32 = struct.Struct(">I")
_COUNTS = struct.Struct(">5Q")
_RANGE = struct.Struct(">QQ")


_FAULTS = {fault.value: fault for fault in Fault}
_TYPES = {1: EntryType.FILE, 2: EntryType.DIRECTORY, 3: EntryType.SYMLINK, 4: EntryType.OTHER}
_CHANGES = {1: ChangeKind.CREATED, 2: ChangeKind.MODIFIED, 3: ChangeKind.DELETED, 4: ChangeKind.READY}


@dataclass(frozen=True, slots=True)
class More:
    """A page is full; go on after this path."""

    after: bytes


@dataclass(frozen=True, slots=True)
class Refused:
    """The entry of an archive that could not be made."""

    path: bytes


Record = FileEntry | Change | More | Refused | Counts


class FileFault(Exception):  # noqa: N818 - an outcome that the caller translates
    """An operation did not succeed. `path` names the entry of an archive that was in the way."""

    def __init__(self, fault: Fault, path: bytes | None = None) -> None:
        super().__init__(fault.name)
        self.fault = fault
        self.path = path


class FileWorker:
    """One operation: `async with` it, so that a caller that goes away undoes what it has begun."""

    def __init__(self, stream: AgentStream) -> None:
        self._stream = stream
        self._buffer = bytearray()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End it: what it has begun is undone."""
        self._stream.close()

    async def record(self) -> Record | None:
        """The next record; None when the operation has ended well. Raises FileFault when it has not."""
        while (record := self._take_record()) is None:
            part = await self._stream.receive()
            if not part:
                if self._buffer:
                    raise _nonsense()
                await self.finished()
                return None
            self._buffer += part
        return record

    async def entry(self) -> FileEntry:
        """The entry that comes first. Raises FileFault."""
        record = await self.record()
        if not isinstance(record, FileEntry):
            raise _nonsense()
        return record

    async def ask_range(self, offset: int, length: int) -> None:
        """Have a reader send `length` bytes from `offset` on."""
        await self._stream.send(_RANGE.pack(offset, length))

    async def data(self) -> bytes:
        """The next bytes of a file or an archive; b"" when it has ended well. Raises FileFault when it has not."""
        if self._buffer:
            part = bytes(self._buffer)
            self._buffer.clear()
            return part
        part = await self._stream.receive()
        if not part:
            await self.finished()
        return part

    async def send(self, data: bytes) -> None:
        """Send bytes of a file or an archive; what a worker that has failed is sent is dropped."""
        await self._stream.send(data)

    @property
    def over(self) -> bool:
        """Whether it has ended already, most likely because it failed."""
        return self._stream.code is not None

    def finish(self) -> None:
        """All was sent: what was begun may become real."""
        self._stream.finish()

    async def finished(self) -> None:
        """Return once it has ended well. Raises FileFault."""
        code = await self._stream.ended()
        if code == 0:
            return
        raise FileFault(_FAULTS.get(code, Fault.UNKNOWN))

    def _take_record(self) -> Record | None:
        if len(self._buffer) < 4:
            return None
        length = _U32.unpack_from(self._buffer)[0]
        if not 1 <= length <= _MAX_RECORD_BYTES:
            raise _nonsense()
        if len(self._buffer) < 4 + length:
            return None
        body = bytes(self._buffer[4 : 4 + length])
        del self._buffer[: 4 + length]
        try:
            return _decode(body)
        except (struct.error, KeyError, ValueError):
            raise _nonsense() from None


def _decode(body: bytes) -> Record:
    kind = body[0]
    if kind == 1:
        type_, mode, size, seconds, nanoseconds, inode = _ENTRY.unpack_from(body, 1)
        path, at = _text(body, 1 + _ENTRY.size)
        target, _ = _text(body, at)
        return FileEntry(path, _TYPES[type_], mode & 0o7777, size, seconds * 1_000_000_000 + nanoseconds, inode, target)
    if kind == 2:
        return More(_text(body, 2)[0])
    if kind == 3:
        path, _ = _text(body, 2)
        return Change(_CHANGES[body[1]], path) if body[1] else Refused(path)
    if kind == 4:
        return Change(ChangeKind.OVERFLOW, _text(body, 2)[0])
    if kind == 5:
        return Counts(*_COUNTS.unpack_from(body, 1))
    raise ValueError


def _text(body: bytes, at: int) -> tuple[bytes, int]:
    length = _U32.unpack_from(body, at)[0]
    end = at + 4 + length
    if end > len(body):
        raise ValueError
    return body[at + 4 : end], end


def worker_arguments(operation: str, *arguments: bytes, roots: Sequence[bytes]) -> list[bytes]:
    """The command line of a worker. The first root is what relative paths begin at."""
    return [operation.encode(), *arguments, b"--", *roots]


def _nonsense() -> RuntimeFailure:
    return RuntimeFailure("The sandbox answered in a form that makes no sense.", code=ErrorCode.UNKNOWN)
