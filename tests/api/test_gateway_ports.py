"""Ports inside a sandbox over its gateway: HTTP and WebSockets to real programs, hostile ones among them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
import websockets
from tests.api.test_gateway_files import Files, opened
from tests.plane import Api, expect, open_plane, refused
from tests.served import served
from websockets.asyncio.client import connect

ECHO = r"""
import hashlib, json, time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def chunks(self):
        if "Content-Length" in self.headers:
            left = int(self.headers["Content-Length"])
            while left:
                data = self.rfile.read(min(left, 65536))
                left -= len(data)
                yield data
        elif self.headers.get("Transfer-Encoding") == "chunked":
            while size := int(self.rfile.readline(), 16):
                yield self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()

    def answer(self):
        if self.path.startswith("/slow"):
            self.send_response(200)
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            for word in (b"one", b"two", b"three"):
                self.wfile.write(b"%x\r\n%s\r\n" % (len(word), word))
                time.sleep(0.1)
            self.wfile.write(b"0\r\n\r\n")
            return
        if self.path.startswith("/break"):
            self.send_response(200)
            self.send_header("Content-Length", "1000")
            self.end_headers()
            self.wfile.write(b"half")
            self.close_connection = True
            return
        digest, size = hashlib.sha256(), 0
        for data in self.chunks():
            digest.update(data)
            size += len(data)
        body = json.dumps({"method": self.command, "path": self.path, "headers": dict(self.headers.items()),
                           "size": size, "sha256": digest.hexdigest()}).encode()
        self.send_response(418)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Set-Cookie", "session=stolen; Path=/")
        self.send_header("X-Own", "kept")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    do_GET = do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = do_OPTIONS = answer

    def log_message(self, *words):
        pass

ThreadingHTTPServer(("127.0.0.1", 8000), Handler).serve_forever()
"""

HANDSHAKE = r"""
import base64, hashlib, socket, struct, threading, time

