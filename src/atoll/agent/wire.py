"""The frames of the agent's protocol as bytes: what is asked is written, what is answered is read.

Owns the numbers of docs/agent-protocol.md and nothing of connections or waiting; called by `protocol` only. Everything
read here comes from inside a sandbox and is hostile: whatever does not parse exactly raises `WireError`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import IntEnum
from uuid import UUID

from atoll.domain.command import (
    AgentStats,
    CommandEvent,
    CommandState,
    EndReason,
    Exit,
    Init,
    Output,
    PtySize,
    Started,
    Truncated,
)
from atoll.domain.errors import ErrorCode

PROTOCOL_VERSION = 1
MAX_FRAME_BYTES = 262_144
"""Largest value of the length field."""
MAX_STDIN_BYTES = 131_072
"""Input sent in one frame."""
MAX_CAPTURE_BYTES = 4 * 1024 * 1024
"""Output of one stream that RUN can collect."""
MAX_STREAM_BYTES = 131_072
"""Bytes of a stream in one frame."""
OUTPUT_OVERHEAD_BYTES = 22
"""What an event costs beside its bytes when the agent fills an answer."""
BUFFER_BYTES = 2 * (MAX_FRAME_BYTES + 4)

_HEAD = struct.Struct(">IBI")
_MIN_LENGTH = 5


class WireError(Exception):
    """The other side does not speak the protocol; the connection is worth nothing any more."""


class ForeignProtocolError(WireError):
    """It is an agent, but one of another version of the protocol."""


class EncodingError(Exception):
    """What is asked for cannot be said: too long, or text that is none."""


class Request(IntEnum):
    """What a client sends."""

    KILL = 0x05
    """Kill the sandbox; answered by the shim."""
    START = 0x10
    """Start a command."""
    READ = 0x11
    """Events of a command."""
    STDIN = 0x12
    """Write to a command's standard input."""
    SIGNAL = 0x13
    """Signal a command's tree."""
    RESIZE = 0x14
    """Size of a terminal."""
    FORGET = 0x15
    """Free an exited command."""
    LIST = 0x16
    """All commands."""
    STATS = 0x17
    """Uptime, memory, counts."""
    RUN = 0x18
    """A command to its end."""
    STOP = 0x19
    """End all commands."""
    WATCH = 0x1A
    """The end of a command."""
    OPEN = 0x20
    """A stream to a worker or a port; its frames carry this request's id."""
    DATA = 0x21
    """Bytes of a stream."""
    CREDIT = 0x22
    """What the agent may send more of a stream."""
    FINISH = 0x23
    """No more bytes of a stream will come, and those that came are all."""
    CLOSE = 0x24
    """Nobody wants a stream any more; what it began is undone."""
    QUIET = 0x25
    """End all streams."""
    HOLD = 0x26
    """End all streams and let nothing else move."""
    RELEASE = 0x27
    """What is held goes on."""


class Answer(IntEnum):
    """What the agent sends."""

    HELLO = 0x81
    """Begins every connection."""
    STARTED = 0x90
    """To START."""
    OUTPUT = 0x91
    """One event."""
    STATE = 0x92
    """Where a command stands; ends READ, RUN and WATCH."""
    ITEM = 0x93
    """One command of LIST."""
    STATS = 0x94
    """To STATS."""
    COLLECTED = 0x95
    """Output of RUN."""
    OK = 0x96
    """Done."""
    ERROR = 0x97
    """Refused."""
    EXITED = 0xA0
    """Notice: a command has ended."""
    SETTLED = 0xA1
    """Notice: the entrypoint stays up."""
    KILLED = 0xA2
    """Notice: a process was killed because memory ran out."""
    STREAM_OPENED = 0xB0
    """A stream is there."""
    STREAM_DATA = 0xB1
    """Bytes of a stream."""
    STREAM_CREDIT = 0xB2
    """What the client may send more of a stream."""
    STREAM_FINISH = 0xB3
    """The port sends no more."""
    STREAM_END = 0xB4
    """A stream is over; nothing of it comes any more."""


@dataclass(frozen=True, slots=True)
class Hello:
    """The agent's first words."""

    epoch: int
    version: str
    uptime_seconds: float
    settled: bool


