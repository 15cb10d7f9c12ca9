"""One stream to a worker or a port inside a sandbox: bytes both ways, each no faster than the other end takes it.

`connection.AgentClient` makes it and feeds it; ops read and write. It holds at most STREAM_CREDIT_BYTES that nobody has
taken yet, and sends no more than the agent has granted, so that a slow reader costs
neither the server nor the agent memory.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Protocol

from atoll.agent import wire
from atoll.agent.protocol import StreamFrame
from atoll.agent.wire import Answer, ErrorAnswer, Request
from atoll.domain.errors import AtollError, ErrorCode, RuntimeFailure

STREAM_CREDIT_BYTES = 1_048_576
"""What the agent may have sent of one stream and nobody has taken yet."""
_GRANT_BYTES = STREAM_CREDIT_BYTES // 2


class _Write(Protocol):
    def __call__(self, *parts: bytes | memoryview) -> None: ...


class AgentStream:
    """Use it from one event loop; one task reads, one writes. `close` it in any case: it is idempotent."""

    def __init__(
        self,
        stream_id: int,
        *,
        write: _Write,
        writable: Callable[[float | None], Awaitable[None]],
        grant: Callable[[int, int], bytes],
        forget: Callable[[int], bool],
    ) -> None:
        self._id = stream_id
        self._write = write
        self._writable = writable
        self._grant = grant
        self._forget = forget
        self._parts: deque[bytes] = deque()
        self._taken = 0
        self._window = 0
        self._open = False
        self._finished = False
        self._code: int | None = None
        self._failure: AtollError | None = None
        self._news = asyncio.Event()
        self._room = asyncio.Event()

    @property
    def code(self) -> int | None:
        """How it ended: a worker's exit code, the errno of a port, 0 for well; None before the end."""
        return self._code

    async def opened(self) -> None:
        """Return once it can be used, or has ended. Raises the agent's refusal."""
        while not self._open and self._code is None:
            await self._wait(self._news)

    async def receive(self) -> bytes:
        """The next bytes, at most 128 KiB of them; b"" once there are no more. Raises AGENT_UNREACHABLE."""
        while not self._parts:
            if self._finished or self._code is not None:
                return b""
            await self._wait(self._news)
        part = self._parts.popleft()
        self._taken += len(part)
        if self._taken >= _GRANT_BYTES and self._code is None:
            self._write(self._grant(self._id, self._taken))
            self._taken = 0
        return part

    async def ended(self) -> int:
        """The code, once it has ended; what was not received by then is dropped."""
        while self._code is None:
            self._parts.clear()
            await self._wait(self._news)
        return self._code

    async def send(self, data: bytes) -> None:
        """Send; returns once the agent takes all of it. What a stream that has ended is sent is dropped."""
        rest = memoryview(data)
        while len(rest) and self._code is None:
            if self._window == 0:
                await self._wait(self._room)
                continue
            frames: list[bytes | memoryview] = []
            while len(rest) and self._window:
                part = rest[: min(self._window, wire.MAX_STREAM_BYTES)]
                self._window -= len(part)
                rest = rest[len(part) :]
                frames += (wire.encode_head(Request.DATA, self._id, len(part)), part)
            self._write(*frames)
            await self._writable(None)

    def finish(self) -> None:
        """Say that all has been sent."""
        if self._code is None and self._failure is None:
            self._write(wire.encode_frame(Request.FINISH, self._id))

    def close(self) -> None:
        """Nobody wants it any more: an unfinished write leaves nothing behind."""
        if self._forget(self._id):
            self._write(wire.encode_frame(Request.CLOSE, self._id))
        self._parts.clear()
        if self._code is None and self._failure is None:
            self._fail(RuntimeFailure("The transfer was ended.", code=ErrorCode.UNKNOWN))

    # What the connection calls.

    def take(self, frame: StreamFrame) -> None:
        """A frame of it has come."""
        value = frame.value
        if isinstance(value, ErrorAnswer):
            self._fail(RuntimeFailure(value.sentence, code=value.code))
        elif isinstance(value, bytes):
            self._parts.append(value)
        elif frame.kind is Answer.STREAM_FINISH:
            self._finished = True
        elif frame.kind is Answer.STREAM_END:
            self._code = value
            self._room.set()
        else:
            self._open = True
            self._window += value or 0
            self._room.set()
        self._news.set()

    def lost(self, failure: AtollError) -> None:
        """The connection is gone."""
        self._fail(failure)

    def _fail(self, failure: AtollError) -> None:
        self._failure = failure
        self._news.set()
        self._room.set()

    async def _wait(self, event: asyncio.Event) -> None:
        if self._failure is not None:
            raise self._failure
        event.clear()
        await event.wait()
        if self._failure is not None:
            raise self._failure
