"""Routes of pause and resume."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.responses import Response

from atoll.api.openapi import SANDBOX_API, errors
from atoll.api.route import AuthenticatedRoute, CurrentCall, needs
from atoll.api.sandbox import answers, render
from atoll.api.sandbox.requests import PauseBody, SandboxBody
from atoll.domain.identity import Scope
from atoll.ops import sandbox_pause, sandbox_resume

router = APIRouter(prefix=SANDBOX_API, route_class=AuthenticatedRoute, tags=["Sandboxes"])


@router.post(
    "/sandbox/pause",
    operation_id="pause-sandbox",
    openapi_extra=needs(Scope.DEPLOY),
    summary="Pause a sandbox",
    response_model=answers.SandboxAnswer,
    responses=errors(404, 409, 502, 503, 504),
)
async def pause_sandbox(call: CurrentCall, body: PauseBody) -> Response:
    """Release the compute of a sandbox and keep its volume; in SNAPSHOT and BOTH its workspace is archived first.

    Needs the scope `quave:write:deploy`. Answers when the sandbox is paused, which may take minutes. After 502, 503 and
    504 it runs on as before.
    """
    exclude = body.snapshot_exclude
    sandbox = await sandbox_pause.pause_sandbox(
        call.services,
        call.principal,
        sandbox_pause.PauseSandbox(
            account_id=body.account_id,
            sandbox_id=body.sandbox_id,
            snapshot_exclude=None if exclude is None else tuple(exclude),
            snapshot_max_mb=body.snapshot_max_mb,
            force=bool(body.force),
        ),
    )
    return render.json_response({"sandbox": render.sandbox(sandbox)})


@router.post(
    "/sandbox/resume",
    operation_id="resume-sandbox",
    openapi_extra=needs(Scope.DEPLOY),
    summary="Resume a sandbox",
    response_model=answers.SandboxAnswer,
    responses=errors(404, 409, 429),
)
async def resume_sandbox(call: CurrentCall, body: SandboxBody) -> Response:
    """Deploy a paused sandbox again, with the same id and on the same volume; wait for it with *Get a sandbox*.

    Needs the scope `quave:write:deploy`. One that is resumed already is returned as it is.
    """
    sandbox = await sandbox_resume.resume_sandbox(call.services, call.principal, body.account_id, body.sandbox_id)
    return render.json_response({"sandbox": render.sandbox(sandbox)})
