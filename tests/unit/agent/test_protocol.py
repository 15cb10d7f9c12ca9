"""The client's core without a socket: what it asks, what it takes, what it refuses."""

from __future__ import annotations

import struct
from uuid import UUID

import pytest

from atoll.agent.protocol import (
    MAX_PENDING,
    AgentProtocol,
    Answered,
    CommandExited,
    EntrypointSettled,
    Event,
    Expect,
    Greeted,
    OutputAnswer,
    ProcessKilled,
    RunAnswer,
    TooManyPendingError,
)
from atoll.agent.wire import ErrorAnswer, Request, WireError
from atoll.domain.command import Init, Output
from atoll.domain.errors import ErrorCode

COMMAND = UUID(int=9)
HELLO = struct.pack(">IH", 1, 1) + struct.pack(">I", 5) + b"0.1.0" + struct.pack(">QB", 1500, 0)
STATE = COMMAND.bytes + struct.pack(">BiBQQQQB", 1, 0, 0, 1000, 2000, 3, 0, 0) + struct.pack(">QBB", 3, 1, 0)


def feed(core: AgentProtocol, kind: int, request_id: int, payload: bytes = b"") -> list[Event]:
    frame = struct.pack(">IBI", len(payload) + 5, kind, request_id) + payload
    core.free()[: len(frame)] = frame
    return list(core.received(len(frame)))


def output(seq: int, data: bytes) -> bytes:
    return struct.pack(">QBI", seq, 1, len(data)) + data


@pytest.fixture
def core() -> AgentProtocol:
    greeted = AgentProtocol()
    [event] = feed(greeted, 0x81, 0, HELLO)
    assert isinstance(event, Greeted) and event.hello.version == "0.1.0" and event.hello.uptime_seconds == 1.5
    return greeted


def test_nothing_is_taken_before_hello_and_hello_only_once() -> None:
    for kind, request_id, payload in ((0xA1, 0, b""), (0x96, 1, b"")):
        with pytest.raises(WireError):
            feed(AgentProtocol(), kind, request_id, payload)
    greeted = AgentProtocol()
    feed(greeted, 0x81, 0, HELLO)
    with pytest.raises(WireError):
        feed(greeted, 0x81, 0, HELLO)


def test_a_read_gathers_its_events(core: AgentProtocol) -> None:
    request, frame = core.ask(Request.READ, Expect.OUTPUT, b"payload", room=100)
    assert frame == struct.pack(">IBI", 12, 0x11, request) + b"payload"
    assert feed(core, 0x91, request, struct.pack(">QBI", 0, 0, 42)) == []
    assert feed(core, 0x91, request, output(1, b"abc")) == []
    [event] = feed(core, 0x92, request, STATE)
    assert isinstance(event, Answered) and isinstance(event.value, OutputAnswer)
    assert event.value.events == (Init(0, 42), Output(1, "stdout", b"abc"))
    assert event.value.state.complete and core.pending == 0


def test_a_run_gathers_its_streams(core: AgentProtocol) -> None:
    request, _ = core.ask(Request.RUN, Expect.COLLECTED, room=100)
    for stream, data in ((1, b"ab"), (2, b"x"), (1, b"cd")):
        assert feed(core, 0x95, request, bytes((stream,)) + struct.pack(">I", len(data)) + data) == []
    [event] = feed(core, 0x92, request, STATE)
    assert isinstance(event, Answered) and isinstance(event.value, RunAnswer)
    assert (event.value.stdout, event.value.stderr) == (b"abcd", b"x")


def test_answers_find_their_requests_in_any_order(core: AgentProtocol) -> None:
    first, _ = core.ask(Request.FORGET, Expect.OK)
    second, _ = core.ask(Request.FORGET, Expect.OK)
    assert feed(core, 0x96, second) == [Answered(second, None)]
    assert feed(core, 0x96, first) == [Answered(first, None)]
    assert feed(core, 0x96, first) == [], "twice is once"


def test_an_error_answers_any_request(core: AgentProtocol) -> None:
    for expect in Expect:
        request, _ = core.ask(Request.READ, expect)
        [event] = feed(core, 0x97, request, b"\2" + struct.pack(">I", 2) + b"no")
        assert event == Answered(request, ErrorAnswer(ErrorCode.EXECUTION_NOT_FOUND, "no"))


def test_notices_are_told(core: AgentProtocol) -> None:
    [exited] = feed(core, 0xA0, 0, STATE)
    assert isinstance(exited, CommandExited) and exited.state.exit_code == 0
    assert feed(core, 0xA1, 0) == [EntrypointSettled()]
    assert feed(core, 0xA2, 0, struct.pack(">I", 5)) == [ProcessKilled(5)]


@pytest.mark.parametrize("kind", [0x90, 0x93, 0x94, 0x95, 0x91, 0x92, 0x10, 0xFF])
def test_an_answer_of_the_wrong_kind_is_an_error(core: AgentProtocol, kind: int) -> None:
    request, _ = core.ask(Request.FORGET, Expect.OK)
    with pytest.raises(WireError):
        feed(core, kind, request, STATE)


def test_more_output_than_was_asked_for_is_an_error(core: AgentProtocol) -> None:
    request, _ = core.ask(Request.READ, Expect.OUTPUT, room=1000)
    with pytest.raises(WireError):
        for seq in range(100):
            feed(core, 0x91, request, output(seq, bytes(1000)))
    request, _ = core.ask(Request.READ, Expect.OUTPUT, room=1000)
    with pytest.raises(WireError):
        for seq in range(10_000):
            feed(core, 0x91, request, output(seq, b""))
    request, _ = core.ask(Request.RUN, Expect.COLLECTED, room=0)
    with pytest.raises(WireError):
        for _ in range(100_000):
            feed(core, 0x95, request, b"\1" + bytes(4))
    request, _ = core.ask(Request.LIST, Expect.ITEMS)
    item = STATE[: -(8 + 1 + 1)] + b"\0" + struct.pack(">I", 1)
    with pytest.raises(WireError):
        for _ in range(10_000):
            feed(core, 0x93, request, item)


def test_answers_to_what_was_given_up_are_dropped(core: AgentProtocol) -> None:
    request, _ = core.ask(Request.READ, Expect.OUTPUT, room=10)
    core.give_up(request)
    assert feed(core, 0x91, request, output(0, bytes(1000))) == []
    assert feed(core, 0x92, request, STATE) == []


def test_deadlines_are_the_callers_time(core: AgentProtocol) -> None:
    late, _ = core.ask(Request.READ, Expect.OUTPUT, deadline=10.0)
    later, _ = core.ask(Request.READ, Expect.OUTPUT, deadline=20.0)
    core.ask(Request.WATCH, Expect.STATE)
    assert core.next_deadline() == 10.0
    assert core.expire(9.9) == []
    assert core.expire(10.0) == [late]
    assert core.next_deadline() == 20.0
    assert core.expire(99.0) == [later]
    assert core.next_deadline() is None and core.pending == 1


def test_requests_that_wait_are_bounded(core: AgentProtocol) -> None:
    requests = [core.ask(Request.WATCH, Expect.STATE)[0] for _ in range(MAX_PENDING)]
    assert len(set(requests)) == MAX_PENDING and 0 not in requests
    with pytest.raises(TooManyPendingError):
        core.ask(Request.WATCH, Expect.STATE)
