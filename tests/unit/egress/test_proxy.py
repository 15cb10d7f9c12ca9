"""The egress proxy over real sockets of loopback: clients that dawdle, take too many connections, close one way, hide
their name, or hope for a name that changes its address."""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import cast

import dns.asyncquery
import dns.flags
import dns.message
import dns.rrset
import pytest

from atoll.egress import proxy as proxy_module
from atoll.egress.admission import Admission
from atoll.egress.name_server import NameServer, datagrams
from atoll.egress.policies import Policies
from atoll.egress.proxy import Proxy
from atoll.egress.resolve import Resolver

ONE, TWO = "127.0.0.11", "127.0.0.12"
"""Two sandboxes."""
WEB, INNER = "127.0.0.21", "127.0.0.22"
"""An address that may be reached, and one that may not."""
A_PEER = 4
LIMIT_SECONDS = 10.0
Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Names(asyncio.DatagramProtocol):
    """A name server that knows `addresses` for every name, for no time."""

    def __init__(self) -> None:
        self.addresses = [WEB]
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
            reply.answer.append(dns.rrset.from_text(question.name, 0, "IN", "A", *self.addresses))
        cast("asyncio.DatagramTransport", self.transport).sendto(reply.to_wire(), addr)


class Rig:
    """The proxy and its name server, what is behind them, and clients by their address."""

    def __init__(self, names: Names, ports: dict[str, int], reached: list[Connection]) -> None:
        self.names = names
        self.ports = ports
        self.reached = reached
        """Connections that came to the web server."""

    async def connect(self, which: str, peer: str = ONE) -> Connection:
        return await asyncio.open_connection("127.0.0.1", self.ports[which], local_addr=(peer, 0))

    async def arrived(self) -> Connection:
        """The next connection at the web server."""
        async with asyncio.timeout(LIMIT_SECONDS):
            while not self.reached:  # noqa: ASYNC110 - it comes from another task of this loop
                await asyncio.sleep(0.01)
        return self.reached.pop()


