"""The client's side of one connection without I/O or clock: requests become frames, frames become events.

`connection.AgentClient` drives it. It keeps one small record for each request that waits for its answer and gathers no
more for it than was asked for: an agent that sends more, or what nobody asked for in that form, raises `WireError`,
after which the connection has to be closed. Answers to requests that were given up are dropped.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum, auto

from atoll.agent import wire
from atoll.agent.wire import Answer, ErrorAnswer, Hello, Request, StateAnswer, WireError
from atoll.domain.command import AgentStats, CommandEvent, CommandState, Output, Started

MAX_PENDING = 1000
"""Requests that wait at once; below the agent's own limit."""
MAX_STREAMS = 120
"""Streams at once; below the agent's own limit, as those that were closed may take a moment to end."""
_MAX_ITEMS = 4096
_SLACK_BYTES = 64 * 1024
"""An answer may exceed what was asked by one event."""


class Expect(Enum):
    """The form of the answer to a request."""

    OK = auto()
    """OK."""
    STARTED = auto()
    """STARTED."""
    OUTPUT = auto()
    """OUTPUT* then STATE."""
    COLLECTED = auto()
    """COLLECTED* then STATE."""
    STATE = auto()
    """STATE."""
    ITEMS = auto()
    """ITEM* then OK."""
    STATS = auto()
    """STATS."""


@dataclass(frozen=True, slots=True)
class OutputAnswer:
    """To READ."""

    events: tuple[CommandEvent, ...]
    state: StateAnswer


@dataclass(frozen=True, slots=True)
class RunAnswer:
    """To RUN."""

    stdout: bytes
    stderr: bytes
    state: StateAnswer


AnswerValue = OutputAnswer | RunAnswer | StateAnswer | Started | AgentStats | list[CommandState] | ErrorAnswer | None


@dataclass(frozen=True, slots=True)
class Answered:
    """A request has its answer; None is a plain OK."""

    request_id: int
    value: AnswerValue


@dataclass(frozen=True, slots=True)
class Greeted:
    """The connection can be used."""

    hello: Hello


@dataclass(frozen=True, slots=True)
class CommandExited:
    """A started command has ended."""

    state: CommandState


@dataclass(frozen=True, slots=True)
class EntrypointSettled:
    """The sandbox's entrypoint stays up."""


@dataclass(frozen=True, slots=True)
class ProcessKilled:
    """Memory ran out in the sandbox."""

    process_id: int


@dataclass(frozen=True, slots=True)
class StreamFrame:
    """Something of a stream: its window in bytes (OPENED, CREDIT), its bytes (DATA), its code (END), or a refusal."""

    stream_id: int
    kind: Answer
    value: int | bytes | ErrorAnswer | None


Event = Answered | Greeted | CommandExited | EntrypointSettled | ProcessKilled | StreamFrame


@dataclass(slots=True)
class _Pending:
    expect: Expect
    room: int
    """Bytes that may still come."""
    deadline: float | None
    events: list[CommandEvent] = field(default_factory=list)
    streams: tuple[list[bytes], list[bytes]] = field(default_factory=lambda: ([], []))
    items: list[CommandState] = field(default_factory=list)


class TooManyPendingError(Exception):
    """MAX_PENDING requests wait already."""


