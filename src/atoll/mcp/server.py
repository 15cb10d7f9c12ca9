"""The protocol over the official package: a server of given tools, and one exchange of it over HTTP.

Imported when the first client comes (`atoll.api.mcp`) or by `atoll mcp`: the package takes a second to load.
"""

from __future__ import annotations

from base64 import b64decode
from binascii import Error as NotBase64
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import orjson
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp_types import (
    CallToolRequestParams,
    CallToolResult,
    ListToolsResult,
    PaginatedRequestParams,
    TextContent,
    Tool,
    ToolAnnotations,
)
from starlette.types import Receive, Scope, Send

from atoll import __version__
from atoll.mcp.tools import ToolOperation

MAX_REQUEST_BYTES = 11 * 1024 * 1024
"""A body of the REST API and what the protocol puts around it."""
_OUTPUT = ("stdout", "stderr")


@dataclass(frozen=True, slots=True)
class ToolAnswer:
    """What an operation answered: its body, and whether it is an error."""

    body: dict[str, Any]
    is_error: bool


CallTool = Callable[[str, dict[str, Any]], Awaitable[ToolAnswer]]
"""Calls a tool by its name with its arguments."""


def listed_tools(tools: Iterable[ToolOperation]) -> list[Tool]:
    """The tools in the protocol's form; made once, for it takes longer than a call."""
    return [_listed(tool) for tool in tools]


def make_server(listed: list[Tool], call: CallTool, instructions: str) -> Server[Any]:
    """A server of these tools. It keeps nothing: each exchange over HTTP has its own."""

    async def list_tools(context: ServerRequestContext[Any], params: PaginatedRequestParams | None) -> ListToolsResult:
        del context, params
        return ListToolsResult(tools=listed)

    async def call_tool(context: ServerRequestContext[Any], params: CallToolRequestParams) -> CallToolResult:
        del context
        answer = await call(params.name, params.arguments or {})
        texts = [orjson.dumps(answer.body).decode(), *_readable(answer.body)]
        return CallToolResult(
            content=[TextContent(type="text", text=text) for text in texts],
            structured_content=answer.body,
            is_error=answer.is_error,
        )

    return Server(
        "atoll",
        version=__version__,
        title="Atoll",
        instructions=instructions,
        on_list_tools=list_tools,
        on_call_tool=call_tool,
    )


async def serve_exchange(server: Server[Any], scope: Scope, receive: Receive, send: Send) -> None:
    """Answer one POST of streamable HTTP, without a session: whatever server gets the next one can answer it."""
    manager = StreamableHTTPSessionManager(
        server, json_response=True, stateless=True, max_request_body_size=MAX_REQUEST_BYTES
    )
    async with manager.run():
        await manager.handle_request(scope, receive, send)


def _listed(tool: ToolOperation) -> Tool:
    return Tool(
        name=tool.name,
        title=tool.title,
        description=tool.description,
        input_schema=tool.input_schema,
        annotations=ToolAnnotations(title=tool.title, read_only_hint=tool.read_only, open_world_hint=False),
    )


def _readable(body: dict[str, Any]) -> Iterator[str]:
    """Output of commands as text beside the object, in which it is base64: models read text."""
    for name, encoded in _output_in(body):
        try:
            text = b64decode(encoded, validate=True).decode(errors="replace")
        except NotBase64:
            continue
        yield f"{name}:\n{text}"


def _output_in(value: Any) -> Iterator[tuple[str, str]]:
    if isinstance(value, list):
        for inner in value:
            yield from _output_in(inner)
    elif isinstance(value, dict):
        for key, inner in value.items():
            if key in _OUTPUT and isinstance(inner, str):
                yield key, inner
            else:
                yield from _output_in(inner)