@pytest.fixture
async def rig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Rig]:
    loop = asyncio.get_running_loop()
    for peer in (ONE, TWO):
        (tmp_path / f"{peer}.json").write_text(json.dumps({"domains": ["listed.example"]}))
    reached: list[Connection] = []

    async def keep(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        reached.append((reader, writer))

    async with contextlib.AsyncExitStack() as stack:
        transport, names = await loop.create_datagram_endpoint(Names, ("127.0.0.1", 0))
        stack.callback(transport.close)
        resolver = Resolver([f"127.0.0.1#{transport.get_extra_info('sockname')[1]}"], [f"{WEB}/32"])
        web = await asyncio.start_server(keep, WEB, 0)
        stack.callback(web.close)
        port = web.sockets[0].getsockname()[1]
        inner = await asyncio.start_server(keep, INNER, port)
        stack.callback(inner.close)
        monkeypatch.setattr(proxy_module, "TLS_PORT", port)
        policies = Policies(tmp_path)
        proxy = Proxy(policies, resolver, Admission(a_peer=A_PEER, in_all=100))
        server = NameServer(policies, resolver, Admission(a_peer=A_PEER, in_all=100))
        ports = {}
        for which, serve in (("tls", proxy.serve_tls), ("http", proxy.serve_http), ("dns", server.serve_stream)):
            served = await asyncio.start_server(serve, "127.0.0.1", 0)
            stack.callback(served.close)
            ports[which] = served.sockets[0].getsockname()[1]
        udp, _ = await loop.create_datagram_endpoint(asyncio.DatagramProtocol, ("127.0.0.1", ports["dns"]))
        listener = udp.get_extra_info("socket").dup()
        udp.close()
        await stack.enter_async_context(datagrams(server, listener))
        yield Rig(names, ports, reached)
        for _, writer in reached:
            writer.close()


def hello(name: str | None) -> bytes:
    """The beginning of a TLS connection, as OpenSSL makes it."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    outgoing = ssl.MemoryBIO()
    with contextlib.suppress(ssl.SSLWantReadError):
        context.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname=name).do_handshake()
    return outgoing.read()


def with_extension(begun: bytes, kind: int, content: bytes) -> bytes:
    """The same with one extension more."""
    extension = kind.to_bytes(2) + len(content).to_bytes(2) + content
    at = 5 + 4 + 2 + 32
    at += 1 + begun[at]
    at += 2 + int.from_bytes(begun[at : at + 2])
    at += 1 + begun[at]
    extensions = begun[at + 2 :] + extension
    body = begun[9:at] + len(extensions).to_bytes(2) + extensions
    handshake = begun[5:6] + len(body).to_bytes(3) + body
    return begun[:3] + len(handshake).to_bytes(2) + handshake


async def drip(writer: asyncio.StreamWriter, data: Callable[[], bytes]) -> None:
    with contextlib.suppress(OSError):
        while True:
            writer.write(data())
            await writer.drain()
            await asyncio.sleep(0.1)


async def ended(reader: asyncio.StreamReader) -> bytes:
    """What still comes before the end."""
    async with asyncio.timeout(LIMIT_SECONDS):
        try:
            return await reader.read()
        except ConnectionError:
            return b""


@pytest.mark.parametrize(
    ("which", "begun", "more"),
    [
        ("tls", hello("listed.example")[:60], b"\0"),
        ("tls", b"", b""),
        ("http", b"GET / HTTP/1.1\r\nHost: listed.example\r\n", b"X-More: 1\r\n"),
        ("http", b"", b""),
    ],
    ids=["handshake in crumbs", "no handshake", "head in lines", "no head"],
)
async def test_a_client_that_takes_its_time_to_say_where_to_is_cut_off(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, which: str, begun: bytes, more: bytes
) -> None:
    monkeypatch.setattr(proxy_module, "_NAME_SECONDS", 0.5)
    reader, writer = await rig.connect(which)
    began = time.monotonic()
    writer.write(begun)
    dripping = asyncio.create_task(drip(writer, lambda: more))
    try:
        assert await ended(reader) == b""
    finally:
        dripping.cancel()
        writer.close()
    assert 0.4 < time.monotonic() - began < 3.0
    assert rig.reached == []


async def test_one_sandbox_has_so_many_connections_and_another_one_its_own(rig: Rig) -> None:
    held = [await rig.connect("tls") for _ in range(A_PEER)]
    try:
        await _until_counted(rig)
        reader, writer = await rig.connect("tls")
        assert await ended(reader) == b"", "one too many"
        writer.close()
        _, other = await rig.connect("tls", TWO)
        other.write(hello("listed.example"))
        await rig.arrived()
        other.close()
        held.pop()[1].close()
        await _served_again(rig)
    finally:
        for _, each in held:
            each.close()


async def _until_counted(rig: Rig) -> None:
    """Connections are accepted in the order they came: one that came later and is answered shows that they are."""
    _, other = await rig.connect("tls", TWO)
    other.write(hello("listed.example"))
    _, server = await rig.arrived()
    server.close()
    other.close()


async def _served_again(rig: Rig) -> None:
    deadline = time.monotonic() + LIMIT_SECONDS
    while not rig.reached:
        assert time.monotonic() < deadline
        reader, writer = await rig.connect("tls")
        writer.write(hello("listed.example"))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.3):
                await reader.read(1)
        writer.close()


async def test_either_side_may_close_its_own_way_first(rig: Rig) -> None:
    begun = hello("listed.example")
    reader, writer = await rig.connect("tls")
    writer.write(begun + b"the end of it")
    writer.write_eof()
    at_server, from_server = await rig.arrived()
    assert await ended(at_server) == begun + b"the end of it"
    from_server.write(b"x" * 300_000)
    from_server.close()
    assert await ended(reader) == b"x" * 300_000
    writer.close()

    reader, writer = await rig.connect("tls")
    writer.write(begun)
    at_server, from_server = await rig.arrived()
    from_server.write(b"all that I say")
    from_server.write_eof()
    assert await ended(reader) == b"all that I say"
    writer.write(b"y" * 300_000)
    writer.close()
    assert await ended(at_server) == begun + b"y" * 300_000
    from_server.close()


@pytest.mark.spec("SA-191")
@pytest.mark.parametrize(
    "begun",
    [
        hello(None),
        hello("other.example"),
        with_extension(hello("other.example"), 0xFE0D, b"\0" * 64),
        with_extension(hello(None), 0xFE0D, b"\0" * 64),
        with_extension(hello("listed.example"), 0, b"\0\x10\0\0\x0dother.example"),
    ],
    ids=["no name", "unlisted", "encrypted behind an unlisted one", "encrypted and no name", "two names"],
)
async def test_a_handshake_without_a_listed_name_leads_nowhere(rig: Rig, begun: bytes) -> None:
    reader, writer = await rig.connect("tls")
    writer.write(begun)
    assert await ended(reader) == b""
    writer.close()
    assert (rig.reached, rig.names.asked) == ([], [])


async def test_a_hello_with_one_more_extension_is_still_read(rig: Rig) -> None:
    """So the refusals above are for the name."""
    _, writer = await rig.connect("tls")
    writer.write(with_extension(hello("listed.example"), 0xFAFA, b"\0" * 64))
    _, server = await rig.arrived()
    server.close()
    writer.close()


@pytest.mark.spec("SA-197")
async def test_a_listed_name_that_changes_to_an_inner_address_leads_nowhere(rig: Rig) -> None:
    _, writer = await rig.connect("tls")
    writer.write(hello("listed.example"))
    _, server = await rig.arrived()
    server.close()
    writer.close()
    for addresses in ([INNER], ["10.0.0.1", INNER, "169.254.169.254"]):
        rig.names.addresses = addresses
        reader, writer = await rig.connect("tls")
        writer.write(hello("listed.example"))
        assert await ended(reader) == b""
        writer.close()
    assert rig.reached == []


async def _ask(
    rig: Rig, how: Callable[..., Awaitable[dns.message.Message]], kind: str = "A", name: str = "listed.example."
) -> dns.message.Message:
    query = dns.message.make_query(name, kind)
    return await how(query, "127.0.0.1", timeout=LIMIT_SECONDS, port=rig.ports["dns"], source=ONE)


async def test_an_answer_that_is_too_long_for_a_datagram_says_so_and_is_told_over_tcp(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    many = sorted(f"203.0.113.{number}" for number in range(1, 60))
    rig.names.addresses = many
    short = await _ask(rig, dns.asyncquery.udp)
    assert short.flags & dns.flags.TC and not short.answer
    whole = await _ask(rig, dns.asyncquery.tcp)
    assert not whole.flags & dns.flags.TC
    assert sorted(record.to_text() for record in whole.answer[0]) == many


@pytest.mark.spec("SA-191")
async def test_over_tcp_no_other_name_is_told_and_of_a_listed_one_only_its_addresses(rig: Rig) -> None:
    refused = await _ask(rig, dns.asyncquery.tcp, name="secret.other.example.")
    assert refused.rcode() == dns.rcode.REFUSED
    assert rig.names.asked == []
    keys = await _ask(rig, dns.asyncquery.tcp, "HTTPS")
    assert (keys.rcode(), keys.answer) == (dns.rcode.NOERROR, []), "with these clients would encrypt their names"


async def test_queries_over_tcp_are_bounded_too(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("atoll.egress.name_server._TCP_SECONDS", 0.5)
    held = [await rig.connect("dns") for _ in range(A_PEER)]
    held[0][1].write(b"\0")
    began = time.monotonic()
    reader, extra = await rig.connect("dns")
    assert await ended(reader) == b"", "one too many"
    assert (await _ask_as_another(rig)).answer
    for reader, _ in held:
        assert await ended(reader) == b""
    assert time.monotonic() - began < 3.0
    for writer in [extra, *(writer for _, writer in held)]:
        writer.close()


async def _ask_as_another(rig: Rig) -> dns.message.Message:
    query = dns.message.make_query("listed.example.", "A")
    return await dns.asyncquery.tcp(query, "127.0.0.1", timeout=LIMIT_SECONDS, port=rig.ports["dns"], source=TWO)
