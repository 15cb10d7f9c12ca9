"""One connection to an agent through its shim's socket: `atoll.drivers.base.AgentConnection` on asyncio.

Drivers make it, ops and gateway use it. The protocol's rules are in `protocol`; here is the socket, the clock and the
futures. It never reads ahead of what was asked for, and holds requests back while the agent does not take them.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import socket
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeVar, cast
from uuid import UUID

from atoll.agent import wire
from atoll.agent.protocol import (
    AgentProtocol,
    Answered,
    AnswerValue,
    CommandExited,
    EntrypointSettled,
    Event,
    Expect,
    Greeted,
    OutputAnswer,
    RunAnswer,
    StreamFrame,
    TooManyPendingError,
)
from atoll.agent.socket_path import short_path
from atoll.agent.streams import STREAM_CREDIT_BYTES, AgentStream
from atoll.agent.wire import EncodingError, ErrorAnswer, ForeignProtocolError, Request, StateAnswer, WireError
from atoll.domain.command import AgentStats, CommandOutput, CommandResult, CommandState, PtySize, Started
from atoll.domain.errors import AgentMissing, ErrorCode, RuntimeFailure

ANSWER_LIMIT_SECONDS = 30.0
"""How long an answer may take beyond what the request itself waits for."""
_STDIN_LIMIT_SECONDS = 30.0
"""The agent's own limit for input that nobody reads."""
_ENDING_SECONDS = 10.0
"""From a deadline to the last SIGKILL and the exit event."""
_SEND_BYTES = 1024 * 1024
_MAX_UNHEARD_EXITS = 1280

T = TypeVar("T")
ExitCallback = Callable[[CommandState], Awaitable[None] | None]


def _unreachable(message: str = "The agent of the sandbox does not answer.") -> RuntimeFailure:
    return RuntimeFailure(message, code=ErrorCode.AGENT_UNREACHABLE)