def shake_hands(peer, lines=b""):
    # The head of what was asked; nothing for a connection that asks for nothing.
    head = b""
    while b"\r\n\r\n" not in head and (part := peer.recv(65536)):
        head += part
    if head:
        key = [l.split(b": ")[1] for l in head.split(b"\r\n") if l.lower().startswith(b"sec-websocket-key")][0]
        accept = base64.b64encode(hashlib.sha1(key + b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11").digest())
        peer.sendall(b"HTTP/1.1 101 S\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n" + lines
                     + b"Sec-WebSocket-Accept: " + accept + b"\r\n\r\n")
    return head

"""

SOCKETS = (
    HANDSHAKE
    + r"""
listener = socket.create_server(("::1", 8001), family=socket.AF_INET6)
while True:
    peer, _ = listener.accept()
    head = shake_hands(peer, b"Sec-WebSocket-Protocol: chat\r\n")
    if not head:
        continue
    said = head if b"atoll" not in head.lower().split(b"x-forwarded")[0] else b"leaked " + head
    said = b"clean" if b"Bearer" not in said and b"bearer" not in said and b"leaked" not in said else said
    peer.sendall(b"\x81" + bytes([len(said)]) + said if len(said) < 126 else b"\x81\x05wrong")
    # What comes is masked and short here; it is sent back in two fragments.
    def exactly(count):
        data = b""
        while len(data) < count:
            part = peer.recv(count - len(data))
            if not part:
                raise EOFError
            data += part
        return data
    try:
        while True:
            first, second = exactly(2)
            length = second & 127
            if length == 126:
                length, = struct.unpack(">H", exactly(2))
            elif length == 127:
                length, = struct.unpack(">Q", exactly(8))
            mask = exactly(4)
            data = bytes(b ^ mask[i % 4] for i, b in enumerate(exactly(length)))
            if first & 15 == 8:
                peer.sendall(b"\x88\x02\x03\xe8")
                break
            half = data[:100]
            peer.sendall(bytes([first & 15, len(half)]) + half)
            rest = data[100:]
            peer.sendall(b"\x80\x7f" + struct.pack(">Q", len(rest)) + rest)
    except (EOFError, OSError):
        pass
    peer.close()
"""
)

PINGS = (
    HANDSHAKE
    + r"""
# Takes one long message slowly and asks for pongs meanwhile; says what frames came.
listener = socket.create_server(("127.0.0.1", 8003))
while True:
    peer, _ = listener.accept()
    if not shake_hands(peer):
        continue
    stream = peer.makefile("rb")
    pongs = 0
    def ping():
        for _ in range(40):
            peer.sendall(b"\x89\x7d" + b"p" * 125)
            time.sleep(0.02)
    pinging = threading.Thread(target=ping)
    pinging.start()
    while True:
        time.sleep(0.4)
        first, second = stream.read(2)
        length = second & 127
        if length == 126:
            length, = struct.unpack(">H", stream.read(2))
        elif length == 127:
            length, = struct.unpack(">Q", stream.read(8))
        mask = stream.read(4)
        data = stream.read(length)
        plain = bytes(b ^ mask[i % 4] for i, b in enumerate(data[:125]))
        if (first, length, plain) == (0x8A, 125, b"p" * 125):
            pongs += 1
            continue
        pinging.join()
        said = b"whole" if (first, length, plain) == (0x82, 4_000_000, b"m" * 125) else b"mixed"
        peer.sendall(b"\x81\x05" + said)
        peer.close()
        break
"""
)

HOSTILE = r"""
import socket, time
listener = socket.create_server(("127.0.0.1", 8002))
while True:
    peer, _ = listener.accept()
    try:
        path = peer.recv(65536).split(b" ")[1].rsplit(b"/", 1)[1]
        if path == b"endless-head":
            peer.sendall(b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 100000)
        elif path == b"noise":
            peer.sendall(bytes(range(256)) * 100)
        elif path == b"upgrade":
            peer.sendall(b"HTTP/1.1 101 S\r\nUpgrade: evil\r\nConnection: upgrade\r\n\r\n")
        elif path == b"split":
            peer.sendall(b"HTTP/1.1 200 OK\r\nX-Bad: a\rSet-Cookie: evil=1\r\nContent-Length: 0\r\n\r\n")
        elif path == b"two":
            peer.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab")
    except OSError:
        pass
    peer.close()
"""


async def listening(files: Files, program: str, port: int, host: str = "127.0.0.1") -> None:
    path = f"server-{port}.py"
    await files.put(path, program.encode())
    command = {"command": ["python3", path]}
    expect(await files.call("POST", "/processes", json=command), 201)
    probe = f"import socket; socket.create_connection(('{host}', {port})).close()"
    await files.run(f'for i in $(seq 200); do python3 -c "{probe}" 2>/dev/null && exit 0; sleep 0.05; done; exit 1')


@pytest.fixture
async def api() -> AsyncIterator[Api]:
    async with open_plane() as plane, served(plane) as made:
        yield made


@pytest.fixture
async def files(api: Api) -> Files:
    return await opened(api)


@pytest.mark.spec("SA-455")
async def test_http_reaches_a_port_with_everything_but_the_token(files: Files) -> None:
    await listening(files, ECHO, 8000)
    sent = {"Cookie": "console=secret", "X-Own": "passed", "Connection": "X-Hop", "X-Hop": "1"}
    answer = await files.call("GET", "/ports/8000/some/p%20ath%2F?q=1&q=%ff", headers=sent)
    assert answer.status_code == 418
    seen = answer.json()
    headers = {name.lower(): value for name, value in seen["headers"].items()}
    assert (seen["method"], seen["path"]) == ("GET", "/some/p%20ath%2F?q=1&q=%ff")
    assert headers["x-own"] == "passed" and headers["host"] == "localhost:8000"
    assert headers["x-forwarded-prefix"] == f"{files.base}/ports/8000"
    assert not {"authorization", "cookie", "x-hop"} & set(headers)
    assert files.headers["Authorization"].split()[1] not in answer.text
    assert answer.headers["x-own"] == "kept" and "set-cookie" not in answer.headers
    assert answer.headers["content-security-policy"].startswith("sandbox")
    for method in ("POST", "PUT", "PATCH", "DELETE", "OPTIONS"):
        assert (await files.call(method, "/ports/8000/", content=b"body")).json()["size"] == 4
    assert (await files.call("HEAD", "/ports/8000/")).status_code == 418


@pytest.mark.spec("SA-455")
async def test_bodies_are_streamed_both_ways(files: Files) -> None:
    await listening(files, ECHO, 8000)

    async def body() -> AsyncIterator[bytes]:
        for _ in range(50):
            yield b"x" * 100_000

    seen = (await files.call("POST", "/ports/8000/", content=body())).json()
    assert seen["size"] == 5_000_000
    url = files.base + "/ports/8000/slow"
    async with files.client.stream("GET", url, headers=files.headers) as answer:
        assert [part async for part in answer.aiter_raw()] == [b"one", b"two", b"three"]
    with pytest.raises(httpx.RemoteProtocolError):
        await files.call("GET", "/ports/8000/break")


@pytest.mark.spec("SA-455")
async def test_what_does_not_answer_as_http_does_is_refused(files: Files) -> None:
    await listening(files, HOSTILE, 8002)
    for path in ("endless-head", "noise", "upgrade", "split", "two", "nothing"):
        async with asyncio.timeout(20):
            assert refused(await files.call("GET", f"/ports/8002/{path}"), 502)["errorCode"] == "UNKNOWN", path
    body = refused(await files.call("GET", "/ports/9/"), 502, "port 9")
    assert body["data"]["reason"] == "port_unreachable"
    refused(await files.call("GET", "/ports/0/"), 400, "port")
    refused(await files.call("GET", "/ports/65536/"), 400, "port")


@pytest.mark.spec("SA-359", "SA-455")
async def test_a_port_needs_the_scope_exec(api: Api) -> None:
    files = await opened(api, "file", "status")
    refused(await files.call("GET", "/ports/8000/"), 403)


@pytest.mark.spec("SA-455", "SA-458")
async def test_a_websocket_reaches_a_port(api: Api, files: Files) -> None:
    await listening(files, SOCKETS, 8001, "::1")
    url = str(files.client.base_url).replace("http", "ws") + files.base + "/ports/8001/socket?x=1"
    token = files.headers["Authorization"].split()[1]
    offered: list[Any] = ["chat", f"atoll.bearer.{token}"]
    async with connect(url, subprotocols=offered, max_size=None) as socket:
        assert socket.subprotocol == "chat"
        assert await socket.recv() == "clean"
        for message in ("hello ☃", "x" * 1000, b"\0\xff" * 100_000):
            await socket.send(message)
            assert await socket.recv() == message
    async with connect(url, subprotocols=offered, max_size=None) as socket:
        await socket.recv()
        await socket.send(b"x" * 5_000_000)
        with pytest.raises(websockets.ConnectionClosed):
            await socket.recv()
    with pytest.raises(websockets.InvalidStatus) as caught:
        await connect(url.replace("8001", "9"), subprotocols=offered)
    assert caught.value.response.status_code == 502
    body = json.loads(caught.value.response.body or b"")
    assert body["errorCode"] == "UNKNOWN"


@pytest.mark.spec("SA-455")
async def test_an_answer_to_a_ping_does_not_come_into_the_middle_of_a_message(api: Api, files: Files) -> None:
    await listening(files, PINGS, 8003)
    url = str(files.client.base_url).replace("http", "ws") + files.base + "/ports/8003/"
    async with asyncio.timeout(60), connect(url, additional_headers=files.headers, max_size=None) as socket:
        await socket.send(b"m" * 4_000_000)
        assert await socket.recv() == "whole"
