"""The one place that changes a sandbox's status: a compare-and-swap on `generation`, its event in the same
transaction."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from sqlalchemy import insert, update

from atoll.domain.errors import StaleGeneration
from atoll.domain.sandbox import Action, Sandbox, next_status
from atoll.store.database import Transaction
from atoll.store.tables import sandbox_events, sandboxes
from atoll.store.wakes import SANDBOXES, sandbox_topic


_NOTHING_FOR_A_WORKER = frozenset({Action.BEGIN_WORK, Action.END_WORK})
"""Steps that come with every command and give no worker anything to do; waking all of them each time would cost more
than the command."""


def transition(tx: Transaction, sandbox: Sandbox, action: Action, **changes: Any) -> Sandbox:
    """Move a sandbox one step, with the columns that change beside its status, and return it as it is then.

    Raises `Conflict` for a step that is not allowed and `StaleGeneration` when another writer was faster.
    """
    status = next_status(sandbox.status, action)
    written: dict[str, Any] = {
        "status": status,
        "generation": sandbox.generation + 1,
        "updated_at": tx.now,
        "status_reason": None,
        **changes,
    }
    result = tx.connection.execute(
        update(sandboxes)
        .where(sandboxes.c.id == sandbox.id, sandboxes.c.generation == sandbox.generation)
        .values(**written)
    )
    if result.rowcount != 1:
        raise StaleGeneration("The sandbox changed meanwhile.")
    tx.connection.execute(
        insert(sandbox_events).values(
            sandbox_id=sandbox.id,
            generation=sandbox.generation + 1,
            action=str(action),
            from_status=sandbox.status,
            to_status=status,
            data={k: str(v) for k, v in changes.items() if k in {"error_code", "termination_reason", "status_reason"}},
            occurred_at=tx.now,
        )
    )
    tx.wake(sandbox_topic(sandbox.id))
    if action not in _NOTHING_FOR_A_WORKER:
        tx.wake(SANDBOXES)
    return replace(sandbox, **written)