class AgentProtocol:
    """The state of one connection."""

    def __init__(self) -> None:
        self._pending: dict[int, _Pending] = {}
        self._streams: dict[int, int] = {}
        """What the agent may still send of each, in bytes."""
        self._last_id = 0
        self._frames = wire.FrameBuffer()
        self._greeted = False

    @property
    def pending(self) -> int:
        """Requests without an answer."""
        return len(self._pending)

    def ask(
        self, kind: Request, expect: Expect, payload: bytes = b"", *, room: int = 0, deadline: float | None = None
    ) -> tuple[int, bytes]:
        """A request: its id, and the frame to send. `room` is the output it may gather, in bytes.

        Raises EncodingError, TooManyPendingError.
        """
        if len(self._pending) >= MAX_PENDING:
            raise TooManyPendingError
        request_id = self._next_id()
        frame = wire.encode_frame(kind, request_id, payload)
        self._pending[request_id] = _Pending(expect, room + _SLACK_BYTES, deadline)
        return request_id, frame

    def open_stream(self, payload: bytes, *, credit: int) -> tuple[int, bytes]:
        """A new stream: its id, and the frame to send. Raises EncodingError, TooManyPendingError."""
        if len(self._streams) >= MAX_STREAMS:
            raise TooManyPendingError
        stream_id = self._next_id()
        frame = wire.encode_frame(Request.OPEN, stream_id, payload)
        self._streams[stream_id] = credit
        return stream_id, frame

    def grant(self, stream_id: int, count: int) -> bytes:
        """The frame that lets the agent send `count` bytes more."""
        self._streams[stream_id] += count
        return wire.encode_frame(Request.CREDIT, stream_id, wire.encode_u32(count))

    def forget_stream(self, stream_id: int) -> bool:
        """Nobody listens to this stream any more; whether it was still there."""
        return self._streams.pop(stream_id, None) is not None

    def give_up(self, request_id: int) -> None:
        """Nobody waits for this answer any more."""
        self._pending.pop(request_id, None)

    def next_deadline(self) -> float | None:
        """The earliest deadline of all that wait."""
        return min((p.deadline for p in self._pending.values() if p.deadline is not None), default=None)

    def expire(self, now: float) -> list[int]:
        """Give up what is past its deadline and say what that was."""
        late = [key for key, p in self._pending.items() if p.deadline is not None and p.deadline <= now]
        for key in late:
            del self._pending[key]
        return late

    def free(self) -> memoryview:
        """Where the next received bytes go."""
        return self._frames.free()

    def received(self, count: int) -> Iterator[Event]:
        """`count` bytes were put into `free()`. Raises WireError."""
        for kind, request_id, payload in self._frames.filled(count):
            if request_id in self._streams:
                yield self._of_stream(request_id, kind, payload)
            elif request_id and self._greeted:
                pending = self._pending.get(request_id)
                if pending is not None and self._take(pending, kind, payload):
                    del self._pending[request_id]
                    yield Answered(request_id, self._value(pending, kind, payload))
            else:
                yield self._notice(kind, payload)

    def _next_id(self) -> int:
        while True:
            self._last_id = self._last_id % 0xFFFF_FFFF + 1
            if self._last_id not in self._pending and self._last_id not in self._streams:
                return self._last_id

    def _notice(self, kind: int, payload: memoryview) -> Event:
        if kind == Answer.HELLO and not self._greeted:
            self._greeted = True
            return Greeted(wire.decode_hello(payload))
        if not self._greeted:
            raise WireError("the agent did not say hello first")
        if kind == Answer.EXITED:
            return CommandExited(wire.decode_state(payload).ended())
        if kind == Answer.SETTLED:
            wire.decode_nothing(payload)
            return EntrypointSettled()
        if kind == Answer.KILLED:
            return ProcessKilled(wire.decode_number(payload))
        raise WireError("a notice of an unknown kind")

    def _of_stream(self, stream_id: int, kind: int, payload: memoryview) -> StreamFrame:
        if kind == Answer.STREAM_DATA:
            self._streams[stream_id] -= len(payload)
            if self._streams[stream_id] < 0:
                raise WireError("more of a stream than was granted")
            return StreamFrame(stream_id, Answer.STREAM_DATA, bytes(payload))
        if kind in (Answer.STREAM_OPENED, Answer.STREAM_CREDIT):
            return StreamFrame(stream_id, Answer(kind), wire.decode_number(payload))
        if kind == Answer.STREAM_FINISH:
            wire.decode_nothing(payload)
            return StreamFrame(stream_id, Answer.STREAM_FINISH, None)
        if kind == Answer.STREAM_END:
            del self._streams[stream_id]
            return StreamFrame(stream_id, Answer.STREAM_END, wire.decode_code(payload))
        if kind == Answer.ERROR:
            del self._streams[stream_id]
            return StreamFrame(stream_id, Answer.ERROR, wire.decode_error(payload))
        raise WireError("a frame that belongs to no stream")

    def _take(self, pending: _Pending, kind: int, payload: memoryview) -> bool:
        """Gather a part of an answer; True when this frame ends it."""
        expect = pending.expect
        if kind == Answer.OUTPUT and expect is Expect.OUTPUT:
            event = wire.decode_event(payload)
            size = len(event.data) if isinstance(event, Output) else 0
            self._charge(pending, size + wire.OUTPUT_OVERHEAD_BYTES)
            pending.events.append(event)
            return False
        if kind == Answer.COLLECTED and expect is Expect.COLLECTED:
            stream, data = wire.decode_collected(payload)
            self._charge(pending, max(1, len(data)))
            pending.streams[stream].append(data)
            return False
        if kind == Answer.ITEM and expect is Expect.ITEMS:
            if len(pending.items) >= _MAX_ITEMS:
                raise WireError("more commands than there can be")
            pending.items.append(wire.decode_item(payload))
            return False
        return True

    def _charge(self, pending: _Pending, size: int) -> None:
        pending.room -= size
        if pending.room < 0:
            raise WireError("more output than was asked for")

    def _value(self, pending: _Pending, kind: int, payload: memoryview) -> AnswerValue:
        expect = pending.expect
        if kind == Answer.ERROR:
            return wire.decode_error(payload)
        if kind == Answer.STATE and expect in (Expect.OUTPUT, Expect.COLLECTED, Expect.STATE):
            state = wire.decode_state(payload)
            if expect is Expect.OUTPUT:
                return OutputAnswer(tuple(pending.events), state)
            if expect is Expect.COLLECTED:
                return RunAnswer(b"".join(pending.streams[0]), b"".join(pending.streams[1]), state)
            return state
        if kind == Answer.OK and expect in (Expect.OK, Expect.ITEMS):
            wire.decode_nothing(payload)
            return pending.items if expect is Expect.ITEMS else None
        if kind == Answer.STARTED and expect is Expect.STARTED:
            return wire.decode_started(payload)
        if kind == Answer.STATS and expect is Expect.STATS:
            return wire.decode_stats(payload)
        raise WireError("an answer of the wrong kind")
