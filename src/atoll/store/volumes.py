"""Queries about storage points and shared volumes."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import asdict
from datetime import datetime

from sqlalchemy import ColumnElement, delete, func, insert, or_, select, update

from atoll.domain.sandbox import SandboxStatus
from atoll.domain.volume import SharedVolume, StoragePoint, VolumeStatus
from atoll.store.database import Transaction
from atoll.store.rows import Mapper
from atoll.store.tables import sandboxes, shared_volumes, snapshots, storage_points
from atoll.store.wakes import VOLUMES

_point_mapper = Mapper(storage_points, StoragePoint)
_volume_mapper = Mapper(shared_volumes, SharedVolume)
_p = storage_points.c
_v = shared_volumes.c


def add_point(tx: Transaction, point: StoragePoint) -> None:
    """Insert a storage point."""
    tx.connection.execute(insert(storage_points).values(**asdict(point)))


def get_point(tx: Transaction, point_id: str) -> StoragePoint | None:
    """One storage point, also a retired one."""
    query = select(*_point_mapper.columns).where(_p.id == point_id)
    return _point_mapper.maybe(tx.connection.execute(query).first())


def usable_points(tx: Transaction, account_id: str, region: str | None = None) -> list[StoragePoint]:
    """Points on which the account may make volumes, its own first, each newest first (SA-078)."""
    query = (
        select(*_point_mapper.columns)
        .where(or_(_p.account_id == account_id, _p.account_id.is_(None)), _p.retired_at.is_(None))
        .order_by(_p.account_id.is_(None), _p.created_at.desc(), _p.id)
    )
    if region is not None:
        query = query.where(_p.region == region)
    return [_point_mapper.one(row) for row in tx.connection.execute(query)]


def platform_points(tx: Transaction) -> list[StoragePoint]:
    """The platform's points in use."""
    query = select(*_point_mapper.columns).where(_p.account_id.is_(None), _p.retired_at.is_(None))
    return [_point_mapper.one(row) for row in tx.connection.execute(query)]


def retire_points(tx: Transaction, point_ids: Sequence[str]) -> None:
    """Make no new volume on some points; the volumes there stay."""
    tx.connection.execute(update(storage_points).where(_p.id.in_(list(point_ids))).values(retired_at=tx.now))


def add(tx: Transaction, volume: SharedVolume) -> None:
    """Insert a volume; its name must be free in its account."""
    tx.connection.execute(insert(shared_volumes).values(**asdict(volume)))


def get(tx: Transaction, volume_id: str) -> SharedVolume | None:
    """One volume."""
    query = select(*_volume_mapper.columns).where(_v.id == volume_id)
    return _volume_mapper.maybe(tx.connection.execute(query).first())


def find(tx: Transaction, account_id: str, name: str, *, lock: bool = False) -> SharedVolume | None:
    """One volume of an account by name; `lock` holds its row until the transaction ends."""
    query = select(*_volume_mapper.columns).where(_v.account_id == account_id, _v.name == name)
    if lock:  # SQLite has one writer and ignores it
        query = query.with_for_update()
    return _volume_mapper.maybe(tx.connection.execute(query).first())


def list_of_account(tx: Transaction, account_id: str, region: str | None) -> list[SharedVolume]:
    """The volumes of an account, oldest first."""
    query = select(*_volume_mapper.columns).where(_v.account_id == account_id).order_by(_v.created_at, _v.id)
    if region is not None:
        query = query.where(_v.region == region)
    return [_volume_mapper.one(row) for row in tx.connection.execute(query)]


def mark_for_purge(tx: Transaction, volume_id: str, purge_at: datetime) -> None:
    """Begin the purge delay."""
    tx.connection.execute(
        update(shared_volumes)
        .where(_v.id == volume_id)
        .values(status=VolumeStatus.PENDING_PURGE, purge_at=purge_at, updated_at=tx.now)
    )
    tx.wake(VOLUMES)


def restore(tx: Transaction, volume_id: str) -> None:
    """End the purge delay without a purge."""
    tx.connection.execute(
        update(shared_volumes)
        .where(_v.id == volume_id)
        .values(status=VolumeStatus.ACTIVE, purge_at=None, updated_at=tx.now)
    )


_OVER = [SandboxStatus.TERMINATED, SandboxStatus.FAILED]


def is_used(tx: Transaction, volume_id: str) -> bool:
    """Whether a sandbox uses a volume or will again."""
    return _is_any(tx, volume_id, sandboxes.c.status.not_in(_OVER))


def is_being_released(tx: Transaction, volume_id: str) -> bool:
    """Whether the compute of an ended sandbox, which may still write to the volume, is not cleaned up yet."""
    return _is_any(tx, volume_id, sandboxes.c.allocation_pending)


def _is_any(tx: Transaction, volume_id: str, condition: ColumnElement[bool]) -> bool:
    query = select(sandboxes.c.id).where(sandboxes.c.volume_id == volume_id, condition).limit(1)
    return tx.connection.execute(query).first() is not None


def due_for_purge(tx: Transaction) -> list[SharedVolume]:
    """Volumes whose delay is over."""
    query = select(*_volume_mapper.columns).where(_v.purge_at <= tx.now)
    return [_volume_mapper.one(row) for row in tx.connection.execute(query)]


def next_purge(tx: Transaction, *, except_for: Collection[str] = ()) -> datetime | None:
    """When the next delay is over, not looking at some volumes."""
    moment: datetime | None = tx.connection.execute(
        select(func.min(_v.purge_at)).where(_v.purge_at.is_not(None), _v.id.not_in(list(except_for)))
    ).scalar()
    return moment


def remove_purged(tx: Transaction, volume_id: str) -> None:
    """Forget a volume whose data is deleted, with its snapshots."""
    tx.connection.execute(delete(snapshots).where(snapshots.c.volume_id == volume_id))
    tx.connection.execute(delete(shared_volumes).where(_v.id == volume_id))
