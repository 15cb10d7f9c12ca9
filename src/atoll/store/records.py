"""Forgets what is on record of commands whose sandbox has long ended. What usage is reckoned from stays.

Called by the retention worker.
"""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import delete, select

from atoll.domain.sandbox import Action, SandboxStatus
from atoll.domain.webhook import DeliveryState
from atoll.store.database import Transaction
from atoll.store.tables import commands, execution_webhooks, sandbox_events, sandboxes, webhook_deliveries

_SANDBOXES = 20
_COMMANDS = 5_000
_WORK = (str(Action.BEGIN_WORK), str(Action.END_WORK))
"""A pair of events for every command; usage passes over them."""


def remove_ended_before(tx: Transaction, moment: datetime) -> bool:
    """Forget commands, their events and their deliveries of a few sandboxes that ended before; whether there may be
    more. Bounded, so that no transaction holds the database for long."""
    ended = (
        select(sandboxes.c.id)
        .where(
            sandboxes.c.status == SandboxStatus.TERMINATED,
            sandboxes.c.terminated_at < moment,
            select(commands.c.id).where(commands.c.sandbox_id == sandboxes.c.id).exists(),
        )
        .order_by(sandboxes.c.id)
        .limit(_SANDBOXES)
    )
    ids = list(tx.connection.execute(ended).scalars())
    if not ids:
        return False
    some = select(commands.c.id).where(commands.c.sandbox_id.in_(ids)).limit(_COMMANDS)
    removed = tx.connection.execute(delete(commands).where(commands.c.id.in_(some))).rowcount
    if removed < _COMMANDS:
        events, deliveries = sandbox_events.c, webhook_deliveries.c
        tx.connection.execute(delete(sandbox_events).where(events.sandbox_id.in_(ids), events.action.in_(_WORK)))
        tx.connection.execute(
            delete(webhook_deliveries).where(deliveries.sandbox_id.in_(ids), deliveries.state != DeliveryState.PENDING)
        )
    return True


def remove_webhooks_ended_before(tx: Transaction, moment: datetime) -> None:
    """Forget where the webhooks of sandboxes went that ended before, with their secrets, once all are delivered."""
    pending = select(webhook_deliveries.c.id).where(
        webhook_deliveries.c.sandbox_id == sandboxes.c.id, webhook_deliveries.c.state == DeliveryState.PENDING
    )
    ended = select(sandboxes.c.id).where(
        sandboxes.c.status == SandboxStatus.TERMINATED, sandboxes.c.terminated_at < moment, ~pending.exists()
    )
    tx.connection.execute(delete(execution_webhooks).where(execution_webhooks.c.sandbox_id.in_(ended)))
