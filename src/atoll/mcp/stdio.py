"""`atoll mcp`: the tools of a server, over stdin and stdout. Called by the command line.

A bridge and no more: it lists and calls the tools of `URL/mcp`, so keys, restrictions and errors are the server's.
"""

from __future__ import annotations

from typing import Any

import httpx2
import mcp_types as types
from mcp.client.client import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server

from atoll import __version__
from atoll.domain.errors import AtollError

_CONNECT_SECONDS = 10.0
_CALL_SECONDS = 960.0
"""Above the longest deadline of a command that is run to its end."""
_PING = {"jsonrpc": "2.0", "id": "atoll-mcp", "method": "ping"}


async def bridge(url: str, token: str) -> None:
    """Serve until stdin ends. Raises `AtollError` when the server cannot be reached or does not take the token."""
    endpoint = url.rstrip("/") + "/mcp"
    timeout = httpx2.Timeout(_CALL_SECONDS, connect=_CONNECT_SECONDS)
    async with httpx2.AsyncClient(headers={"Authorization": f"Bearer {token}"}, timeout=timeout) as http:
        await _check(http, endpoint)
        async with Client(streamable_http_client(endpoint, http_client=http)) as client:
            server = _forwarding(client)
            async with stdio_server() as (incoming, outgoing):
                await server.run(incoming, outgoing, server.create_initialization_options())


async def _check(http: httpx2.AsyncClient, endpoint: str) -> None:
    """Ask once by hand: the protocol's client says of a refusal only that there was one."""
    try:
        answer = await http.post(endpoint, json=_PING, headers={"Accept": "application/json, text/event-stream"})
    except (httpx2.HTTPError, httpx2.InvalidURL) as error:
        raise AtollError(f"The server cannot be reached ({type(error).__name__}); check ATOLL_URL.") from None
    if answer.status_code in {401, 403}:
        raise AtollError(f"The server does not take the token of ATOLL_TOKEN: {_sentence(answer)}")
    if answer.status_code >= 400:
        raise AtollError(f"There is no Atoll at ATOLL_URL: it answers {answer.status_code}.")


def _sentence(answer: httpx2.Response) -> str:
    try:
        body = answer.json()
    except ValueError:
        return f"it answers {answer.status_code}."
    return str(body.get("error", answer.status_code)) if isinstance(body, dict) else str(answer.status_code)


def _forwarding(client: Client) -> Server[Any]:
    async def list_tools(
        context: ServerRequestContext[Any], params: types.PaginatedRequestParams | None
    ) -> types.ListToolsResult:
        del context, params
        return await client.list_tools()

    async def call_tool(
        context: ServerRequestContext[Any], params: types.CallToolRequestParams
    ) -> types.CallToolResult:
        del context
        return await client.call_tool(params.name, params.arguments or {})

    return Server(
        "atoll",
        version=__version__,
        title="Atoll",
        instructions=client.instructions,
        on_list_tools=list_tools,
        on_call_tool=call_tool,
    )
