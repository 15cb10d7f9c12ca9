"""Execution completion webhooks: where each sandbox's go, and which deliveries are to be made."""

from __future__ import annotations

from sqlalchemy import Column, ForeignKey, Index, Integer, LargeBinary, String, Table

from atoll.domain.webhook import DeliveryState
from atoll.store.tables.base import Moment, Name, metadata

execution_webhooks = Table(
    "execution_webhooks",
    metadata,
    Column("sandbox_id", String(36), ForeignKey("sandboxes.id"), primary_key=True),
    # Sealed (SA-297): the host alone is kept in clear, beside the sandbox.
    Column("url", LargeBinary, nullable=False),
    Column("secret", LargeBinary, nullable=False),
    Column("created_at", Moment, nullable=False),
)

webhook_deliveries = Table(
    "webhook_deliveries",
    metadata,
    # The execution's id: there is one delivery for the one end of a command.
    Column("id", String(36), primary_key=True),
    Column("sandbox_id", String(36), ForeignKey("sandboxes.id"), nullable=False),
    Column("account_id", String(36), nullable=False),
    Column("host", String(253), nullable=False),
    Column("body", LargeBinary, nullable=False),
    Column("state", Name(DeliveryState), nullable=False),
    Column("attempts", Integer, nullable=False),
    # While an attempt is under way: when another one is due if nothing is heard of this one.
    Column("next_attempt_at", Moment, nullable=False),
    Column("lease_token", String(64)),
    Column("last_status", Integer),
    Column("last_failure", String(100)),
    Column("created_at", Moment, nullable=False),
    Column("finished_at", Moment),
    Index("ix_webhook_deliveries_due", "state", "next_attempt_at"),
)
