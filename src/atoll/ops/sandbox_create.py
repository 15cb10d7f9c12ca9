"""Create a sandbox, or connect to the one that the same call made before."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from atoll.domain.audit import AuditAction
from atoll.domain.errors import Conflict, Invalid, NotFound
from atoll.domain.identity import Account, Principal, Scope
from atoll.domain.region import check_region
from atoll.domain.restriction import check_inside
from atoll.domain.sandbox import (
    OwnerKind,
    Sandbox,
    SandboxStatus,
    WorkloadProfile,
    check_owner,
    check_private_mode,
)
from atoll.domain.template import PersistenceMode, Revision, Template
from atoll.domain.webhook import WebhookTarget
from atoll.ops.access import authorize_manage, load_template
from atoll.ops.allocation import allocate
from atoll.ops.capacity import check_capacity
from atoll.ops.execution_webhook import check_host, keep_target
from atoll.ops.sandbox_resume import resume_if_there_is_room
from atoll.ops.services import Services
from atoll.ops.volume import mount_path_for_sandbox, volume_for_sandbox
from atoll.store import audit, identity, sandboxes, templates
from atoll.store.database import Transaction


@dataclass(frozen=True, slots=True)
class CreateSandbox:
    """What a caller asks for."""

    account_id: str
    app_id: str
    template_id: str | None
    template_revision_id: str | None
    workload_profile: WorkloadProfile
    owner_kind: OwnerKind
    owner_id: str
    external_session_id: str | None
    region: str
    idempotency_key: str
    persistence_mode: PersistenceMode | None
    project_id: str | None
    max_project_concurrency: int | None
    supervised: bool | None
    volume_name: str | None = None
    private: bool | None = None
    webhook: WebhookTarget | None = None


@dataclass(frozen=True, slots=True)
class Created:
    """The sandbox of the identity, and whether this call made it."""

    sandbox: Sandbox
    was_created: bool


async def create_sandbox(
    services: Services, principal: Principal, request: CreateSandbox, correlation_id: str
) -> Created:
    """Reserve capacity and write the identity in one transaction (SA-412); a worker does the rest.

    Its instance is claimed or named in the same transaction. The answer is the sandbox as it was
    requested (SA-127).

    Raises `Invalid`, `Forbidden`, `NotFound`, `Conflict` or `LimitReached`; nothing exists after any of them.
    """
    check_owner(request.workload_profile, request.owner_kind)
    if request.webhook is not None and not await _exists(services, principal, request):
        await check_host(services, request.webhook)

    def admit(tx: Transaction) -> Created:
        account = authorize_manage(tx, principal, request.account_id, Scope.DEPLOY)
        check_inside(
            principal.restriction, app_id=request.app_id, region=request.region, template_id=request.template_id
        )
        sandboxes.fence_account(tx, account.id)
        existing = sandboxes.find_by_identity(
            tx, account.id, request.app_id, principal.caller_key, request.idempotency_key
        )
        if existing is not None:
            check_inside(principal.restriction, region=existing.region, template_id=existing.template_id)
            sandboxes.touch(tx, existing.id)
            audit.record(tx, principal, AuditAction.CREATE_SANDBOX, account.id, sandbox_id=existing.id)
            return Created(resume_if_there_is_room(tx, services, account, existing), was_created=False)
        sandbox, revision = _new_sandbox(tx, services, account, principal, request, correlation_id)
        check_capacity(
            tx,
            services,
            account,
            app_id=request.app_id,
            project_id=request.project_id,
            max_project_concurrency=request.max_project_concurrency,
        )
        sandboxes.add(tx, sandbox)
        audit.record(tx, principal, AuditAction.CREATE_SANDBOX, account.id, sandbox_id=sandbox.id)
        if request.webhook is not None:
            keep_target(tx, services, sandbox.id, request.webhook)
        allocate(tx, services, sandbox, revision)
        return Created(sandbox, was_created=True)

    return await services.database.write(admit)


async def _exists(services: Services, principal: Principal, request: CreateSandbox) -> bool:
    """Whether the call would connect: then its webhook is not looked at (SA-115). Nobody else has names looked up."""

    def look(tx: Transaction) -> bool:
        account = authorize_manage(tx, principal, request.account_id, Scope.DEPLOY)
        key = (account.id, request.app_id, principal.caller_key, request.idempotency_key)
        return sandboxes.find_by_identity(tx, *key) is not None

    return await services.database.read(look)


def _new_sandbox(
    tx: Transaction,
    services: Services,
    account: Account,
    principal: Principal,
    request: CreateSandbox,
    correlation_id: str,
) -> tuple[Sandbox, Revision]:
    app = identity.get_app(tx, request.app_id)
    if app is None or app.account_id != account.id:
        raise NotFound("There is no such app in this account.")
    check_region(services.settings.regions, request.region, account.id)
    template, revision = _choose_revision(tx, principal, request)
    mode = request.persistence_mode or revision.persistence_mode
    check_private_mode(request.private, mode)
    sandbox_id = services.new_id()
    volume = volume_for_sandbox(
        tx,
        services,
        account_id=account.id,
        region=request.region,
        sandbox_id=sandbox_id,
        mode=mode,
        volume_name=request.volume_name,
        revision=revision,
    )
    sandbox = Sandbox(
        id=sandbox_id,
        account_id=account.id,
        app_id=app.id,
        template_id=template.id,
        template_revision_id=revision.id,
        template_revision_number=revision.revision,
        region=request.region,
        workload_profile=request.workload_profile,
        isolation_profile=revision.isolation_profile,
        persistence_mode=mode,
        volume_name=None if volume is None else volume.name,
        volume_id=None if volume is None else volume.id,
        mount_path=mount_path_for_sandbox(mode, revision),
        owner_kind=request.owner_kind,
        owner_id=request.owner_id,
        external_session_id=request.external_session_id,
        caller_key=principal.caller_key,
        idempotency_key=request.idempotency_key,
        project_id=request.project_id,
        max_project_concurrency=request.max_project_concurrency,
        supervised=request.supervised,
        status=SandboxStatus.REQUESTED,
        status_reason=None,
        desired_status=SandboxStatus.READY,
        generation=0,
        is_warm_allocation=False,
        zclouds=revision.zclouds,
        ephemeral_disk_mb=revision.ephemeral_disk_mb,
        pid_limit=revision.pid_limit,
        idle_timeout_seconds=revision.idle_timeout_seconds,
        suspended_retention_seconds=revision.suspended_retention_seconds,
        instance_id=None,
        allocation_pending=False,
        claimed_at=None,
        ready_at=None,
        last_active_at=tx.now,
        suspended_at=None,
        resumed_at=None,
        terminated_at=None,
        expires_at=tx.now + timedelta(seconds=revision.hard_lifetime_seconds),
        termination_reason=None,
        error_code=None,
        correlation_id=correlation_id,
        created_at=tx.now,
        updated_at=tx.now,
        private=request.private,
        webhook_host=None if request.webhook is None else request.webhook.host,
    )
    return sandbox, revision


def _choose_revision(tx: Transaction, principal: Principal, request: CreateSandbox) -> tuple[Template, Revision]:
    """Resolve what to run: the pinned revision, or the template's latest (SA-105 … SA-108, SA-112, SA-113, SA-187)."""
    revision: Revision | None = None
    template_id = request.template_id
    if request.template_revision_id is not None:
        revision = templates.get_revision(tx, request.template_revision_id)
        if revision is None or template_id not in {None, revision.template_id}:
            raise NotFound("There is no such revision of the template.")
        template_id = revision.template_id
    if template_id is None:
        raise Invalid("Send templateId or templateRevisionId.", field="templateId")
    template = load_template(tx, principal, request.account_id, template_id)
    if not template.enabled:
        raise Conflict("The template is disabled.")
    if template.deprecated_at is not None:
        raise Conflict("The template is deprecated.")
    revision = revision or templates.current_revision(tx, template)
    if revision is None:
        raise Conflict("The template has no revision yet; create one first.")
    return template, revision
