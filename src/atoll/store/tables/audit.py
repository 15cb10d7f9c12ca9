"""The audit trail. Rows are inserted and, after the retention, removed; never changed."""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, ForeignKey, Index, Integer, String, Table

from atoll.domain.audit import AuditOutcome, AuditTarget, Channel
from atoll.store.tables.base import Moment, Name, metadata

audit_entries = Table(
    "audit_entries",
    metadata,
    # SQLite counts up only what it calls INTEGER.
    Column("id", BigInteger().with_variant(Integer, "sqlite"), primary_key=True, autoincrement=True),
    Column("account_id", String(36), ForeignKey("accounts.id"), nullable=False),
    Column("occurred_at", Moment, nullable=False),
    Column("action", String(64), nullable=False),
    Column("outcome", Name(AuditOutcome), nullable=False),
    Column("status", Integer),
    Column("error_code", String(64)),
    Column("user_id", String(36)),
    Column("token_id", String(36)),
    Column("channel", Name(Channel), nullable=False),
    Column("address", String(64)),
    Column("request_id", String(64)),
    Column("target_kind", Name(AuditTarget)),
    Column("target_id", String(200)),
    Column("execution_id", String(36)),
    Column("exit_code", Integer),
    Column("reason", String(64)),
    Index("ix_audit_entries_account", "account_id", "id"),
    Index("ix_audit_entries_target", "account_id", "target_id", "id"),
)
