"""Routes of sandboxes: create or connect, list, get, terminate."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from starlette.responses import Response

from atoll.api.openapi import SANDBOX_API, errors
from atoll.api.route import AuthenticatedRoute, CurrentCall, needs
from atoll.api.sandbox import answers, render
from atoll.api.sandbox.requests import (
    CreateSandboxBody,
    ExecutionWebhookBody,
    GetSandboxQuery,
    ListSandboxesQuery,
    SandboxBody,
)
from atoll.domain.identity import Scope
from atoll.domain.sandbox import SandboxStatus
from atoll.domain.webhook import WebhookTarget, parse_target
from atoll.ops import sandbox_create, sandbox_read, sandbox_terminate

router = APIRouter(prefix=SANDBOX_API, route_class=AuthenticatedRoute, tags=["Sandboxes"])


@router.post(
    "/sandbox/create",
    operation_id="create-sandbox",
    openapi_extra=needs(Scope.DEPLOY),
    summary="Create a sandbox, or connect to it",
    status_code=201,
    response_model=answers.CreatedAnswer,
    responses={200: {"model": answers.CreatedAnswer, "description": "It existed already."}, **errors(404, 409, 429)},
)
async def create_sandbox(call: CurrentCall, body: CreateSandboxBody) -> Response:
    """Make a sandbox, or find the one that the same account, app, caller and idempotencyKey made before.

    Needs the scope `quave:write:deploy`. Safe to repeat: there is one sandbox per identity. Answers at once;
    wait for the sandbox with *Get a sandbox*.
    """
    created = await sandbox_create.create_sandbox(
        call.services,
        call.principal,
        sandbox_create.CreateSandbox(
            account_id=body.account_id,
            app_id=body.app_id,
            template_id=body.template_id,
            template_revision_id=body.template_revision_id,
            workload_profile=body.workload_profile,
            owner_kind=body.owner_kind,
            owner_id=body.owner_id,
            external_session_id=body.external_session_id,
            region=body.region,
            idempotency_key=body.idempotency_key,
            persistence_mode=body.persistence_mode,
            project_id=body.project_id,
            max_project_concurrency=body.max_project_concurrency,
            supervised=body.supervised,
            volume_name=body.volume_name,
            private=body.private,
            webhook=_webhook(body.execution_webhook),
        ),
        call.request_id,
    )
    return render.json_response(
        {"wasCreated": created.was_created, "sandbox": render.sandbox(created.sandbox)},
        201 if created.was_created else 200,
    )


@router.get(
    "/sandboxes",
    operation_id="list-sandboxes",
    openapi_extra=needs(Scope.READ),
    summary="List sandboxes",
    response_model=answers.SandboxesAnswer,
    responses=errors(),
)
async def list_sandboxes(call: CurrentCall, query: Annotated[ListSandboxesQuery, Query()]) -> Response:
    """One page of the account's sandboxes, newest first. Needs the scope `quave:read`."""
    page = await sandbox_read.list_sandboxes(
        call.services,
        call.principal,
        query.account_id,
        app_id=query.app_id,
        statuses=known_statuses(query.status),
        limit=query.limit,
        page=query.page,
    )
    return render.json_response(
        {
            "accountId": query.account_id,
            "page": query.page,
            "limit": query.limit,
            "totalCount": page.total,
            "sandboxes": [render.sandbox(sandbox) for sandbox in page.sandboxes],
        }
    )


@router.get(
    "/sandbox",
    operation_id="get-sandbox",
    openapi_extra=needs(Scope.READ),
    summary="Get a sandbox",
    response_model=answers.SandboxAnswer,
    responses=errors(404),
)
async def get_sandbox(call: CurrentCall, query: Annotated[GetSandboxQuery, Query()]) -> Response:
    """One sandbox as it is now; with `waitSeconds`, as soon as it is no longer being provisioned.

    Needs the scope `quave:read`. Counts as activity.
    """
    sandbox = await sandbox_read.get_sandbox(
        call.services, call.principal, query.account_id, query.sandbox_id, query.wait_seconds
    )
    return render.json_response({"sandbox": render.sandbox(sandbox)})


@router.post(
    "/sandbox/terminate",
    operation_id="terminate-sandbox",
    openapi_extra=needs(Scope.DEPLOY),
    summary="Terminate a sandbox",
    response_model=answers.SandboxAnswer,
    responses=errors(404, 409),
)
async def terminate_sandbox(call: CurrentCall, body: SandboxBody) -> Response:
    """End a sandbox and everything that runs in it; answers when nothing of it runs any more.

    Needs the scope `quave:write:deploy`. Safe to repeat: one that is terminated is returned as it is.
    """
    sandbox = await sandbox_terminate.terminate_sandbox(call.services, call.principal, body.account_id, body.sandbox_id)
    return render.json_response({"sandbox": render.sandbox(sandbox)})


def _webhook(body: ExecutionWebhookBody | None) -> WebhookTarget | None:
    return None if body is None else parse_target(body.url, body.secret)


def known_statuses(text: str | None) -> frozenset[SandboxStatus] | None:
    """Those statuses of a comma-separated list that exist; None, which is no filter, when none does (SA-131)."""
    words = {word.strip() for word in (text or "").split(",")}
    return frozenset(status for status in SandboxStatus if status in words) or None