@dataclass(frozen=True, slots=True)
class StateAnswer:
    """A command's state and what belongs to the request that asked."""

    state: CommandState
    next_seq: int
    complete: bool
    stdout_cut: bool
    stderr_cut: bool

    def ended(self) -> CommandState:
        """The state with the number of events, where `next_seq` is that: everywhere but in an incomplete READ."""
        return self.state if self.state.running else replace(self.state, end_seq=self.next_seq)


@dataclass(frozen=True, slots=True)
class ErrorAnswer:
    """The agent refuses. The sentence is the agent's: shortened and printable, but not to be trusted."""

    code: ErrorCode
    sentence: str


_REASONS: tuple[EndReason | None, ...] = (
    None,
    EndReason.DEADLINE_EXCEEDED,
    EndReason.CANCELED,
    EndReason.KILLED,
    EndReason.AGENT_SHUTDOWN,
)
_ERRORS = {
    1: ErrorCode.INVALID_REQUEST,
    2: ErrorCode.EXECUTION_NOT_FOUND,
    3: ErrorCode.EXECUTION_EXITED,
    4: ErrorCode.TOO_MANY_EXECUTIONS,
    5: ErrorCode.UNKNOWN,
}
_FLAG_STDIN, _FLAG_PTY = 1, 2
_MAX_SENTENCE = 300
_MAX_MILLISECONDS = 253_402_300_799_000
"""The last second of the year 9999, beyond which there is no datetime."""

_START = struct.Struct(">IHHQ")
_READ = struct.Struct(">QII")
_STATE = struct.Struct(">16sBiBQQQQB")
_STATE_REST = struct.Struct(">QBB")
_ITEM_REST = struct.Struct(">BI")
_STARTED = struct.Struct(">BIQ")
_HELLO = struct.Struct(">IHI")
_HELLO_REST = struct.Struct(">QB")
_STATS = struct.Struct(">QQII")
_EVENT = struct.Struct(">QB")
_EXIT = struct.Struct(">iB")
_TRUNCATED = struct.Struct(">QQ")
_U32 = struct.Struct(">I")
_OPEN = struct.Struct(">BI")
_PORT = struct.Struct(">BIH")
_FILES_STREAM, _PORT_STREAM = 1, 2
_CODE = struct.Struct(">BI")


def encode_frame(kind: Request, request_id: int, payload: bytes = b"") -> bytes:
    """One frame. Raises EncodingError when it is too long."""
    length = len(payload) + _MIN_LENGTH
    if length > MAX_FRAME_BYTES:
        raise EncodingError("the command, its environment or its input is too long")
    return _HEAD.pack(length, kind, request_id) + payload


def encode_head(kind: Request, request_id: int, length: int) -> bytes:
    """The head of a frame whose payload of `length` bytes follows by itself."""
    return _HEAD.pack(length + _MIN_LENGTH, kind, request_id)


def encode_start(
    execution_id: UUID,
    argv: Sequence[str],
    *,
    cwd: str | None,
    env: Mapping[str, str] | None,
    timeout_seconds: float | None,
    stdin: bool = False,
    pty: PtySize | None = None,
) -> bytes:
    """Payload of START; with the capture size behind it, of RUN."""
    flags = (_FLAG_STDIN if stdin else 0) | (_FLAG_PTY if pty else 0)
    rows, cols = (pty.rows, pty.cols) if pty else (0, 0)
    milliseconds = 0 if timeout_seconds is None else max(1, round(timeout_seconds * 1000))
    try:
        head = _START.pack(flags, rows, cols, milliseconds)
    except struct.error as error:
        raise EncodingError("a size or time is out of range") from error
    variables = [f"{name}={value}" for name, value in (env or {}).items()]
    return b"".join((execution_id.bytes, head, _list(argv), _text(cwd or ""), _list(variables)))


def encode_read(execution_id: UUID, from_seq: int, max_bytes: int, wait_seconds: float) -> bytes:
    """Payload of READ."""
    try:
        return execution_id.bytes + _READ.pack(from_seq, max_bytes, round(wait_seconds * 1000))
    except struct.error as error:
        raise EncodingError("a sequence number, size or time is out of range") from error


def encode_stdin(execution_id: UUID, data: bytes, *, eof: bool) -> bytes:
    """Payload of STDIN; at most MAX_STDIN_BYTES of data."""
    return b"".join((execution_id.bytes, b"\1" if eof else b"\0", _U32.pack(len(data)), data))


