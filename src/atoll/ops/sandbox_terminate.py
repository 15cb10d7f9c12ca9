"""Terminate a sandbox, by request or by time."""

from __future__ import annotations

from atoll.domain.audit import AuditAction, AuditTarget, Channel
from atoll.domain.errors import Conflict, ErrorCode
from atoll.domain.identity import Principal, Scope
from atoll.domain.sandbox import PROVISIONING, RUNNING, Action, Sandbox, SandboxStatus, TerminationReason
from atoll.ops.access import authorize_manage, load_sandbox
from atoll.ops.services import Services
from atoll.ops.waiting import wait_while
from atoll.store import audit
from atoll.store.database import Transaction
from atoll.store.transitions import transition

_WAIT_SECONDS = 30.0


async def terminate_sandbox(services: Services, principal: Principal, account_id: str, sandbox_id: str) -> Sandbox:
    """End a sandbox and answer once nothing of it runs (SA-142 … SA-146).

    Raises `Conflict` when its status changed between the look and the step (SA-145); the call is safe to repeat.
    """

    def look(tx: Transaction) -> Sandbox:
        authorize_manage(tx, principal, account_id, Scope.DEPLOY)
        return load_sandbox(tx, principal, account_id, sandbox_id)

    async def begin() -> Sandbox:
        sandbox = await services.database.read(look)
        if sandbox.status in {SandboxStatus.TERMINATING, SandboxStatus.TERMINATED}:
            return sandbox
        return await _begin(services, principal, sandbox)

    return await wait_while(
        services, sandbox_id, begin, lambda sandbox: sandbox.status is not SandboxStatus.TERMINATED, _WAIT_SECONDS
    )


async def _begin(services: Services, principal: Principal, seen: Sandbox) -> Sandbox:
    def begin(tx: Transaction) -> Sandbox:
        current = load_sandbox(tx, principal, seen.account_id, seen.id, lock=True)
        # A command that begins or ends meanwhile changes nothing about the end of its sandbox.
        if current.generation != seen.generation and not {current.status, seen.status} <= RUNNING:
            raise Conflict("Sandbox is changing state")
        audit.record(tx, principal, AuditAction.TERMINATE_SANDBOX, seen.account_id, sandbox_id=seen.id)
        return begin_termination(tx, current, TerminationReason.USER_REQUESTED)

    return await services.database.write(begin)


def begin_termination(tx: Transaction, sandbox: Sandbox, reason: TerminationReason) -> Sandbox:
    """Move a sandbox to TERMINATING; one that never ran goes by FAILED (SA-144). A worker ends its compute.

    An end by time is recorded in the audit trail here; whoever calls for somebody records that.
    """
    if reason is not TerminationReason.USER_REQUESTED:
        audit.record_unattended(
            tx,
            Channel.SYSTEM,
            AuditAction.TERMINATE_SANDBOX,
            sandbox.account_id,
            (AuditTarget.SANDBOX, sandbox.id),
            reason=str(reason),
        )
    if sandbox.status in PROVISIONING:
        sandbox = transition(
            tx,
            sandbox,
            Action.FAIL,
            error_code=ErrorCode.SANDBOX_NOT_READY,
            status_reason="terminated before it was ready",
        )
    return transition(
        tx,
        sandbox,
        Action.TERMINATE,
        termination_reason=reason,
        desired_status=SandboxStatus.TERMINATED,
        status_reason=sandbox.status_reason,  # why it failed is worth knowing after it was ended too
    )
