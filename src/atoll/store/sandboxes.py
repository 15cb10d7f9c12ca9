"""Queries about sandboxes. Statuses are changed by `atoll.store.transitions` alone."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime, timedelta

from sqlalchemy import ColumnElement, and_, bindparam, func, insert, or_, select, update

from atoll.domain.errors import StaleGeneration
from atoll.domain.restriction import Restriction
from atoll.domain.sandbox import HOLDS_CAPACITY, PROVISIONING, RUNNING, Sandbox, SandboxStatus
from atoll.store.database import Transaction
from atoll.store.rows import Mapper
from atoll.store.tables import accounts, sandbox_events, sandboxes
from atoll.store.wakes import SANDBOXES, STATUSES

_S = SandboxStatus
_mapper = Mapper(sandboxes, Sandbox)
_c = sandboxes.c

_NEEDS_WORK: ColumnElement[bool] = or_(
    _c.status.in_([*PROVISIONING, _S.TERMINATING, _S.SUSPENDING]),
    and_(_c.allocation_pending, _c.status.in_([_S.FAILED, _S.TERMINATED, _S.SUSPENDED])),
)
"""Rows whose intent and observation differ: to be provisioned, ended, or cleaned up after."""

_HOLDS_CAPACITY: ColumnElement[bool] = or_(_c.status.in_(list(HOLDS_CAPACITY)), _c.allocation_pending)
"""SA-414, SA-415, SA-418."""

# Built once: building a statement costs ten times what running it does. SQLite leaves out the locks, having one writer.
_GET = select(*_mapper.columns).where(_c.id == bindparam("id"))
_GET_LOCKED = _GET.with_for_update()
_FIND_BY_IDENTITY = select(*_mapper.columns).where(
    _c.account_id == bindparam("account_id"),
    _c.app_id == bindparam("app_id"),
    _c.caller_key == bindparam("caller_key"),
    _c.idempotency_key == bindparam("idempotency_key"),
)
_FIND_BY_INSTANCE = select(*_mapper.columns).where(_c.instance_id == bindparam("instance_id")).with_for_update()
_FENCE = select(accounts.c.id).where(accounts.c.id == bindparam("id")).with_for_update(key_share=True)
"""Not stronger: whatever names the account, such as an entry of the audit trail, must not wait for a create."""
_INSERT = insert(sandboxes)
_INSERT_EVENT = insert(sandbox_events)
_ACTIVITY_STEP = timedelta(seconds=1)
_TOUCH = (
    update(sandboxes)
    .where(_c.id == bindparam("the_id"), _c.last_active_at <= bindparam("stale"))
    .values(last_active_at=bindparam("now"))
)
_WORKABLE = (
    select(_c.id)
    .where(_NEEDS_WORK, or_(_c.lease_until.is_(None), _c.lease_until <= bindparam("now")))
    .order_by(_c.updated_at)
    .limit(bindparam("most"))
    .with_for_update(skip_locked=True)
)
_STILL_NEEDS_WORK = select(_c.id).where(_c.id == bindparam("id"), _NEEDS_WORK)
_BUSY_INSTANCES = select(_c.instance_id).where(_c.status == SandboxStatus.BUSY, _c.instance_id.is_not(None))
_RUNNING_INSTANCES = select(_c.instance_id).where(_c.status.in_(sorted(RUNNING)), _c.instance_id.is_not(None))


def get(tx: Transaction, sandbox_id: str, *, lock: bool = False) -> Sandbox | None:
    """Read one sandbox; `lock` holds its row until the transaction ends."""
    return _mapper.maybe(tx.connection.execute(_GET_LOCKED if lock else _GET, {"id": sandbox_id}).first())


def find_by_identity(
    tx: Transaction, account_id: str, app_id: str, caller_key: str, idempotency_key: str
) -> Sandbox | None:
    """The sandbox of one create identity (SA-121)."""
    identity = {
        "account_id": account_id,
        "app_id": app_id,
        "caller_key": caller_key,
        "idempotency_key": idempotency_key,
    }
    return _mapper.maybe(tx.connection.execute(_FIND_BY_IDENTITY, identity).first())


def fence_account(tx: Transaction, account_id: str) -> None:
    """Let one admission of an account at a time pass, also while it has no sandbox yet (SA-413)."""
    tx.connection.execute(_FENCE, {"id": account_id})


def count_active(tx: Transaction, account_id: str, *, app_id: str | None = None, project_id: str | None = None) -> int:
    """Sandboxes that hold capacity, in the account or in one app or project of it."""
    query = select(func.count()).select_from(sandboxes).where(_c.account_id == account_id, _HOLDS_CAPACITY)
    if app_id is not None:
        query = query.where(_c.app_id == app_id)
    if project_id is not None:
        query = query.where(_c.project_id == project_id)
    return int(tx.connection.execute(query).scalar_one())


def add(tx: Transaction, sandbox: Sandbox) -> None:
    """Insert a new sandbox and its first event."""
    values = {column.name: getattr(sandbox, column.name) for column in _mapper.columns}
    tx.connection.execute(_INSERT, values)
    event = {
        "sandbox_id": sandbox.id,
        "generation": sandbox.generation,
        "action": "request",
        "from_status": None,
        "to_status": sandbox.status,
        "data": {},
        "occurred_at": tx.now,
    }
    tx.connection.execute(_INSERT_EVENT, event)
    tx.wake(SANDBOXES, STATUSES)


def touch(tx: Transaction, sandbox_id: str) -> None:
    """Move `last_active_at` forward (SA-061), once a second at most: who follows output calls hundreds of times as
    often, and each time the disk would be waited for."""
    tx.connection.execute(_TOUCH, {"the_id": sandbox_id, "now": tx.now, "stale": tx.now - _ACTIVITY_STEP})


def replace_instance(tx: Transaction, sandbox_id: str, generation: int, instance_id: str) -> None:
    """Name new compute for a sandbox that has not been given any that works; raises `StaleGeneration`."""
    result = tx.connection.execute(
        update(sandboxes)
        .where(_c.id == sandbox_id, _c.generation == generation)
        .values(instance_id=instance_id, allocation_pending=True, is_warm_allocation=False)
    )
    if result.rowcount != 1:
        raise StaleGeneration("The sandbox changed meanwhile.")


def release_allocation(tx: Transaction, sandbox_id: str, instance_id: str | None) -> None:
    """Record that nothing of the compute is left, which frees its capacity (SA-418)."""
    tx.connection.execute(
        update(sandboxes).where(_c.id == sandbox_id, _c.instance_id == instance_id).values(allocation_pending=False)
    )


def inside(restriction: Restriction) -> list[ColumnElement[bool]]:
    """Conditions that leave the sandboxes of a restriction (SA-009)."""
    chosen = ((_c.app_id, restriction.apps), (_c.region, restriction.regions), (_c.template_id, restriction.templates))
    return [column.in_(sorted(values)) for column, values in chosen if values is not None]


def page(
    tx: Transaction,
    account_id: str,
    *,
    app_id: str | None,
    statuses: Collection[SandboxStatus] | None,
    limit: int,
    offset: int,
    restriction: Restriction | None = None,
) -> tuple[int, list[Sandbox]]:
    """Count all matches and read one page of them, newest first (SA-133 … SA-135)."""
    conditions: list[ColumnElement[bool]] = [_c.account_id == account_id]
    if app_id is not None:
        conditions.append(_c.app_id == app_id)
    if statuses is not None:
        conditions.append(_c.status.in_(list(statuses)))
    if restriction is not None:
        conditions += inside(restriction)
    total = int(tx.connection.execute(select(func.count()).select_from(sandboxes).where(*conditions)).scalar_one())
    rows = tx.connection.execute(
        select(*_mapper.columns)
        .where(*conditions)
        .order_by(_c.created_at.desc(), _c.id.desc())
        .limit(limit)
        .offset(offset)
    )
    return total, [_mapper.one(row) for row in rows]


def claim_work(tx: Transaction, lease_token: str, *, lease: timedelta, limit: int) -> list[Sandbox]:
    """Lease up to `limit` sandboxes that need work and that nobody works on."""
    ids = list(tx.connection.execute(_WORKABLE, {"now": tx.now, "most": limit}).scalars())
    if not ids:
        return []
    tx.connection.execute(
        update(sandboxes).where(_c.id.in_(ids)).values(lease_token=lease_token, lease_until=tx.now + lease)
    )
    rows = tx.connection.execute(select(*_mapper.columns).where(_c.id.in_(ids)))
    return [_mapper.one(row) for row in rows]


def renew_leases(tx: Transaction, lease_token: str, sandbox_ids: Sequence[str], *, lease: timedelta) -> None:
    """Keep leases that are still ours."""
    tx.connection.execute(
        update(sandboxes)
        .where(_c.id.in_(list(sandbox_ids)), _c.lease_token == lease_token)
        .values(lease_until=tx.now + lease)
    )


def release_lease(tx: Transaction, sandbox_id: str, lease_token: str, *, retry_after: timedelta | None = None) -> None:
    """Give a sandbox back for whoever finds work in it next, or keep everybody off it for `retry_after`.

    Wakes the workers for what became to be done while they were kept off it.
    """
    until = None if retry_after is None else tx.now + retry_after
    tx.connection.execute(
        update(sandboxes)
        .where(_c.id == sandbox_id, _c.lease_token == lease_token)
        .values(lease_token=None, lease_until=until)
    )
    if until is None and tx.connection.execute(_STILL_NEEDS_WORK, {"id": sandbox_id}).first() is not None:
        tx.wake(SANDBOXES)


def drop_leases(tx: Transaction, runner_id: str) -> None:
    """Forget the leases of an earlier life of this runner, which holds its data directory alone."""
    tx.connection.execute(
        update(sandboxes).where(_c.lease_token.like(f"{runner_id}.%")).values(lease_token=None, lease_until=None)
    )


def with_instances(tx: Transaction) -> list[Sandbox]:
    """Every sandbox that has or may have compute."""
    rows = tx.connection.execute(
        select(*_mapper.columns).where(
            _c.instance_id.is_not(None),
            or_(_c.allocation_pending, _c.status.in_([_S.STARTING, _S.READY, _S.BUSY, _S.SUSPENDING, _S.RESUMING])),
        )
    )
    return [_mapper.one(row) for row in rows]


def busy_instances(tx: Transaction) -> list[str]:
    """Instances in which commands run."""
    return list(tx.connection.execute(_BUSY_INSTANCES).scalars())


def running_instances(tx: Transaction) -> list[str]:
    """The instance of every sandbox that accepts commands."""
    return list(tx.connection.execute(_RUNNING_INSTANCES).scalars())


def with_deadlines(tx: Transaction) -> list[Sandbox]:
    """Every sandbox that time may end."""
    rows = tx.connection.execute(select(*_mapper.columns).where(_c.status.not_in([_S.TERMINATING, _S.TERMINATED])))
    return [_mapper.one(row) for row in rows]


def find_by_instance(tx: Transaction, instance_id: str) -> Sandbox | None:
    """The sandbox whose compute an instance is, its row locked."""
    return _mapper.maybe(tx.connection.execute(_FIND_BY_INSTANCE, {"instance_id": instance_id}).first())


def revisions_in_use(tx: Transaction) -> set[str]:
    """Ids of the revisions that a sandbox runs or may run again."""
    rows = tx.connection.execute(
        select(_c.template_revision_id).where(_c.status.not_in([_S.TERMINATED])).distinct()
    ).scalars()
    return set(rows)


def next_deadline(sandboxes_: Sequence[Sandbox], now: datetime) -> datetime | None:
    """The earliest time at which `due_termination` may answer something new."""
    moments = [s.expires_at for s in sandboxes_]
    moments += [s.idle_deadline for s in sandboxes_ if s.status is _S.READY]
    # A BUSY one may become READY without anybody being woken; it cannot be idle for too long before this.
    moments += [now + timedelta(seconds=s.idle_timeout_seconds) for s in sandboxes_ if s.status is _S.BUSY]
    moments += [
        s.suspended_at + timedelta(seconds=s.suspended_retention_seconds)
        for s in sandboxes_
        if s.status is _S.SUSPENDED and s.suspended_at is not None
    ]
    return min(moments, default=None)
