"""Queries about execution webhooks: an outbox that is written with the end of a command and emptied by the worker.

`enqueue` is called by `atoll.store.commands` alone, in the transaction that records the end, so no end is without its
delivery and no delivery without an end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import orjson
from sqlalchemy import ColumnElement, Select, and_, bindparam, delete, func, insert, select, update

from atoll.domain.execution import Execution, ExecutionKind
from atoll.domain.webhook import MAX_ATTEMPTS, DeliveryState, completed_event
from atoll.store.database import Transaction
from atoll.store.rows import Mapper
from atoll.store.tables import commands, execution_webhooks, sandboxes, webhook_deliveries
from atoll.store.wakes import WEBHOOKS

_CANDIDATES = 500
_d = webhook_deliveries.c


@dataclass(frozen=True, slots=True, repr=False)
class SealedTarget:
    """Where the deliveries of a sandbox go, as it is stored."""

    url: bytes
    secret: bytes


@dataclass(frozen=True, slots=True)
class Delivery:
    """One delivery that is to be attempted; `attempts` counts this attempt already."""

    id: str
    sandbox_id: str
    account_id: str
    host: str
    body: bytes
    attempts: int
    lease_token: str | None


@dataclass(frozen=True, slots=True)
class Room:
    """How many more deliveries may be under way: in all, and for any one host and account beside those named."""

    total: int
    per_host: int
    per_account: int
    hosts: dict[str, int]
    """Under way by host."""
    accounts: dict[str, int]
    """Under way by account."""


_execution_mapper = Mapper(commands, Execution)
_delivery_mapper = Mapper(webhook_deliveries, Delivery)
_ENDED = (
    select(sandboxes.c.account_id, sandboxes.c.app_id, sandboxes.c.webhook_host, *_execution_mapper.columns)
    .join(sandboxes, sandboxes.c.id == commands.c.sandbox_id)
    .where(
        commands.c.id.in_(bindparam("ids", expanding=True)),
        commands.c.kind != ExecutionKind.EXECUTE,
        sandboxes.c.webhook_host.is_not(None),
    )
)
_INSERT = insert(webhook_deliveries)


def add_target(tx: Transaction, sandbox_id: str, target: SealedTarget) -> None:
    """Keep where a new sandbox's deliveries go; it never changes (SA-115)."""
    values = {"sandbox_id": sandbox_id, "url": target.url, "secret": target.secret, "created_at": tx.now}
    tx.connection.execute(insert(execution_webhooks).values(**values))


def get_target(tx: Transaction, sandbox_id: str) -> SealedTarget | None:
    """Where a sandbox's deliveries go."""
    query = select(execution_webhooks.c.url, execution_webhooks.c.secret).where(
        execution_webhooks.c.sandbox_id == sandbox_id
    )
    row = tx.connection.execute(query).first()
    return None if row is None else SealedTarget(row.url, row.secret)


def enqueue(tx: Transaction, execution_ids: Sequence[str], *, observed: bool) -> None:
    """Write the deliveries of commands that have just ended; the body is fixed here, byte for byte (SA-285, SA-288)."""
    deliveries = []
    for row in tx.connection.execute(_ENDED, {"ids": list(execution_ids)}):
        columns: list[Any] = list(row)
        account_id, app_id, host = columns[:3]
        execution = Execution(*columns[3:])
        event = completed_event(execution, account_id=account_id, app_id=app_id, observed=observed, now=tx.now)
        deliveries.append(
            {
                "id": execution.id,
                "sandbox_id": execution.sandbox_id,
                "account_id": account_id,
                "host": host,
                "body": orjson.dumps(event),
                "state": DeliveryState.PENDING,
                "attempts": 0,
                "next_attempt_at": tx.now,
                "created_at": tx.now,
            }
        )
    if deliveries:
        tx.connection.execute(_INSERT, deliveries)
        tx.wake(WEBHOOKS)


