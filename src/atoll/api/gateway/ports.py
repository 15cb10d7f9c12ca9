"""Routes to ports inside a sandbox: HTTP of every method, streamed both ways (SA-455). WebSockets: `port_socket`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Annotated

import h11
from fastapi import APIRouter, Path
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from atoll.api.gateway import port_headers
from atoll.api.gateway.caller import GATEWAY, GatewayCall, GatewayRoute, gateway_caller
from atoll.api.gateway.connected import ClientGone, body_of, while_connected
from atoll.api.openapi import errors
from atoll.domain.errors import AtollError, ErrorCode, Invalid, RuntimeFailure
from atoll.domain.gateway import GatewayScope
from atoll.ops.gateway_files import STALL_LIMIT_SECONDS, while_allowed
from atoll.ops.gateway_port import PortConnection, open_port

router = APIRouter(prefix=GATEWAY, route_class=GatewayRoute, tags=["Gateway ports"])

PortCall = Annotated[GatewayCall, gateway_caller(GatewayScope.EXEC)]
RestOfPath = Annotated[str, Path(description="What the program is asked for, with the query as it came.")]
Port = Annotated[int, Path(ge=1, le=65_535, description="A port of the sandbox's loopback.")]
METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "HEAD")
HEAD_LIMIT_SECONDS = 300.0
"""How long a program may think before it answers, once it has the whole request."""
_MAX_HEAD_BYTES = 64 * 1024


async def reach_port(call: PortCall, port: Port, path: RestOfPath, request: Request) -> Response:
    """Pass the request to a program that listens on a port in the sandbox, and its answer back, both streamed.

    Needs the gateway scope `exec`. The token and cookies are not passed on, nor are cookies of the answer; 502 when
    nothing listens or the program does not speak HTTP/1.1.
    """
    del path
    connection = await open_port(call.services, call.caller, port)
    exchange = Exchange(connection)
    try:
        async with while_allowed(call.services, call.caller, GatewayScope.EXEC):
            upload = asyncio.create_task(exchange.ask(request, port))
            try:
                head = await exchange.head(upload)
            except BaseException:
                upload.cancel()
                raise
    except BaseException:
        connection.close()
        raise
    return PortResponse(call, exchange, upload, head)


for _method in METHODS:
    router.add_api_route(
        "/ports/{port}/{path:path}",
        reach_port,
        methods=[_method],
        operation_id=f"gateway-port-{_method.lower()}",
        summary=f"{_method} from a port",
        response_class=Response,
        response_model=None,
        responses={
            **errors(404, 409, 429, 502, 503),
            200: {"description": "Whatever the program answers, with its own status."},
        },
    )


class Exchange:
    """One request and its answer over one connection of HTTP/1.1."""

    def __init__(self, connection: PortConnection) -> None:
        self.connection = connection
        self._http = h11.Connection(h11.CLIENT, max_incomplete_event_size=_MAX_HEAD_BYTES)

    async def ask(self, request: Request, port: int) -> None:
        """Send the request; its body as it comes. Raises `Invalid` when that breaks off or stands still."""
        scope = request.scope
        prefix = f"{request.url.path.split('/ports/', 1)[0]}/ports/{port}"
        headers = port_headers.sent(scope["headers"], port=port, prefix=prefix, scheme=request.url.scheme)
        length = request.headers.get("content-length")
        chunked = length is None and "transfer-encoding" in request.headers
        if length is not None:
            headers.append((b"content-length", length.encode()))
        elif chunked:
            headers.append((b"transfer-encoding", b"chunked"))
        headers.append((b"connection", b"close"))
        asked = port_headers.target(scope["raw_path"], scope["query_string"])
        try:
            head = h11.Request(method=scope["method"], target=asked, headers=headers)
            await self._send(head)
            if length is not None or chunked:
                async for part in body_of(request):
                    await self._send(h11.Data(data=part))
            await self._send(h11.EndOfMessage())
        except h11.LocalProtocolError:
            raise Invalid("The request cannot be passed on.") from None

    async def head(self, upload: asyncio.Task[None]) -> h11.Response:
        """The head of the answer. Raises what became of the request, or UNKNOWN for what is no HTTP."""
        reading = asyncio.create_task(self._head())
        try:
            # The upload has limits of its own: neither end of it may stand still.
            await asyncio.wait({reading, upload}, return_when=asyncio.FIRST_COMPLETED)
            if not reading.done() and upload.exception() is not None:
                await upload
            async with asyncio.timeout(HEAD_LIMIT_SECONDS):
                return await reading
        except TimeoutError:
            raise _no_answer("The program behind the port does not answer.") from None
        finally:
            reading.cancel()

    async def body(self) -> AsyncIterator[bytes]:
        """The body of the answer. Raises UNKNOWN where it breaks off."""
        while True:
            event = await self._next()
            if isinstance(event, h11.Data):
                yield bytes(event.data)
            elif isinstance(event, h11.EndOfMessage):
                return
            else:
                raise _no_answer("The answer broke off.")

    async def _send(self, event: h11.Event) -> None:
        data = self._http.send(event)
        if data:
            await self.connection.send(data)

    async def _head(self) -> h11.Response:
        while True:
            event = await self._next()
            if isinstance(event, h11.Response):
                return event
            if not isinstance(event, h11.InformationalResponse) or event.status_code == 101:
                raise _no_answer("The program behind the port does not answer as HTTP/1.1 does.")

    async def _next(self) -> h11.Event:
        while True:
            try:
                event = self._http.next_event()
            except h11.RemoteProtocolError:
                raise _no_answer("The program behind the port does not answer as HTTP/1.1 does.") from None
            if isinstance(event, h11.Event):
                return event
            if event is h11.PAUSED:
                raise _no_answer("The program behind the port does not answer as HTTP/1.1 does.")
            self._http.receive_data(await self.connection.receive())


class PortResponse(Response):
    """The answer of a program, sent on as it comes; where it breaks off, the connection is cut."""

    def __init__(self, call: GatewayCall, exchange: Exchange, upload: asyncio.Task[None], head: h11.Response) -> None:
        super().__init__(None, head.status_code)
        self.raw_headers = port_headers.answered(head.headers)
        self._call = call
        self._exchange = exchange
        self._upload = upload

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the answer."""
        del scope
        try:
            async with (
                while_allowed(self._call.services, self._call.caller, GatewayScope.EXEC),
                while_connected(receive, upload=self._upload),
            ):
                await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
                async for part in self._exchange.body():
                    async with asyncio.timeout(STALL_LIMIT_SECONDS):
                        await send({"type": "http.response.body", "body": part, "more_body": True})
                await send({"type": "http.response.body", "body": b"", "more_body": False})
        except (AtollError, TimeoutError, ClientGone):
            return
        finally:
            self._upload.cancel()
            self._exchange.connection.close()
            await asyncio.gather(self._upload, return_exceptions=True)


def _no_answer(sentence: str) -> RuntimeFailure:
    return RuntimeFailure(sentence, code=ErrorCode.UNKNOWN, reason="port_unreachable")
