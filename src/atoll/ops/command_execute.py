"""Execute a command: run it to its end within one request and return what it said.

Nothing of that is stored (SA-216).
"""

from __future__ import annotations

import asyncio
from uuid import UUID

from atoll.domain.audit import AuditAction
from atoll.domain.command import CommandResult, CommandState, EndReason
from atoll.domain.errors import AtollError, ErrorCode, NotFound, RuntimeFailure
from atoll.domain.execution import ExecutionKind
from atoll.domain.identity import Principal, Scope
from atoll.domain.sandbox import RUNNING, Sandbox, SandboxStatus, check_accepts_commands
from atoll.ops import command_record
from atoll.ops.access import authorize_manage, load_usable_sandbox
from atoll.ops.ai_subscription import prepare_command
from atoll.ops.background import spawn
from atoll.ops.command_admission import admit_or_resume
from atoll.ops.command_request import CommandRequest
from atoll.ops.services import Services
from atoll.ops.waiting import wait_while
from atoll.store import audit, sandboxes
from atoll.store.database import Transaction

CAPTURE_BYTES = 4 * 1024 * 1024
"""Output kept of each stream; the rest is cut (SA-231)."""
_SETTLE_SECONDS = 3.0
"""How long a lost connection may take to show as a sandbox that ended."""


async def execute_command(
    services: Services, principal: Principal, account_id: str, sandbox_id: str, request: CommandRequest
) -> CommandResult:
    """Run a command to its end (SA-212 … SA-236).

    Raises `Conflict` with a retry delay while the sandbox is not ready, and `RuntimeFailure` when its agent cannot be
    reached.
    """
    if request.timeout_seconds is None:
        raise AssertionError("execute always has a deadline")
    execution_id = services.new_id()

    def admit(tx: Transaction) -> tuple[Sandbox, CommandRequest]:
        authorize_manage(tx, principal, account_id, Scope.DANGEROUS)
        sandbox = load_usable_sandbox(tx, principal, account_id, sandbox_id, lock=True)
        prepared = prepare_command(tx, services, principal, sandbox, request)
        check_accepts_commands(sandbox)
        command_record.begin(
            tx,
            sandbox,
            execution_id=execution_id,
            kind=ExecutionKind.EXECUTE,
            caller_key=principal.caller_key,
        )
        audit.record(
            tx,
            principal,
            AuditAction.EXECUTE_COMMAND,
            account_id,
            sandbox_id=sandbox_id,
            execution_id=execution_id,
        )
        return sandbox, prepared

    sandbox, prepared = await admit_or_resume(services, principal, account_id, sandbox_id, admit)
    # Shielded: a client that goes away must not leave a command without the record of its end.
    return await asyncio.shield(
        asyncio.create_task(_run(services, sandbox, execution_id, prepared, request.timeout_seconds))
    )


async def _run(
    services: Services, sandbox: Sandbox, execution_id: str, request: CommandRequest, timeout_seconds: float
) -> CommandResult:
    instance_id = str(sandbox.instance_id)
    execution = UUID(execution_id)
    try:
        agent = await services.agents.get(instance_id)
        result = await agent.run(
            execution,
            request.argv,
            cwd=request.cwd,
            env=request.env,
            timeout_seconds=timeout_seconds,
            capture_bytes=CAPTURE_BYTES,
        )
    except RuntimeFailure as failure:
        return await _after_failure(services, sandbox, execution_id, failure)
    await services.database.write(lambda tx: command_record.finish(tx, sandbox.id, execution_id, result.state))
    spawn(_forget(services, instance_id, execution))
    return result


async def _after_failure(
    services: Services, sandbox: Sandbox, execution_id: str, failure: RuntimeFailure
) -> CommandResult:
    """Tell a command that the agent refused, or that ended with its sandbox, from one whose agent cannot be reached."""
    if failure.code not in {ErrorCode.AGENT_UNREACHABLE, ErrorCode.SANDBOX_NOT_FOUND}:
        await services.database.write(lambda tx: command_record.withdraw(tx, sandbox.id, execution_id))
        raise failure
    ended = await _wait_for_end(services, sandbox.id)
    if ended.status is SandboxStatus.FAILED:
        # Waiting helps nothing then, and the sandbox says why (SA-214).
        check_accepts_commands(ended)
    if ended.status not in RUNNING:
        now = services.clock()
        state = CommandState(
            execution_id=UUID(execution_id),
            running=False,
            exit_code=137,
            reason=EndReason.AGENT_SHUTDOWN,
            started_at=now,
            exited_at=now,
            stdout_bytes=0,
            stderr_bytes=0,
            output_truncated=False,
        )
        await services.database.write(lambda tx: command_record.finish(tx, sandbox.id, execution_id, state))
        return CommandResult(state, b"", b"", stdout_truncated=False, stderr_truncated=False)
    raise failure


async def _wait_for_end(services: Services, sandbox_id: str) -> Sandbox:
    """The sandbox as it is once the record of a sudden end had a moment to arrive."""

    async def look() -> Sandbox:
        sandbox = await services.database.read(lambda tx: sandboxes.get(tx, sandbox_id))
        if sandbox is None:
            raise NotFound("The sandbox is gone.")
        return sandbox

    return await wait_while(services, sandbox_id, look, lambda seen: seen.status in RUNNING, _SETTLE_SECONDS)


async def _forget(services: Services, instance_id: str, execution: UUID) -> None:
    """Free the agent's memory of a recorded command; one that stays costs little and is dropped with age."""
    try:
        agent = await services.agents.get(instance_id)
        await agent.forget(execution)
    except AtollError:
        return
