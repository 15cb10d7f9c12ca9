"""DNS of restricted sandboxes over real datagrams: what is not listed is asked of nobody."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import cast

import dns.message
import dns.rcode
import dns.rrset
import pytest

from atoll.egress.admission import Admission
from atoll.egress.name_server import TCP_CONNECTIONS_A_PEER, NameServer
from atoll.egress.policies import Policies
from atoll.egress.resolve import Resolver

PEER = "10.0.0.2"


class Upstream(asyncio.DatagramProtocol):
    """A name server on loopback that knows two addresses of every name, and remembers what it was asked."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.transport: asyncio.BaseTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        query = dns.message.from_wire(data)
        question = query.question[0]
        self.asked.append(question.name.to_text())
        reply = dns.message.make_response(query)
        if question.rdtype == 1:
            reply.answer.append(dns.rrset.from_text(question.name, 60, "IN", "A", "203.0.113.9", "10.9.9.9"))
        cast("asyncio.DatagramTransport", self.transport).sendto(reply.to_wire(), addr)


@pytest.fixture
async def upstream() -> AsyncIterator[Upstream]:
    transport, protocol = await asyncio.get_running_loop().create_datagram_endpoint(Upstream, ("127.0.0.1", 0))
    yield protocol
    transport.close()


@pytest.fixture
def server(upstream: Upstream, tmp_path: Path) -> NameServer:
    (tmp_path / f"{PEER}.json").write_text(json.dumps({"domains": ["a.example", "*.b.example"]}))
    assert upstream.transport is not None
    port = upstream.transport.get_extra_info("sockname")[1]
    return NameServer(
        Policies(tmp_path), Resolver([f"127.0.0.1#{port}"]), Admission(a_peer=TCP_CONNECTIONS_A_PEER, in_all=64)
    )


async def ask(server: NameServer, name: str, kind: str = "A", peer: str = PEER) -> tuple[int, list[str]]:
    answered = await server.answer(dns.message.make_query(name, kind).to_wire(), peer)
    assert answered is not None
    reply, fits = answered
    assert fits == 512, "it said nothing of larger datagrams"
    return reply.rcode(), [record.to_text() for rrset in reply.answer for record in rrset]


@pytest.mark.spec("SA-191", "SA-197")
async def test_a_listed_name_has_its_public_addresses_alone(server: NameServer, upstream: Upstream) -> None:
    assert await ask(server, "A.example.") == (dns.rcode.NOERROR, ["203.0.113.9"])
    assert await ask(server, "x.y.b.example.") == (dns.rcode.NOERROR, ["203.0.113.9"])
    assert await ask(server, "a.example.", "AAAA") == (dns.rcode.NOERROR, [])
    assert await ask(server, "a.example.") == (dns.rcode.NOERROR, ["203.0.113.9"])
    assert upstream.asked.count("a.example.") == 2, "once for each kind; the third time it was known"


@pytest.mark.spec("SA-191")
async def test_every_other_query_is_refused_and_asked_of_nobody(server: NameServer, upstream: Upstream) -> None:
    for name, kind, peer in (
        ("secret.a.example.", "A", PEER),
        ("secret\\.b.example.", "A", PEER),
        ("secret.x\\.b.example.", "A", PEER),
        ("b.example.", "A", PEER),
        ("example.", "TXT", PEER),
        ("a.example.", "A", "10.0.0.3"),
        (".", "NS", PEER),
    ):
        assert await ask(server, name, kind, peer) == (dns.rcode.REFUSED, [])
    assert await ask(server, "a.example.", "TXT") == (dns.rcode.NOERROR, []), "a listed name has addresses alone"
    assert upstream.asked == []


async def test_a_client_may_take_larger_datagrams(server: NameServer) -> None:
    for payload, expected in ((4_096, 1_232), (600, 600), (100, 512)):
        query = dns.message.make_query("a.example.", "A", use_edns=0, payload=payload)
        answered = await server.answer(query.to_wire(), PEER)
        assert answered is not None and answered[1] == expected


async def test_what_is_no_query_gets_no_answer(server: NameServer) -> None:
    assert await server.answer(b"", PEER) is None
    assert await server.answer(b"\xff" * 40, PEER) is None
    answer = dns.message.make_response(dns.message.make_query("a.example.", "A"))
    assert await server.answer(answer.to_wire(), PEER) is None
