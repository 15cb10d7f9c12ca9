"""Kill a command: send a signal to its whole process tree."""

from __future__ import annotations

import signal
from uuid import UUID

from atoll.domain.audit import AuditAction
from atoll.domain.errors import Conflict, ErrorCode
from atoll.domain.execution import Execution, ExecutionKind, ExecutionState
from atoll.domain.identity import Principal, Scope
from atoll.domain.sandbox import RUNNING, Sandbox, SandboxStatus, check_accepts_commands
from atoll.ops.access import authorize_manage, load_usable_sandbox
from atoll.ops.command_read import unknown_execution
from atoll.ops.services import Services
from atoll.store import audit, commands, sandboxes
from atoll.store.database import Transaction

SIGNALS = {"SIGTERM": signal.SIGTERM, "SIGINT": signal.SIGINT, "SIGKILL": signal.SIGKILL}
"""What may be sent (SA-281)."""


async def kill_command(
    services: Services, principal: Principal, account_id: str, sandbox_id: str, execution_id: str, signal_name: str
) -> None:
    """Signal a command and its children (SA-279 … SA-284).

    Raises `NotFound` EXECUTION_NOT_FOUND, or `Conflict` EXECUTION_EXITED once it has ended.
    """

    def look(tx: Transaction) -> tuple[Sandbox, Execution | None]:
        authorize_manage(tx, principal, account_id, Scope.DANGEROUS)
        sandbox = load_usable_sandbox(tx, principal, account_id, sandbox_id)
        sandboxes.touch(tx, sandbox_id)
        execution = commands.get(tx, sandbox_id, execution_id)
        if _can_signal(sandbox, execution):
            audit.record(
                tx, principal, AuditAction.KILL_COMMAND, account_id, sandbox_id=sandbox_id, execution_id=execution_id
            )
        return sandbox, execution

    sandbox, execution = await services.database.write(look)
    if execution is None or execution.kind is not ExecutionKind.START:
        raise unknown_execution()
    if sandbox.status is SandboxStatus.SUSPENDED:
        check_accepts_commands(sandbox)
    if execution.state is ExecutionState.EXITED:
        raise Conflict("The command has already exited.", code=ErrorCode.EXECUTION_EXITED)
    check_accepts_commands(sandbox)
    agent = await services.agents.get(execution.instance_id)
    await agent.signal(UUID(execution.id), SIGNALS[signal_name])


def _can_signal(sandbox: Sandbox, execution: Execution | None) -> bool:
    """Whether none of the refusals holds; those are recorded as such at the edge."""
    if execution is None or execution.kind is not ExecutionKind.START:
        return False
    return execution.state is not ExecutionState.EXITED and sandbox.status in RUNNING
