"""Names, a web server and a TLS server in the test's own internet (`internet`), at its public addresses.

`*.example` are names of the public server, `inner.example` is one of a private address behind it.
"""

from __future__ import annotations

import contextlib
import datetime
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from tests.contract.internet import INNER, PUBLIC

NAME_SERVER = PUBLIC[0]
Asked = Callable[[], str]
_SERVER = r"""
import socket, ssl, sys, threading
import dns.flags, dns.message, dns.rdatatype, dns.rrset
folder, four, six, inner = sys.argv[1:]
log = open(folder + "/queries", "a", buffering=1)

def answer(wire):
    query = dns.message.from_wire(wire)
    name, kind = query.question[0].name, query.question[0].rdtype
    log.write(f"{name} {dns.rdatatype.to_text(kind)}\n")
    reply = dns.message.make_response(query)
    text = str(name).lower()
    address = {dns.rdatatype.A: inner if text.startswith("inner.") else four,
               dns.rdatatype.AAAA: None if text.startswith("inner.") else six}.get(kind)
    if text.endswith("example.") and address:
        reply.answer.append(dns.rrset.from_text(name, 60, "IN", dns.rdatatype.to_text(kind), address))
    return reply.to_wire()

def names():
    link = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); link.bind((four, 53))
    while True:
        wire, peer = link.recvfrom(4096)
        link.sendto(answer(wire), peer)

def serve(link, said):
    try:
        link.settimeout(5)
        head = b""
        while b"\r\n\r\n" not in head:
            more = link.recv(4096)
            if not more: return
            head += more
        host = [line for line in head.decode().split("\r\n") if line.lower().startswith("host:")][0][5:].strip()
        body = f"{said}{host}".encode()
        link.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
    except OSError: pass
    finally: link.close()

def web(port, context):
    server = socket.create_server(("::", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=64)
    def take(link):
        said = "plain "
        if context:
            try: link = context.wrap_socket(link, server_side=True)
            except OSError: return
            said = "tls "
        serve(link, said)
    while True:
        threading.Thread(target=take, args=(server.accept()[0],), daemon=True).start()

context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER); context.load_cert_chain(folder + "/certificate", folder + "/key")
for work in (names, lambda: web(80, None), lambda: web(443, context)):
    threading.Thread(target=work, daemon=True).start()
print("up", flush=True)
sys.stdin.read()
"""


@contextlib.contextmanager
def web(folder: Path) -> Iterator[Asked]:
    """Serve; tells the names that were asked for."""
    _certificate(folder)
    (folder / "queries").touch()
    argv = ["ip", "netns", "exec", f"atoll-test-{os.getpid()}", sys.executable, "-c", _SERVER]
    server = subprocess.Popen(
        [*argv, str(folder), *PUBLIC, INNER[0]], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
    )
    try:
        assert server.stdout is not None
        assert server.stdout.readline() == b"up\n"
        yield (folder / "queries").read_text
    finally:
        server.kill()
        server.communicate(timeout=10)


def _certificate(folder: Path) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "example")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .sign(key, hashes.SHA256())
    )
    (folder / "certificate").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    (folder / "key").write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
