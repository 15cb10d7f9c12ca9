"""The route that opens gateway sessions; what they are for is in `atoll.api.gateway`."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from atoll.api.openapi import SANDBOX_API, errors
from atoll.api.route import AuthenticatedRoute, CurrentCall, needs
from atoll.api.sandbox import answers, render
from atoll.api.sandbox.requests import SessionBody
from atoll.domain.identity import Scope
from atoll.domain.times import rfc3339
from atoll.ops.gateway_session import open_session

router = APIRouter(prefix=SANDBOX_API, route_class=AuthenticatedRoute, tags=["Gateway"])


@router.post(
    "/sandbox/session",
    operation_id="open-sandbox-session",
    openapi_extra=needs(Scope.DANGEROUS),
    summary="Open a gateway session",
    response_model=answers.SessionAnswer,
    responses=errors(404, 409, 429),
)
async def open_gateway_session(call: CurrentCall, request: Request, body: SessionBody) -> Response:
    """A short-lived token for the processes, terminals and files of one sandbox, and where to send it.

    Needs the scope `quave:write:dangerous` and a role that manages sandboxes. A paused sandbox is resumed first; while
    that is in progress the answer is 409 with a delay.
    """
    session = await open_session(
        call.services, call.principal, body.account_id, body.sandbox_id, frozenset(body.scopes)
    )
    base = call.services.settings.public_url or f"{request.url.scheme}://{request.url.netloc}"
    return render.json_response(
        {
            "endpoint": f"{base}/gateway/{body.sandbox_id}",
            "token": session.token,
            "expiresAt": rfc3339(session.expires_at),
        }
    )
