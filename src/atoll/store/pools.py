"""Queries about warm instances."""

from __future__ import annotations

from sqlalchemy import bindparam, delete, insert, select, update

from atoll.domain.pool import WarmInstance, WarmState
from atoll.store.database import Transaction
from atoll.store.rows import Mapper
from atoll.store.tables import warm_instances
from atoll.store.wakes import POOLS

_mapper = Mapper(warm_instances, WarmInstance)
_c = warm_instances.c

# Built once: building a statement costs ten times what running it does. SQLite leaves out the lock.
_OLDEST_WAITING = (
    select(_c.id)
    .where(_c.pool_key == bindparam("pool_key"), _c.state == WarmState.WAITING)
    .order_by(_c.ready_at, _c.id)
    .limit(1)
    .with_for_update(skip_locked=True)
)
_TAKE = delete(warm_instances).where(_c.id == bindparam("id"), _c.state == WarmState.WAITING)


def add(tx: Transaction, instance_id: str, pool_key: str) -> None:
    """Record an instance before it is booted."""
    tx.connection.execute(
        insert(warm_instances).values(
            id=instance_id,
            pool_key=pool_key,
            state=WarmState.BOOTING,
            allocation_pending=True,
            created_at=tx.now,
        )
    )


def mark_waiting(tx: Transaction, instance_id: str) -> bool:
    """Offer a booted instance; False when it was discarded meanwhile."""
    result = tx.connection.execute(
        update(warm_instances)
        .where(_c.id == instance_id, _c.state == WarmState.BOOTING)
        .values(state=WarmState.WAITING, ready_at=tx.now)
    )
    return result.rowcount == 1


def claim(tx: Transaction, pool_key: str) -> str | None:
    """Take the oldest waiting instance out of the pool for good, or None when there is none."""
    instance_id = tx.connection.execute(_OLDEST_WAITING, {"pool_key": pool_key}).scalar()
    if instance_id is None or tx.connection.execute(_TAKE, {"id": instance_id}).rowcount != 1:
        return None
    tx.wake(POOLS)
    return str(instance_id)


def discard(tx: Transaction, instance_id: str) -> None:
    """Mark an instance for destruction."""
    tx.connection.execute(update(warm_instances).where(_c.id == instance_id).values(state=WarmState.DISCARDED))
    tx.wake(POOLS)


def remove(tx: Transaction, instance_id: str) -> None:
    """Forget an instance of which nothing is left."""
    tx.connection.execute(delete(warm_instances).where(_c.id == instance_id))


def list_all(tx: Transaction) -> list[WarmInstance]:
    """Every instance of every pool."""
    return [_mapper.one(row) for row in tx.connection.execute(select(*_mapper.columns))]
