"""A receiver of webhooks: a real TLS server on loopback, with a certificate of an authority made for the test.

It answers as the test says and keeps what arrived, byte for byte. `Receiver.destinations` is the setting that leads
webhooks for its host to it.
"""

from __future__ import annotations

import asyncio
import datetime
import ipaddress
import json
import ssl
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

HOST = "hooks.example.com"
URL = f"https://{HOST}/atoll/events?token=url-secret-token"
SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSwMfKQ9r8GKYo="
SECRET_BYTES_TEXT = SECRET.removeprefix("whsec_")
WEBHOOK = {"url": URL, "secret": SECRET}


@dataclass(frozen=True, slots=True)
class Received:
    """One request."""

    method: str
    target: str
    headers: dict[str, str]
    body: bytes
    at: float

    @property
    def event(self) -> dict[str, Any]:
        """The body, parsed."""
        value: dict[str, Any] = json.loads(self.body)
        return value


@dataclass(frozen=True, slots=True)
class Answer:
    """How to answer one request. `after` is awaited before; `close` ends the connection instead of answering."""

    status: int = 200
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes = b""
    after: Callable[[], Any] | None = None
    close: bool = False
    endless_body: bool = False


@dataclass(slots=True)
class Receiver:
    """The server. `answers` are used up in order, then `then` is the answer to all."""

    port: int
    ca_file: Path
    host: str = HOST
    answers: list[Answer] = field(default_factory=list)
    then: Answer = field(default_factory=Answer)
    received: list[Received] = field(default_factory=list)
    connections: int = 0
    arrived: asyncio.Event = field(default_factory=asyncio.Event)
    body_bytes_taken: int = 0

    @property
    def destinations(self) -> dict[str, Any]:
        """The setting `webhook_test_destinations`."""
        return {self.host: {"address": "127.0.0.1", "port": self.port, "caFile": str(self.ca_file)}}

    async def wait_for(self, count: int, *, seconds: float = 15) -> list[Received]:
        """Wait until so many requests have arrived."""
        async with asyncio.timeout(seconds):
            while len(self.received) < count:
                self.arrived.clear()
                await self.arrived.wait()
        return self.received

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, one request."""
        self.connections += 1
        try:
            await self._serve(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError, ssl.SSLError):
            pass
        finally:
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        method, target, _ = head[0].split(" ")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:] if line)}
        body = await reader.readexactly(int(headers.get("content-length", "0")))
        self.received.append(Received(method, target, headers, body, asyncio.get_running_loop().time()))
        answer = self.answers.pop(0) if self.answers else self.then
        self.arrived.set()
        if answer.after is not None:
            await answer.after()
        if answer.close:
            return
        lines = [f"HTTP/1.1 {answer.status} Whatever", *(f"{name}: {value}" for name, value in answer.headers)]
        if not answer.endless_body:
            lines.append(f"content-length: {len(answer.body)}")
        writer.write(("\r\n".join(lines) + "\r\n\r\n").encode() + answer.body)
        await writer.drain()
        while answer.endless_body:
            writer.write(b"x" * 65_536)
            await writer.drain()
            self.body_bytes_taken += 65_536


@asynccontextmanager
async def running_receiver(host: str = HOST, *, certified_for: str | None = None) -> AsyncIterator[Receiver]:
    """Serve until the block ends; `certified_for` gives it the certificate of another host."""
    with certificates(certified_for or host) as (ca_file, context):
        receiver = Receiver(0, ca_file, host)
        server = await asyncio.start_server(receiver.serve, "127.0.0.1", 0, ssl=context)
        receiver.port = server.sockets[0].getsockname()[1]
        try:
            yield receiver
        finally:
            server.close()


@contextmanager
def certificates(host: str) -> Iterator[tuple[Path, ssl.SSLContext]]:
    """An authority of its own, by the file of its certificate, and the TLS side of a server that it certifies."""
    now = datetime.datetime.now(datetime.UTC)
    authority_key, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    authority = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Test authority")])

    def builder(subject: x509.Name, public_key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(authority)
            .public_key(public_key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(hours=1))
            .not_valid_after(now + datetime.timedelta(hours=1))
        )

    root = (
        builder(authority, authority_key.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(authority_key, hashes.SHA256())
    )
    leaf = (
        builder(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, host)]), key.public_key())
        .add_extension(x509.SubjectAlternativeName([_name(host)]), critical=False)
        .sign(authority_key, hashes.SHA256())
    )
    with TemporaryDirectory(prefix="atoll-tls-") as folder:
        ca_file, chain = Path(folder, "ca.pem"), Path(folder, "server.pem")
        ca_file.write_bytes(root.public_bytes(serialization.Encoding.PEM))
        chain.write_bytes(
            leaf.public_bytes(serialization.Encoding.PEM)
            + key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(chain)
        yield ca_file, context


def _name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)
