"""Give a sandbox its compute: an instance that waits in a warm pool, or the name of a new one.

Called by the create use case in its transaction, and by the sandboxes worker for what that left REQUESTED. The claim is
written before anything is done with the instance.
"""

from __future__ import annotations

from atoll.domain.sandbox import Action, Sandbox, SandboxStatus
from atoll.domain.template import Revision
from atoll.ops.instance import pool_key
from atoll.ops.services import Services
from atoll.store import pools
from atoll.store.database import Transaction
from atoll.store.transitions import transition


def allocate(tx: Transaction, services: Services, sandbox: Sandbox, revision: Revision) -> Sandbox:
    """Claim a waiting instance for good, or name a new one.

    A sandbox that was given one whose agent is known to answer is READY with it. A connection that has just been lost
    unnoticed is found by the watch worker, as in any other READY sandbox.
    """
    warm = None if sandbox.persistence_mode.uses_volume else pools.claim(tx, pool_key(revision))
    allocated = transition(
        tx,
        sandbox,
        Action.ALLOCATE,
        instance_id=warm or services.new_id(),
        allocation_pending=True,
        is_warm_allocation=warm is not None,
        claimed_at=tx.now,
    )
    if warm is None or not services.agents.is_open(warm):
        return allocated
    return become_ready(tx, transition(tx, allocated, Action.START))


def become_ready(tx: Transaction, sandbox: Sandbox) -> Sandbox:
    """Record that the agent answers: commands may come (SA-363)."""
    resumed = {"resumed_at": tx.now} if sandbox.status is SandboxStatus.RESUMING else {}
    return transition(
        tx,
        sandbox,
        Action.BECOME_READY,
        ready_at=sandbox.ready_at or tx.now,
        last_active_at=tx.now,
        desired_status=None,
        **resumed,
    )
