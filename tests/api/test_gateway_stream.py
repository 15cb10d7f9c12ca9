"""The WebSocket of a process, over a real socket."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from tests.gateway_client import Received, Stream, stream
from tests.plane import Api, Plane, expect, until
from tests.served import served
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from atoll.domain.gateway import SESSION_SECONDS

EVERYTHING = ["exec", "file", "pty", "signal", "status"]
CAT = {"command": ["cat"], "stdin": True}


class Session:
    """A gateway session on a served control plane."""

    def __init__(self, plane: Plane, api: Api, endpoint: str, token: str, sandbox_id: str) -> None:
        self.plane, self.api, self.endpoint, self.token, self.sandbox_id = plane, api, endpoint, token, sandbox_id

    async def start(self, **body: Any) -> str:
        """Start a process; its execution id."""
        headers = {"Authorization": f"Bearer {self.token}"}
        answer = await self.api.send("POST", f"{self.endpoint}/processes", json=body, headers=headers)
        return str(expect(answer, 201)["execution"]["executionId"])

    async def with_scopes(self, *scopes: str) -> Session:
        """Another session on the same sandbox."""
        answer = await self.api.post("/sandbox/session", sandboxId=self.sandbox_id, scopes=list(scopes))
        token = expect(answer, 200)["token"]
        return Session(self.plane, self.api, self.endpoint, token, self.sandbox_id)

    @asynccontextmanager
    async def stream(
        self, execution_id: str, received: Received | None = None, **options: Any
    ) -> AsyncIterator[Stream]:
        """Connect to a process."""
        async with stream(self.endpoint, self.token, execution_id, received, **options) as connected:
            yield connected

    @asynccontextmanager
    async def running(self, **body: Any) -> AsyncIterator[Stream]:
        """Start a process and connect."""
        async with self.stream(await self.start(**body)) as connected:
            yield connected


@asynccontextmanager
async def session(plane: Plane, **sandbox: Any) -> AsyncIterator[Session]:
    """Serve the control plane and open a session with every scope."""
    async with served(plane) as api:
        sandbox_id = (await api.ready_sandbox(**sandbox))["sandboxId"]
        opened = expect(await api.post("/sandbox/session", sandboxId=sandbox_id, scopes=EVERYTHING), 200)
        yield Session(plane, api, opened["endpoint"], opened["token"], sandbox_id)


async def handshake(url: str, token: str | None) -> tuple[int, dict[str, Any]]:
    """What a refused handshake answers."""
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    with pytest.raises(InvalidStatus) as refusal:
        async with connect(url.replace("http", "ws", 1), additional_headers=headers):
            pass
    return refusal.value.response.status_code, json.loads(refusal.value.response.body or b"{}")


@pytest.mark.both_databases
@pytest.mark.spec("SA-355", "SA-447")
async def test_a_stream_has_every_event_of_a_process_in_its_order(plane: Plane) -> None:
    async with (
        session(plane) as it,
        it.running(command=["sh", "-c", "echo out; sleep 0.1; echo err >&2; sleep 0.1; exit 7"]) as s,
    ):
        assert await s.drain() == 1000
        got = s.received
        assert (bytes(got.stdout), bytes(got.stderr)) == (b"out\n", b"err\n")
        assert got.sequence == [0, 1, 2, 3]
        first, last = got.events
        assert (first["type"], first["seq"]) == ("init", 0)
        assert first["init"]["processId"] > 1
        assert last == {"type": "exit", "seq": 3, "exit": {"exitCode": 7}}
        assert (await it.api.sandbox(it.sandbox_id))["status"] == "READY"


@pytest.mark.spec("SA-447")
async def test_input_comes_out_as_it_went_in_and_ends(plane: Plane) -> None:
    data = bytes(range(256)) * 2_000
    async with session(plane) as it, it.running(**CAT) as s:
        await s.stdin(data)
        await s.stdin(b"the end")
        await s.stdin(b"")
        assert await s.drain() == 1000
        assert s.received.stdout == data + b"the end"


@pytest.mark.spec("SA-357", "SA-447")
async def test_a_terminal_echoes_and_changes_its_size_and_takes_an_interrupt(plane: Plane) -> None:
    async with session(plane) as it, it.running(command=["sh", "-i"], pty={"rows": 20, "cols": 70}) as s:
        await s.stdin(b"stty size\n")
        await s.until(b"20 70")
        await s.resize(44, 123)
        await s.stdin(b"stty size\n")
        await s.until(b"44 123")
        # Not the echo of the line: until the program is in the foreground, an interrupt is the shell's.
        await s.stdin(b"sh -c 'echo be''gun; exec sleep 100'\n")
        await s.until(b"begun")
        await s.stdin(b"\x03")
        await s.stdin(b"echo $((6*7))\nexit 5\n")
        assert await s.drain() == 1000
        assert b"42" in s.received.stdout
        assert s.received.exit == {"exitCode": 5}


@pytest.mark.spec("SA-356", "SA-447")
async def test_a_signal_reaches_the_process(plane: Plane) -> None:
    async with session(plane) as it, it.running(command=["sleep", "100"]) as s:
        await s.signal("SIGTERM")
        await s.drain()
        assert s.received.exit == {"exitCode": 143, "reason": "canceled"}


async def test_a_signal_passes_input_that_nobody_reads(plane: Plane) -> None:
    async with session(plane) as it, it.running(command=["sleep", "100"], stdin=True) as s:
        for _ in range(5):
            await s.stdin(b"x" * 60_000)
        await s.signal("SIGTERM")
        await s.drain()
        assert s.received.exit == {"exitCode": 143, "reason": "canceled"}


@pytest.mark.spec("SA-447", "SA-448")
async def test_a_stream_goes_on_where_an_earlier_one_was_cut_off(plane: Plane) -> None:
    lines = "i=0; while [ $i -lt 300 ]; do i=$((i+1)); echo $i; [ $((i%20)) = 0 ] && sleep 0.02; done"
    async with session(plane) as it:
        execution_id = await it.start(command=["sh", "-c", lines])
        received = Received()
        connections = 0
        while not received.exit:
            connections += 1
            async with it.stream(execution_id, received) as s:
                for _ in range(3):
                    if not received.exit:
                        await s.step()
                s.socket.transport.abort()
        assert connections > 2
        assert bytes(received.stdout).split() == [str(i).encode() for i in range(1, 301)]
        assert received.sequence == list(range(len(received.sequence)))


@pytest.mark.spec("SA-447")
async def test_output_that_was_dropped_is_told_of(plane: Plane) -> None:
    async with session(plane) as it:
        execution_id = await it.start(command=["sh", "-c", "head -c 6000000 /dev/zero; echo; echo end"])

        async def ended() -> bool:
            command = await it.api.command(it.sandbox_id, execution_id, **{"from": 1_000_000})
            return bool(command["state"] == "exited")

        await until(ended)
        async with it.stream(execution_id) as s:
            await s.drain()
        truncated = s.received.events[0]
        assert truncated["type"] == "truncated"
        assert truncated["truncated"]["droppedBytes"] + len(s.received.stdout) == 6_000_005
        assert s.received.stdout.endswith(b"\nend\n")
        assert s.received.sequence == list(range(truncated["seq"], truncated["seq"] + len(s.received.sequence)))


@pytest.mark.spec("SA-447")
async def test_a_client_that_acknowledges_gets_only_so_much_beyond_it(plane: Plane) -> None:
    async with (
        session(plane) as it,
        it.running(command=["sh", "-c", "read x; head -c 4000000 /dev/zero"], stdin=True) as s,
    ):
        await s.step()
        await s.acknowledge(0)
        await s.stdin(b"go\n")
        with pytest.raises(TimeoutError):
            while True:
                await s.step(seconds=1)
        held = len(s.received.stdout)
        assert 1_900_000 < held < 2_200_000
        await s.acknowledge(s.received.next_seq - 1)
        assert await s.drain(acknowledge=True) == 1000
        assert len(s.received.stdout) == 4_000_000


async def test_a_client_that_stops_reading_stalls_no_other(plane: Plane) -> None:
    loud = ["sh", "-c", "exec cat /dev/zero"]
    async with session(plane) as it, it.running(command=loud) as stalled, it.running(**CAT) as lively:
        await stalled.step()  # and no more
        same = await it.start(command=loud)
        async with it.stream(same, max_queue=1) as stalled_too:
            await stalled_too.step()
            for number in range(50):
                await lively.stdin(b"%d\n" % number)
                await lively.until(b"%d\n" % number, seconds=2)
            assert (await it.api.execute(it.sandbox_id, "true"))["exitCode"] == 0
            for each in (stalled, stalled_too):
                each.socket.transport.abort()  # a closing handshake would have to wait for all that was not read


@pytest.mark.spec("SA-458")
async def test_the_token_may_be_a_subprotocol(plane: Plane) -> None:
    async with session(plane) as it:
        execution_id = await it.start(command=["echo", "x"])
        async with it.stream(execution_id, in_subprotocol=True) as s:
            assert await s.drain() == 1000
            assert bytes(s.received.stdout) == b"x\n"
            assert it.token not in str(s.socket.response.headers)


@pytest.mark.spec("SA-354", "SA-359", "SA-396")
async def test_a_handshake_is_refused_in_the_one_shape(plane: Plane) -> None:
    async with session(plane) as it:
        url = f"{it.endpoint}/processes/{await it.start(**CAT)}/stream"
        assert (await handshake(url, None))[0] == 401
        status, body = await handshake(url, "atollgw_unknown")
        assert (status, body["success"], body["errorCode"]) == (401, False, "UNAUTHENTICATED")
        weak = await it.with_scopes("file", "pty", "signal", "status")
        status, body = await handshake(url, weak.token)
        assert (status, body["errorCode"]) == (403, "INSUFFICIENT_SCOPE")
        status, body = await handshake(f"{it.endpoint}/processes/x/stream", it.token)
        assert (status, body["errorCode"]) == (404, "EXECUTION_NOT_FOUND")
        status, body = await handshake(f"{url}?from=x", it.token)
        assert (status, "from" in body["error"]) == (400, True)
        other = await it.api.ready_sandbox()
        status, body = await handshake(url.replace(it.sandbox_id, other["sandboxId"]), it.token)
        assert (status, body["errorCode"]) == (403, "NAMESPACE_DENIED")
        plane.clock.pass_seconds(SESSION_SECONDS + 1)
        status, body = await handshake(url, it.token)
        assert (status, body["errorCode"]) == (401, "TOKEN_EXPIRED")


async def test_a_paused_sandbox_is_not_streamed_and_not_resumed(plane: Plane) -> None:
    async with session(plane, persistenceMode="SNAPSHOT") as it:
        execution_id = await it.start(command=["sleep", "100"])
        async with it.stream(execution_id) as s:
            await s.step()
            expect(await it.api.post("/sandbox/pause", sandboxId=it.sandbox_id), 200)
            await s.drain()
            assert s.received.exit is None or s.received.exit["reason"] == "agent_shutdown"
        status, body = await handshake(f"{it.endpoint}/processes/{execution_id}/stream", it.token)
        assert (status, body["errorCode"]) == (409, "SANDBOX_SUSPENDED")


@pytest.mark.spec("SA-359", "SA-449")
async def test_frames_need_the_scope_of_what_they_ask_for(plane: Plane) -> None:
    async with session(plane) as it:
        execution_id = await it.start(command=["cat"], pty={"rows": 9, "cols": 9})
        weak = await it.with_scopes("exec")
        async with weak.stream(execution_id) as s:
            await s.signal("SIGKILL")
            await s.resize(10, 10)
            await s.stdin(b"still here\n")
            await s.until(b"still here")
            assert [error["errorCode"] for error in s.received.errors] == ["INSUFFICIENT_SCOPE"] * 2


async def test_a_refused_frame_is_told_of_and_the_stream_goes_on(plane: Plane) -> None:
    async with session(plane) as it, it.running(**CAT) as s:
        await s.resize(10, 10)
        await s.signal("SIGSEGV")
        await s.stdin(b"still here\n")
        await s.until(b"still here")
        assert [error["errorCode"] for error in s.received.errors] == ["INVALID_REQUEST"] * 2
    async with session(plane) as it, it.running(command=["sleep", "1"]) as s:
        await s.stdin(b"x")
        await s.stdin(b"y")
        assert await s.drain() == 1000
        assert [error["errorCode"] for error in s.received.errors] == ["INVALID_REQUEST"]


@pytest.mark.parametrize(
    "frame", [b"", b"\x01x", b"\x09", b"\x04{}", b'\x04{"rows":0,"cols":1}', b"\x05[]", b"\x06123", "text"]
)
async def test_a_malformed_frame_ends_the_stream_and_not_the_process(plane: Plane, frame: bytes | str) -> None:
    async with session(plane) as it:
        execution_id = await it.start(**CAT)
        async with it.stream(execution_id) as s:
            await s.socket.send(frame)
            assert await s.drain() == 4400
        assert (await it.api.command(it.sandbox_id, execution_id))["state"] == "running"


@pytest.mark.spec("SA-354", "SA-457")
@pytest.mark.parametrize("how", ["expiry", "membership", "scope"])
async def test_an_open_stream_ends_with_its_token(plane: Plane, how: str) -> None:
    async with session(plane) as it:
        execution_id = await it.start(**CAT)
        async with it.stream(execution_id) as s:
            await s.step()
            if how == "expiry":
                plane.clock.pass_seconds(SESSION_SECONDS + 1)
            elif how == "membership":
                await plane.leave_account(it.api.ids.user)
            else:
                await plane.sql("UPDATE tokens SET scopes = '[\"quave:read\"]'")
            assert await s.drain(seconds=15) == (4403 if how == "scope" else 4401)


async def test_a_stream_ends_with_its_sandbox(plane: Plane) -> None:
    async with session(plane) as it, it.running(command=["sleep", "100"]) as s:
        await s.step()
        expect(await it.api.post("/sandbox/terminate", sandboxId=it.sandbox_id), 200)
        await s.drain(seconds=15)
        assert s.received.exit is None or s.received.exit["reason"] == "agent_shutdown"


async def test_two_streams_of_one_process_are_served_alike(plane: Plane) -> None:
    async with session(plane) as it, it.running(**CAT) as first:
        execution_id = (
            await it.api.send("GET", f"{it.endpoint}/processes", headers={"Authorization": it.token})
        ).json()["processes"][0]["executionId"]
        async with it.stream(execution_id) as second:
            await first.stdin(b"hello\n")
            await first.until(b"hello")
            await second.until(b"hello")
