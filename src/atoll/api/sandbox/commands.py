"""Routes of commands: execute, start, get, kill."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from starlette.responses import Response

from atoll.api.openapi import SANDBOX_API, errors
from atoll.api.route import AuthenticatedRoute, CurrentCall, needs
from atoll.api.sandbox import answers, render
from atoll.api.sandbox.requests import ExecuteBody, GetCommandQuery, KillBody, StartBody
from atoll.domain.command import EXECUTE_DEFAULT_TIMEOUT_SECONDS
from atoll.domain.identity import Scope
from atoll.ops import command_execute, command_kill, command_read, command_start
from atoll.ops.command_request import CommandRequest

router = APIRouter(prefix=SANDBOX_API, route_class=AuthenticatedRoute, tags=["Commands"])


@router.post(
    "/sandbox/execute",
    operation_id="execute-sandbox-command",
    openapi_extra=needs(Scope.DANGEROUS),
    summary="Execute a command in a sandbox",
    response_model=answers.ExecuteAnswer,
    responses=errors(404, 409, 429, 502, 503),
)
async def execute_command(call: CurrentCall, body: ExecuteBody) -> Response:
    """Run a command to its end; answers with its exit code and output, which are stored nowhere.

    Needs the scope `quave:write:dangerous`. While the sandbox is not ready the answer is 409 with a delay.
    """
    result = await command_execute.execute_command(
        call.services,
        call.principal,
        body.account_id,
        body.sandbox_id,
        CommandRequest(
            argv=body.command,
            cwd=body.cwd,
            env=body.env_vars or {},
            timeout_seconds=body.timeout_seconds or EXECUTE_DEFAULT_TIMEOUT_SECONDS,
            ai_subscription_id=body.ai_subscription_id,
        ),
    )
    return render.json_response({"result": render.result(result)})


@router.post(
    "/sandbox/command/start",
    operation_id="start-sandbox-command",
    openapi_extra=needs(Scope.DANGEROUS),
    summary="Start a command",
    status_code=201,
    response_model=answers.StartAnswer,
    responses=errors(404, 409, 429, 502, 503),
)
async def start_command(call: CurrentCall, body: StartBody) -> Response:
    """Start a command that goes on after the answer, until it exits, its deadline passes, or the sandbox ends.

    Needs the scope `quave:write:dangerous`. Repeating the call with the same idempotencyKey starts it once.
    """
    started = await command_start.start_command(
        call.services,
        call.principal,
        body.account_id,
        body.sandbox_id,
        CommandRequest(
            argv=body.command,
            cwd=body.cwd,
            env=body.env_vars or {},
            timeout_seconds=body.timeout_seconds,
            ai_subscription_id=body.ai_subscription_id,
        ),
        body.idempotency_key,
    )
    return render.json_response({"execution": render.execution(started)}, 201)


@router.get(
    "/sandbox/command",
    operation_id="get-sandbox-command",
    openapi_extra=needs(Scope.READ),
    summary="Get a command",
    response_model=answers.CommandAnswer,
    responses=errors(404, 409, 502, 503),
)
async def get_command(call: CurrentCall, query: Annotated[GetCommandQuery, Query()]) -> Response:
    """The state of a started command and its output since `from`, about 1 MiB at most; go on with `nextSeq`.

    Needs the scope `quave:read`. The newest 4 MiB of output are kept while the sandbox lives.
    """
    output = await command_read.get_command(
        call.services,
        call.principal,
        query.account_id,
        query.sandbox_id,
        query.execution_id,
        from_seq=query.from_seq,
        wait_seconds=query.wait_seconds,
    )
    return render.json_response({"command": render.command(output)})


@router.post(
    "/sandbox/command/kill",
    operation_id="kill-sandbox-command",
    openapi_extra=needs(Scope.DANGEROUS),
    summary="Kill a command",
    response_model=answers.KillAnswer,
    responses=errors(404, 409, 502, 503),
)
async def kill_command(call: CurrentCall, body: KillBody) -> Response:
    """Send a signal to a started command and to its children; read how it ended with *Get a command*.

    Needs the scope `quave:write:dangerous`.
    """
    signal = body.signal or "SIGTERM"
    await command_kill.kill_command(
        call.services, call.principal, body.account_id, body.sandbox_id, body.execution_id, signal
    )
    return render.json_response({"executionId": body.execution_id, "signal": signal})
