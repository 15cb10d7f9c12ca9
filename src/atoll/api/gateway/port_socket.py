"""The WebSocket to a port inside a sandbox: messages pass both ways between the client and the program (SA-455).

Each side has a connection of its own and its own limits, so that no frame of one reaches the other unread.
"""

from __future__ import annotations

import asyncio
from typing import Annotated

from fastapi import APIRouter, Path, WebSocket
from starlette.websockets import WebSocketDisconnect
from websockets.client import ClientProtocol
from websockets.datastructures import Headers
from websockets.exceptions import WebSocketException
from websockets.frames import Frame, Opcode
from websockets.http11 import Response
from websockets.typing import Subprotocol
from websockets.uri import parse_uri

from atoll.api.gateway import port_headers
from atoll.api.gateway.caller import BEARER_PROTOCOL, GATEWAY
from atoll.api.gateway.ports import PortCall
from atoll.domain.errors import AtollError, ErrorCode, RuntimeFailure
from atoll.domain.gateway import GatewayScope
from atoll.ops.gateway_files import while_allowed
from atoll.ops.gateway_port import PortConnection, open_port

router = APIRouter(prefix=GATEWAY, tags=["Gateway ports"])

MAX_MESSAGE_BYTES = 4 * 1024 * 1024
"""The longest message, either way."""
_HANDSHAKE_SECONDS = 30.0
_OWN = {b"connection", b"upgrade", b"host"}
CLOSE_DONE, CLOSE_TOO_LONG, CLOSE_FAULT, CLOSE_UNAUTHENTICATED = 1000, 1009, 1011, 4401


@router.websocket("/ports/{port}/{path:path}")
async def connect_port(
    websocket: WebSocket, call: PortCall, port: Annotated[int, Path(ge=1, le=65_535)], path: str
) -> None:
    """Serve one connection; what stands against it is the answer of the handshake."""
    del path
    connection = await open_port(call.services, call.caller, port)
    code = CLOSE_DONE
    try:
        program = _Program(connection, websocket, port)
        subprotocol = await program.shake_hands()
        await websocket.accept(subprotocol=subprotocol)
        async with while_allowed(call.services, call.caller, GatewayScope.EXEC):
            code = await _relay(websocket, program)
    except AtollError as error:
        if websocket.application_state.name != "CONNECTED":
            raise
        code = CLOSE_FAULT if isinstance(error, RuntimeFailure) else CLOSE_UNAUTHENTICATED
    finally:
        connection.close()
    try:
        await websocket.close(code)
    except (RuntimeError, WebSocketDisconnect):
        return


class _Program:
    """The connection to the program, as a client of it."""

    def __init__(self, connection: PortConnection, websocket: WebSocket, port: int) -> None:
        scope = websocket.scope
        target = port_headers.target(scope["raw_path"], scope["query_string"]).decode("latin-1")
        offered = [Subprotocol(name) for name in scope["subprotocols"] if not name.startswith(BEARER_PROTOCOL)]
        self._connection = connection
        self._protocol = ClientProtocol(
            parse_uri(f"ws://localhost:{port}"), subprotocols=offered or None, max_size=MAX_MESSAGE_BYTES
        )
        self._request = self._protocol.connect()
        self._request.path = target
        prefix = f"{websocket.url.path.split('/ports/', 1)[0]}/ports/{port}"
        _add(
            self._request.headers,
            port_headers.sent(scope["headers"], port=port, prefix=prefix, scheme=websocket.url.scheme),
        )
        self._message = bytearray()
        self._text = False
        self._sending = asyncio.Lock()

    async def shake_hands(self) -> str | None:
        """The subprotocol that the program chose. Raises UNKNOWN when it takes no WebSocket."""
        self._protocol.send_request(self._request)
        try:
            async with asyncio.timeout(_HANDSHAKE_SECONDS):
                await self._flush()
                while not (events := self._protocol.events_received()):
                    data = await self._connection.receive()
                    self._protocol.receive_data(data) if data else self._protocol.receive_eof()
                    if self._protocol.handshake_exc is not None or not data:
                        break
        except TimeoutError:
            events = []
        if self._protocol.handshake_exc is not None or not events or not isinstance(events[0], Response):
            raise RuntimeFailure(
                "The program behind the port takes no WebSocket.", code=ErrorCode.UNKNOWN, reason="port_unreachable"
            )
        self._early = events[1:]
        return self._protocol.subprotocol

    async def receive(self) -> list[str | bytes] | None:
        """Messages that have come whole; None once the program has closed. Raises WebSocketException."""
        messages: list[str | bytes] = []
        events, self._early = self._early, []
        while True:
            gathered = [self._gather(event) for event in events if isinstance(event, Frame)]
            messages += [message for message in gathered if message is not None]
            if messages:
                return messages
            data = await self._connection.receive()
            if not data:
                return None
            self._protocol.receive_data(data)
            await self._flush()
            events = self._protocol.events_received()
            if self._protocol.parser_exc is not None:
                raise self._protocol.parser_exc
            if not events and self._protocol.close_rcvd is not None:
                return None

    async def send(self, message: str | bytes) -> None:
        """Pass a message on."""
        if isinstance(message, str):
            self._protocol.send_text(message.encode())
        else:
            self._protocol.send_binary(message)
        await self._flush()

    async def say_goodbye(self) -> None:
        """Close from this side."""
        try:
            self._protocol.send_close(CLOSE_DONE)
            await self._flush()
        except (WebSocketException, AtollError):
            return

    def _gather(self, frame: Frame) -> str | bytes | None:
        if frame.opcode not in (Opcode.TEXT, Opcode.BINARY, Opcode.CONT):
            return None
        if frame.opcode is not Opcode.CONT:
            self._text = frame.opcode is Opcode.TEXT
        self._message += frame.data
        if not frame.fin:
            return None
        whole = bytes(self._message)
        self._message.clear()
        return whole.decode("utf-8", "replace") if self._text else whole

    async def _flush(self) -> None:
        # Messages and answers to pings are sent by two tasks; a frame must not come into the middle of another.
        async with self._sending:
            for data in self._protocol.data_to_send():
                if data:
                    await self._connection.send(data)


def _add(headers: Headers, found: list[port_headers.Header]) -> None:
    for name, value in found:
        if name not in _OWN and not name.startswith(b"sec-websocket-"):
            headers[name.decode("latin-1")] = value.decode("latin-1")


async def _relay(websocket: WebSocket, program: _Program) -> int:
    """Messages both ways until one side is gone; the code to close the client's side with."""
    tasks = [asyncio.create_task(_inwards(websocket, program)), asyncio.create_task(_outwards(websocket, program))]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        return done.pop().result()
    except WebSocketDisconnect:
        return CLOSE_DONE
    except WebSocketException:
        return CLOSE_FAULT
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _inwards(websocket: WebSocket, program: _Program) -> int:
    while True:
        message = await websocket.receive()
        if message["type"] == "websocket.disconnect":
            await program.say_goodbye()
            return CLOSE_DONE
        text, data = message.get("text"), message.get("bytes")
        found = text if text is not None else data or b""
        if len(found) > MAX_MESSAGE_BYTES:
            return CLOSE_TOO_LONG
        await program.send(found)


async def _outwards(websocket: WebSocket, program: _Program) -> int:
    while (messages := await program.receive()) is not None:
        for message in messages:
            if isinstance(message, str):
                await websocket.send_text(message)
            else:
                await websocket.send_bytes(message)
    return CLOSE_DONE
