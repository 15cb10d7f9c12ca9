"""The one place that changes a sandbox's status: a compare-and-swap on `generation`, its event in the same
transaction."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from sqlalchemy import bindparam, insert, update

from atoll.domain.errors import StaleGeneration
from atoll.domain.sandbox import Action, Sandbox, next_status
from atoll.store.database import Transaction
from atoll.store.tables import sandbox_events, sandboxes
from atoll.store.wakes import SANDBOXES, STATUSES, sandbox_topic

_NOTHING_FOR_A_WORKER = frozenset({Action.BEGIN_WORK, Action.END_WORK})
"""Steps that come with every command and give no worker anything to do; waking all of them each time would cost more
than the command."""
_PART_OF_A_WALK = frozenset(
    {
        Action.ALLOCATE,
        Action.START,
        Action.BECOME_READY,
        Action.ABORT_SUSPEND_IDLE,
        Action.ABORT_SUSPEND_BUSY,
        Action.FINISH_SUSPEND,
        Action.FINISH_TERMINATE,
    }
)
"""Steps after which whoever took them goes on by itself or has come to the end, so nobody else is called."""
_EXPLAINS = ("error_code", "termination_reason", "status_reason")
"""Changes that an event repeats."""
# Built once; the columns that are set come from the values: building an update costs ten times what running it does.
_UPDATE = update(sandboxes).where(
    sandboxes.c.id == bindparam("the_id"), sandboxes.c.generation == bindparam("seen_generation")
)
_INSERT_EVENT = insert(sandbox_events)


def transition(tx: Transaction, sandbox: Sandbox, action: Action, **changes: Any) -> Sandbox:
    """Move a sandbox one step, with the columns that change beside its status, and return it as it is then.

    The times of its changes never fall: billing goes by them. Raises `Conflict` for a step that is not allowed
    and `StaleGeneration` when another writer was faster.
    """
    status = next_status(sandbox.status, action)
    # A transaction that had to wait for the row began before the change that it waited for.
    at = max(tx.now, sandbox.updated_at)
    written: dict[str, Any] = {
        "status": status,
        "generation": sandbox.generation + 1,
        "updated_at": at,
        "status_reason": None,
        **changes,
    }
    seen = {"the_id": sandbox.id, "seen_generation": sandbox.generation}
    if tx.connection.execute(_UPDATE, {**written, **seen}).rowcount != 1:
        raise StaleGeneration("The sandbox changed meanwhile.")
    event = {
        "sandbox_id": sandbox.id,
        "generation": sandbox.generation + 1,
        "action": str(action),
        "from_status": sandbox.status,
        "to_status": status,
        "data": {name: str(changes[name]) for name in _EXPLAINS if changes.get(name) is not None},
        "occurred_at": at,
    }
    tx.connection.execute(_INSERT_EVENT, event)
    tx.wake(sandbox_topic(sandbox.id))
    if action not in _NOTHING_FOR_A_WORKER:
        tx.wake(STATUSES)
        if action not in _PART_OF_A_WALK:
            tx.wake(SANDBOXES)
    return replace(sandbox, **written)
