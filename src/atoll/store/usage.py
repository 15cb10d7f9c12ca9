"""Queries about usage: the statuses that an account's sandboxes went through."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import or_, select

from atoll.domain.restriction import Restriction
from atoll.domain.sandbox import Action
from atoll.domain.usage import StatusChange
from atoll.store.database import Transaction
from atoll.store.sandboxes import inside
from atoll.store.tables import sandbox_events, sandboxes

_s, _e = sandboxes.c, sandbox_events.c


@dataclass(frozen=True, slots=True)
class Life:
    """One sandbox and every status it took, in order."""

    sandbox_id: str
    app_id: str
    region: str
    project_id: str | None
    zclouds: int
    changes: list[StatusChange]


def lives(
    tx: Transaction,
    account_id: str,
    *,
    since: datetime,
    until: datetime,
    app_id: str | None = None,
    restriction: Restriction | None = None,
) -> list[Life]:
    """The sandboxes of an account that were alive at some time between `since` and `until`, oldest first."""
    query = (
        select(_s.id, _s.app_id, _s.region, _s.project_id, _s.zclouds, _e.to_status, _e.occurred_at)
        .join(sandbox_events, _e.sandbox_id == _s.id)
        .where(
            _s.account_id == account_id,
            # READY and BUSY are billed alike, and a busy account has many of these.
            _e.action.not_in([str(Action.BEGIN_WORK), str(Action.END_WORK)]),
            _s.created_at < until,
            or_(_s.terminated_at.is_(None), _s.terminated_at >= since),
        )
        .order_by(_s.created_at, _s.id, _e.generation)
    )
    if app_id is not None:
        query = query.where(_s.app_id == app_id)
    if restriction is not None:
        query = query.where(*inside(restriction))
    found: dict[str, Life] = {}
    for row in tx.connection.execute(query):
        life = found.setdefault(row.id, Life(row.id, row.app_id, row.region, row.project_id, row.zclouds, []))
        life.changes.append(StatusChange(row.to_status, row.occurred_at))
    return list(found.values())