def claim(tx: Transaction, lease_token: str, *, lease: timedelta, room: Room) -> list[Delivery]:
    """Take due deliveries for an attempt each, counting it before it is made; if nothing is recorded, another is due
    after the lease.

    No host and no account gets more than its share, so one that is slow does not hold up the others. A delivery whose
    last allowed attempt was cut short by a crash is given up.
    """
    pending = and_(_d.state == DeliveryState.PENDING, _d.next_attempt_at <= tx.now)
    tx.connection.execute(
        update(webhook_deliveries)
        .where(pending, _d.attempts >= MAX_ATTEMPTS)
        .values(state=DeliveryState.EXHAUSTED, lease_token=None, finished_at=tx.now)
    )
    hosts, accounts = dict(room.hosts), dict(room.accounts)
    chosen: list[str] = []
    for delivery_id, host, account_id in tx.connection.execute(_due(pending, room)):
        if len(chosen) >= room.total:
            break
        if hosts.get(host, 0) >= room.per_host or accounts.get(account_id, 0) >= room.per_account:
            continue
        taken = tx.connection.execute(
            update(webhook_deliveries)
            .where(_d.id == delivery_id, pending)
            .values(lease_token=lease_token, next_attempt_at=tx.now + lease, attempts=_d.attempts + 1)
        )
        if taken.rowcount == 1:
            chosen.append(delivery_id)
            hosts[host] = hosts.get(host, 0) + 1
            accounts[account_id] = accounts.get(account_id, 0) + 1
    if not chosen:
        return []
    rows = tx.connection.execute(select(*_delivery_mapper.columns).where(_d.id.in_(chosen)))
    return [_delivery_mapper.one(row) for row in rows]


def record(
    tx: Transaction,
    delivery: Delivery,
    state: DeliveryState,
    *,
    status: int | None,
    failure: str | None,
    retry_at: datetime | None,
) -> bool:
    """Record an attempt's outcome, unless another attempt was begun meanwhile. True when it was recorded."""
    values = {
        "state": state,
        "last_status": status,
        "last_failure": failure,
        "lease_token": None,
        "finished_at": None if state is DeliveryState.PENDING else tx.now,
    }
    if retry_at is not None:
        values["next_attempt_at"] = retry_at
    result = tx.connection.execute(
        update(webhook_deliveries)
        .where(
            _d.id == delivery.id,
            _d.state == DeliveryState.PENDING,
            _d.lease_token == delivery.lease_token,
            _d.attempts == delivery.attempts,
        )
        .values(**values)
    )
    tx.wake(WEBHOOKS)
    return result.rowcount == 1


def next_due(tx: Transaction, *, after: datetime) -> datetime | None:
    """When the next delivery is due that is not due already."""
    query = (
        select(_d.next_attempt_at)
        .where(_d.state == DeliveryState.PENDING, _d.next_attempt_at > after)
        .order_by(_d.next_attempt_at)
        .limit(1)
    )
    return tx.connection.execute(query).scalar()


def drop_leases(tx: Transaction, runner_id: str) -> None:
    """Free what an earlier life of this runner was attempting; whether it arrived is not known, so it goes again."""
    tx.connection.execute(
        update(webhook_deliveries)
        .where(_d.state == DeliveryState.PENDING, _d.lease_token.like(f"{runner_id}.%"))
        .values(lease_token=None, next_attempt_at=tx.now)
    )


def remove_finished(tx: Transaction, *, before: datetime) -> None:
    """Forget deliveries that ended before a time."""
    tx.connection.execute(delete(webhook_deliveries).where(_d.state != DeliveryState.PENDING, _d.finished_at < before))


def _due(pending: ColumnElement[bool], room: Room) -> Select[str, str, str]:
    """Candidates, the longest due first: of each host and then of each account no more than its share."""
    order = (_d.next_attempt_at, _d.id)
    by_host = (
        select(
            _d.id,
            _d.host,
            _d.account_id,
            _d.next_attempt_at,
            func.row_number().over(partition_by=_d.host, order_by=order).label("place"),
        )
        .where(pending)
        .subquery()
    )
    h = by_host.c
    by_account = (
        select(
            h.id,
            h.host,
            h.account_id,
            h.next_attempt_at,
            func.row_number().over(partition_by=h.account_id, order_by=(h.next_attempt_at, h.id)).label("place"),
        )
        .where(h.place <= room.per_host)
        .subquery()
    )
    a = by_account.c
    return (
        select(a.id, a.host, a.account_id)
        .where(a.place <= room.per_account)
        .order_by(a.next_attempt_at, a.id)
        .limit(_CANDIDATES)
    )
