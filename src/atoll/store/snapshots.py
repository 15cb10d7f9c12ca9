"""Queries about snapshots, and what a sandbox's row tells of them."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

from sqlalchemy import insert, select, update

from atoll.domain.errors import StaleGeneration
from atoll.domain.sandbox import Sandbox
from atoll.domain.snapshot import Pause, Snapshot
from atoll.store.database import Transaction
from atoll.store.rows import Mapper
from atoll.store.tables import sandboxes, snapshots

_mapper = Mapper(snapshots, Snapshot)
_c = snapshots.c


def latest(tx: Transaction, sandbox: Sandbox) -> Snapshot | None:
    """What a sandbox starts from: its own latest snapshot, or the latest on its volume."""
    query = (
        select(*_mapper.columns)
        .where(_c.volume_id == sandbox.volume_id)
        .order_by((_c.sandbox_id == sandbox.id).desc(), _c.created_at.desc(), _c.id.desc())
        .limit(1)
    )
    return _mapper.maybe(tx.connection.execute(query).first())


def record(tx: Transaction, sandbox: Sandbox, snapshot: Snapshot) -> Sandbox:
    """Keep a snapshot and tell of it in the row of its sandbox; from here its pause only goes forward.

    Raises `StaleGeneration` when the pause was overtaken meanwhile.
    """
    told = commit_pause(
        tx,
        sandbox,
        last_snapshot_at=snapshot.created_at,
        last_snapshot_bytes=snapshot.archive_bytes,
        last_snapshot_error=None,
        restore_failed=False,
    )
    tx.connection.execute(insert(snapshots).values(**asdict(snapshot)))
    return told


def commit_pause(tx: Transaction, sandbox: Sandbox, **changes: Any) -> Sandbox:
    """Write down that nothing is left to fail in the pause under way: from here it only goes forward.

    Raises `StaleGeneration` when it was overtaken meanwhile.
    """
    changes["pause"] = replace(sandbox.pause or Pause(attempt=sandbox.id), archived=True)
    result = tx.connection.execute(
        update(sandboxes)
        .where(sandboxes.c.id == sandbox.id, sandboxes.c.generation == sandbox.generation)
        .values(**changes)
    )
    if result.rowcount != 1:
        raise StaleGeneration("The sandbox changed meanwhile.")
    return replace(sandbox, **changes)


def record_restore(tx: Transaction, sandbox_id: str, *, error: str | None) -> None:
    """Tell how the restore of a sandbox went."""
    tx.connection.execute(
        update(sandboxes)
        .where(sandboxes.c.id == sandbox_id)
        .values(last_snapshot_error=error, restore_failed=error is not None)
    )
