"""Begin to resume a paused sandbox; a worker deploys it again."""

from __future__ import annotations

from atoll.domain.identity import Account
from atoll.domain.sandbox import Action, Sandbox, SandboxStatus
from atoll.ops.services import Services
from atoll.store import sandboxes
from atoll.store.database import Transaction
from atoll.store.transitions import transition


def resume_if_suspended(tx: Transaction, services: Services, account: Account, sandbox: Sandbox) -> Sandbox:
    """Move a SUSPENDED sandbox to RESUMING if there is capacity for it (SA-126, SA-417); otherwise return it unchanged.

    The caller holds the account's fence.
    """
    if sandbox.status is not SandboxStatus.SUSPENDED:
        return sandbox
    ceiling = account.sandbox_ceiling(services.settings.account_active_sandbox_limit)
    if sandboxes.count_active(tx, account.id) >= ceiling:
        return sandbox
    return transition(tx, sandbox, Action.RESUME, desired_status=SandboxStatus.READY)
