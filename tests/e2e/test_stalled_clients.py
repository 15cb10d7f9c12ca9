"""Clients that stop reading, of everything that streams: they hold up no other client and grow no memory."""

from __future__ import annotations

import os
import socket
import time
from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from tests import leaks
from tests.client import API, Client
from tests.server import AtollServer, wait_until
from websockets.sync.client import ClientConnection, connect
from websockets.typing import Subprotocol

pytestmark = [pytest.mark.gvisor, pytest.mark.timeout(300)]

STALLED = 10
QUICK_SECONDS = 10.0
"""On a busy machine; a client that waits for a stalled one waits for minutes."""
GROWTH_KB = 20_000 + STALLED * 2_000
"""What is on the way to one client is at most about a megabyte, and once more as a message."""
FILL_SECONDS = 3.0
FORKING_SERVER = r"""use Socket; $SIG{CHLD} = "IGNORE"; socket(S, PF_INET, SOCK_STREAM, 0);
    setsockopt(S, SOL_SOCKET, SO_REUSEADDR, 1); bind(S, sockaddr_in(8070, INADDR_LOOPBACK)) or die; listen(S, 64);
    while (1) { accept(C, S) or next; if (fork) { close C; next } sysread(C, my $h, 65536);
    if ($h =~ m{^GET /quick}) { syswrite(C, "HTTP/1.1 200 Fine\r\nContent-Length: 5\r\n\r\nquick"); exit }
    syswrite(C, "HTTP/1.1 200 Fine\r\n\r\n"); 1 while syswrite(C, "x" x 65536); exit }"""


class Box:
    """One sandbox and its gateway."""

    def __init__(self, server: AtollServer, client: Client) -> None:
        template_id = client.make_template("large", zClouds=4)
        self.server, self.client = server, client
        self.id = client.ready("stalled", template_id=template_id)
        scopes = ["exec", "pty", "file", "signal", "status"]
        session = client.call("POST", "/sandbox/session", {"sandboxId": self.id, "scopes": scopes})
        self.endpoint, self.token = str(session["endpoint"]), str(session["token"])
        self.http = httpx.Client(headers={"Authorization": f"Bearer {self.token}"}, timeout=60)

    def run(self, script: str) -> str:
        result = self.client.execute(self.id, ["sh", "-c", script])
        assert result.exit_code == 0, result
        return result.stdout.decode()

    def start(self, *command: str, **body: Any) -> str:
        answer = self.http.post(f"{self.endpoint}/processes", json={"command": list(command), **body})
        return str(answer.raise_for_status().json()["execution"]["executionId"])

    def kill(self, execution_id: str) -> None:
        body = {"signal": "SIGKILL"}
        self.http.post(f"{self.endpoint}/processes/{execution_id}/signal", json=body).raise_for_status()

    def stream(self, execution_id: str) -> ClientConnection:
        """A client that reads."""
        url = f"{self.endpoint.replace('http', 'ws', 1)}/processes/{execution_id}/stream"
        protocols = [Subprotocol("atoll.stream.v1"), Subprotocol(f"atoll.bearer.{self.token}")]
        return connect(url, subprotocols=protocols, open_timeout=30, compression=None)

    def ask(self, path: str, token: str, *, upgrade: bool) -> socket.socket:
        """A client that sends a request and reads no more than the first bytes of the answer."""
        url = urlsplit(self.server.url)
        connection = socket.socket()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
        connection.settimeout(60)
        connection.connect((url.hostname, url.port))
        head = f"GET {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\n"
        if upgrade:
            key = b64encode(os.urandom(16)).decode()
            head += "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
            head += f"Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Protocol: atoll.stream.v1\r\n"
        connection.sendall(f"{head}\r\n".encode())
        return connection

    @property
    def path(self) -> str:
        """Of the gateway, on the server."""
        return urlsplit(self.endpoint).path


@pytest.fixture(scope="module")
def box(shared_server: AtollServer) -> Iterator[Box]:
    with shared_server.client() as client:
        made = Box(shared_server, client)
        with made.http:
            made.run("truncate -s 500M big; mkdir many; truncate -s 500M many/big")
            yield made


@dataclass(frozen=True, slots=True)
class Kind:
    """Something that streams."""

    path: Callable[[Box, str], str]
    """What the stalled clients ask for; told the execution that floods them."""
    lively: Callable[[Box], None]
    """What another client of the same kind does."""
    flood: tuple[str, ...] = ()
    """A command that says without end, or makes something happen without end."""
    terminal: bool = False
    upgrade: bool = False
    of_the_api: bool = False


def echo(box: Box, **body: Any) -> None:
    """Talk with a program, over a stream of its own."""
    execution_id = box.start("cat", **body)
    said = b""
    with box.stream(execution_id) as stream:
        for number in range(20):
            word = b"word %d" % number
            stream.send(b"\0" + word + b"\n")
            while word not in said:
                frame = stream.recv(timeout=QUICK_SECONDS)
                assert isinstance(frame, bytes)
                said += frame[9:] if frame[0] in {1, 2} else b""
    box.kill(execution_id)


