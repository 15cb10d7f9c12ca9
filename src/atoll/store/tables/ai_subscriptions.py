"""Personal AI subscriptions: credentials of users, sealed."""

from __future__ import annotations

from sqlalchemy import Column, ForeignKey, Index, LargeBinary, String, Table

from atoll.store.tables.base import Moment, metadata

ai_subscriptions = Table(
    "ai_subscriptions",
    metadata,
    Column("id", String(36), primary_key=True),
    Column("user_id", String(36), ForeignKey("users.id"), nullable=False),
    Column("name", String(200), nullable=False),
    Column("env_var_name", String(200), nullable=False),
    # Sealed (SA-327).
    Column("value", LargeBinary, nullable=False),
    Column("created_at", Moment, nullable=False),
    Column("updated_at", Moment, nullable=False),
    Index("ix_ai_subscriptions_user", "user_id", "created_at"),
)
