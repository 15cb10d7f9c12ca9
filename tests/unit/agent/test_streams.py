"""A stream to an agent that may be hostile: nothing beyond what was granted, nothing after the end."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Iterator

import pytest

from atoll.agent import wire
from atoll.agent.files import FileWorker
from atoll.agent.protocol import MAX_STREAMS, AgentProtocol, StreamFrame, TooManyPendingError
from atoll.agent.streams import STREAM_CREDIT_BYTES, AgentStream
from atoll.agent.wire import Answer, Request, WireError
from atoll.domain.errors import ErrorCode, RuntimeFailure

HELLO = struct.pack(">IHIQB", 1, wire.PROTOCOL_VERSION, 0, 5, 1)


def frame(kind: int, stream_id: int, payload: bytes = b"") -> bytes:
    return struct.pack(">IBI", len(payload) + 5, kind, stream_id) + payload


def feed(core: AgentProtocol, data: bytes) -> Iterator[object]:
    core.free()[: len(data)] = data
    return core.received(len(data))


def greeted() -> AgentProtocol:
    core = AgentProtocol()
    list(feed(core, frame(Answer.HELLO, 0, HELLO)))
    return core


def test_an_agent_that_sends_more_than_was_granted_is_cut_off() -> None:
    core = greeted()
    stream_id, _ = core.open_stream(b"", credit=10)
    assert list(feed(core, frame(Answer.STREAM_DATA, stream_id, b"x" * 10))) == [
        StreamFrame(stream_id, Answer.STREAM_DATA, b"x" * 10)
    ]
    core.grant(stream_id, 1)
    list(feed(core, frame(Answer.STREAM_DATA, stream_id, b"x")))
    with pytest.raises(WireError):
        list(feed(core, frame(Answer.STREAM_DATA, stream_id, b"x")))


@pytest.mark.parametrize("kind", [Answer.STATE, Answer.OK, Answer.OUTPUT, Answer.STARTED, 0x7F])
def test_a_frame_that_belongs_to_no_stream_ends_the_connection(kind: int) -> None:
    core = greeted()
    stream_id, _ = core.open_stream(b"", credit=10)
    with pytest.raises(WireError):
        list(feed(core, frame(kind, stream_id)))


def test_what_comes_after_the_end_is_dropped() -> None:
    core = greeted()
    stream_id, _ = core.open_stream(b"", credit=10)
    (end,) = feed(core, frame(Answer.STREAM_END, stream_id, b"\x03"))
    assert end == StreamFrame(stream_id, Answer.STREAM_END, 3)
    assert list(feed(core, frame(Answer.STREAM_DATA, stream_id, b"x"))) == []


def test_there_are_so_many_streams_and_no_more() -> None:
    core = greeted()
    for _ in range(MAX_STREAMS):
        core.open_stream(b"", credit=1)
    with pytest.raises(TooManyPendingError):
        core.open_stream(b"", credit=1)


class Wired:
    """A stream whose frames are kept instead of sent."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.stream = AgentStream(
            7, write=self.write, writable=self.writable, grant=self.grant, forget=lambda stream_id: True
        )

    def write(self, *parts: bytes | memoryview) -> None:
        self.sent.append(b"".join(bytes(part) for part in parts))

    async def writable(self, deadline: float | None) -> None:
        assert deadline is None

    def grant(self, stream_id: int, count: int) -> bytes:
        return wire.encode_frame(Request.CREDIT, stream_id, wire.encode_u32(count))

    def take(self, kind: Answer, value: int | bytes | None = None) -> None:
        self.stream.take(StreamFrame(7, kind, value))


async def test_no_more_is_sent_than_the_agent_takes() -> None:
    wired = Wired()
    wired.take(Answer.STREAM_OPENED, 100)
    await wired.stream.opened()
    sending = asyncio.create_task(wired.stream.send(b"x" * 250))
    await asyncio.sleep(0)
    assert [len(part) - 9 for part in wired.sent] == [100] and not sending.done()
    wired.take(Answer.STREAM_CREDIT, 200)
    await asyncio.wait_for(sending, 1)
    assert [len(part) - 9 for part in wired.sent] == [100, 150]


async def test_credit_is_given_as_bytes_are_taken_and_not_before() -> None:
    wired = Wired()
    for _ in range(8):
        wired.take(Answer.STREAM_DATA, b"x" * (STREAM_CREDIT_BYTES // 8))
    assert wired.sent == []
    for _ in range(3):
        await wired.stream.receive()
    assert wired.sent == []
    await wired.stream.receive()
    assert wired.sent == [wired.grant(7, STREAM_CREDIT_BYTES // 2)]


async def test_a_lost_connection_ends_whoever_waits() -> None:
    wired = Wired()
    waiting = asyncio.create_task(wired.stream.receive())
    await asyncio.sleep(0)
    wired.stream.lost(RuntimeFailure("gone", code=ErrorCode.AGENT_UNREACHABLE))
    with pytest.raises(RuntimeFailure, match="gone"):
        await asyncio.wait_for(waiting, 1)


@pytest.mark.parametrize(
    "data",
    [
        b"\xff\xff\xff\xff",
        b"\0\0\0\0",
        b"\0\0\0\1\x09",
        b"\0\0\0\1\1",
        b"\0\0\0\x2d\1\x07" + b"\0" * 43,
        b"\0\0\0\x07\2\0\0\0\0\x09x",
        b"\0\0\0\x07\3\x09\0\0\0\1x",
        b"\0\0\0",
    ],
)
async def test_records_without_sense_are_refused(data: bytes) -> None:
    wired = Wired()
    wired.take(Answer.STREAM_DATA, data)
    wired.take(Answer.STREAM_END, 0)
    with pytest.raises(RuntimeFailure):
        await FileWorker(wired.stream).record()
