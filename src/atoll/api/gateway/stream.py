"""The WebSocket of one process: its output as it comes, its input, signals and size (SA-447).

Each connection has four tasks of its own: one sends, one receives, one feeds standard input, one looks whether the
token is still good. They share nothing with any other connection: one whose client stops reading stalls itself alone.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Coroutine
from contextlib import aclosing
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, WebSocket
from starlette.responses import Response
from starlette.websockets import WebSocketDisconnect

from atoll.api.errors import Failure, failure_of, render
from atoll.api.gateway import shapes
from atoll.api.gateway.caller import GATEWAY, GatewayCall, GatewayRoute, gateway_caller
from atoll.api.gateway.frames import (
    PROTOCOL,
    Acknowledge,
    ClientFrame,
    FrameError,
    Resize,
    Signal,
    Stdin,
    decode,
    encode_error,
    encode_event,
)
from atoll.api.gateway.window import Window
from atoll.api.openapi import errors
from atoll.domain.errors import AtollError, Conflict, ErrorCode, Forbidden, Invalid, RuntimeFailure, Unauthenticated
from atoll.domain.gateway import GatewayScope, require_gateway_scopes
from atoll.ops.gateway_process import GatewayProcess, find_process
from atoll.ops.gateway_session import check_again
from atoll.ops.gateway_stream import check_readable, follow

router = APIRouter(prefix=GATEWAY, route_class=GatewayRoute, tags=["Gateway"])

WEBSOCKET_OPTIONS: dict[str, Any] = {
    # A stream is bytes that were just made, in small pieces; compressing them costs more time than sending them.
    "ws_per_message_deflate": False,
    "ws_max_size": 16 * 1024 * 1024,
    "ws_ping_interval": 20.0,
    # Pings keep proxies from closing a quiet connection, and no answer is waited for: a client that is held back, or
    # that holds us back, answers none, and is well.
    "ws_ping_timeout": None,
}
"""How uvicorn serves the WebSockets of this application."""

CHECK_SECONDS = 5.0
"""How often a stream looks whether its token is still good."""
MAX_WAITING_INPUT_BYTES = 256 * 1024
"""Input that waits for a process to read it, beyond which no more is taken from the client."""
_FRAME_BYTES = 128
"""What a frame of input counts beside its data: an empty one waits too."""
_PAUSE_SECONDS = 0.3
"""Before input that was refused is tried again: the agent has waited for a reader, or says so."""
CLOSE_DONE, CLOSE_FAULT, CLOSE_RETRY = 1000, 1011, 1013
CLOSE_MALFORMED, CLOSE_UNAUTHENTICATED, CLOSE_FORBIDDEN = 4400, 4401, 4403
_MAX_REASON_BYTES = 120

ExecutionId = Annotated[str, Path(alias="executionId", max_length=100, description="What the start answered.")]
StreamCall = Annotated[GatewayCall, gateway_caller(GatewayScope.EXEC)]
_ORDINARY = frozenset({ErrorCode.EXECUTION_EXITED, ErrorCode.EXECUTION_NOT_FOUND, ErrorCode.INVALID_REQUEST})
"""What a client is told of a frame while its stream goes on."""


@router.get(
    "/processes/{executionId}/stream",
    operation_id="gateway-stream-process",
    summary="Stream a process (WebSocket)",
    response_class=Response,
    response_model=None,
    responses={
        101: {"description": "The WebSocket, with the subprotocol `atoll.stream.v1`."},
        **errors(404, 409, 426, 502, 503),
    },
)
async def refuse_plain_http(
    call: StreamCall, execution_id: ExecutionId, query: Annotated[shapes.StreamQuery, Query()]
) -> Response:
    """A WebSocket of the subprotocol `atoll.stream.v1`: output, input, signals and size of a process in binary frames.

    Needs the gateway scope `exec`; frames that resize also `pty`, frames that signal also `signal`. The token goes into
    the Authorization header, or is offered as the subprotocol `atoll.bearer.<token>`. Connect again with `from` one
    above the last `seq` taken: nothing is lost or repeated.
    """
    del call, execution_id, query
    return render(Failure(426, "Connect with a WebSocket."), {"Upgrade": "websocket", "Connection": "Upgrade"})


@router.websocket("/processes/{executionId}/stream")
async def stream_process(
    websocket: WebSocket,
    call: StreamCall,
    execution_id: ExecutionId,
    query: Annotated[shapes.StreamQuery, Query()],
) -> None:
    """Serve one connection; what stands against it is the answer of the handshake."""
    process = await find_process(call.services, call.caller, execution_id)
    check_readable(process)
    offered = websocket.scope["subprotocols"]
    await websocket.accept(subprotocol=PROTOCOL if PROTOCOL in offered else None)
    await _Stream(websocket, call, process).run(query.from_seq)


class _Stream:
    """One connection, from its handshake to its end."""

    def __init__(self, websocket: WebSocket, call: GatewayCall, process: GatewayProcess) -> None:
        self._websocket = websocket
        self._call = call
        self._process = process
        self._window = Window()
        self._acknowledged = asyncio.Event()
        self._input: deque[bytes] = deque()
        self._input_bytes = 0
        self._input_came = asyncio.Event()
        self._input_went = asyncio.Event()

    async def run(self, from_seq: int) -> None:
        """Serve until the first of the tasks ends, then close with what that means."""
        work: list[Coroutine[Any, Any, None]] = [self._send(from_seq), self._receive(), self._feed(), self._guard()]
        tasks = [asyncio.create_task(coroutine) for coroutine in work]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        ended = next(task for task in tasks if task in done)
        error = ended.exception()
        code, reason = _closing(error)
        try:
            # Also to a client that is gone or has said so; there is nobody to tell then.
            await self._websocket.close(code, reason)
        except (RuntimeError, WebSocketDisconnect):
            return
        if code == CLOSE_FAULT and error is not None:
            raise error

    async def _send(self, from_seq: int) -> None:
        """Output, as fast as the client takes it."""
        async with aclosing(follow(self._process, from_seq)) as events:
            async for event in events:
                while self._window.full:
                    self._acknowledged.clear()
                    await self._acknowledged.wait()
                frame = encode_event(event)
                await self._websocket.send_bytes(frame)
                self._window.sent(event.seq, len(frame))

    async def _receive(self) -> None:
        """Frames of the client, until it is gone."""
        while True:
            message = await self._websocket.receive()
            if message["type"] == "websocket.disconnect":
                return
            data = message.get("bytes")
            if data is None:
                raise FrameError("Frames are binary.")
            await self._take(decode(data))

    async def _take(self, frame: ClientFrame) -> None:
        match frame:
            case Stdin(data):
                while self._input_bytes >= MAX_WAITING_INPUT_BYTES:
                    self._input_went.clear()
                    await self._input_went.wait()
                self._input.append(data)
                self._input_bytes += len(data) + _FRAME_BYTES
                self._input_came.set()
            case Acknowledge(seq):
                self._window.acknowledge(seq)
                self._acknowledged.set()
            case Resize(size):
                await self._control(GatewayScope.PTY, self._process.resize(size))
            case Signal(name):
                await self._control(GatewayScope.SIGNAL, self._process.signal(name))

    async def _control(self, scope: GatewayScope, work: Coroutine[Any, Any, None]) -> None:
        """Do what a frame asks for, if the token may; a refusal is told and ends nothing."""
        try:
            require_gateway_scopes(self._call.caller.scopes, frozenset({scope}))
        except Forbidden as refusal:
            work.close()
            await self._tell(refusal)
            return
        try:
            await work
        except (Invalid, RuntimeFailure) as refusal:
            if refusal.code not in _ORDINARY:
                raise
            await self._tell(refusal)

    async def _feed(self) -> None:
        """Input in its order, as fast as the process reads it; apart from the rest, so that a signal passes it."""
        closed = False
        while True:
            while not self._input:
                self._input_came.clear()
                await self._input_came.wait()
            data = self._input.popleft()
            if not closed:
                try:
                    await self._write(data)
                except RuntimeFailure as refusal:
                    if refusal.code not in _ORDINARY:
                        raise
                    closed = True
                    await self._tell(refusal)
            self._input_bytes -= len(data) + _FRAME_BYTES
            self._input_went.set()

    async def _write(self, data: bytes) -> None:
        if not data:
            await self._process.end_input()
        while data:
            taken = await self._process.write(data)
            data = data[taken:]
            if not taken:
                await asyncio.sleep(_PAUSE_SECONDS)

    async def _guard(self) -> None:
        """Raise once the token has ended (SA-354, SA-457)."""
        services, caller = self._call.services, self._call.caller
        while True:
            left = (caller.expires_at - services.clock()).total_seconds()
            await asyncio.sleep(min(CHECK_SECONDS, max(left, 0)))
            await check_again(services, caller, frozenset({GatewayScope.EXEC}))

    async def _tell(self, refusal: AtollError) -> None:
        failure = failure_of(refusal)
        await self._websocket.send_bytes(encode_error(failure.message, failure.code))


def _closing(error: BaseException | None) -> tuple[int, str]:
    """The close code and its reason, for what ended a stream."""
    if error is None or isinstance(error, WebSocketDisconnect):
        return CLOSE_DONE, ""
    if isinstance(error, FrameError):
        return CLOSE_MALFORMED, str(error)
    if not isinstance(error, AtollError):
        return CLOSE_FAULT, ""
    code = CLOSE_FORBIDDEN
    if isinstance(error, Unauthenticated):
        code = CLOSE_UNAUTHENTICATED
    elif isinstance(error, RuntimeFailure | Conflict):
        code = CLOSE_RETRY
    return code, error.message.encode()[:_MAX_REASON_BYTES].decode(errors="ignore")
