"""Templates and their revisions."""

from __future__ import annotations

from sqlalchemy import JSON, Boolean, Column, ForeignKey, Index, Integer, String, Table, Text, UniqueConstraint

from atoll.domain.template import IsolationProfile, PersistenceMode
from atoll.store.tables.base import Moment, Name, metadata

templates = Table(
    "templates",
    metadata,
    Column("id", String(36), primary_key=True),
    Column("account_id", String(36), ForeignKey("accounts.id"), nullable=False),
    Column("app_id", String(36), ForeignKey("apps.id")),
    Column("name", String(200), nullable=False),
    Column("slug", String(200), nullable=False),
    Column("description", Text),
    Column("enabled", Boolean, nullable=False),
    Column("deprecated_at", Moment),
    Column("current_revision_number", Integer, nullable=False),
    Column("created_at", Moment, nullable=False),
    Column("updated_at", Moment, nullable=False),
    Index("ix_templates_account", "account_id", "created_at"),
)

revisions = Table(
    "revisions",
    metadata,
    Column("id", String(36), primary_key=True),
    Column("template_id", String(36), ForeignKey("templates.id"), nullable=False),
    Column("revision", Integer, nullable=False),
    Column("image_digest", String(500), nullable=False),
    Column("image_ref", String(500)),
    Column("command", JSON(none_as_null=True)),
    Column("working_dir", Text),
    Column("ports", JSON(none_as_null=True)),
    Column("zclouds", Integer, nullable=False),
    Column("ephemeral_disk_mb", Integer),
    Column("pid_limit", Integer),
    Column("persistence_mode", Name(PersistenceMode), nullable=False),
    Column("volume_size_mb", Integer),
    Column("mount_path", Text),
    Column("snapshot_exclude", JSON(none_as_null=True)),
    Column("snapshot_max_mb", Integer),
    Column("isolation_profile", Name(IsolationProfile), nullable=False),
    Column("idle_timeout_seconds", Integer, nullable=False),
    Column("hard_lifetime_seconds", Integer, nullable=False),
    Column("suspended_retention_seconds", Integer, nullable=False),
    Column("warm_pool", JSON(none_as_null=True)),
    Column("network_control", JSON(none_as_null=True)),
    Column("created_at", Moment, nullable=False),
    UniqueConstraint("template_id", "revision"),
)
