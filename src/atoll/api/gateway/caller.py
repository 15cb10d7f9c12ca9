"""Whose gateway call it is: the session's token and its scopes, looked up in the database before anything else.

Every gateway route takes its caller by `gateway_caller(SCOPE…)`; one that does not cannot be made. Over HTTP the token
is checked before the body is read; the handshake of a WebSocket is answered with the refusal, before it is accepted.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import Depends, Path
from fastapi.routing import APIRoute
from starlette.requests import HTTPConnection, Request
from starlette.responses import Response
from starlette.websockets import WebSocket

from atoll.api.auth import LONGEST_TOKEN, token_of
from atoll.api.errors import TOO_LARGE, render
from atoll.api.route import BodyTooLarge, read_json
from atoll.domain.audit import Channel, Origin
from atoll.domain.gateway import GatewayScope
from atoll.ops.gateway_session import GatewayCaller, authenticate_gateway
from atoll.ops.services import Services

GATEWAY = "/gateway/{sandboxId}"
"""The path of one sandbox's gateway; `endpoint` of an opened session."""
BEARER_PROTOCOL = "atoll.bearer."
"""A WebSocket may carry its token as the subprotocol of this prefix (SA-458): browsers set no headers."""


@dataclass(frozen=True, slots=True)
class GatewayCall:
    """Who calls, with what to work, and the id of the request."""

    services: Services
    caller: GatewayCaller
    request_id: str


class GatewayCheck:
    """The dependency that `gateway_caller` makes: finds the caller of a call that needs `scopes`."""

    def __init__(self, *scopes: GatewayScope) -> None:
        self.scopes = frozenset(scopes)

    async def __call__(
        self,
        connection: HTTPConnection,
        sandbox_id: Annotated[str, Path(alias="sandboxId", description="The sandbox of the session.")],
    ) -> GatewayCall:
        """The call; over HTTP the route has looked already."""
        found: GatewayCall | None = getattr(connection.state, "gateway_call", None)
        return found or await self.admit(connection, sandbox_id)

    async def admit(self, connection: HTTPConnection, sandbox_id: str) -> GatewayCall:
        """Look the token up."""
        services: Services = connection.app.state.services
        token = gateway_token(connection)
        client = connection.client
        origin = Origin(
            channel=Channel.GATEWAY,
            address=None if client is None else client.host[:64],
            request_id=connection.state.request_id,
        )
        caller = await authenticate_gateway(services, token, sandbox_id, self.scopes, origin)
        connection.state.principal = caller.principal
        call = GatewayCall(services, caller, connection.state.request_id)
        connection.state.gateway_call = call
        return call


def gateway_caller(*scopes: GatewayScope) -> Any:
    """The parameter through which an endpoint gets its `GatewayCall`; the token needs every one of `scopes`."""
    return Depends(GatewayCheck(*scopes))


class GatewayRoute(APIRoute):
    """A route of the gateway over HTTP: 401 and 403 before the body is read, then 413 and 400, then the work."""

    def __init__(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        super().__init__(path, endpoint, **options)
        self.check = check_of(self)

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Wrap FastAPI's own handler."""
        original = super().get_route_handler()
        takes_body = self.body_field is not None

        async def handle(request: Request) -> Response:
            await self.check.admit(request, request.path_params["sandboxId"])
            if takes_body:
                try:
                    request = await read_json(request)
                except BodyTooLarge:
                    return render(TOO_LARGE, {"Connection": "close"})
            return await original(request)

        return handle


def check_of(route: Any) -> GatewayCheck:
    """The check of a route; a gateway route without one, or without a scope, is a mistake in this program."""
    checks = [dependency.call for dependency in route.dependant.dependencies]
    found = [check for check in checks if isinstance(check, GatewayCheck)]
    if len(found) != 1 or not found[0].scopes:
        raise TypeError(f"{route.path} does not say with gateway_caller() which scopes it needs")
    return found[0]


def gateway_token(connection: HTTPConnection) -> str | None:
    """The token of the header, or for a WebSocket of its subprotocol; None when there is none that can be one."""
    token = token_of(connection.headers.get("authorization"))
    if token is None and isinstance(connection, WebSocket):
        offered = [name for name in connection.scope["subprotocols"] if name.startswith(BEARER_PROTOCOL)]
        token = offered[0].removeprefix(BEARER_PROTOCOL) if len(offered) == 1 else None
    return None if token is None or len(token) > LONGEST_TOKEN else token
