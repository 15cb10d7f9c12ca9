"""Queries about personal AI subscriptions. Each is asked for by its owner; values leave sealed, and only for use."""

from __future__ import annotations

from typing import Any

from sqlalchemy import delete, func, insert, select, update

from atoll.domain.ai_subscription import AiSubscription, SealedSubscription
from atoll.store.database import Transaction
from atoll.store.rows import Mapper
from atoll.store.tables import ai_subscriptions, users

_mapper = Mapper(ai_subscriptions, AiSubscription)
_sealed_mapper = Mapper(ai_subscriptions, SealedSubscription)
_c = ai_subscriptions.c


def list_of_user(tx: Transaction, user_id: str) -> list[AiSubscription]:
    """A user's own, oldest first."""
    query = select(*_mapper.columns).where(_c.user_id == user_id).order_by(_c.created_at, _c.id)
    return [_mapper.one(row) for row in tx.connection.execute(query)]


def count_of_user(tx: Transaction, user_id: str) -> int:
    """How many a user has; holds the user's row, so that two additions count each other."""
    tx.connection.execute(select(users.c.id).where(users.c.id == user_id).with_for_update())
    query = select(func.count()).select_from(ai_subscriptions).where(_c.user_id == user_id)
    return int(tx.connection.execute(query).scalar_one())


def get(tx: Transaction, user_id: str, subscription_id: str) -> AiSubscription | None:
    """One of a user's own."""
    query = select(*_mapper.columns).where(_c.id == subscription_id, _c.user_id == user_id)
    return _mapper.maybe(tx.connection.execute(query).first())


def get_sealed(tx: Transaction, user_id: str, subscription_id: str) -> SealedSubscription | None:
    """One of a user's own, for a command."""
    query = select(*_sealed_mapper.columns).where(_c.id == subscription_id, _c.user_id == user_id)
    return _sealed_mapper.maybe(tx.connection.execute(query).first())


def add(tx: Transaction, subscription: AiSubscription, value: bytes) -> None:
    """Insert one; `value` is sealed."""
    columns = {column.name: getattr(subscription, column.name) for column in _mapper.columns}
    tx.connection.execute(insert(ai_subscriptions).values(**columns, value=value))


def change(tx: Transaction, user_id: str, subscription_id: str, **changes: Any) -> None:
    """Write the columns that change."""
    tx.connection.execute(
        update(ai_subscriptions)
        .where(_c.id == subscription_id, _c.user_id == user_id)
        .values(**changes, updated_at=tx.now)
    )


def remove(tx: Transaction, user_id: str, subscription_id: str) -> bool:
    """Delete one of a user's own; False when there is none."""
    result = tx.connection.execute(delete(ai_subscriptions).where(_c.id == subscription_id, _c.user_id == user_id))
    return result.rowcount == 1
