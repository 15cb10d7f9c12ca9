"""A client of `atoll.stream.v1` for tests and the bench: what a program that keeps its place does, and no more."""

from __future__ import annotations

import asyncio
import json
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed
from websockets.typing import Subprotocol

PROTOCOL = "atoll.stream.v1"
WAIT_SECONDS = 30.0


@dataclass(slots=True)
class Received:
    """What was taken of one process, over any number of connections."""

    stdout: bytearray = field(default_factory=bytearray)
    stderr: bytearray = field(default_factory=bytearray)
    sequence: list[int] = field(default_factory=list)
    events: list[dict[str, Any]] = field(default_factory=list)
    errors: list[dict[str, Any]] = field(default_factory=list)

    @property
    def next_seq(self) -> int:
        """Where to go on."""
        return self.sequence[-1] + 1 if self.sequence else 0

    @property
    def exit(self) -> dict[str, Any] | None:
        """How it ended."""
        return next((event["exit"] for event in self.events if event["type"] == "exit"), None)

    def take(self, frame: bytes) -> int:
        """Add one frame; its sequence number, or -1."""
        channel, payload = frame[0], frame[1:]
        if channel == 3:
            event = json.loads(payload)
            if event["type"] == "error":
                self.errors.append(event)
                return -1
            self.events.append(event)
            seq = int(event["seq"])
        else:
            (seq,) = struct.unpack(">Q", payload[:8])
            {1: self.stdout, 2: self.stderr}[channel].extend(payload[8:])
        self.sequence.append(seq)
        return seq


class Stream:
    """One connection."""

    def __init__(self, socket: ClientConnection, received: Received) -> None:
        self.socket = socket
        self.received = received

    async def step(self, *, seconds: float = WAIT_SECONDS) -> int:
        """Take one frame."""
        async with asyncio.timeout(seconds):
            frame = await self.socket.recv()
        assert isinstance(frame, bytes)
        return self.received.take(frame)

    async def until(self, needle: bytes, *, seconds: float = WAIT_SECONDS) -> None:
        """Take frames until standard output has the bytes."""
        async with asyncio.timeout(seconds):
            while needle not in self.received.stdout:
                await self.step()

    async def drain(self, *, seconds: float = WAIT_SECONDS, acknowledge: bool = False) -> int:
        """Take frames to the end of the connection; its close code."""
        async with asyncio.timeout(seconds):
            try:
                while True:
                    seq = await self.step()
                    if acknowledge and seq >= 0:
                        await self.acknowledge(seq)
            except ConnectionClosed:
                return int(self.socket.close_code or 0)

    async def stdin(self, data: bytes) -> None:
        """Send input; none ends it."""
        await self.socket.send(b"\0" + data)

    async def resize(self, rows: int, cols: int) -> None:
        """Change the size."""
        await self.socket.send(b"\4" + json.dumps({"rows": rows, "cols": cols}).encode())

    async def signal(self, name: str) -> None:
        """Send a signal."""
        await self.socket.send(b"\5" + json.dumps({"signal": name}).encode())

    async def acknowledge(self, seq: int) -> None:
        """Say how far it was taken."""
        await self.socket.send(b"\6" + struct.pack(">Q", seq))


@asynccontextmanager
async def stream(
    endpoint: str,
    token: str,
    execution_id: str,
    received: Received | None = None,
    *,
    in_subprotocol: bool = False,
    **options: Any,
) -> AsyncIterator[Stream]:
    """Connect, going on where `received` stopped."""
    received = received or Received()
    protocols = [Subprotocol(PROTOCOL)]
    headers = {"Authorization": f"Bearer {token}"}
    if in_subprotocol:
        protocols.append(Subprotocol(f"atoll.bearer.{token}"))
        headers = {}
    url = f"{endpoint.replace('http', 'ws', 1)}/processes/{execution_id}/stream?from={received.next_seq}"
    async with connect(url, additional_headers=headers, subprotocols=protocols, compression=None, **options) as socket:
        assert socket.subprotocol == PROTOCOL
        yield Stream(socket, received)
