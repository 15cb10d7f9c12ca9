"""What goes around every request: its id, its line in the access log, and the last answer to an unexpected exception.

Pure ASGI, because a command over HTTP is short and each layer is paid for by every call. The log holds the route's
template and never the path's query, a body, a header, a command line, an environment or output.
"""

from __future__ import annotations

import re
import time
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import structlog
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from atoll.api.errors import INTERNAL, render

REQUEST_ID_HEADER = "X-Request-Id"
_SANE_REQUEST_ID = re.compile(rb"[A-Za-z0-9._:-]{1,64}")
_STARTS = frozenset({"http.response.start", "websocket.accept", "websocket.http.response.start"})
"""Messages that carry the head of an answer. A WebSocket is logged at its end, with its close code for a status."""
_log = structlog.get_logger("atoll.api")


class RequestEnvelope:
    """The outermost layer of the application."""

    def __init__(self, app: ASGIApp, *, new_id: Callable[[], str]) -> None:
        self.app = app
        self.new_id = new_id

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection."""
        if scope["type"] not in {"http", "websocket"}:
            await self.app(scope, receive, send)
            return
        request_id = _request_id(scope) or self.new_id()
        state = scope.setdefault("state", {})
        state["request_id"] = request_id
        began = time.perf_counter()
        status: int | None = None

        async def send_tagged(message: Message) -> None:
            nonlocal status
            if message["type"] == "websocket.close":
                status = message.get("code", 1000)
            if message["type"] in _STARTS:
                status = message.get("status", 101)
                message["headers"] = [*message.get("headers", ()), (b"x-request-id", request_id.encode())]
            await send(message)

        try:
            await self.app(scope, receive, send_tagged)
        except Exception as error:
            _log.error("request failed", request_id=request_id, route=_route(scope), traceback=trace(error))
            if status is not None or scope["type"] == "websocket":
                raise  # the answer has begun: only ending the connection tells the client
            await render(INTERNAL)(scope, receive, send_tagged)
        finally:
            principal = state.get("principal")
            _log.info(
                "request",
                method=scope.get("method", "WEBSOCKET"),
                route=_route(scope),
                status=status,
                duration_ms=round((time.perf_counter() - began) * 1_000, 2),
                principal=None if principal is None else principal.user_id,
                request_id=request_id,
            )


def trace(error: BaseException) -> str:
    """Where an exception and its causes came from: types and code lines.

    Without local variables and without messages: those of a database or a validator repeat what a caller sent.
    """
    return "\ncaused\n".join(
        "".join([*traceback.format_tb(link.__traceback__), f"{type(link).__module__}.{type(link).__qualname__}"])
        for link in reversed(list(_chain(error)))
    )


def _chain(error: BaseException) -> Iterator[BaseException]:
    link: BaseException | None = error
    seen: set[int] = set()
    while link is not None and id(link) not in seen:
        seen.add(id(link))
        yield link
        link = link.__cause__ or link.__context__


def _request_id(scope: Scope) -> str | None:
    """The id that the client gave, when it is one that can stand in a header, a log line and a column."""
    for name, value in scope["headers"]:
        if name == b"x-request-id" and _SANE_REQUEST_ID.fullmatch(value):
            text: bytes = value
            return text.decode("ascii")
    return None


def _route(scope: Scope) -> str | None:
    """The template of the route that served it; None when none did."""
    route: Any = scope.get("route")
    return getattr(route, "path", None)
