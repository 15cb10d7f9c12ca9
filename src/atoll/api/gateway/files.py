"""Routes of files: read, write, delete, list, stat, make folders, move, watch (SA-358, SA-450 … SA-452)."""

from __future__ import annotations

import asyncio
import base64
import binascii
import re
from collections.abc import AsyncGenerator
from contextlib import aclosing
from email.utils import format_datetime
from typing import Annotated

import orjson
from fastapi import APIRouter, Query
from starlette.requests import Request
from starlette.responses import Response

from atoll.api.errors import Failure, failure_of, render
from atoll.api.gateway import file_shapes as shapes
from atoll.api.gateway.caller import GATEWAY, GatewayCall, GatewayRoute, gateway_caller
from atoll.api.gateway.connected import body_of
from atoll.api.gateway.shapes import DoneAnswer
from atoll.api.gateway.transfer import TransferResponse
from atoll.api.openapi import errors
from atoll.api.sandbox import answers
from atoll.api.sandbox.render import json_response
from atoll.domain.errors import AtollError, Invalid
from atoll.domain.files import ChangeKind
from atoll.domain.gateway import GatewayScope
from atoll.ops import gateway_files, gateway_transfer
from atoll.ops.gateway_transfer import Transfer, Watch

router = APIRouter(prefix=GATEWAY, route_class=GatewayRoute, tags=["Gateway files"])

