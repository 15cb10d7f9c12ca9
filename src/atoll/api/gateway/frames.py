"""The frames of `atoll.stream.v1` as bytes: one channel byte, then the payload (SA-447). No I/O, no state.

    server  1 stdout, 2 stderr   8-byte big-endian seq, then the bytes
            3 event              JSON: init, truncated, exit as in *Get a command*, with their seq and a `type`;
                                 `error` for a frame of the client that was refused, without a seq
    client  0 stdin              bytes; none ends the input
            4 resize             JSON: {"rows": 40, "cols": 120}
            5 signal             JSON: {"signal": "SIGINT"}
            6 acknowledge        8-byte big-endian seq: this event and all before it were taken

What clients send is hostile: whatever does not parse exactly raises `FrameError`.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import TypeVar

import orjson
from pydantic import ValidationError

from atoll.api.gateway.shapes import ResizeBody, SignalBody
from atoll.api.sandbox import render
from atoll.domain.command import CommandEvent, Exit, Init, Output, PtySize

PROTOCOL = "atoll.stream.v1"
"""The subprotocol of the WebSocket."""
MAX_INPUT_BYTES = 1_048_576
"""Standard input in one frame."""
MAX_CONTROL_BYTES = 1_024
"""A resize or a signal."""
_SEQ = struct.Struct(">Q")
_OUTPUT = struct.Struct(">BQ")
B = TypeVar("B", ResizeBody, SignalBody)


class ServerChannel(IntEnum):
    """What the server sends."""

    STDOUT = 1
    """Standard output, or all output of a terminal."""
    STDERR = 2
    """Standard error."""
    EVENT = 3
    """What is no output."""


class ClientChannel(IntEnum):
    """What a client sends."""

    STDIN = 0
    """Standard input."""
    RESIZE = 4
    """The size of the terminal."""
    SIGNAL = 5
    """A signal to the whole process tree."""
    ACKNOWLEDGE = 6
    """How far the client has come."""


@dataclass(frozen=True, slots=True)
class Stdin:
    """Input; empty at its end."""

    data: bytes


@dataclass(frozen=True, slots=True)
class Resize:
    """A new size."""

    size: PtySize


@dataclass(frozen=True, slots=True)
class Signal:
    """A signal by its name; whether it is one that is sent is not known yet."""

    name: str


@dataclass(frozen=True, slots=True)
class Acknowledge:
    """Every event up to `seq` was taken."""

    seq: int


ClientFrame = Stdin | Resize | Signal | Acknowledge


class FrameError(Exception):
    """A frame that is none of this protocol; the sentence is for the client."""


def encode_event(event: CommandEvent) -> bytes:
    """One event as one frame."""
    if isinstance(event, Output):
        channel = ServerChannel.STDOUT if event.stream == "stdout" else ServerChannel.STDERR
        return _OUTPUT.pack(channel, event.seq) + event.data
    kind = "init" if isinstance(event, Init) else "exit" if isinstance(event, Exit) else "truncated"
    return _event({"type": kind, **render.event(event)})


def encode_error(sentence: str, code: str | None) -> bytes:
    """Tell the client that a frame of theirs was refused; the stream goes on."""
    value: dict[str, object] = {"type": "error", "error": sentence}
    return _event(value if code is None else {**value, "errorCode": code})


def decode(frame: bytes) -> ClientFrame:
    """One frame of a client. Raises `FrameError`."""
    if not frame:
        raise FrameError("A frame begins with a channel byte.")
    channel, payload = frame[0], frame[1:]
    if channel == ClientChannel.STDIN:
        if len(payload) > MAX_INPUT_BYTES:
            raise FrameError(f"A frame of input holds at most {MAX_INPUT_BYTES} bytes.")
        return Stdin(payload)
    if channel == ClientChannel.ACKNOWLEDGE:
        if len(payload) != _SEQ.size:
            raise FrameError("An acknowledgement is 8 bytes.")
        return Acknowledge(_SEQ.unpack(payload)[0])
    if channel == ClientChannel.RESIZE:
        body = _parse(payload, ResizeBody, "A resize")
        return Resize(PtySize(body.rows, body.cols))
    if channel == ClientChannel.SIGNAL:
        return Signal(_parse(payload, SignalBody, "A signal").signal)
    raise FrameError("There is no such channel.")


def _event(value: dict[str, object]) -> bytes:
    return bytes((ServerChannel.EVENT,)) + orjson.dumps(value)


def _parse(payload: bytes, kind: type[B], what: str) -> B:
    if len(payload) > MAX_CONTROL_BYTES:
        raise FrameError(f"{what} holds at most {MAX_CONTROL_BYTES} bytes.")
    try:
        return kind.model_validate(orjson.loads(payload))
    except (orjson.JSONDecodeError, ValidationError):
        raise FrameError(f"{what} is a JSON object of its fields.") from None
