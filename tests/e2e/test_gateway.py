"""Processes and terminals through the gateway of a real server, in real sandboxes."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from tests.client import Client, Json
from tests.gateway_client import Received, Stream, stream
from tests.server import AtollServer
from websockets.exceptions import ConnectionClosed, InvalidStatus

pytestmark = pytest.mark.gvisor

LINES = 400
TICKER = ["sh", "-c", f"i=0; while [ $i -lt {LINES} ]; do i=$((i+1)); echo line $i; sleep 0.01; done; exit 5"]
TERMINAL = {"pty": {"rows": 24, "cols": 80}, "envVars": {"TERM": "xterm"}}


@pytest.fixture(scope="module")
def server(shared_server: AtollServer) -> AtollServer:
    """One server for the tests of this file."""
    return shared_server


@pytest.fixture(scope="module")
def sandbox_id(server: AtollServer) -> str:
    """One sandbox for them."""
    return server.client().ready("gateway")


class Gateway:
    """A session, on whatever address the server has by now."""

    def __init__(self, server: AtollServer, client: Client, sandbox_id: str) -> None:
        scopes = ["exec", "pty", "signal", "status"]
        session = client.call("POST", "/sandbox/session", {"sandboxId": sandbox_id, "scopes": scopes})
        self._server, self._path, self.token = server, session["endpoint"].partition("/gateway/")[2], session["token"]

    @property
    def endpoint(self) -> str:
        """Where to call."""
        return f"{self._server.url}/gateway/{self._path}"

    async def call(self, method: str, path: str, **options: Any) -> Json:
        """A call that succeeds."""
        async with httpx.AsyncClient(headers={"Authorization": f"Bearer {self.token}"}, timeout=30) as caller:
            answer = await caller.request(method, self.endpoint + path, **options)
        assert answer.is_success, answer.text
        value: Json = answer.json()
        return value

    async def start(self, *command: str, **body: Any) -> str:
        """Start a process; its execution id."""
        answer = await self.call("POST", "/processes", json={"command": list(command), **body})
        return str(answer["execution"]["executionId"])

    @asynccontextmanager
    async def stream(self, execution_id: str, taken: Received | None = None) -> AsyncIterator[Stream]:
        """Connect to a process."""
        async with stream(self.endpoint, self.token, execution_id, taken) as connected:
            yield connected

    @asynccontextmanager
    async def terminal(self, *command: str) -> AsyncIterator[Stream]:
        """Start a program on a terminal and connect."""
        async with self.stream(await self.start(*command, **TERMINAL)) as connected:
            yield connected


@pytest.fixture
def gateway(server: AtollServer, sandbox_id: str) -> Gateway:
    """A session with every scope but that of files."""
    return Gateway(server, server.client(), sandbox_id)


@pytest.mark.spec("SA-448", "SA-447")
async def test_a_stream_loses_and_repeats_nothing_when_the_server_is_killed_and_started_again(
    server: AtollServer, gateway: Gateway
) -> None:
    execution_id = await gateway.start(*TICKER)
    received = Received()
    killed = 0
    deadline = time.monotonic() + 60
    while received.exit is None:
        assert time.monotonic() < deadline
        try:
            async with gateway.stream(execution_id, received) as s:
                while received.exit is None:
                    await s.step()
                    if killed < 2 and len(received.stdout) > 600 * (killed + 1):
                        killed += 1
                        await asyncio.to_thread(server.restart)
        except (ConnectionClosed, InvalidStatus, OSError):
            continue
    assert killed == 2
    assert received.stdout.decode() == "".join(f"line {number}\n" for number in range(1, LINES + 1))
    assert received.sequence == list(range(len(received.sequence)))
    assert received.exit == {"exitCode": 5}


@pytest.mark.spec("SA-357", "SA-445", "SA-447")
async def test_a_shell_on_a_terminal_can_be_worked_with(gateway: Gateway) -> None:
    async with gateway.terminal("bash", "--norc", "-i") as s:
        await s.stdin(b"tty; stty size\n")
        await s.until(b"24 80")
        assert b"/dev/pts/" in s.received.stdout
        await s.resize(50, 132)
        await s.stdin(b"stty size\n")
        await s.until(b"50 132")
        await s.stdin(b"echo cat$((1+1)); cat\n")
        await s.until(b"cat2")
        await s.stdin(b"typed\n")
        await s.until(b"typed\r\ntyped")
        await s.stdin(b"\x03")
        await s.stdin(b"echo after=$((40+2))\n")
        await s.until(b"after=42")
        # The job itself says that it runs: a key typed before it is in the foreground would be the shell's.
        await s.stdin(b"sh -c 'echo sleep$((1+1)); exec sleep 100'\n")
        await s.until(b"sleep2")
        await s.stdin(b"\x1a")
        await s.until(b"Stopped")
        await s.stdin(b"kill -9 %1; wait; exit 3\nexit 3\n")
        await s.drain()
        assert s.received.exit is not None
        assert s.received.exit["exitCode"] == 3


@pytest.mark.spec("SA-357")
async def test_top_draws_and_draws_again_after_a_resize_and_quits(gateway: Gateway) -> None:
    async with gateway.terminal("top", "-d", "0.5") as s:
        await s.until(b"PID")
        await s.resize(30, 100)
        seen = len(s.received.stdout)
        async with asyncio.timeout(20):
            while b"PID" not in s.received.stdout[seen:]:
                await s.step()
        await s.stdin(b"q")
        await s.drain()
        assert s.received.exit == {"exitCode": 0}


@pytest.mark.spec("SA-357")
async def test_vim_edits_a_file(gateway: Gateway) -> None:
    editor = (await gateway.start("sh", "-c", "command -v vim || command -v vi"),)
    async with gateway.stream(editor[0]) as s:
        await s.drain()
    program = s.received.stdout.decode().strip()
    if not program:
        pytest.skip("the image has no vi")
    async with gateway.terminal(program, "/tmp/edited") as s:
        await s.until(b"edited")
        await s.stdin(b"ihello from vi")
        await s.until(b"hello from vi")
        await s.stdin(b"\x1b:wq\r")
        await s.drain()
        assert s.received.exit == {"exitCode": 0}
    async with gateway.stream(await gateway.start("cat", "/tmp/edited")) as s:
        await s.drain()
        assert bytes(s.received.stdout) == b"hello from vi\n"


@pytest.mark.spec("SA-356", "SA-447")
async def test_a_signal_ends_a_whole_tree(gateway: Gateway) -> None:
    tree = "cp /bin/sleep /tmp/snooze; (setsid /tmp/snooze 1000 &) ; /tmp/snooze 1000 & echo $!; wait"
    async with gateway.stream(await gateway.start("sh", "-c", tree)) as s:
        await s.until(b"\n")
        await s.signal("SIGTERM")
        await s.drain()
        assert s.received.exit == {"exitCode": 143, "reason": "canceled"}
    async with gateway.stream(await gateway.start("sh", "-c", "cat /proc/[0-9]*/comm")) as s:
        await s.drain()
        assert b"agent" in s.received.stdout
        assert b"snooze" not in s.received.stdout


@pytest.mark.spec("SA-444", "SA-449")
async def test_a_megabyte_of_input_comes_out_of_a_pipe(gateway: Gateway) -> None:
    data = bytes(range(256)) * 4_096
    execution_id = await gateway.start("sh", "-c", "sleep 1; cat | md5sum", stdin=True)
    path = f"/processes/{execution_id}/stdin"
    assert (await gateway.call("POST", path, content=data))["writtenBytes"] == len(data)
    await gateway.call("POST", path, content=b"", params={"eof": "true"})
    async with gateway.stream(execution_id) as s:
        await s.drain()
    async with gateway.stream(await gateway.start("python3", "-c", _MD5)) as expected:
        await expected.drain()
    assert s.received.stdout.split()[0] == expected.received.stdout.strip()


@pytest.mark.spec("SA-447")
async def test_a_reader_that_stops_is_told_what_it_missed_and_stalls_no_other(gateway: Gateway) -> None:
    loud = await gateway.start("sh", "-c", "head -c 20000000 /dev/zero; echo; echo the end")
    async with gateway.stream(loud) as stalled:
        await stalled.step()
        async with gateway.stream(await gateway.start("cat", stdin=True)) as lively:
            for number in range(20):
                await lively.stdin(b"%d\n" % number)
                await lively.until(b"%d\n" % number, seconds=5)
        for _ in range(30):
            last = await gateway.call("GET", f"/processes/{loud}", params={"from": 10**9, "waitSeconds": 5})
            if last["command"]["state"] == "exited":
                break
        await stalled.drain(seconds=60)
    got = stalled.received
    dropped = sum(event["truncated"]["droppedBytes"] for event in got.events if event["type"] == "truncated")
    assert dropped > 0
    assert dropped + len(got.stdout) == 20_000_009
    assert got.stdout.endswith(b"\nthe end\n")
    assert got.sequence == sorted(set(got.sequence))


@pytest.mark.spec("SA-454")
async def test_the_status_counts_what_runs(gateway: Gateway) -> None:
    await gateway.start("sleep", "1000")
    status = await gateway.call("GET", "/status")
    assert status["status"] == "BUSY"
    assert status["runningCommands"] >= 1
    assert status["processes"] >= 2
    assert status["memoryBytes"] > 1_000_000
    listed = (await gateway.call("GET", "/processes"))["processes"]
    assert re.fullmatch(r"[0-9a-f-]{36}", listed[0]["executionId"])
    for process in listed:
        if process["state"] == "running":
            await gateway.call("POST", f"/processes/{process['executionId']}/signal", json={"signal": "SIGKILL"})


_MD5 = "import hashlib; print(hashlib.md5(bytes(range(256)) * 4096).hexdigest())"
