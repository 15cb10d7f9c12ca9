"""`/mcp`: the tools of `atoll.mcp` over streamable HTTP, for the holder of any token that acts for a person.

A call of a tool becomes a request to this very application, with the caller's own token: routes, checks, refusals and
the audit trail are those of the REST API. That it came by MCP is told in the ASGI scope, which no client can write.
"""

from __future__ import annotations

import asyncio
from functools import cached_property
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode, urlsplit

import httpx
import orjson
from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from atoll.api.auth import CHANNEL, authenticate_request
from atoll.api.errors import Failure, failure_of, render
from atoll.api.openapi import SANDBOX_API
from atoll.domain.audit import Channel
from atoll.domain.errors import Forbidden, Invalid, NotFound
from atoll.domain.identity import Principal, require_person
from atoll.mcp.tools import ToolOperation, ToolRequest, request_of, tools_of

if TYPE_CHECKING:
    from atoll.mcp.server import ToolAnswer

PATH = "/mcp"
_POST_ALONE = Failure(405, "MCP is served by POST; there are no sessions to listen to or to end.")
_INTRODUCTION = """Atoll runs commands in isolated Linux sandboxes. Pass accountId "{account}" with every call that \
takes one. Create a sandbox (create-sandbox), wait until it is READY (get-sandbox with waitSeconds), run commands \
(execute-sandbox-command, or start-sandbox-command for long ones), and terminate it when you are done. \
`command` is an argument vector: for shell features pass ["sh", "-c", "…"]. An error says whether and when to retry."""


class McpEndpoint:
    """The ASGI application at `PATH`."""

    def __init__(self, app: FastAPI) -> None:
        self._app = app
        self._protocol: ModuleType | None = None
        self._listed: list[Any] = []

    @cached_property
    def _tools(self) -> dict[str, ToolOperation]:
        return tools_of(self._app.openapi(), SANDBOX_API)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one exchange, or refuse it as the REST API would."""
        scope[CHANNEL] = Channel.MCP
        request = Request(scope, receive)
        _check_origin(request)
        principal = await authenticate_request(self._app.state.services, request)
        request.state.principal = principal
        require_person(principal)
        if request.method != "POST":
            await render(_POST_ALONE, {"Allow": "POST"})(scope, receive, send)
            return
        if self._protocol is None:
            # In a thread, for it takes a second.
            self._protocol = await asyncio.to_thread(import_module, "atoll.mcp.server")
            self._listed = self._protocol.listed_tools(self._tools.values())
        protocol = self._protocol

        async def call(name: str, arguments: dict[str, Any]) -> ToolAnswer:
            answer = await self._call(request, name, arguments)
            found: ToolAnswer = protocol.ToolAnswer(orjson.loads(answer.body), answer.status_code >= 400)
            return found

        server = protocol.make_server(self._listed, call, _introduction(principal))
        await protocol.serve_exchange(server, scope, receive, send)

    async def _call(self, request: Request, name: str, arguments: dict[str, Any]) -> Response:
        """Send a call of a tool through the routes."""
        tool = self._tools.get(name)
        if tool is None:
            return render(failure_of(NotFound("There is no such tool.")))
        try:
            wanted = request_of(tool, arguments)
        except (Invalid, orjson.JSONEncodeError) as error:
            refused = error if isinstance(error, Invalid) else Invalid("The arguments are not valid JSON.")
            return render(failure_of(refused))
        return await _send(self._app, request, wanted)


async def _send(app: ASGIApp, caller: Request, wanted: ToolRequest) -> Response:
    async def by_mcp(scope: Scope, receive: Receive, send: Send) -> None:
        await app({**scope, "scheme": caller.scope["scheme"], CHANNEL: Channel.MCP}, receive, send)

    address = caller.client
    transport = httpx.ASGITransport(
        by_mcp, raise_app_exceptions=False, client=("", 0) if address is None else (address.host, address.port)
    )
    headers = {
        "Authorization": caller.headers["authorization"],
        "Content-Type": "application/json",
        "X-Request-Id": caller.state.request_id,
        # Answers that name the server name it as the client does.
        "Host": caller.headers.get("host", "atoll"),
    }
    async with httpx.AsyncClient(transport=transport, base_url="http://atoll", trust_env=False, timeout=None) as http:  # noqa: S113 - every operation has its own limit
        answer = await http.request(
            wanted.method, wanted.path, params=urlencode(wanted.query), content=wanted.body, headers=headers
        )
    return Response(answer.content, answer.status_code, media_type="application/json")


def _check_origin(request: Request) -> None:
    """Refuse a page of another site: a browser that was led here must not speak for whoever sits before it."""
    origin = request.headers.get("origin")
    if origin is not None and urlsplit(origin).netloc != request.headers.get("host"):
        raise Forbidden("MCP is not served to pages of other sites.")


def _introduction(principal: Principal) -> str:
    text = _INTRODUCTION.format(account=principal.account_id)
    restriction = principal.restriction
    if restriction is None:
        return text
    for noun, chosen in (
        ("appId", restriction.apps),
        ("region", restriction.regions),
        ("templateId", restriction.templates),
    ):
        if chosen is not None:
            text += f" This key works for {noun} {', '.join(sorted(chosen))} only."
    return text
