"""Storage points, shared volumes and the snapshots on them."""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Column,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    String,
    Table,
    Text,
    UniqueConstraint,
)

from atoll.domain.volume import PointKind, VolumeStatus
from atoll.store.tables.base import Moment, Name, metadata

storage_points = Table(
    "storage_points",
    metadata,
    Column("id", String(36), primary_key=True),
    Column("account_id", String(36), ForeignKey("accounts.id")),
    Column("region", String(64), nullable=False),
    Column("name", String(200), nullable=False),
    Column("kind", Name(PointKind), nullable=False),
    Column("location", Text, nullable=False),
    Column("endpoint", Text),
    Column("bucket_region", String(64)),
    Column("access_key_id", String(200)),
    Column("sealed_secret", LargeBinary),
    Column("uid", Integer, nullable=False),
    Column("gid", Integer, nullable=False),
    Column("created_at", Moment, nullable=False),
    Column("retired_at", Moment),
    Index("ix_storage_points_account_region", "account_id", "region"),
)

shared_volumes = Table(
    "shared_volumes",
    metadata,
    Column("id", String(36), primary_key=True),
    Column("account_id", String(36), ForeignKey("accounts.id"), nullable=False),
    Column("name", String(200), nullable=False),
    Column("region", String(64), nullable=False),
    Column("storage_point_id", String(36), ForeignKey("storage_points.id"), nullable=False),
    Column("status", Name(VolumeStatus), nullable=False),
    Column("size_mb", Integer, nullable=False),
    Column("uid", Integer, nullable=False),
    Column("gid", Integer, nullable=False),
    Column("purge_at", Moment),
    Column("created_at", Moment, nullable=False),
    Column("updated_at", Moment, nullable=False),
    UniqueConstraint("account_id", "name"),
    Index("ix_shared_volumes_purge_at", "purge_at"),
)

snapshots = Table(
    "snapshots",
    metadata,
    Column("id", String(36), primary_key=True),
    Column("volume_id", String(36), ForeignKey("shared_volumes.id"), nullable=False),
    Column("sandbox_id", String(36), ForeignKey("sandboxes.id"), nullable=False),
    Column("archive_bytes", BigInteger, nullable=False),
    Column("content_bytes", BigInteger, nullable=False),
    Column("file_count", Integer, nullable=False),
    Column("skipped_count", Integer, nullable=False),
    Column("sha256", String(64), nullable=False),
    Column("created_at", Moment, nullable=False),
    Index("ix_snapshots_volume_created", "volume_id", "created_at"),
)
