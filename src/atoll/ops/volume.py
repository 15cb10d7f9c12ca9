"""Shared volumes: create, list, get, remove with a purge delay, restore; and the volume that a new sandbox gets."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import timedelta

from atoll.domain.audit import AuditAction, AuditTarget
from atoll.domain.errors import Conflict, Invalid, NotFound
from atoll.domain.identity import Principal, Scope
from atoll.domain.region import check_region
from atoll.domain.restriction import check_inside, region_is_inside
from atoll.domain.template import DEFAULT_MOUNT_PATH, DEFAULT_VOLUME_SIZE_MB, PersistenceMode, Revision
from atoll.domain.volume import (
    SANDBOX_ID_NUMBER,
    SharedVolume,
    StoragePoint,
    VolumeStatus,
    check_attachable,
    check_volume_name,
    volume_name_for,
)
from atoll.ops.access import authorize_manage, authorize_read
from atoll.ops.services import Services
from atoll.store import audit, volumes
from atoll.store.database import Transaction


@dataclass(frozen=True, slots=True)
class CreateVolume:
    """A volume as it was asked for."""

    account_id: str
    region: str
    name: str
    size_mb: int | None
    storage_server_id: str | None


async def create_volume(services: Services, principal: Principal, request: CreateVolume) -> SharedVolume:
    """Make an empty volume (SA-082); its entries report the owner of its storage point (SA-097).

    Raises `Conflict` for a name that is taken and for a region without a storage point.
    """
    check_volume_name(request.name)

    def create(tx: Transaction) -> SharedVolume:
        authorize_manage(tx, principal, request.account_id, Scope.CONFIG)
        check_inside(principal.restriction, region=request.region)
        check_region(services.settings.regions, request.region, request.account_id)
        point = _choose_point(tx, request.account_id, request.region, request.storage_server_id)
        if volumes.find(tx, request.account_id, request.name) is not None:
            raise Conflict("The account has a shared volume of this name already.")
        volume = _new(tx, services.new_id(), request.account_id, request.name, point, request.size_mb)
        volumes.add(tx, volume)
        _record(tx, principal, AuditAction.CREATE_VOLUME, volume)
        return volume

    return await services.database.write(create)


async def list_volumes(
    services: Services, principal: Principal, account_id: str, region: str | None
) -> list[SharedVolume]:
    """The volumes of an account, those pending purge too."""

    def look(tx: Transaction) -> list[SharedVolume]:
        authorize_read(tx, principal, account_id)
        check_inside(principal.restriction, region=region)
        found = volumes.list_of_account(tx, account_id, region)
        return [volume for volume in found if region_is_inside(principal.restriction, volume.region)]

    return await services.database.read(look)


async def get_volume(services: Services, principal: Principal, account_id: str, name: str) -> SharedVolume:
    """One volume."""

    def look(tx: Transaction) -> SharedVolume:
        authorize_read(tx, principal, account_id)
        return _load(tx, principal, account_id, name)

    return await services.database.read(look)


async def remove_volume(services: Services, principal: Principal, account_id: str, name: str) -> SharedVolume:
    """Begin the purge delay, during which `restore_volume` brings everything back (SA-088). Twice is once.

    Raises `Conflict` while a sandbox uses the volume, also a paused one.
    """
    delay = timedelta(seconds=services.settings.volume_purge_seconds)

    def remove(tx: Transaction) -> SharedVolume:
        authorize_manage(tx, principal, account_id, Scope.DANGEROUS)
        volume = _load(tx, principal, account_id, name, lock=True)
        if volume.status is VolumeStatus.PENDING_PURGE:
            return volume
        if volumes.is_used(tx, volume.id):
            raise Conflict("A sandbox uses the shared volume; terminate it first.")
        if volumes.is_being_released(tx, volume.id):
            raise Conflict("A sandbox that used the shared volume is being cleaned up; retry.", retry_after_seconds=1)
        purge_at = tx.now + delay
        volumes.mark_for_purge(tx, volume.id, purge_at)
        _record(tx, principal, AuditAction.REMOVE_VOLUME, volume)
        return replace(volume, status=VolumeStatus.PENDING_PURGE, purge_at=purge_at, updated_at=tx.now)

    return await services.database.write(remove)


async def restore_volume(services: Services, principal: Principal, account_id: str, name: str) -> SharedVolume:
    """Take back a removal (SA-088); a volume that is active is returned as it is.

    Raises `Conflict` once the delay is over.
    """

    def restore(tx: Transaction) -> SharedVolume:
        authorize_manage(tx, principal, account_id, Scope.CONFIG)
        volume = _load(tx, principal, account_id, name, lock=True)
        if volume.status is VolumeStatus.ACTIVE:
            return volume
        if volume.purge_at is None or volume.purge_at <= tx.now:
            raise Conflict("The purge delay of the shared volume is over.")
        volumes.restore(tx, volume.id)
        _record(tx, principal, AuditAction.RESTORE_VOLUME, volume)
        return replace(volume, status=VolumeStatus.ACTIVE, purge_at=None, updated_at=tx.now)

    return await services.database.write(restore)


def volume_for_sandbox(
    tx: Transaction,
    services: Services,
    *,
    account_id: str,
    region: str,
    sandbox_id: str,
    mode: PersistenceMode,
    volume_name: str | None,
    revision: Revision,
) -> SharedVolume | None:
    """The volume of a new sandbox, in the transaction that creates it: the one named (SA-082 … SA-086), or a new one
    (SA-077 … SA-079), or none in EPHEMERAL (SA-071)."""
    if not mode.uses_volume:
        if volume_name is not None:
            raise Invalid("volumeName is for the modes DIRECTORY, SNAPSHOT and BOTH.", field="volumeName")
        return None
    if revision.warm_pool is not None:
        raise Invalid("persistence modes with a volume are not available on warm pools", field="persistenceMode")
    if volume_name is not None:
        return check_attachable(volumes.find(tx, account_id, volume_name, lock=True), volume_name, region)
    point = _choose_point(tx, account_id, region, None)
    name = volume_name_for(sandbox_id)
    made = _new(tx, services.new_id(), account_id, name, point, revision.volume_size_mb)
    volume = replace(made, uid=SANDBOX_ID_NUMBER, gid=SANDBOX_ID_NUMBER)
    volumes.add(tx, volume)
    return volume


def mount_path_for_sandbox(mode: PersistenceMode, revision: Revision) -> str | None:
    """Where a sandbox mounts its volume (SA-034); None where its mode mounts none."""
    return (revision.mount_path or DEFAULT_MOUNT_PATH) if mode.mounts_directory else None


def _new(
    tx: Transaction, volume_id: str, account_id: str, name: str, point: StoragePoint, size_mb: int | None
) -> SharedVolume:
    return SharedVolume(
        id=volume_id,
        account_id=account_id,
        name=name,
        region=point.region,
        storage_point_id=point.id,
        status=VolumeStatus.ACTIVE,
        size_mb=size_mb or DEFAULT_VOLUME_SIZE_MB,
        uid=point.uid,
        gid=point.gid,
        purge_at=None,
        created_at=tx.now,
        updated_at=tx.now,
    )


def _choose_point(tx: Transaction, account_id: str, region: str, point_id: str | None) -> StoragePoint:
    usable = volumes.usable_points(tx, account_id, region)
    if point_id is not None:
        usable = [point for point in usable if point.id == point_id]
        if not usable:
            raise NotFound("The account has no such storage server in this region.")
    if not usable:
        raise Conflict(
            f"The account has no Object Storage point in the region {region}. "
            "Connect a bucket, or create the sandbox with the persistence mode EPHEMERAL."
        )
    return usable[0]


def _load(tx: Transaction, principal: Principal, account_id: str, name: str, *, lock: bool = False) -> SharedVolume:
    volume = volumes.find(tx, account_id, name, lock=lock)
    if volume is None:
        raise NotFound("There is no such shared volume in this account.")
    check_inside(principal.restriction, region=volume.region)
    return volume


def _record(tx: Transaction, principal: Principal, action: AuditAction, volume: SharedVolume) -> None:
    audit.record(tx, principal, action, volume.account_id, target=(AuditTarget.VOLUME, volume.name))
