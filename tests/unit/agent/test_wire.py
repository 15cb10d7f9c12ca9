"""The codec: what is asked is well-formed, and what is answered is taken exactly or not at all."""

from __future__ import annotations

import contextlib
import struct
from datetime import UTC, datetime
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.agent import wire
from atoll.agent.wire import EncodingError, FrameBuffer, WireError
from atoll.domain.command import EndReason, Exit, Init, Output, PtySize, Truncated

ids = st.uuids()
u32 = st.integers(0, 2**32 - 1)
u64 = st.integers(0, 2**64 - 1)
texts = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=60)
names = st.text(st.characters(exclude_characters="\0=", exclude_categories=["Cs"]), min_size=1, max_size=20)
times = st.integers(0, 253_402_300_799_000)

DECODERS = [
    wire.decode_hello,
    wire.decode_started,
    wire.decode_event,
    wire.decode_state,
    wire.decode_item,
    wire.decode_stats,
    wire.decode_collected,
    wire.decode_error,
    wire.decode_number,
    wire.decode_code,
    wire.decode_nothing,
]


class Reader:
    """Reads as docs/agent-protocol.md says, apart from the code under test."""

    def __init__(self, data: bytes) -> None:
        self.data = data

    def take(self, count: int) -> bytes:
        assert len(self.data) >= count
        taken, self.data = self.data[:count], self.data[count:]
        return taken

    def number(self, size: int) -> int:
        return int.from_bytes(self.take(size), "big")

    def text(self) -> str:
        return self.take(self.number(4)).decode()

    def list(self) -> list[str]:
        return [self.text() for _ in range(self.number(4))]


@given(
    ids, st.lists(texts, max_size=8), texts, st.dictionaries(names, texts, max_size=5), st.floats(0.001, 604_800),
    st.booleans(), st.none() | st.builds(PtySize, st.integers(1, 4096), st.integers(1, 4096)),
)  # fmt: skip
def test_a_start_reads_back_as_it_was_asked(
    execution: UUID, argv: list[str], cwd: str, env: dict[str, str], timeout: float, stdin: bool, pty: PtySize | None
) -> None:
    read = Reader(wire.encode_start(execution, argv, cwd=cwd, env=env, timeout_seconds=timeout, stdin=stdin, pty=pty))
    assert UUID(bytes=read.take(16)) == execution
    assert read.number(4) == stdin + 2 * (pty is not None)
    assert (read.number(2), read.number(2)) == ((pty.rows, pty.cols) if pty else (0, 0))
    assert read.number(8) == max(1, round(timeout * 1000))
    assert read.list() == argv
    assert read.text() == cwd
    assert dict(item.split("=", 1) for item in read.list()) == env
    assert not read.data


def test_what_cannot_be_said_is_refused() -> None:
    execution = UUID(int=1)
    for argv in (["a\0b"], ["\ud800"]):
        with pytest.raises(EncodingError):
            wire.encode_start(execution, argv, cwd=None, env=None, timeout_seconds=None)
    with pytest.raises(EncodingError):
        wire.encode_frame(wire.Request.START, 1, bytes(wire.MAX_FRAME_BYTES - 4))
    assert len(wire.encode_frame(wire.Request.START, 1, bytes(wire.MAX_FRAME_BYTES - 5))) == wire.MAX_FRAME_BYTES + 4
    for number in (0, 65, -1):
        with pytest.raises(EncodingError):
            wire.encode_signal(execution, number, cancel=True)
    for seq in (-1, 2**64):
        with pytest.raises(EncodingError):
            wire.encode_read(execution, seq, 1, 0)
    with pytest.raises(EncodingError):
        wire.encode_resize(execution, PtySize(70_000, 1))


@given(u64, st.binary(max_size=300), u32, st.integers(-(2**31), 2**31 - 1), st.integers(0, 4), u64, u64)
def test_events_are_read_as_they_were_written(
    seq: int, data: bytes, pid: int, code: int, reason: int, dropped: int, events: int
) -> None:
    head = struct.pack(">Q", seq)
    reasons = [None, *(EndReason(name) for name in ("deadline_exceeded", "canceled", "killed", "agent_shutdown"))]
    size = struct.pack(">I", len(data))
    assert wire.decode_event(memoryview(head + b"\0" + struct.pack(">I", pid))) == Init(seq, pid)
    assert wire.decode_event(memoryview(head + b"\1" + size + data)) == Output(seq, "stdout", data)
    assert wire.decode_event(memoryview(head + b"\2" + size + data)) == Output(seq, "stderr", data)
    exit_event = wire.decode_event(memoryview(head + b"\3" + struct.pack(">iB", code, reason)))
    assert exit_event == Exit(seq, code, reasons[reason])
    truncated = wire.decode_event(memoryview(head + b"\4" + struct.pack(">QQ", dropped, events)))
    assert truncated == Truncated(seq, dropped, events)


