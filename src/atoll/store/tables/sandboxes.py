"""Sandboxes and the events of their statuses."""

from __future__ import annotations

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    ForeignKey,
    Index,
    Integer,
    String,
    Table,
    Text,
    UniqueConstraint,
)

from atoll.domain.errors import ErrorCode
from atoll.domain.sandbox import OwnerKind, SandboxStatus, TerminationReason, WorkloadProfile
from atoll.domain.template import IsolationProfile, PersistenceMode
from atoll.store.tables.base import Moment, Name, metadata
from atoll.store.tables.pauses import PauseDocument

sandboxes = Table(
    "sandboxes",
    metadata,
    Column("id", String(36), primary_key=True),
    Column("account_id", String(36), ForeignKey("accounts.id"), nullable=False),
    Column("app_id", String(36), ForeignKey("apps.id"), nullable=False),
    Column("template_id", String(36), ForeignKey("templates.id"), nullable=False),
    Column("template_revision_id", String(36), ForeignKey("revisions.id"), nullable=False),
    Column("template_revision_number", Integer, nullable=False),
    Column("region", String(64), nullable=False),
    Column("workload_profile", Name(WorkloadProfile), nullable=False),
    Column("isolation_profile", Name(IsolationProfile), nullable=False),
    Column("persistence_mode", Name(PersistenceMode), nullable=False),
    Column("volume_name", String(200)),
    Column("volume_id", String(36)),
    Column("mount_path", Text),
    Column("owner_kind", Name(OwnerKind), nullable=False),
    Column("owner_id", String(500), nullable=False),
    Column("external_session_id", String(500)),
    Column("caller_key", String(80), nullable=False),
    Column("idempotency_key", String(500), nullable=False),
    Column("project_id", String(500)),
    Column("max_project_concurrency", Integer),
    Column("supervised", Boolean),
    Column("status", Name(SandboxStatus), nullable=False),
    Column("status_reason", Text),
    Column("desired_status", Name(SandboxStatus)),
    Column("generation", Integer, nullable=False),
    Column("is_warm_allocation", Boolean, nullable=False),
    Column("zclouds", Integer, nullable=False),
    Column("ephemeral_disk_mb", Integer),
    Column("pid_limit", Integer),
    Column("idle_timeout_seconds", Integer, nullable=False),
    Column("suspended_retention_seconds", Integer, nullable=False),
    Column("instance_id", String(36)),
    Column("allocation_pending", Boolean, nullable=False),
    Column("claimed_at", Moment),
    Column("ready_at", Moment),
    Column("last_active_at", Moment, nullable=False),
    Column("suspended_at", Moment),
    Column("resumed_at", Moment),
    Column("terminated_at", Moment),
    Column("last_snapshot_at", Moment),
    Column("last_snapshot_bytes", BigInteger),
    Column("last_snapshot_error", Text),
    Column("restore_failed", Boolean, nullable=False),
    Column("pause", PauseDocument),
    Column("expires_at", Moment, nullable=False),
    Column("termination_reason", Name(TerminationReason)),
    Column("error_code", Name(ErrorCode)),
    Column("correlation_id", String(64), nullable=False),
    Column("created_at", Moment, nullable=False),
    Column("updated_at", Moment, nullable=False),
    Column("private", Boolean),
    Column("webhook_host", String(253)),
    # The work lease: which control plane works on the row, and until when (the store alone reads these).
    Column("lease_token", String(64)),
    Column("lease_until", Moment),
    # SA-121, SA-124: the identity of a create. It is written before anything is allocated (SA-125).
    UniqueConstraint("account_id", "app_id", "caller_key", "idempotency_key"),
    Index("ix_sandboxes_account_created", "account_id", "created_at", "id"),
    Index("ix_sandboxes_status", "status"),
    Index("ix_sandboxes_allocation_pending", "allocation_pending"),
    Index("ix_sandboxes_instance", "instance_id"),
    Index("ix_sandboxes_volume", "volume_id"),
)

sandbox_events = Table(
    "sandbox_events",
    metadata,
    Column("sandbox_id", String(36), ForeignKey("sandboxes.id"), primary_key=True),
    Column("generation", Integer, primary_key=True, autoincrement=False),
    Column("action", String(64), nullable=False),
    Column("from_status", Name(SandboxStatus)),
    Column("to_status", Name(SandboxStatus), nullable=False),
    Column("data", JSON, nullable=False),
    Column("occurred_at", Moment, nullable=False),
)
