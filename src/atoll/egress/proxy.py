"""The two listeners of the proxy: TLS by the name in its handshake, HTTP by the host of the request.

Every connection was turned here by the packet rules, whatever it was addressed to, so where it goes is decided by the
name alone, and the address is found here. Nothing is decrypted. Input is hostile: every wait and every buffer is
bounded, and so are the connections of one sandbox.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import TypeVar

from atoll.egress import client_hello, request_head
from atoll.egress.admission import Admission
from atoll.egress.client_hello import NotAllowedHello, server_name
from atoll.egress.policies import Policies, peer_of
from atoll.egress.request_head import NotAllowedHead
from atoll.egress.resolve import Resolver

TLS_PORT, HTTP_PORT = 443, 80
_NAME_SECONDS = 10.0
"""How long a client may take to say where it wants to go."""
_CONNECT_SECONDS = 10.0
_IDLE_SECONDS = 900.0
_CLOSE_SECONDS = 10.0
CONNECTIONS_A_PEER = 256
_READS = 64
"""In how many pieces a client may say where it wants to go."""
_PIECE_BYTES = 65_536
_REFUSAL = "networkControl of this sandbox does not list {name}, or it has no address that may be reached.\n"

Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]
Found = TypeVar("Found")


class Proxy:
    """Serves connections of sandboxes, known by the address they come from."""

    def __init__(self, policies: Policies, resolver: Resolver, admission: Admission) -> None:
        self._policies = policies
        self._resolver = resolver
        self._admission = admission

    async def serve_tls(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """A connection that was addressed to port 443."""
        await self._serve(reader, writer, self._tls)

    async def serve_http(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """A connection that was addressed to port 80, or to a proxy."""
        await self._serve(reader, writer, self._http)

    async def _serve(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        handle: Callable[[str, Stream, bytes], Awaitable[None]],
    ) -> None:
        peer = peer_of(writer.get_extra_info("peername")[0])
        with self._admission.one(peer) as admitted:
            try:
                with contextlib.suppress(OSError, EOFError, TimeoutError, NotAllowedHello, NotAllowedHead):
                    if admitted:
                        await handle(peer, (reader, writer), b"")
            finally:
                _close(writer)

    async def _tls(self, peer: str, client: Stream, begun: bytes) -> None:
        name, begun = await _read_until(client[0], begun, server_name, client_hello.MAX_BYTES)
        server = await self._connect(peer, name, TLS_PORT)
        if server is not None:
            await _relay(client, server, begun)

    async def _tunnelled(self, peer: str, client: Stream, begun: bytes) -> None:
        await self._http(peer, client, begun, may_tunnel=False)

    async def _http(self, peer: str, client: Stream, begun: bytes, *, may_tunnel: bool = True) -> None:
        head, _ = await _read_until(client[0], begun, request_head.request_head, 2 * request_head.MAX_BYTES)
        port = head.port
        allowed = may_tunnel and port in {TLS_PORT, HTTP_PORT} if head.tunnel else port == HTTP_PORT
        if not allowed or not self._policies.allows(peer, head.name):
            await _refuse(client[1], head.name)
            return
        if head.tunnel:
            # What is inside has to name where it goes, too: a listed name must not lead to another one behind it.
            client[1].write(b"HTTP/1.1 200 Connection established\r\n\r\n")
            await (self._tls if port == TLS_PORT else self._tunnelled)(peer, client, head.rest)
            return
        server = await self._connect(peer, head.name, HTTP_PORT)
        if server is None:
            await _refuse(client[1], head.name)
            return
        begun = head.forwarded + head.rest[: head.body_bytes]
        await _relay(client, server, begun, left=max(0, head.body_bytes - len(head.rest)))

    async def _connect(self, peer: str, name: str, port: int) -> Stream | None:
        """A connection to a listed name; None when it is not listed or cannot be reached."""
        if not self._policies.allows(peer, name):
            return None
        for address in await self._resolver.all_addresses(name):
            try:
                async with asyncio.timeout(_CONNECT_SECONDS):
                    reader, writer = await asyncio.open_connection(str(address), port, limit=_PIECE_BYTES)
            except (OSError, TimeoutError):
                continue
            if writer.get_extra_info("sockname")[0] == writer.get_extra_info("peername")[0]:
                writer.close()  # an address of this very machine
                continue
            return reader, writer
        return None


async def _read_until(
    reader: asyncio.StreamReader, begun: bytes, find: Callable[[bytes], Found | None], most: int
) -> tuple[Found, bytes]:
    """Read until something is found in the beginning, which is returned with it."""
    async with asyncio.timeout(_NAME_SECONDS):
        for _ in range(_READS):
            if begun and (found := find(begun)) is not None:
                return found, begun
            more = await reader.read(_PIECE_BYTES)
            if not more or len(begun) + len(more) > most + _PIECE_BYTES:
                raise EOFError
            begun += more
    raise EOFError


async def _refuse(writer: asyncio.StreamWriter, name: str) -> None:
    body = _REFUSAL.format(name=name).encode()
    fields = f"Content-Type: text/plain\r\nContent-Length: {len(body)}\r\nConnection: close"
    writer.write(f"HTTP/1.1 403 Forbidden\r\n{fields}\r\n\r\n".encode() + body)
    async with asyncio.timeout(_NAME_SECONDS):
        await writer.drain()


async def _relay(client: Stream, server: Stream, begun: bytes, *, left: int | None = None) -> None:
    """Both ways until both have ended, or nothing has come for long. If `left` is given, so many more of the client's
    bytes are passed on, and the rest is dropped."""
    server[1].write(begun)
    seconds = asyncio.get_running_loop().time

    async def copy(
        reader: asyncio.StreamReader, writer: asyncio.StreamWriter, limit: asyncio.Timeout, left: int | None
    ) -> None:
        while piece := await reader.read(_PIECE_BYTES):
            limit.reschedule(seconds() + _IDLE_SECONDS)
            if left is not None:
                piece = piece[:left]
                left -= len(piece)
            writer.write(piece)
            await writer.drain()
        writer.write_eof()

    try:
        async with asyncio.timeout(_IDLE_SECONDS) as limit, asyncio.TaskGroup() as group:
            group.create_task(copy(client[0], server[1], limit, left))
            group.create_task(copy(server[0], client[1], limit, None))
    except* OSError:
        pass
    finally:
        _close(server[1])


def _close(writer: asyncio.StreamWriter) -> None:
    """What is not taken within a moment is not wanted."""
    writer.close()
    asyncio.get_running_loop().call_later(_CLOSE_SECONDS, writer.transport.abort)
