"""Resume a paused sandbox: reserve its capacity and say so; a worker deploys it again."""

from __future__ import annotations

from atoll.domain.audit import AuditAction
from atoll.domain.errors import Conflict, LimitReached
from atoll.domain.identity import Account, Principal, Scope
from atoll.domain.sandbox import RUNNING, Action, Sandbox, SandboxStatus
from atoll.ops.access import authorize_manage, load_sandbox
from atoll.ops.capacity import check_capacity
from atoll.ops.services import Services
from atoll.store import audit, sandboxes
from atoll.store.database import Transaction
from atoll.store.transitions import transition


async def resume_sandbox(services: Services, principal: Principal, account_id: str, sandbox_id: str) -> Sandbox:
    """Begin to resume a sandbox and return it; one that is resumed already is returned as it is (SA-167 … SA-172).

    Raises `Conflict` in every status that cannot be resumed, `LimitReached` at capacity (SA-417).
    """

    def resume(tx: Transaction) -> Sandbox:
        account = authorize_manage(tx, principal, account_id, Scope.DEPLOY)
        sandboxes.fence_account(tx, account.id)
        sandbox = load_sandbox(tx, principal, account_id, sandbox_id, lock=True)
        sandboxes.touch(tx, sandbox_id)
        if sandbox.status in RUNNING or sandbox.status is SandboxStatus.RESUMING:
            return sandbox
        if sandbox.status is not SandboxStatus.SUSPENDED:
            raise Conflict(f"A sandbox that is {sandbox.status} cannot be resumed.")
        audit.record(tx, principal, AuditAction.RESUME_SANDBOX, account_id, sandbox_id=sandbox_id)
        return _begin(tx, services, account, sandbox)

    return await services.database.write(resume)


def resume_if_suspended(tx: Transaction, services: Services, account: Account, sandbox: Sandbox) -> Sandbox:
    """Move a SUSPENDED sandbox to RESUMING; any other is returned unchanged. The caller holds the account's fence.

    Raises `LimitReached` when there is no capacity for it (SA-417).
    """
    return _begin(tx, services, account, sandbox) if sandbox.status is SandboxStatus.SUSPENDED else sandbox


def resume_if_there_is_room(tx: Transaction, services: Services, account: Account, sandbox: Sandbox) -> Sandbox:
    """As `resume_if_suspended`, but a sandbox for which there is no capacity is returned as it is (SA-126)."""
    try:
        return resume_if_suspended(tx, services, account, sandbox)
    except LimitReached:
        return sandbox


def _begin(tx: Transaction, services: Services, account: Account, sandbox: Sandbox) -> Sandbox:
    check_capacity(
        tx,
        services,
        account,
        app_id=sandbox.app_id,
        project_id=sandbox.project_id,
        max_project_concurrency=sandbox.max_project_concurrency,
    )
    return transition(tx, sandbox, Action.RESUME, desired_status=SandboxStatus.READY)
