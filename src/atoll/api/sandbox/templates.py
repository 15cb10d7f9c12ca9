"""Routes of templates and their revisions: list, get, save, append."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from starlette.responses import Response

from atoll.api.openapi import SANDBOX_API, errors
from atoll.api.route import AuthenticatedRoute, CurrentCall, needs
from atoll.api.sandbox import answers, render
from atoll.api.sandbox.requests import (
    CreateRevisionBody,
    GetTemplateQuery,
    ListTemplatesQuery,
    NetworkControlBody,
    SaveTemplateBody,
    WarmPoolBody,
)
from atoll.domain.identity import Scope
from atoll.domain.template import DEFAULT_ZCLOUDS, NetworkControl, PersistenceMode, WarmPool
from atoll.ops import template as template_ops

router = APIRouter(prefix=SANDBOX_API, route_class=AuthenticatedRoute, tags=["Templates"])


@router.get(
    "/sandbox-templates",
    operation_id="list-sandbox-templates",
    openapi_extra=needs(Scope.READ),
    summary="List sandbox templates",
    response_model=answers.TemplatesAnswer,
    responses=errors(),
)
async def list_templates(call: CurrentCall, query: Annotated[ListTemplatesQuery, Query()]) -> Response:
    """The account's templates, oldest first. Needs the scope `quave:read`."""
    found = await template_ops.list_templates(
        call.services,
        call.principal,
        query.account_id,
        app_id=query.app_id,
        include_deprecated=query.include_deprecated,
    )
    return render.json_response(
        {"accountId": query.account_id, "templates": [render.template(template) for template in found]}
    )


@router.get(
    "/sandbox-template",
    operation_id="get-sandbox-template",
    openapi_extra=needs(Scope.READ),
    summary="Get a sandbox template",
    response_model=answers.TemplateWithRevisionAnswer,
    responses=errors(404),
)
async def get_template(call: CurrentCall, query: Annotated[GetTemplateQuery, Query()]) -> Response:
    """A template and the revision that new sandboxes of it run. Needs the scope `quave:read`."""
    template, current = await template_ops.get_template(
        call.services, call.principal, query.account_id, query.template_id
    )
    return render.json_response(
        {
            "template": render.template(template),
            "currentRevision": None if current is None else render.revision(current),
        }
    )


@router.post(
    "/sandbox-template/save",
    operation_id="save-sandbox-template",
    openapi_extra=needs(Scope.CONFIG),
    summary="Save a sandbox template",
    response_model=answers.TemplateAnswer,
    responses={201: {"model": answers.TemplateAnswer, "description": "It was created."}, **errors(404)},
)
async def save_template(call: CurrentCall, body: SaveTemplateBody) -> Response:
    """Create a template, or with `templateId` update it. What it runs is in its revisions.

    Needs the scope `quave:write:config`.
    """
    template, is_new = await template_ops.save_template(
        call.services,
        call.principal,
        template_ops.SaveTemplate(
            account_id=body.account_id,
            template_id=body.template_id,
            app_id=body.app_id,
            name=body.name,
            description=body.description,
            enabled=body.enabled,
            deprecated=body.deprecated,
        ),
    )
    return render.json_response({"template": render.template(template)}, 201 if is_new else 200)


@router.post(
    "/sandbox-template/revision",
    operation_id="create-sandbox-template-revision",
    openapi_extra=needs(Scope.CONFIG),
    summary="Create a sandbox template revision",
    status_code=201,
    response_model=answers.RevisionAnswer,
    responses=errors(404),
)
async def create_revision(call: CurrentCall, body: CreateRevisionBody) -> Response:
    """Append an immutable revision. New sandboxes of the template run it; existing ones keep theirs.

    Needs the scope `quave:write:config`.
    """
    revision = await template_ops.create_revision(
        call.services,
        call.principal,
        template_ops.CreateRevision(
            account_id=body.account_id,
            template_id=body.template_id,
            image_digest=body.image_digest,
            image_ref=body.image_ref,
            command=_tuple(body.command),
            working_dir=body.working_dir,
            ports=None if body.ports is None else tuple(body.ports),
            zclouds=body.z_clouds or DEFAULT_ZCLOUDS,
            ephemeral_disk_mb=body.ephemeral_disk_mb,
            pid_limit=body.pid_limit,
            persistence_mode=body.persistence_mode or PersistenceMode.EPHEMERAL,
            volume_size_mb=body.volume_size_mb,
            mount_path=body.mount_path,
            snapshot_exclude=_tuple(body.snapshot_exclude),
            snapshot_max_mb=body.snapshot_max_mb,
            idle_timeout_seconds=body.idle_timeout_seconds,
            hard_lifetime_seconds=body.hard_lifetime_seconds,
            suspended_retention_seconds=body.suspended_retention_seconds,
            warm_pool=_warm_pool(body.warm_pool),
            network_control=_network_control(body.network_control),
        ),
    )
    return render.json_response({"revision": render.revision(revision)}, 201)


def _tuple(items: list[str] | None) -> tuple[str, ...] | None:
    return None if items is None else tuple(items)


def _warm_pool(body: WarmPoolBody | None) -> WarmPool | None:
    return None if body is None else WarmPool(body.desired, body.min, body.max)


def _network_control(body: NetworkControlBody | None) -> NetworkControl | None:
    if body is None:
        return None
    return NetworkControl(body.enabled, tuple(body.address_allowlist or ()), tuple(body.domain_allowlist or ()))