def download(box: Box) -> None:
    answer = box.http.get(f"{box.endpoint}/files?path=big", headers={"Range": "bytes=0-49999999"})
    assert len(answer.content) == 50_000_000


def archive(box: Box) -> None:
    box.run("mkdir -p some; head -c 20000000 /dev/zero > some/file")
    assert len(box.http.get(f"{box.endpoint}/archive?path=some").content) > 20_000_000


def watch(box: Box) -> None:
    box.run("mkdir -p own")
    with box.http.stream("GET", f"{box.endpoint}/files/watch?path=own") as answer:
        lines = answer.iter_lines()
        assert "event: ready" in next(lines)
        box.run("touch own/file; rm own/file")
        while next(lines) != "event: deleted":
            pass


def wait_for_output(box: Box) -> None:
    execution_id = box.client.start(box.id, ["sh", "-c", "sleep 0.3; echo late; sleep 0.3; exit 4"])
    output = box.client.follow(box.id, execution_id, seconds=QUICK_SECONDS)
    assert (bytes(output.stdout), output.exit_code) == (b"late\n", 4)


def reach_port(box: Box) -> None:
    assert box.http.get(f"{box.endpoint}/ports/8070/quick").text == "quick"


def _api_path(box: Box, execution_id: str) -> str:
    account = box.client.access.account_id
    query = f"accountId={account}&sandboxId={box.id}&executionId={execution_id}&from=0&waitSeconds=25"
    return f"{API}/sandbox/command?{query}"


def _stream_path(box: Box, execution_id: str) -> str:
    return f"{box.path}/processes/{execution_id}/stream?from=0"


CHANGES = 'mkdir "noisy"; chdir "noisy"; $n = "n" x 250; while (1) { open F, ">", $n; close F; unlink $n }'
TERMINAL = {"pty": {"rows": 24, "cols": 80}}
KINDS = {
    "stream": Kind(_stream_path, lambda box: echo(box, stdin=True), ("cat", "/dev/zero"), upgrade=True),
    "terminal": Kind(_stream_path, lambda box: echo(box, **TERMINAL), ("yes",), terminal=True, upgrade=True),
    "download": Kind(lambda box, _: f"{box.path}/files?path=big", download),
    "archive": Kind(lambda box, _: f"{box.path}/archive?path=many", archive),
    "watch": Kind(lambda box, _: f"{box.path}/files/watch?path=noisy", watch, ("perl", "-e", CHANGES)),
    "wait": Kind(_api_path, wait_for_output, ("cat", "/dev/zero"), of_the_api=True),
    "port": Kind(lambda box, _: f"{box.path}/ports/8070/endless", reach_port, ("perl", "-e", FORKING_SERVER)),
}


def _processes(box: Box) -> int:
    status = box.http.get(f"{box.endpoint}/status").raise_for_status().json()
    return int(status["processes"])


@pytest.mark.spec("SA-447", "SA-450", "SA-452", "SA-453", "SA-455")
@pytest.mark.parametrize("name", KINDS)
def test_clients_that_stop_reading_stall_no_other_and_grow_nothing(box: Box, name: str) -> None:
    kind = KINDS[name]
    quiet = _processes(box)
    with ExitStack() as stack:
        flood = ""
        if kind.flood:
            flood = box.start(*kind.flood, **(TERMINAL if kind.terminal else {}))
            stack.callback(box.kill, flood)
        if name in {"watch", "port"}:
            wait_until(lambda: _is_up(box, name), seconds=20, what="what is streamed is there")
        kind.lively(box)
        leaks.reset_peak_resident(box.server.pid)
        before = leaks.resources(box.server.pid).resident_kb
        token = box.client.access.token if kind.of_the_api else box.token
        for _ in range(STALLED):
            connection = box.ask(kind.path(box, flood), token, upgrade=kind.upgrade)
            stack.callback(connection.close)
            assert connection.recv(12) in {b"HTTP/1.1 200", b"HTTP/1.1 101"}
        time.sleep(FILL_SECONDS)  # all that may lie between a program and its reader is full by then
        for _ in range(3):
            began = time.monotonic()
            kind.lively(box)
            assert time.monotonic() - began < QUICK_SECONDS, f"{name} waits for clients that do not read"
        assert box.run("echo on") == "on\n"
        grown = leaks.peak_resident_kb(box.server.pid) - before
        print(f"{name}: {grown} KB")
        assert grown < GROWTH_KB, f"{grown} KB for {STALLED} clients"
    wait_until(lambda: _processes(box) <= quiet, seconds=30, what="what served them has ended")


def _is_up(box: Box, name: str) -> bool:
    if name == "watch":
        return box.http.get(f"{box.endpoint}/files/stat?path=noisy").is_success
    return box.http.get(f"{box.endpoint}/ports/8070/quick").is_success
