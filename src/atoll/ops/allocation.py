"""Give a sandbox its compute: an instance that waits in a warm pool, or the name of a new one.

Called by the create use case, which claims without a detour when it can, and by the sandboxes worker for everything
else. Both write the claim before anything is done with the instance.
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
    """Claim a waiting instance for good, or name a new one."""
    warm = _claim(tx, sandbox, revision)
    return _allocated(tx, sandbox, warm or services.new_id(), is_warm=warm is not None)


def allocate_warm(tx: Transaction, services: Services, sandbox: Sandbox, revision: Revision) -> None:
    """Claim a waiting instance, if there is one; a sandbox whose agent is known to answer is READY with it.

    A connection that has just been lost unnoticed is found by the watch worker as in any other READY sandbox.
    """
    warm = _claim(tx, sandbox, revision)
    if warm is None:
        return
    sandbox = _allocated(tx, sandbox, warm, is_warm=True)
    if services.agents.is_open(warm):
        become_ready(tx, transition(tx, sandbox, Action.START))


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


def _claim(tx: Transaction, sandbox: Sandbox, revision: Revision) -> str | None:
    return None if sandbox.persistence_mode.uses_volume else pools.claim(tx, pool_key(revision))


def _allocated(tx: Transaction, sandbox: Sandbox, instance_id: str, *, is_warm: bool) -> Sandbox:
    return transition(
        tx,
        sandbox,
        Action.ALLOCATE,
        instance_id=instance_id,
        allocation_pending=True,
        is_warm_allocation=is_warm,
        claimed_at=tx.now,
    )