class AgentClient(asyncio.BufferedProtocol):
    """A connected client. Make it with `connect`; safe for concurrent use on one event loop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._core = AgentProtocol()
        self._transport: asyncio.Transport | None = None
        self._waiting: dict[int, asyncio.Future[AnswerValue]] = {}
        self._greeted: asyncio.Future[None] = self._loop.create_future()
        self._settled = asyncio.Event()
        self._closed = asyncio.Event()
        self._writable = asyncio.Event()
        self._writable.set()
        self._timer: asyncio.TimerHandle | None = None
        self._exit_callback: ExitCallback | None = None
        self._unheard_exits: deque[CommandState] = deque(maxlen=_MAX_UNHEARD_EXITS)
        self._callback_tasks: set[asyncio.Task[None]] = set()
        self._watches: dict[UUID, asyncio.Task[CommandState]] = {}
        self._streams: dict[int, AgentStream] = {}

    @classmethod
    async def connect(cls, socket_path: Path, *, timeout: float) -> AgentClient:
        """Connect and wait for the agent's HELLO, at most `timeout` seconds.

        Raises AGENT_UNREACHABLE, or `AgentMissing` for an agent of another protocol.
        """
        client: AgentClient | None = None
        try:
            async with asyncio.timeout(timeout):
                client = await cls._open(socket_path)
                await client.wait_greeted()
        except (OSError, TimeoutError) as error:
            raise _unreachable() from error
        finally:
            if client is not None and not client.greeted:
                client.abort()
        return client

    @classmethod
    async def _open(cls, socket_path: Path) -> AgentClient:
        with short_path(socket_path) as path:
            _, client = await asyncio.get_running_loop().create_unix_connection(cls, path)
        return client

    # What the event loop calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The socket is connected."""
        self._transport = cast("asyncio.Transport", transport)
        # A large part that goes over in one piece wakes the shim, the agent and a worker once.
        with contextlib.suppress(OSError):
            self._transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BYTES)
        self._transport.set_write_buffer_limits(high=_SEND_BYTES)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Where the socket's bytes go."""
        return self._core.free()

    def buffer_updated(self, nbytes: int) -> None:
        """Bytes have come."""
        try:
            for event in self._core.received(nbytes):
                self._handle(event)
        except ForeignProtocolError:
            self._greeted.set_exception(AgentMissing())
            self.abort()
        except WireError:
            self.abort()

    def eof_received(self) -> bool:
        """The other side has ended; so does this one."""
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is over, whoever ended it."""
        self._closed.set()
        self._settled.set()
        self._writable.set()
        if self._timer is not None:
            self._timer.cancel()
        if not self._greeted.done():
            self._greeted.set_exception(_unreachable())
            self._greeted.exception()
        waiting, self._waiting = self._waiting, {}
        for future in waiting.values():
            if not future.done():
                future.set_exception(_unreachable("The connection to the agent of the sandbox was lost."))
        streams, self._streams = self._streams, {}
        for stream in streams.values():
            stream.lost(_unreachable("The connection to the agent of the sandbox was lost."))

    def pause_writing(self) -> None:
        """The agent does not take what was sent."""
        self._writable.clear()

    def resume_writing(self) -> None:
        """It does again."""
        self._writable.set()

    # The connection itself.

    @property
    def closed(self) -> bool:
        """Whether the connection is over."""
        return self._closed.is_set()

    async def wait_closed(self) -> None:
        """Return once the connection is over."""
        await self._closed.wait()

    @property
    def greeted(self) -> bool:
        """Whether the agent has said HELLO."""
        return self._greeted.done() and self._greeted.exception() is None

    async def wait_greeted(self) -> None:
        """Return once the agent has said HELLO. Raises AGENT_UNREACHABLE when the connection ends first."""
        await asyncio.shield(self._greeted)

    async def wait_settled(self) -> None:
        """Return once the entrypoint stays up. Raises AGENT_UNREACHABLE when the connection ends first."""
        await self._settled.wait()
        if self.closed:
            raise _unreachable()

    def on_exit(self, callback: ExitCallback) -> None:
        """Call back for the end of every started command; ends since `connect` are told at once."""
        self._exit_callback = callback
        while self._unheard_exits:
            self._tell_exit(callback, self._unheard_exits.popleft())

    async def close(self) -> None:
        """End the connection; commands go on."""
        self.abort()
        await self._closed.wait()

    def abort(self) -> None:
        """End the connection at once, without waiting for it."""
        if self._transport is not None:
            self._transport.abort()

    # Requests.

    async def start(
        self,
        execution_id: UUID,
        argv: Sequence[str],
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        timeout_seconds: float | None = None,
        stdin: bool = False,
        pty: PtySize | None = None,
    ) -> Started:
        """Start a command; the same id again starts nothing. INVALID_REQUEST for a directory that cannot be entered."""
        with _as_invalid():
            payload = wire.encode_start(
                execution_id, argv, cwd=cwd, env=env, timeout_seconds=timeout_seconds, stdin=stdin, pty=pty
            )
        return await self._ask(Started, Request.START, Expect.STARTED, payload)

    async def run(
        self,
        execution_id: UUID,
        argv: Sequence[str],
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        timeout_seconds: float,
        capture_bytes: int = 1_048_576,
    ) -> CommandResult:
        """Run a command to its end. Captures at most 4 MiB a stream; the agent enforces the timeout."""
        capture = min(capture_bytes, wire.MAX_CAPTURE_BYTES)
        with _as_invalid():
            payload = wire.encode_start(execution_id, argv, cwd=cwd, env=env, timeout_seconds=timeout_seconds)
            payload += wire.encode_u32(capture)
        answer = await self._ask(
            RunAnswer,
            Request.RUN,
            Expect.COLLECTED,
            payload,
            room=2 * capture,
            extra_seconds=timeout_seconds + _ENDING_SECONDS,
        )
        state = answer.state
        return CommandResult(state.ended(), answer.stdout, answer.stderr, state.stdout_cut, state.stderr_cut)

    async def read(
        self, execution_id: UUID, *, from_seq: int = 0, max_bytes: int = 1_048_576, wait_seconds: float = 0
    ) -> CommandOutput:
        """Events from `from_seq` on, about `max_bytes` of them (1 MiB at most), and the state."""
        with _as_invalid():
            payload = wire.encode_read(execution_id, from_seq, max_bytes, wait_seconds)
        answer = await self._ask(
            OutputAnswer, Request.READ, Expect.OUTPUT, payload, room=max_bytes, extra_seconds=wait_seconds
        )
        state = answer.state.ended() if answer.state.complete else answer.state.state
        return CommandOutput(state, answer.events, answer.state.next_seq, answer.state.complete)

    async def watch(self, execution_id: UUID) -> CommandState:
        """Return when the command has ended. Any number of callers cost the agent one request."""
        task = self._watches.get(execution_id)
        if task is None:
            task = self._loop.create_task(self._watch(execution_id))
            self._watches[execution_id] = task
            task.add_done_callback(lambda _: self._watches.pop(execution_id, None))
        return await asyncio.shield(task)

    async def _watch(self, execution_id: UUID) -> CommandState:
        answer = await self._ask(StateAnswer, Request.WATCH, Expect.STATE, execution_id.bytes, extra_seconds=None)
        return answer.ended()

    async def write_stdin(self, execution_id: UUID, data: bytes, *, eof: bool = False) -> None:
        """Write to standard input; returns when the bytes are in the pipe. UNKNOWN when nobody reads them for 30 s."""
        view = memoryview(data)
        while True:
            part, view = view[: wire.MAX_STDIN_BYTES], view[wire.MAX_STDIN_BYTES :]
            payload = wire.encode_stdin(execution_id, bytes(part), eof=eof and not view)
            await self._ask_ok(Request.STDIN, payload, extra_seconds=_STDIN_LIMIT_SECONDS)
            if not view:
                return

    async def signal(self, execution_id: UUID, signal_number: int, *, cancel: bool = True) -> None:
        """Signal the whole tree; with `cancel` its end has the reason `canceled`. EXECUTION_EXITED when it is over."""
        with _as_invalid():
            payload = wire.encode_signal(execution_id, signal_number, cancel=cancel)
        await self._ask_ok(Request.SIGNAL, payload)

    async def resize(self, execution_id: UUID, size: PtySize) -> None:
        """Change the size of the terminal. INVALID_REQUEST when there is none."""
        with _as_invalid():
            payload = wire.encode_resize(execution_id, size)
        await self._ask_ok(Request.RESIZE, payload)

    async def forget(self, execution_id: UUID) -> None:
        """Free an exited command; unknown ids are fine. INVALID_REQUEST for one that runs."""
        await self._ask_unless(ErrorCode.EXECUTION_NOT_FOUND, Request.FORGET, execution_id.bytes)

    async def list_commands(self) -> list[CommandState]:
        """Every command the agent knows, the exited first, oldest first."""
        answer = await self._ask(list, Request.LIST, Expect.ITEMS)
        return cast("list[CommandState]", answer)

    async def stats(self) -> AgentStats:
        """Uptime, memory and counts."""
        return await self._ask(AgentStats, Request.STATS, Expect.STATS)

    async def stop_commands(self, grace_seconds: float = 2.0) -> None:
        """End every command with the reason `agent_shutdown`; SIGKILL after the grace."""
        payload = wire.encode_u32(round(grace_seconds * 1000))
        await self._ask_ok(Request.STOP, payload, extra_seconds=grace_seconds + _ENDING_SECONDS)

    async def kill_sandbox(self, *, limit_seconds: float) -> None:
        """Have the shim kill the whole sandbox; the connection ends after that."""
        await self._ask_ok(Request.KILL, b"", extra_seconds=limit_seconds)

    async def open_files(self, arguments: Sequence[bytes]) -> AgentStream:
        """A stream to a worker of the files part (docs/agent-protocol.md). TOO_MANY_EXECUTIONS beyond 120 at once."""
        with _as_invalid():
            payload = wire.encode_open_files(STREAM_CREDIT_BYTES, arguments)
        return await self._open_stream(payload)

    async def dial(self, port: int) -> AgentStream:
        """A TCP connection to a port of the sandbox's loopback; a refused one has ended, with the errno as its code."""
        with _as_invalid():
            payload = wire.encode_open_port(STREAM_CREDIT_BYTES, port)
        return await self._open_stream(payload)

    async def end_streams(self) -> None:
        """End every stream, and return once none writes any more; commands go on."""
        await self._ask_newer(Request.QUIET)

    async def hold(self, *, limit_seconds: float) -> None:
        """End every stream and stop every process, so that files stand as at one moment; until `release`, for
        `limit_seconds` at most, or until another client connects. Returns after 2 s also when a process still moves.
        """
        if not await self._ask_newer(Request.HOLD, wire.encode_u32(round(limit_seconds * 1000))):
            await self.end_streams()

    async def release(self) -> None:
        """Let go on what is held; fine when nothing is."""
        await self._ask_newer(Request.RELEASE)

    # Inside.

    async def _open_stream(self, payload: bytes) -> AgentStream:
        await self._until_writable(self._loop.time() + ANSWER_LIMIT_SECONDS)
        try:
            with _as_invalid():
                stream_id, frame = self._core.open_stream(payload, credit=STREAM_CREDIT_BYTES)
        except TooManyPendingError:
            raise RuntimeFailure("Too many transfers are under way.", code=ErrorCode.TOO_MANY_EXECUTIONS) from None
        stream = AgentStream(
            stream_id,
            write=self._write,
            writable=self._until_writable,
            grant=self._core.grant,
            forget=self._forget_stream,
        )
        self._streams[stream_id] = stream
        self._write(frame)
        try:
            async with asyncio.timeout(ANSWER_LIMIT_SECONDS):
                await stream.opened()
        except BaseException as error:
            stream.close()
            if isinstance(error, TimeoutError):
                raise _unreachable() from None
            raise
        return stream

    def _forget_stream(self, stream_id: int) -> bool:
        self._streams.pop(stream_id, None)
        return self._core.forget_stream(stream_id) and not self.closed

    def _write(self, *parts: bytes | memoryview) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.writelines(parts)

    async def _ask_newer(self, kind: Request, payload: bytes = b"") -> bool:
        """Ask for what an agent that was deployed by an earlier version may not know; False then."""
        return await self._ask_unless(ErrorCode.INVALID_REQUEST, kind, payload, extra_seconds=_ENDING_SECONDS)

    async def _ask_unless(
        self, tolerated: ErrorCode, kind: Request, payload: bytes, *, extra_seconds: float = 0
    ) -> bool:
        """Whether it was done; False for the one error that is fine."""
        try:
            await self._ask_ok(kind, payload, extra_seconds=extra_seconds)
        except RuntimeFailure as error:
            if error.code is not tolerated:
                raise
            return False
        return True

    async def _ask_ok(self, kind: Request, payload: bytes, *, extra_seconds: float | None = 0) -> None:
        await self._ask(type(None), kind, Expect.OK, payload, extra_seconds=extra_seconds)

    async def _ask(
        self,
        answer_type: type[T],
        kind: Request,
        expect: Expect,
        payload: bytes = b"",
        *,
        room: int = 0,
        extra_seconds: float | None = 0,
    ) -> T:
        """Send a request and wait for its answer; `extra_seconds` None waits as long as the connection lives."""
        deadline = None if extra_seconds is None else self._loop.time() + ANSWER_LIMIT_SECONDS + extra_seconds
        await self._until_writable(deadline)
        try:
            with _as_invalid():
                request_id, frame = self._core.ask(kind, expect, payload, room=room, deadline=deadline)
        except TooManyPendingError:
            raise RuntimeFailure("Too many requests wait.", code=ErrorCode.SANDBOX_NOT_READY) from None
        future: asyncio.Future[AnswerValue] = self._loop.create_future()
        self._waiting[request_id] = future
        if deadline is not None:
            self._arm_timer(deadline)
        assert self._transport is not None  # noqa: S101 - connect() returns only after connection_made
        self._transport.write(frame)
        try:
            value = await future
        finally:
            self._waiting.pop(request_id, None)
            self._core.give_up(request_id)
        if isinstance(value, ErrorAnswer):
            raise RuntimeFailure(value.sentence, code=value.code)
        if not isinstance(value, answer_type):
            self.abort()
            raise _unreachable()
        return value

    async def _until_writable(self, deadline: float | None) -> None:
        if not self._writable.is_set():
            try:
                async with asyncio.timeout_at(deadline):
                    await self._writable.wait()
            except TimeoutError:
                raise _unreachable() from None
        if self.closed or self._transport is None or self._transport.is_closing():
            raise _unreachable()

    def _handle(self, event: Event) -> None:
        if isinstance(event, Answered):
            future = self._waiting.get(event.request_id)
            if future is not None and not future.done():
                future.set_result(event.value)
        elif isinstance(event, StreamFrame):
            stream = self._streams.get(event.stream_id)
            if stream is not None:
                stream.take(event)
        elif isinstance(event, CommandExited):
            if self._exit_callback is None:
                self._unheard_exits.append(event.state)
            else:
                self._tell_exit(self._exit_callback, event.state)
        elif isinstance(event, EntrypointSettled):
            self._settled.set()
        elif isinstance(event, Greeted):
            if event.hello.settled:
                self._settled.set()
            if not self._greeted.done():
                self._greeted.set_result(None)

    def _tell_exit(self, callback: ExitCallback, state: CommandState) -> None:
        result = callback(state)
        if inspect.isawaitable(result):
            task = self._loop.create_task(_await(result))
            self._callback_tasks.add(task)
            task.add_done_callback(self._callback_tasks.discard)

    def _arm_timer(self, deadline: float) -> None:
        if self._timer is not None:
            if self._timer.when() <= deadline:
                return
            self._timer.cancel()
        self._timer = self._loop.call_at(deadline, self._expire)

    def _expire(self) -> None:
        self._timer = None
        for request_id in self._core.expire(self._loop.time()):
            future = self._waiting.get(request_id)
            if future is not None and not future.done():
                future.set_exception(_unreachable())
        deadline = self._core.next_deadline()
        if deadline is not None:
            self._arm_timer(deadline)


async def _await(result: Awaitable[None]) -> None:
    await result


@contextlib.contextmanager
def _as_invalid() -> Iterator[None]:
    try:
        yield
    except EncodingError as error:
        raise RuntimeFailure(str(error), code=ErrorCode.INVALID_REQUEST) from error
