"""Templates and revisions: list, get, save, append."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from atoll.domain.audit import AuditAction, AuditTarget
from atoll.domain.errors import Invalid, NotFound
from atoll.domain.identity import Principal, Scope
from atoll.domain.restriction import check_change_of_template, check_inside, check_new_template, is_inside
from atoll.domain.template import (
    DEFAULT_HARD_LIFETIME_SECONDS,
    DEFAULT_IDLE_TIMEOUT_SECONDS,
    DEFAULT_MOUNT_PATH,
    DEFAULT_SNAPSHOT_MAX_MB,
    DEFAULT_SUSPENDED_RETENTION_SECONDS,
    DEFAULT_VOLUME_SIZE_MB,
    IsolationProfile,
    NetworkControl,
    PersistenceMode,
    Revision,
    Template,
    WarmPool,
    check_image_digest,
    check_network_control,
    check_persistence_fields,
    check_warm_pool,
    slug_of,
)
from atoll.domain.volume import check_mount_path
from atoll.ops.access import authorize_manage, authorize_read, load_template
from atoll.ops.services import Services
from atoll.store import audit, identity, templates
from atoll.store.database import Transaction
from atoll.store.wakes import POOLS


@dataclass(frozen=True, slots=True)
class SaveTemplate:
    """What to save. None keeps what is there; on create it takes the default."""

    account_id: str
    template_id: str | None
    app_id: str | None
    name: str
    description: str | None
    enabled: bool | None
    deprecated: bool | None


@dataclass(frozen=True, slots=True)
class CreateRevision:
    """A runtime configuration as it was sent; None takes the default."""

    account_id: str
    template_id: str
    image_digest: str
    image_ref: str | None
    command: tuple[str, ...] | None
    working_dir: str | None
    ports: tuple[int, ...] | None
    zclouds: int
    ephemeral_disk_mb: int | None
    pid_limit: int | None
    persistence_mode: PersistenceMode
    volume_size_mb: int | None
    mount_path: str | None
    snapshot_exclude: tuple[str, ...] | None
    snapshot_max_mb: int | None
    idle_timeout_seconds: int | None
    hard_lifetime_seconds: int | None
    suspended_retention_seconds: int | None
    warm_pool: WarmPool | None
    network_control: NetworkControl | None


async def list_templates(
    services: Services, principal: Principal, account_id: str, *, app_id: str | None, include_deprecated: bool
) -> list[Template]:
    """The templates of an account (SA-173 … SA-175)."""

    def look(tx: Transaction) -> list[Template]:
        authorize_read(tx, principal, account_id)
        check_inside(principal.restriction, app_id=app_id)
        found = templates.list_of_account(tx, account_id, app_id=app_id, include_deprecated=include_deprecated)
        return [template for template in found if is_inside(principal.restriction, template.app_id, template.id)]

    return await services.database.read(look)


async def get_template(
    services: Services, principal: Principal, account_id: str, template_id: str
) -> tuple[Template, Revision | None]:
    """A template and its current revision (SA-176 … SA-178)."""

    def look(tx: Transaction) -> tuple[Template, Revision | None]:
        authorize_read(tx, principal, account_id)
        template = load_template(tx, principal, account_id, template_id)
        return template, templates.current_revision(tx, template)

    return await services.database.read(look)


async def save_template(services: Services, principal: Principal, request: SaveTemplate) -> tuple[Template, bool]:
    """Create or update a template; the flag says whether it is new (SA-179 … SA-185)."""

    def save(tx: Transaction) -> tuple[Template, bool]:
        authorize_manage(tx, principal, request.account_id, Scope.CONFIG)
        if request.template_id is None:
            check_new_template(principal.restriction, request.app_id)
            template, is_new = _create(tx, services, request), True
        else:
            template, is_new = _update(tx, principal, request, request.template_id), False
        target = (AuditTarget.TEMPLATE, template.id)
        audit.record(tx, principal, AuditAction.SAVE_TEMPLATE, request.account_id, target=target)
        return template, is_new

    return await services.database.write(save)


def _create(tx: Transaction, services: Services, request: SaveTemplate) -> Template:
    if request.app_id is not None:
        app = identity.get_app(tx, request.app_id)
        if app is None or app.account_id != request.account_id:
            raise NotFound("There is no such app in this account.")
    template = Template(
        id=services.new_id(),
        account_id=request.account_id,
        app_id=request.app_id,
        name=request.name,
        slug=slug_of(request.name),
        description=request.description,
        enabled=True if request.enabled is None else request.enabled,
        deprecated_at=tx.now if request.deprecated else None,
        current_revision_number=0,
        created_at=tx.now,
        updated_at=tx.now,
    )
    templates.add(tx, template)
    return template


def _update(tx: Transaction, principal: Principal, request: SaveTemplate, template_id: str) -> Template:
    template = load_template(tx, principal, request.account_id, template_id, lock=True)
    check_change_of_template(principal.restriction, template.app_id)
    if request.app_id is not None and request.app_id != template.app_id:
        raise Invalid("appId is for creating a template; it cannot be changed.", field="appId")
    changes: dict[str, Any] = {"name": request.name, "slug": slug_of(request.name), "updated_at": tx.now}
    if request.description is not None:
        changes["description"] = request.description
    if request.enabled is not None:
        changes["enabled"] = request.enabled
    if request.deprecated is True and template.deprecated_at is None:
        changes["deprecated_at"] = tx.now
    if request.deprecated is False:
        changes["deprecated_at"] = None
    templates.save(tx, template_id, **changes)
    tx.wake(POOLS)
    return load_template(tx, principal, request.account_id, template_id)


async def create_revision(services: Services, principal: Principal, request: CreateRevision) -> Revision:
    """Append an immutable revision (SA-186, SA-201 … SA-211); raises `Invalid` naming the field."""
    _check(request)

    def append(tx: Transaction) -> Revision:
        authorize_manage(tx, principal, request.account_id, Scope.CONFIG)
        template = load_template(tx, principal, request.account_id, request.template_id, lock=True)
        check_change_of_template(principal.restriction, template.app_id)
        revision = _revision(services, request, template, tx)
        templates.append_revision(tx, revision)
        target = (AuditTarget.TEMPLATE, template.id)
        audit.record(tx, principal, AuditAction.CREATE_REVISION, request.account_id, target=target)
        tx.wake(POOLS)
        return revision

    return await services.database.write(append)


def _check(request: CreateRevision) -> None:
    check_image_digest(request.image_digest)
    check_persistence_fields(
        request.persistence_mode,
        volume_size_mb=request.volume_size_mb,
        mount_path=request.mount_path,
        snapshot_exclude=request.snapshot_exclude,
        snapshot_max_mb=request.snapshot_max_mb,
    )
    if request.mount_path is not None:
        check_mount_path(request.mount_path)
    if request.network_control is not None:
        check_network_control(request.network_control)
    if request.warm_pool is not None:
        check_warm_pool(
            request.warm_pool,
            request.persistence_mode,
            pid_limit=request.pid_limit,
            ephemeral_disk_mb=request.ephemeral_disk_mb,
        )


def _revision(services: Services, request: CreateRevision, template: Template, tx: Transaction) -> Revision:
    mode = request.persistence_mode
    return Revision(
        id=services.new_id(),
        template_id=template.id,
        revision=template.current_revision_number + 1,
        image_digest=request.image_digest,
        image_ref=request.image_ref,
        command=request.command,
        working_dir=request.working_dir,
        ports=request.ports,
        zclouds=request.zclouds,
        ephemeral_disk_mb=request.ephemeral_disk_mb,
        pid_limit=request.pid_limit,
        persistence_mode=mode,
        volume_size_mb=(request.volume_size_mb or DEFAULT_VOLUME_SIZE_MB) if mode.uses_volume else None,
        mount_path=(request.mount_path or DEFAULT_MOUNT_PATH) if mode.mounts_directory else None,
        snapshot_exclude=(request.snapshot_exclude or ()) if mode.takes_snapshots else None,
        snapshot_max_mb=(request.snapshot_max_mb or DEFAULT_SNAPSHOT_MAX_MB) if mode.takes_snapshots else None,
        isolation_profile=IsolationProfile.GVISOR,
        idle_timeout_seconds=request.idle_timeout_seconds or DEFAULT_IDLE_TIMEOUT_SECONDS,
        hard_lifetime_seconds=request.hard_lifetime_seconds or DEFAULT_HARD_LIFETIME_SECONDS,
        suspended_retention_seconds=request.suspended_retention_seconds or DEFAULT_SUSPENDED_RETENTION_SECONDS,
        warm_pool=request.warm_pool,
        network_control=request.network_control,
        created_at=tx.now,
    )