@given(ids, st.booleans(), st.integers(-(2**31), 2**31 - 1), times, times, u64, u64, st.booleans(), u64, st.booleans())
def test_a_state_is_read_as_it_was_written(
    execution: UUID,
    over: bool,
    code: int,
    started: int,
    exited: int,
    out: int,
    err: int,
    cut: bool,
    seq: int,
    complete: bool,
) -> None:
    payload = execution.bytes + struct.pack(
        ">BiBQQQQBQBB", over, code, 3 if over else 0, started, exited, out, err, cut, seq, complete, 2
    )
    answer = wire.decode_state(memoryview(payload))
    state = answer.state
    assert (state.execution_id, state.running) == (execution, not over)
    assert state.exit_code == (code if over else None)
    assert state.reason == (EndReason.KILLED if over else None)
    assert state.started_at == datetime.fromtimestamp(started / 1000, UTC)
    assert (state.exited_at is not None) == over
    assert (state.stdout_bytes, state.stderr_bytes, state.output_truncated) == (out, err, cut)
    assert (answer.next_seq, answer.complete, answer.stdout_cut, answer.stderr_cut) == (seq, complete, False, True)


@given(st.sampled_from(DECODERS), st.binary(max_size=120))
def test_any_bytes_decode_or_raise_the_one_error(decoder: object, payload: bytes) -> None:
    assert callable(decoder)
    with contextlib.suppress(WireError):
        decoder(memoryview(payload))


@given(st.sampled_from(DECODERS), st.binary(max_size=120), st.binary(min_size=1, max_size=4))
def test_what_decodes_does_not_decode_with_more_behind_it(decoder: object, payload: bytes, more: bytes) -> None:
    assert callable(decoder)
    try:
        decoder(memoryview(payload))
    except WireError:
        return
    with pytest.raises(WireError):
        decoder(memoryview(payload + more))


def test_a_sentence_of_the_agent_is_shortened_and_made_printable() -> None:
    hostile = ("\x1b[2Jü\n" + "x" * 10_000).encode() + b"\xff"
    answer = wire.decode_error(memoryview(b"\1" + struct.pack(">I", len(hostile)) + hostile))
    assert answer.sentence.startswith("?[2Jü?xxx") and len(answer.sentence) == 300


def test_another_version_of_the_protocol_is_refused() -> None:
    with pytest.raises(WireError):
        wire.decode_hello(memoryview(struct.pack(">IHIQB", 1, 2, 0, 5, 0)))


def feed(buffer: FrameBuffer, data: bytes) -> list[tuple[int, int, bytes]]:
    frames = []
    while data:
        free = buffer.free()
        part, data = data[: len(free)], data[len(free) :]
        free[: len(part)] = part
        frames += [(kind, number, bytes(payload)) for kind, number, payload in buffer.filled(len(part))]
    return frames


@given(st.lists(st.tuples(st.integers(0, 255), u32, st.binary(max_size=500)), max_size=12), st.data())
def test_frames_come_out_whole_wherever_they_are_cut(frames: list[tuple[int, int, bytes]], data: st.DataObject) -> None:
    stream = b"".join(struct.pack(">IBI", len(p) + 5, kind, number) + p for kind, number, p in frames)
    buffer, seen = FrameBuffer(), []
    while stream:
        cut = data.draw(st.integers(1, len(stream)))
        seen += feed(buffer, stream[:cut])
        stream = stream[cut:]
    assert seen == frames


def test_the_buffer_holds_the_largest_frames_and_never_grows() -> None:
    buffer, largest = FrameBuffer(), wire.MAX_FRAME_BYTES - 5
    frame = struct.pack(">IBI", wire.MAX_FRAME_BYTES, 0x91, 1) + bytes(largest)
    frames = feed(buffer, frame * 5)
    assert [len(payload) for _, _, payload in frames] == [largest] * 5
    assert len(buffer.free()) == wire.BUFFER_BYTES


@pytest.mark.parametrize("length", [0, 4, wire.MAX_FRAME_BYTES + 1, 2**32 - 1])
def test_a_length_out_of_range_is_an_error(length: int) -> None:
    with pytest.raises(WireError):
        feed(FrameBuffer(), struct.pack(">IBI", length, 0x96, 1))
