"""The frames of `atoll.stream.v1`, byte for byte."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.api.gateway.frames import (
    MAX_INPUT_BYTES,
    Acknowledge,
    FrameError,
    Resize,
    Signal,
    Stdin,
    decode,
    encode_error,
    encode_event,
)
from atoll.domain.command import EndReason, Exit, Init, Output, PtySize, Truncated


@pytest.mark.spec("SA-447")
def test_output_is_its_channel_its_number_and_its_bytes() -> None:
    assert encode_event(Output(258, "stdout", b"ab")) == b"\x01\0\0\0\0\0\0\x01\x02ab"
    assert encode_event(Output(1, "stderr", b"")) == b"\x02\0\0\0\0\0\0\0\x01"


@pytest.mark.spec("SA-447")
def test_what_is_no_output_is_json() -> None:
    for event, value in (
        (Init(0, 12), {"type": "init", "seq": 0, "init": {"processId": 12}}),
        (Exit(3, 0, None), {"type": "exit", "seq": 3, "exit": {"exitCode": 0}}),
        (Exit(3, 137, EndReason.KILLED), {"type": "exit", "seq": 3, "exit": {"exitCode": 137, "reason": "killed"}}),
        (
            Truncated(9, 5, 2),
            {"type": "truncated", "seq": 9, "truncated": {"droppedBytes": 5, "droppedEvents": 2}},
        ),
    ):
        frame = encode_event(event)
        assert (frame[0], json.loads(frame[1:])) == (3, value)
    assert json.loads(encode_error("no", None)[1:]) == {"type": "error", "error": "no"}
    assert json.loads(encode_error("no", "C")[1:]) == {"type": "error", "error": "no", "errorCode": "C"}


@pytest.mark.spec("SA-447")
def test_frames_of_a_client_are_read() -> None:
    assert decode(b"\x00") == Stdin(b"")
    assert decode(b"\x00\x00\xff") == Stdin(b"\x00\xff")
    assert decode(b'\x04{"rows": 1, "cols": 4096}') == Resize(PtySize(1, 4096))
    assert decode(b'\x05{"signal": "SIGINT"}') == Signal("SIGINT")
    assert decode(b"\x05{}") == Signal("SIGTERM")
    assert decode(b"\x06\0\0\0\0\0\0\x01\x02") == Acknowledge(258)


@pytest.mark.parametrize(
    "frame",
    [
        b"",
        b"\x01",
        b"\xff",
        b"\x04",
        b"\x04{",
        b"\x04[]",
        b'\x04{"rows": 1}',
        b'\x04{"rows": 0, "cols": 1}',
        b'\x04{"rows": 1, "cols": 4097}',
        b'\x04{"rows": "1", "cols": 1}',
        b'\x04{"rows": 1, "cols": 1, "x": 1}',
        b"\x05" + b" " * 2_000,
        b'\x05{"signal": 9}',
        b"\x06" + b"\0" * 7,
        b"\x06" + b"\0" * 9,
        b"\x00" + b"\0" * (MAX_INPUT_BYTES + 1),
    ],
)
def test_what_is_no_frame_is_refused(frame: bytes) -> None:
    with pytest.raises(FrameError):
        decode(frame)


@given(st.binary(max_size=200))
def test_no_bytes_do_anything_else(frame: bytes) -> None:
    try:
        decode(frame)
    except FrameError:
        return


@given(st.integers(0, 2**64 - 1), st.binary(max_size=100))
def test_numbers_and_bytes_come_out_as_they_went_in(seq: int, data: bytes) -> None:
    frame = encode_event(Output(seq, "stdout", data))
    assert (int.from_bytes(frame[1:9], "big"), frame[9:]) == (seq, data)
    assert decode(b"\x06" + frame[1:9]) == Acknowledge(seq)
