"""The route that tells how a sandbox is doing."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter
from starlette.responses import Response

from atoll.api.gateway import shapes
from atoll.api.gateway.caller import GATEWAY, GatewayCall, GatewayRoute, gateway_caller
from atoll.api.openapi import errors
from atoll.api.sandbox import render
from atoll.domain.gateway import GatewayScope
from atoll.ops.gateway_status import read_status

router = APIRouter(prefix=GATEWAY, route_class=GatewayRoute, tags=["Gateway"])


@router.get(
    "/status",
    operation_id="gateway-status",
    summary="Get the status of the sandbox",
    response_model=shapes.StatusAnswer,
    responses=errors(409, 502, 503),
)
async def get_status(call: Annotated[GatewayCall, gateway_caller(GatewayScope.STATUS)]) -> Response:
    """The status, and while the sandbox runs its uptime, memory and processes. Needs the gateway scope `status`.

    It resumes nothing: a paused sandbox is only called SUSPENDED.
    """
    found = await read_status(call.services, call.caller)
    value: dict[str, object] = {"status": found.status}
    if found.stats is not None:
        value |= {
            "uptimeSeconds": found.stats.uptime_seconds,
            "memoryBytes": found.stats.memory_bytes,
            "processes": found.stats.processes,
            "runningCommands": found.stats.running_commands,
        }
    return render.json_response(value)
