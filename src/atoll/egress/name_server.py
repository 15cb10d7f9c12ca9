"""DNS for restricted sandboxes: answers for names that they may reach, and asks nobody about any other.

So a name carries nothing out. Only addresses are told; a listed name has no records of another type.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import cast

import dns.exception
import dns.flags
import dns.message
import dns.name
import dns.opcode
import dns.rcode
import dns.rdataclass
import dns.rdatatype
import dns.rrset

from atoll.egress.admission import Admission
from atoll.egress.policies import Policies, normal_name, peer_of
from atoll.egress.resolve import Resolver

TTL_SECONDS = 30
_UDP_BYTES = 1_232
_UDP_BYTES_WITHOUT_EDNS = 512
_TCP_SECONDS = 10.0
_AT_ONCE_A_PEER = 16
TCP_CONNECTIONS_A_PEER = 16


class NameServer:
    """Answers queries of sandboxes, known by the address they come from."""

    def __init__(self, policies: Policies, resolver: Resolver, admission: Admission) -> None:
        """`admission`: of connections over TCP."""
        self._policies = policies
        self._resolver = resolver
        self._admission = admission
        self._busy: Counter[str] = Counter()

    async def answer(self, wire: bytes, peer: str) -> tuple[dns.message.Message, int] | None:
        """The answer to a query, and how many bytes of one fit into a datagram; None for what is no query, or one too
        many at once."""
        try:
            query = dns.message.from_wire(wire)
        except (dns.exception.DNSException, ValueError):
            return None
        if query.flags & dns.flags.QR or self._busy[peer] >= _AT_ONCE_A_PEER:
            return None
        with _counted(self._busy, peer):
            fits = min(_UDP_BYTES, max(query.payload, _UDP_BYTES_WITHOUT_EDNS))
            return await self._answer(query, peer), fits

    async def _answer(self, query: dns.message.Message, peer: str) -> dns.message.Message:
        reply = dns.message.make_response(query, recursion_available=True)
        name = None
        if query.opcode() == dns.opcode.QUERY and len(query.question) == 1:
            asked = query.question[0]
            with contextlib.suppress(dns.exception.DNSException, UnicodeError, ValueError):
                name = normal_name(asked.name.to_text()) if asked.rdclass == dns.rdataclass.IN else None
        if name is None or not self._policies.allows(peer, name):
            reply.set_rcode(dns.rcode.REFUSED)
            return reply
        kind = dns.rdatatype.to_text(query.question[0].rdtype)
        if kind in {"A", "AAAA"}:
            found = await self._resolver.addresses(name, kind)
            if found:
                addresses = [str(address) for address in found]
                reply.answer.append(dns.rrset.from_text(query.question[0].name, TTL_SECONDS, "IN", kind, *addresses))
        return reply

    async def serve_stream(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Queries over one TCP connection."""
        peer = peer_of(writer.get_extra_info("peername")[0])
        try:
            with self._admission.one(peer) as admitted, contextlib.suppress(OSError, EOFError, TimeoutError):
                while admitted:
                    async with asyncio.timeout(_TCP_SECONDS):
                        wire = await reader.readexactly(int.from_bytes(await reader.readexactly(2)))
                        reply = await self.answer(wire, peer)
                        if reply is None:
                            return
                        answer = reply[0].to_wire()
                        writer.write(len(answer).to_bytes(2) + answer)
                        await writer.drain()
        finally:
            writer.close()


class Datagrams(asyncio.DatagramProtocol):
    """Queries over UDP."""

    def __init__(self, server: NameServer) -> None:
        self._server = server
        self._transport: asyncio.DatagramTransport | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The socket is served."""
        self._transport = cast("asyncio.DatagramTransport", transport)

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        """One query."""
        task = asyncio.create_task(self._answer(data, addr))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _answer(self, data: bytes, addr: tuple[str, int]) -> None:
        answered = await self._server.answer(data, peer_of(addr[0]))
        if answered is None or self._transport is None:
            return
        reply, fits = answered
        wire = reply.to_wire(max_size=65_535)
        if len(wire) > fits:
            reply.answer.clear()
            reply.flags |= dns.flags.TC
            wire = reply.to_wire()
        self._transport.sendto(wire, addr)


@asynccontextmanager
async def datagrams(server: NameServer, listener: socket.socket) -> AsyncIterator[None]:
    """Serve a UDP socket for as long as the block runs."""
    loop = asyncio.get_running_loop()
    transport, _ = await loop.create_datagram_endpoint(lambda: Datagrams(server), sock=listener)
    try:
        yield
    finally:
        transport.close()


@contextlib.contextmanager
def _counted(counts: Counter[str], key: str) -> Iterator[None]:
    counts[key] += 1
    try:
        yield
    finally:
        counts[key] -= 1
        if not counts[key]:
            del counts[key]
