"""Start a command that goes on after the answer; the same idempotency key starts it once."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from atoll.domain.audit import AuditAction
from atoll.domain.errors import Conflict, ErrorCode, RuntimeFailure
from atoll.domain.execution import Execution, ExecutionKind, ExecutionState, ExecutionType, fingerprint
from atoll.domain.identity import Principal, Scope
from atoll.domain.sandbox import RUNNING, Sandbox, check_accepts_commands
from atoll.ops import command_record
from atoll.ops.access import authorize_manage, load_usable_sandbox
from atoll.ops.ai_subscription import prepare_command
from atoll.ops.command_admission import admit_or_resume
from atoll.ops.command_request import CommandRequest
from atoll.ops.services import Services
from atoll.store import audit, commands
from atoll.store.database import Transaction


@dataclass(frozen=True, slots=True)
class StartedCommand:
    """A command that runs."""

    execution_id: str
    process_id: int
    started_at: datetime


async def start_command(
    services: Services,
    principal: Principal,
    account_id: str,
    sandbox_id: str,
    request: CommandRequest,
    idempotency_key: str | None,
) -> StartedCommand:
    """Start a command and answer once it runs (SA-239 … SA-252).

    Raises `Conflict` IDEMPOTENCY_CONFLICT when the key belongs to a different command.
    """
    mark = fingerprint(
        services.fingerprint_key,
        request.argv,
        request.cwd,
        request.env,
        request.timeout_seconds,
        request.ai_subscription_id,
        stdin=request.stdin,
        pty=request.pty,
    )
    new_id = services.new_id()

    def admit(tx: Transaction) -> tuple[Sandbox, Execution, CommandRequest]:
        authorize_manage(tx, principal, account_id, Scope.DANGEROUS)
        sandbox = load_usable_sandbox(tx, principal, account_id, sandbox_id, lock=True)
        if idempotency_key is not None:
            existing = commands.find_by_key(tx, sandbox_id, idempotency_key)
            if existing is not None:
                if existing.fingerprint != mark:
                    raise Conflict(
                        "The idempotencyKey was already used with a different command; use a new key.",
                        code=ErrorCode.IDEMPOTENCY_CONFLICT,
                    )
                if existing.state is not ExecutionState.REQUESTED:
                    return sandbox, existing, request
                return sandbox, existing, prepare_command(tx, services, principal, sandbox, request)
        prepared = prepare_command(tx, services, principal, sandbox, request)
        check_accepts_commands(sandbox)
        execution = command_record.begin(
            tx,
            sandbox,
            execution_id=new_id,
            kind=ExecutionKind.START,
            caller_key=principal.caller_key,
            idempotency_key=idempotency_key,
            fingerprint=mark,
            execution_type=ExecutionType.EXEC if request.pty is None else ExecutionType.PTY,
        )
        audit.record(
            tx, principal, AuditAction.START_COMMAND, account_id, sandbox_id=sandbox_id, execution_id=execution.id
        )
        return sandbox, execution, prepared

    sandbox, execution, prepared = await admit_or_resume(services, principal, account_id, sandbox_id, admit)
    if execution.state is not ExecutionState.REQUESTED:
        return _replay(execution)
    if sandbox.status not in RUNNING:
        check_accepts_commands(sandbox)
    return await asyncio.shield(asyncio.create_task(_start(services, sandbox, execution, prepared)))


async def _start(services: Services, sandbox: Sandbox, execution: Execution, request: CommandRequest) -> StartedCommand:
    """Tell the agent. It starts an id once, so a repeated call after a crash or a lost answer is safe."""
    try:
        agent = await services.agents.get(execution.instance_id)
        started = await agent.start(
            UUID(execution.id),
            request.argv,
            cwd=request.cwd,
            env=request.env,
            timeout_seconds=request.timeout_seconds,
            stdin=request.stdin,
            pty=request.pty,
        )
    except RuntimeFailure as failure:
        # Only what the agent itself refused has surely not begun.
        if failure.code not in {ErrorCode.AGENT_UNREACHABLE, ErrorCode.SANDBOX_NOT_READY}:
            await services.database.write(lambda tx: command_record.withdraw(tx, sandbox.id, execution.id))
        raise
    await services.database.write(
        lambda tx: commands.mark_running(tx, execution.id, process_id=started.process_id, started_at=started.started_at)
    )
    return StartedCommand(execution.id, started.process_id, started.started_at)


def _replay(execution: Execution) -> StartedCommand:
    return StartedCommand(execution.id, execution.process_id or 0, execution.started_at or execution.requested_at)