def encode_signal(execution_id: UUID, number: int, *, cancel: bool) -> bytes:
    """Payload of SIGNAL."""
    if not 1 <= number <= 64:
        raise EncodingError("there is no such signal")
    return execution_id.bytes + bytes((number, cancel))


def encode_resize(execution_id: UUID, size: PtySize) -> bytes:
    """Payload of RESIZE."""
    try:
        return execution_id.bytes + struct.pack(">HH", size.rows, size.cols)
    except struct.error as error:
        raise EncodingError("a terminal has 1 to 4096 rows and columns") from error


def encode_u32(value: int) -> bytes:
    """A lone number: the capture size of RUN, the grace of STOP and the limit of HOLD in milliseconds."""
    try:
        return _U32.pack(value)
    except struct.error as error:
        raise EncodingError("a size or time is out of range") from error


def encode_open_files(credit: int, arguments: Sequence[bytes]) -> bytes:
    """Payload of OPEN for a worker of the files part. Raises EncodingError for a NUL byte."""
    if any(b"\0" in argument for argument in arguments):
        raise EncodingError("a path holds a NUL byte")
    listed = b"".join(_U32.pack(len(argument)) + argument for argument in arguments)
    return _OPEN.pack(_FILES_STREAM, credit) + _U32.pack(len(arguments)) + listed


def encode_open_port(credit: int, port: int) -> bytes:
    """Payload of OPEN for a TCP connection to a port of the sandbox."""
    if not 1 <= port <= 65_535:
        raise EncodingError("there is no such port")
    return _PORT.pack(_PORT_STREAM, credit, port)


def decode_hello(payload: memoryview) -> Hello:
    """HELLO. Raises WireError; ForeignProtocolError for another version of the protocol."""
    epoch, protocol, length = _unpack(_HELLO, payload, 0)
    end = _HELLO.size + length
    if protocol != PROTOCOL_VERSION:
        raise ForeignProtocolError("the agent speaks another version of the protocol")
    _expect_size(payload, end + _HELLO_REST.size)
    uptime, settled = _unpack(_HELLO_REST, payload, end)
    return Hello(epoch, _sentence(payload[_HELLO.size : end]), uptime / 1000, _bool(settled))


def decode_started(payload: memoryview) -> Started:
    """STARTED."""
    _expect_size(payload, _STARTED.size)
    existing, pid, started = _unpack(_STARTED, payload, 0)
    return Started(pid, _time(started), _bool(existing))


def decode_event(payload: memoryview) -> CommandEvent:
    """OUTPUT."""
    seq, kind = _unpack(_EVENT, payload, 0)
    at = _EVENT.size
    if kind in (1, 2):
        return Output(seq, "stdout" if kind == 1 else "stderr", _bytes(payload, at))
    if kind == 0:
        _expect_size(payload, at + 4)
        return Init(seq, _unpack(_U32, payload, at)[0])
    if kind == 3:
        _expect_size(payload, at + _EXIT.size)
        code, reason = _unpack(_EXIT, payload, at)
        return Exit(seq, code, _reason(reason))
    if kind == 4:
        _expect_size(payload, at + _TRUNCATED.size)
        dropped_bytes, dropped_events = _unpack(_TRUNCATED, payload, at)
        return Truncated(seq, dropped_bytes, dropped_events)
    raise WireError("an event of an unknown kind")


def decode_state(payload: memoryview) -> StateAnswer:
    """STATE and EXITED."""
    _expect_size(payload, _STATE.size + _STATE_REST.size)
    next_seq, complete, cut = _unpack(_STATE_REST, payload, _STATE.size)
    return StateAnswer(_state(payload), next_seq, _bool(complete), bool(cut & 1), bool(cut & 2))


def decode_item(payload: memoryview) -> CommandState:
    """ITEM."""
    _expect_size(payload, _STATE.size + _ITEM_REST.size)
    return _state(payload)


def decode_stats(payload: memoryview) -> AgentStats:
    """STATS."""
    _expect_size(payload, _STATS.size)
    uptime, memory, processes, running = _unpack(_STATS, payload, 0)
    return AgentStats(uptime / 1000, memory, processes, running)


def decode_collected(payload: memoryview) -> tuple[int, bytes]:
    """COLLECTED: 0 for stdout, 1 for stderr, and the bytes."""
    if len(payload) < 1 or payload[0] not in (1, 2):
        raise WireError("a stream that is none")
    return payload[0] - 1, _bytes(payload, 1)


