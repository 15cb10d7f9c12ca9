"""Whose request it is: the token in the Authorization header, before anything else of the request is looked at."""

from __future__ import annotations

from dataclasses import replace

from starlette.requests import Request

from atoll.domain.audit import Channel, Origin
from atoll.domain.errors import Unauthenticated
from atoll.domain.identity import Principal
from atoll.ops.access import authenticate
from atoll.ops.services import Services

CHANNEL = "atoll.channel"
"""The key of an ASGI scope that names the way by which a call came. Nothing that a client sends can set it."""
LONGEST_TOKEN = 512
"""Characters beyond which nothing is a token, so nothing is hashed or looked up."""


def token_of(header: str | None) -> str | None:
    """The token of `Bearer TOKEN` or of a bare `TOKEN` (SA-433); None when there is none of either form."""
    words = (header or "").split()
    if len(words) == 2 and words[0].lower() == "bearer":
        return words[1]
    if len(words) == 1 and words[0].lower() != "bearer":
        return words[0]
    return None


async def authenticate_request(services: Services, request: Request) -> Principal:
    """Find the caller, or raise `Unauthenticated` (SA-434)."""
    token = token_of(request.headers.get("authorization"))
    if token is not None and len(token) > LONGEST_TOKEN:
        raise Unauthenticated("The token is not known or was revoked.")
    principal = await authenticate(services, token)
    client = request.client
    return replace(
        principal,
        origin=Origin(
            channel=request.scope.get(CHANNEL, Channel.REST),
            address=None if client is None else client.host[:64],
            request_id=request.state.request_id,
        ),
    )