FileCall = Annotated[GatewayCall, gateway_caller(GatewayScope.FILE)]
_BINARY = {"content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}}
_RANGE = re.compile(r"bytes=(\d{0,18})-(\d{0,18})")
_COMMON = errors(404, 409, 429, 502, 503)


@router.get(
    "/files",
    operation_id="gateway-read-file",
    summary="Read a file",
    response_class=Response,
    response_model=None,
    responses=_COMMON
    | {
        200: {"description": "The bytes of the file.", **_BINARY},
        206: {"description": "The bytes of the range.", **_BINARY},
        416: {"description": "The range lies behind the end of the file.", "model": answers.ErrorAnswer},
    },
)
async def read_file(call: FileCall, query: Annotated[shapes.PathQuery, Query()], request: Request) -> Response:
    """The raw bytes, streamed. `Range` (one range of bytes), `If-Range` and `If-None-Match` are honoured.

    Needs the gateway scope `file`. Symbolic links are followed inside the workspace and the volume only.
    """
    del query
    path = shapes.query_bytes(request, "path")
    transfer = await gateway_transfer.open_file(call.services, call.caller, path)
    try:
        answer = await _answer_file(call, transfer, request)
    except BaseException:
        transfer.close()
        raise
    if not isinstance(answer, TransferResponse):
        transfer.close()
    return answer


async def _answer_file(call: GatewayCall, transfer: Transfer, request: Request) -> Response:
    entry = transfer.entry
    tag = f'"{entry.inode:x}-{entry.modified_ns & 0xFFFF_FFFF_FFFF_FFFF:x}-{entry.size:x}"'
    headers = {
        "content-type": "application/octet-stream",
        "content-disposition": "attachment",
        "x-content-type-options": "nosniff",
        "cache-control": "no-store",
        "accept-ranges": "bytes",
        "etag": tag,
        "last-modified": format_datetime(shapes.modified_at(entry).replace(microsecond=0), usegmt=True),
    }
    if tag in request.headers.get("if-none-match", ""):
        return Response(None, 304, headers)
    wanted = request.headers.get("range")
    if request.headers.get("if-range", tag) != tag:
        wanted = None
    found = byte_range(wanted, entry.size)
    if found is None:
        failure = Failure(416, "The range lies behind the end of the file.")
        return render(failure, {"Content-Range": f"bytes */{entry.size}"})
    start, end, partial = found
    if partial:
        headers["content-range"] = f"bytes {start}-{end - 1}/{entry.size}"
    headers["content-length"] = str(end - start)
    await transfer.select(start, end - start)
    return TransferResponse(call, transfer, transfer.parts(), status=206 if partial else 200, headers=headers)


def byte_range(header: str | None, size: int) -> tuple[int, int, bool] | None:
    """Start and end of what a `Range` header asks for, and whether it is a part; None when no byte of it exists.

    Anything but one range of bytes asks for the whole file, as the standard allows.
    """
    match = _RANGE.fullmatch((header or "").replace(" ", ""))
    if match is None or match[1] == match[2] == "":
        return 0, size, False
    if match[1] == "":
        length = min(int(match[2]), size)
        return (size - length, size, True) if length else None
    start = int(match[1])
    if match[2] and int(match[2]) < start:
        return 0, size, False
    end = min(int(match[2]) + 1, size) if match[2] else size
    return (start, end, True) if start < size else None


@router.put(
    "/files",
    operation_id="gateway-write-file",
    summary="Write a file",
    response_model=shapes.EntryAnswer,
    responses=_COMMON,
    openapi_extra={"requestBody": _BINARY},
)
async def write_file(call: FileCall, query: Annotated[shapes.WriteQuery, Query()], request: Request) -> Response:
    """Replace the file by the raw body in one step, once all of it has come; missing folders are made.

    Needs the gateway scope `file`. The file belongs to the sandbox's user. A body that breaks off changes nothing.
    """
    mode = None if query.mode is None else int(query.mode, 8)
    path = shapes.query_bytes(request, "path")
    async with gateway_files.while_allowed(call.services, call.caller, GatewayScope.FILE):
        entry = await gateway_files.write(call.services, call.caller, path, mode, body_of(request))
    return json_response({"entry": shapes.entry(entry)})


@router.delete(
    "/files",
    operation_id="gateway-delete-file",
    summary="Delete a file or folder",
    response_model=DoneAnswer,
    responses=_COMMON,
)
async def delete_file(call: FileCall, query: Annotated[shapes.DeleteQuery, Query()], request: Request) -> Response:
    """Delete a file, a symbolic link (not what it leads to) or a folder; a folder with content needs `recursive`.

    Needs the gateway scope `file`.
    """
    path = shapes.query_bytes(request, "path")
    await gateway_files.delete(call.services, call.caller, path, recursive=query.recursive)
    return json_response({})


@router.get(
    "/files/list",
    operation_id="gateway-list-files",
    summary="List a folder",
    response_model=shapes.ListAnswer,
    responses=_COMMON,
)
async def list_files(call: FileCall, query: Annotated[shapes.ListQuery, Query()], request: Request) -> Response:
    """What is in a folder, in the order of the names' bytes, page by page.

    Needs the gateway scope `file`. A folder of any size costs one page; links are shown, not followed.
    """
    page = await gateway_files.list_folder(
        call.services,
        call.caller,
        shapes.query_bytes(request, "path"),
        depth=query.depth,
        limit=query.limit,
        after=_cursor(query.cursor),
    )
    # 10,000 of them keep a processor busy for a while, and others wait for the event loop.
    return await asyncio.to_thread(_page_answer, page)


def _page_answer(page: gateway_files.Page) -> Response:
    following = None if page.after is None else base64.urlsafe_b64encode(page.after).decode()
    return json_response({"entries": [shapes.entry(it) for it in page.entries], "nextCursor": following})


def _cursor(text: str | None) -> bytes:
    try:
        after = base64.b64decode((text or "").encode(), b"-_", validate=True)
    except (binascii.Error, UnicodeEncodeError):
        raise Invalid("it is none of an earlier answer.", field="cursor") from None
    return shapes.checked(after, "cursor")


@router.get(
    "/files/stat",
    operation_id="gateway-stat-file",
    summary="Look at a file or folder",
    response_model=shapes.EntryAnswer,
    responses=_COMMON,
)
async def stat_file(call: FileCall, query: Annotated[shapes.PathQuery, Query()], request: Request) -> Response:
    """What lies at a path; a symbolic link itself, not what it leads to.

    Needs the gateway scope `file`.
    """
    del query
    entry = await gateway_files.stat(call.services, call.caller, shapes.query_bytes(request, "path"))
    return json_response({"entry": shapes.entry(entry)})


@router.post(
    "/files/mkdir",
    operation_id="gateway-make-folder",
    summary="Make a folder",
    response_model=shapes.EntryAnswer,
    responses=_COMMON,
)
async def make_folder(call: FileCall, body: shapes.MkdirBody) -> Response:
    """Make a folder and those above it; one that is there already is fine and keeps its mode.

    Needs the gateway scope `file`.
    """
    path = shapes.body_bytes(body.path, body.raw_path, "path")
    entry = await gateway_files.make_folder(call.services, call.caller, path, int(body.mode, 8))
    return json_response({"entry": shapes.entry(entry)})


@router.post(
    "/files/move",
    operation_id="gateway-move-file",
    summary="Move or rename",
    response_model=shapes.EntryAnswer,
    responses=_COMMON,
)
async def move_file(call: FileCall, body: shapes.MoveBody) -> Response:
    """Rename a file, link or folder; missing folders are made. 409 for a taken name unless `replace`.

    Needs the gateway scope `file`. Between the workspace and the volume nothing can be moved: 409 `other_file_system`.
    """
    source = shapes.body_bytes(body.source, body.raw_from, "from")
    target = shapes.body_bytes(body.to, body.raw_to, "to")
    entry = await gateway_files.move(call.services, call.caller, source, target, replace=body.replace)
    return json_response({"entry": shapes.entry(entry)})


@router.get(
    "/files/watch",
    operation_id="gateway-watch-files",
    summary="Watch a file or folder",
    response_class=Response,
    response_model=None,
    responses=_COMMON
    | {200: {"description": "Server-sent events.", "content": {"text/event-stream": {"schema": {"type": "string"}}}}},
)
async def watch_files(call: FileCall, query: Annotated[shapes.WatchQuery, Query()], request: Request) -> Response:
    """Server-sent events `created`, `modified` and `deleted`, each with the path, after one `ready`.

    Needs the gateway scope `file`. `overflow` says that changes were lost: list the folder again. At most 1,024 folders
    are watched at once; what another sandbox changes in a shared volume is not seen.
    """
    path = shapes.query_bytes(request, "path")
    watch = await gateway_transfer.open_watch(call.services, call.caller, path, recursive=query.recursive)
    headers = {"content-type": "text/event-stream", "cache-control": "no-store", "x-accel-buffering": "no"}
    return TransferResponse(call, watch, _events(watch), status=200, headers=headers)


async def _events(watch: Watch) -> AsyncGenerator[bytes, None]:
    try:
        async with aclosing(watch.changes()) as changes:
            async for change in changes:
                if change is None:
                    yield b":\n\n"
                else:
                    fields = {} if change.kind is ChangeKind.OVERFLOW else shapes.path_fields(change.path)
                    yield _event(str(change.kind), fields)
    except AtollError as error:
        yield _refused(error)


def _refused(error: AtollError) -> bytes:
    failure = failure_of(error)
    fields = {"error": failure.message} | ({} if failure.code is None else {"errorCode": str(failure.code)})
    return _event("error", fields)


def _event(name: str, fields: dict[str, str]) -> bytes:
    return b"event: " + name.encode() + b"\ndata: " + orjson.dumps(fields) + b"\n\n"
