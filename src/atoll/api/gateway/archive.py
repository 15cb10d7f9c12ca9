"""Routes of archives: a folder as a tar stream, out and in (SA-453)."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query
from starlette.requests import Request
from starlette.responses import Response

from atoll.api.gateway import file_shapes as shapes
from atoll.api.gateway.caller import GATEWAY, GatewayRoute
from atoll.api.gateway.connected import body_of
from atoll.api.gateway.files import FileCall
from atoll.api.gateway.transfer import TransferResponse
from atoll.api.openapi import errors
from atoll.api.sandbox.render import json_response
from atoll.domain.gateway import GatewayScope
from atoll.ops import gateway_files, gateway_transfer

router = APIRouter(prefix=GATEWAY, route_class=GatewayRoute, tags=["Gateway files"])

_TAR: dict[str, Any] = {"content": {"application/x-tar": {"schema": {"type": "string", "format": "binary"}}}}
_COMMON = errors(404, 409, 429, 502, 503)


@router.get(
    "/archive",
    operation_id="gateway-read-archive",
    summary="Read a folder as a tar stream",
    response_class=Response,
    response_model=None,
    responses=_COMMON | {200: {"description": "The tar stream.", **_TAR}},
)
async def read_archive(call: FileCall, query: Annotated[shapes.FolderQuery, Query()], request: Request) -> Response:
    """A folder's content, or one file, as an uncompressed tar stream with modes, times, symbolic and hard links.

    Needs the gateway scope `file`. Sockets, pipes and devices are passed over. A stream that breaks off ends without
    its two last blocks, and the connection is cut.
    """
    del query
    path = shapes.query_bytes(request, "path")
    transfer = await gateway_transfer.open_archive(call.services, call.caller, path)
    headers = {
        "content-type": "application/x-tar",
        "content-disposition": "attachment",
        "x-content-type-options": "nosniff",
        "cache-control": "no-store",
    }
    return TransferResponse(call, transfer, transfer.parts(), status=200, headers=headers)


@router.put(
    "/archive",
    operation_id="gateway-write-archive",
    summary="Unpack a tar stream",
    response_model=shapes.UnpackAnswer,
    responses=_COMMON,
    openapi_extra={"requestBody": _TAR},
)
async def write_archive(call: FileCall, query: Annotated[shapes.FolderQuery, Query()], request: Request) -> Response:
    """Unpack an uncompressed tar stream (ustar, pax or GNU) into a folder, which is made where it is missing.

    Needs the gateway scope `file`. Everything belongs to the sandbox's user; set-user bits are dropped, devices passed
    over. The first entry that would lie outside the folder ends it with PATH_ESCAPE; what came before it stays.
    """
    del query
    path = shapes.query_bytes(request, "path")
    async with gateway_files.while_allowed(call.services, call.caller, GatewayScope.FILE):
        counts = await gateway_files.unpack(call.services, call.caller, path, body_of(request))
    return json_response(
        {
            "files": counts.files,
            "folders": counts.folders,
            "links": counts.links,
            "skipped": counts.skipped,
            "bytes": counts.bytes,
        }
    )
