"""Booted sandboxes that wait to be claimed."""

from __future__ import annotations

from sqlalchemy import Boolean, Column, Index, String, Table

from atoll.domain.pool import WarmState
from atoll.store.tables.base import Moment, Name, metadata

warm_instances = Table(
    "warm_instances",
    metadata,
    Column("id", String(36), primary_key=True),
    Column("pool_key", String(64), nullable=False),
    Column("state", Name(WarmState), nullable=False),
    Column("allocation_pending", Boolean, nullable=False),
    Column("created_at", Moment, nullable=False),
    Column("ready_at", Moment),
    Index("ix_warm_instances_key_state", "pool_key", "state"),
)
