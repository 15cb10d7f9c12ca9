"""What every authenticated route does before its own work: find the caller, read and parse the body.

So the order of answers is the same everywhere: 401, 403 for a kind of token or a scope that the operation does not
take, 400 for the body, then what the use case says. What is refused is recorded in the audit trail.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Annotated, Any

import orjson
from fastapi import Depends
from fastapi.routing import APIRoute
from starlette.requests import Request
from starlette.responses import Response

from atoll.api.audit import audit_refusal
from atoll.api.auth import authenticate_request
from atoll.api.errors import MAX_BODY_BYTES, TOO_LARGE, render
from atoll.domain.errors import AtollError, Invalid
from atoll.domain.identity import Principal, Scope, require_scope
from atoll.ops.services import Services

SCOPE_KEY = "x-required-scope"


def needs(scope: Scope) -> dict[str, Any]:
    """What the token of an operation's caller must hold, for `openapi_extra` of its route: checked before the body."""
    return {SCOPE_KEY: str(scope)}


@dataclass(frozen=True, slots=True)
class Call:
    """Who calls, with what to work, and the id of the request."""

    services: Services
    principal: Principal
    request_id: str


class BodyTooLarge(Exception):  # noqa: N818 - an outcome of reading, not an error of anybody's
    """The body is longer than `MAX_BODY_BYTES`."""


class JsonRequest(Request):
    """A request whose body was read and parsed already."""

    raw: bytes
    value: Any

    async def body(self) -> bytes:
        """The bytes as they came."""
        return self.raw

    async def json(self) -> Any:
        """The parsed value."""
        return self.value


class AuthenticatedRoute(APIRoute):
    """A route that answers 401 and 403 before it reads a body, and 400 or 413 before anything is validated.

    Each names its scope by `openapi_extra=needs(Scope…)`; one that does not cannot be made.
    """

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Wrap FastAPI's own handler."""
        original = super().get_route_handler()
        takes_body = self.body_field is not None
        operation_id = str(self.operation_id)
        scope = Scope((self.openapi_extra or {})[SCOPE_KEY])

        async def handle(request: Request) -> Response:
            services: Services = request.app.state.services
            principal = await authenticate_request(services, request)
            request.state.principal = principal
            try:
                # Before the body: whatever it holds, such a token gets nothing here.
                require_scope(principal, scope)
                if takes_body:
                    request = await read_json(request)
                return await original(request)
            except BodyTooLarge:
                # The rest of the body is not worth reading; the connection ends with the answer.
                return render(TOO_LARGE, {"Connection": "close"})
            except AtollError as error:
                await audit_refusal(services, principal, request, operation_id, error)
                raise

        return handle


async def current_call(request: Request) -> Call:
    """The dependency through which an endpoint gets at its caller."""
    state = request.state
    return Call(request.app.state.services, state.principal, state.request_id)


CurrentCall = Annotated[Call, Depends(current_call)]


async def read_json(request: Request) -> JsonRequest:
    """Read a JSON body. orjson refuses NaN, lone surrogates and nesting without end."""
    parsed = JsonRequest(request.scope, request.receive)
    parsed.raw = await _read_limited(request)
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type != "application/json" and not (
        media_type.startswith("application/") and media_type.endswith("+json")
    ):
        raise Invalid("Send the body as JSON with the header Content-Type: application/json.")
    try:
        parsed.value = orjson.loads(parsed.raw)
    except orjson.JSONDecodeError:
        raise Invalid("The body is not valid JSON.") from None
    if not isinstance(parsed.value, dict):
        raise Invalid("The body must be a JSON object.")
    return parsed


async def _read_limited(request: Request) -> bytes:
    announced = request.headers.get("content-length", "")
    if announced.isdecimal() and int(announced) > MAX_BODY_BYTES:
        raise BodyTooLarge
    chunks: list[bytes] = []
    size = 0
    async for chunk in request.stream():
        size += len(chunk)
        if size > MAX_BODY_BYTES:
            raise BodyTooLarge
        chunks.append(chunk)
    return b"".join(chunks)
