"""Commands: that they ran and how they ended, never what they were or said (SA-216, SA-248, SA-278)."""

from __future__ import annotations

from sqlalchemy import BigInteger, Boolean, Column, ForeignKey, Index, Integer, String, Table, UniqueConstraint

from atoll.domain.command import EndReason
from atoll.domain.execution import ExecutionKind, ExecutionState, ExecutionType
from atoll.store.tables.base import Moment, Name, metadata

commands = Table(
    "commands",
    metadata,
    Column("id", String(36), primary_key=True),
    Column("sandbox_id", String(36), ForeignKey("sandboxes.id"), nullable=False),
    Column("instance_id", String(36), nullable=False),
    Column("kind", Name(ExecutionKind), nullable=False),
    Column("state", Name(ExecutionState), nullable=False),
    Column("idempotency_key", String(200)),
    Column("fingerprint", String(64)),
    Column("caller_key", String(80), nullable=False),
    Column("process_id", Integer),
    Column("exit_code", Integer),
    Column("reason", Name(EndReason)),
    Column("stdout_bytes", BigInteger, nullable=False),
    Column("stderr_bytes", BigInteger, nullable=False),
    Column("output_truncated", Boolean, nullable=False),
    Column("requested_at", Moment, nullable=False),
    Column("started_at", Moment),
    Column("exited_at", Moment),
    Column("execution_type", Name(ExecutionType), nullable=False),
    Column("end_seq", BigInteger),
    UniqueConstraint("sandbox_id", "idempotency_key"),
    Index("ix_commands_sandbox_state", "sandbox_id", "state"),
    Index("ix_commands_instance_state", "instance_id", "state"),
)