def decode_error(payload: memoryview) -> ErrorAnswer:
    """ERROR."""
    code, length = _unpack(_CODE, payload, 0)
    _expect_size(payload, _CODE.size + length)
    if code not in _ERRORS:
        raise WireError("an error of an unknown kind")
    return ErrorAnswer(_ERRORS[code], _sentence(payload[_CODE.size :]))


def decode_number(payload: memoryview) -> int:
    """KILLED, OPENED and CREDIT."""
    _expect_size(payload, 4)
    number: int = _unpack(_U32, payload, 0)[0]
    return number


def decode_code(payload: memoryview) -> int:
    """END."""
    _expect_size(payload, 1)
    return payload[0]


def decode_nothing(payload: memoryview) -> None:
    """OK, SETTLED and FINISH."""
    _expect_size(payload, 0)


class FrameBuffer:
    """Bytes as they come from the socket, as whole frames. Holds BUFFER_BYTES, never more."""

    def __init__(self) -> None:
        self._view = memoryview(bytearray(BUFFER_BYTES))
        self._start = self._end = 0

    def free(self) -> memoryview:
        """Where the next bytes go; never empty, as a whole frame fits behind what is unfinished."""
        if self._start:
            # Only the unfinished frame moves, and only once for every batch.
            length = self._end - self._start
            self._view[:length] = bytes(self._view[self._start : self._end])
            self._start, self._end = 0, length
        return self._view[self._end :]

    def filled(self, count: int) -> Iterator[tuple[int, int, memoryview]]:
        """`count` bytes were put into `free()`: the whole frames there are now, as type, id, payload.

        A payload is valid until the next one is asked for. Raises WireError for a length out of range.
        """
        self._end += count
        view = self._view
        while self._end - self._start >= _HEAD.size:
            length, kind, request_id = _HEAD.unpack_from(view, self._start)
            if not _MIN_LENGTH <= length <= MAX_FRAME_BYTES:
                raise WireError("a frame of an impossible length")
            end = self._start + 4 + length
            if end > self._end:
                return
            payload = view[self._start + _HEAD.size : end]
            self._start = end
            yield kind, request_id, payload
        if self._start == self._end:
            self._start = self._end = 0


def _text(value: str) -> bytes:
    try:
        data = value.encode()
    except UnicodeEncodeError as error:
        raise EncodingError("a text holds half a character") from error
    if b"\0" in data:
        raise EncodingError("a text holds a NUL character")
    return _U32.pack(len(data)) + data


def _list(values: Sequence[str]) -> bytes:
    return _U32.pack(len(values)) + b"".join(map(_text, values))


def _unpack(layout: struct.Struct, payload: memoryview, at: int) -> tuple[int, ...]:
    try:
        return layout.unpack_from(payload, at)
    except struct.error as error:
        raise WireError("a frame that is too short") from error


def _expect_size(payload: memoryview, size: int) -> None:
    if len(payload) != size:
        raise WireError("a frame of the wrong length")


def _bytes(payload: memoryview, at: int) -> bytes:
    length = _unpack(_U32, payload, at)[0]
    _expect_size(payload, at + 4 + length)
    return bytes(payload[at + 4 :])


def _bool(value: int) -> bool:
    if value > 1:
        raise WireError("a truth value that is none")
    return value == 1


def _reason(value: int) -> EndReason | None:
    if value >= len(_REASONS):
        raise WireError("a reason that is none")
    return _REASONS[value]


def _time(milliseconds: int) -> datetime:
    if milliseconds > _MAX_MILLISECONDS:
        raise WireError("a time that is none")
    return datetime.fromtimestamp(milliseconds / 1000, UTC)


def _sentence(data: memoryview) -> str:
    text = bytes(data[: 4 * _MAX_SENTENCE]).decode("utf-8", "replace")[:_MAX_SENTENCE]
    return "".join(character if character.isprintable() else "?" for character in text)


def _state(payload: memoryview) -> CommandState:
    execution, over, code, reason, started, exited, stdout, stderr, truncated = _STATE.unpack_from(payload, 0)
    exited_now = _bool(over)
    return CommandState(
        execution_id=UUID(bytes=execution),
        running=not exited_now,
        exit_code=code if exited_now else None,
        reason=_reason(reason),
        started_at=_time(started),
        exited_at=_time(exited) if exited_now else None,
        stdout_bytes=stdout,
        stderr_bytes=stderr,
        output_truncated=_bool(truncated),
    )
