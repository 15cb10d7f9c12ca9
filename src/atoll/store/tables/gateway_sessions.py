"""Gateway sessions, by the hash of their token."""

from __future__ import annotations

from sqlalchemy import JSON, Column, ForeignKey, Index, String, Table

from atoll.store.tables.base import Moment, metadata

gateway_sessions = Table(
    "gateway_sessions",
    metadata,
    Column("id", String(36), primary_key=True),
    Column("hash", String(64), nullable=False, unique=True),
    Column("sandbox_id", String(36), ForeignKey("sandboxes.id"), nullable=False),
    Column("account_id", String(36), ForeignKey("accounts.id"), nullable=False),
    Column("user_id", String(36), ForeignKey("users.id"), nullable=False),
    Column("token_id", String(36), ForeignKey("tokens.id"), nullable=False),
    Column("scopes", JSON, nullable=False),
    Column("created_at", Moment, nullable=False),
    Column("expires_at", Moment, nullable=False),
    Index("ix_gateway_sessions_expires_at", "expires_at"),
)
