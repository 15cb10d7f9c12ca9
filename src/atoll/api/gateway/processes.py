"""Routes of processes and terminals: start, list, get, and input, signals and size for who has no WebSocket."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Path, Query
from starlette.requests import Request
from starlette.responses import Response

from atoll.api.gateway import shapes
from atoll.api.gateway.caller import GATEWAY, GatewayCall, GatewayRoute, gateway_caller
from atoll.api.gateway.connected import body_of
from atoll.api.openapi import errors
from atoll.api.sandbox import answers, render
from atoll.domain.command import PtySize
from atoll.domain.execution import Execution, ExecutionState
from atoll.domain.gateway import GatewayScope, require_gateway_scopes
from atoll.domain.times import rfc3339
from atoll.ops import command_read, command_start, gateway_process
from atoll.ops.command_request import CommandRequest
from atoll.ops.gateway_files import while_allowed

router = APIRouter(prefix=GATEWAY, route_class=GatewayRoute, tags=["Gateway"])

ExecutionId = Annotated[str, Path(alias="executionId", max_length=100, description="What the start answered.")]


@router.post(
    "/processes",
    operation_id="gateway-start-process",
    summary="Start a process or a terminal",
    status_code=201,
    response_model=answers.StartAnswer,
    responses=errors(404, 409, 429, 502, 503),
)
async def start_process(
    call: Annotated[GatewayCall, gateway_caller(GatewayScope.EXEC)], body: shapes.ProcessBody
) -> Response:
    """Start a process that goes on after the answer; follow it with its stream, or read it page by page.

    Needs the gateway scope `exec`, with `pty` also `pty`. Repeating the call with the same idempotencyKey starts it
    once. A paused sandbox is resumed first, as by *Start a command*.
    """
    if body.pty is not None:
        require_gateway_scopes(call.caller.scopes, frozenset({GatewayScope.PTY}))
    started = await command_start.start_command(
        call.services,
        call.caller.principal,
        call.caller.account_id,
        call.caller.sandbox_id,
        CommandRequest(
            argv=body.command,
            cwd=body.cwd,
            env=body.env_vars or {},
            timeout_seconds=body.timeout_seconds,
            ai_subscription_id=body.ai_subscription_id,
            stdin=bool(body.stdin),
            pty=None if body.pty is None else PtySize(body.pty.rows, body.pty.cols),
        ),
        body.idempotency_key,
    )
    return render.json_response({"execution": render.execution(started)}, 201)


@router.get(
    "/processes",
    operation_id="gateway-list-processes",
    summary="List processes",
    response_model=shapes.ProcessesAnswer,
    responses=errors(404),
)
async def list_processes(call: Annotated[GatewayCall, gateway_caller(GatewayScope.STATUS)]) -> Response:
    """Started commands and terminals: what runs, then what has ended, each newest first; at most 1,000.

    Needs the gateway scope `status`.
    """
    found = await gateway_process.list_processes(call.services, call.caller)
    return render.json_response({"processes": [_process(it) for it in found]})


@router.get(
    "/processes/{executionId}",
    operation_id="gateway-get-process",
    summary="Get a process",
    response_model=answers.CommandAnswer,
    responses=errors(404, 409, 502, 503),
)
async def get_process(
    call: Annotated[GatewayCall, gateway_caller(GatewayScope.STATUS)],
    execution_id: ExecutionId,
    query: Annotated[shapes.ProcessQuery, Query()],
) -> Response:
    """The state of a process and its output since `from`; the same object as *Get a command*.

    Needs the gateway scope `status`.
    """
    output = await command_read.get_command(
        call.services,
        call.caller.principal,
        call.caller.account_id,
        call.caller.sandbox_id,
        execution_id,
        from_seq=query.from_seq,
        wait_seconds=query.wait_seconds,
    )
    return render.json_response({"command": render.command(output)})


@router.post(
    "/processes/{executionId}/stdin",
    operation_id="gateway-write-stdin",
    summary="Write to a process's standard input",
    response_model=shapes.StdinAnswer,
    responses=errors(404, 409, 502, 503),
    openapi_extra={
        "requestBody": {"content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}}
    },
)
async def write_stdin(
    call: Annotated[GatewayCall, gateway_caller(GatewayScope.EXEC)],
    execution_id: ExecutionId,
    query: Annotated[shapes.StdinQuery, Query()],
    request: Request,
) -> Response:
    """Write the raw body; answers when all of it is in the pipe. With `eof` the input ends there.

    Needs the gateway scope `exec`. It is taken as fast as the process reads; 502 when it reads nothing for 30 seconds,
    400 when nothing of the body comes for 60.
    """
    process = await gateway_process.running_process(call.services, call.caller, execution_id)
    async with while_allowed(call.services, call.caller, GatewayScope.EXEC):
        written = await gateway_process.write_input(process, body_of(request))
        if query.eof:
            await process.end_input()
    return render.json_response({"writtenBytes": written})


@router.post(
    "/processes/{executionId}/signal",
    operation_id="gateway-signal-process",
    summary="Signal a process",
    response_model=shapes.SignalAnswer,
    responses=errors(404, 409, 502, 503),
)
async def signal_process(
    call: Annotated[GatewayCall, gateway_caller(GatewayScope.SIGNAL)],
    execution_id: ExecutionId,
    body: shapes.SignalBody,
) -> Response:
    """Send a signal to a process and to its children; SIGTERM unless named. Needs the gateway scope `signal`."""
    process = await gateway_process.running_process(call.services, call.caller, execution_id)
    await process.signal(body.signal)
    return render.json_response({"executionId": execution_id, "signal": body.signal})


@router.post(
    "/processes/{executionId}/resize",
    operation_id="gateway-resize-terminal",
    summary="Resize a terminal",
    response_model=shapes.DoneAnswer,
    responses=errors(404, 409, 502, 503),
)
async def resize_terminal(
    call: Annotated[GatewayCall, gateway_caller(GatewayScope.PTY)],
    execution_id: ExecutionId,
    body: shapes.ResizeBody,
) -> Response:
    """Change the size of a terminal; its programs hear of it by SIGWINCH. Needs the gateway scope `pty`."""
    process = await gateway_process.running_process(call.services, call.caller, execution_id)
    await process.resize(PtySize(body.rows, body.cols))
    return render.json_response({})


def _process(it: Execution) -> dict[str, Any]:
    value: dict[str, Any] = {
        "executionId": it.id,
        "type": it.execution_type,
        "state": "exited" if it.state is ExecutionState.EXITED else "running",
        "stdoutBytes": it.stdout_bytes,
        "stderrBytes": it.stderr_bytes,
        "outputTruncated": it.output_truncated,
    }
    known = {
        "processId": it.process_id,
        "startedAt": None if it.started_at is None else rfc3339(it.started_at),
        "exitedAt": None if it.exited_at is None else rfc3339(it.exited_at),
        "exitCode": it.exit_code,
        "reason": it.reason,
    }
    return value | {name: present for name, present in known.items() if present is not None}
