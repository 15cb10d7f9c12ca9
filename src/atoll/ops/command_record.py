"""Record that commands begin and end, and with them whether their sandbox is BUSY or READY (SA-363)."""

from __future__ import annotations

from collections.abc import Sequence

from atoll.domain.command import CommandState, EndReason
from atoll.domain.execution import Execution, ExecutionKind, ExecutionState, ExecutionType
from atoll.domain.sandbox import Action, Sandbox, SandboxStatus
from atoll.ops.services import Services
from atoll.store import commands, sandboxes
from atoll.store.database import Transaction
from atoll.store.transitions import transition


def begin(
    tx: Transaction,
    sandbox: Sandbox,
    *,
    execution_id: str,
    kind: ExecutionKind,
    caller_key: str,
    idempotency_key: str | None = None,
    fingerprint: str | None = None,
    execution_type: ExecutionType = ExecutionType.EXEC,
) -> Execution:
    """Record a command before the agent hears of it. The caller holds the sandbox's row and has checked its status."""
    if sandbox.instance_id is None:
        raise AssertionError("a sandbox that accepts commands has an instance")
    execution = Execution(
        id=execution_id,
        sandbox_id=sandbox.id,
        instance_id=sandbox.instance_id,
        kind=kind,
        state=ExecutionState.REQUESTED,
        idempotency_key=idempotency_key,
        fingerprint=fingerprint,
        caller_key=caller_key,
        process_id=None,
        exit_code=None,
        reason=None,
        stdout_bytes=0,
        stderr_bytes=0,
        output_truncated=False,
        requested_at=tx.now,
        started_at=None,
        exited_at=None,
        execution_type=execution_type,
    )
    commands.add(tx, execution)
    if sandbox.status is SandboxStatus.READY:
        transition(tx, sandbox, Action.BEGIN_WORK, last_active_at=tx.now)
    else:
        sandboxes.touch(tx, sandbox.id)
    return execution


def finish(tx: Transaction, sandbox_id: str, execution_id: str, state: CommandState) -> None:
    """Record how a command ended; the first record wins."""
    sandbox = _lock(tx, sandbox_id)
    if commands.mark_exited(tx, execution_id, state):
        _settle(tx, sandbox)


def finish_all(tx: Transaction, sandbox_id: str, states: Sequence[CommandState]) -> None:
    """Record how the commands of a sandbox ended that is being ended itself."""
    _lock(tx, sandbox_id)
    for state in states:
        commands.mark_exited(tx, str(state.execution_id), state)


def withdraw(tx: Transaction, sandbox_id: str, execution_id: str) -> None:
    """Forget a command that the agent refused to start, so that nothing remembers what never ran."""
    sandbox = _lock(tx, sandbox_id)
    commands.remove_unsent(tx, execution_id)
    _settle(tx, sandbox)


def lose(tx: Transaction, sandbox_id: str, execution_id: str) -> None:
    """Record the end of a command that its agent knows no more; nobody saw how it ended."""
    sandbox = _lock(tx, sandbox_id)
    commands.mark_lost(tx, [execution_id], reason=EndReason.KILLED)
    _settle(tx, sandbox)


def _lock(tx: Transaction, sandbox_id: str) -> Sandbox | None:
    """Hold the sandbox before its commands: whoever ends a sandbox takes them in this order, another would deadlock."""
    return sandboxes.get(tx, sandbox_id, lock=True)


def _settle(tx: Transaction, sandbox: Sandbox | None) -> None:
    """Return a BUSY sandbox in which nothing runs any more to READY; idleness counts from now."""
    if sandbox is not None and sandbox.status is SandboxStatus.BUSY and commands.count_active(tx, sandbox.id) == 0:
        transition(tx, sandbox, Action.END_WORK, last_active_at=tx.now)


async def finish_by_instance(services: Services, instance_id: str, state: CommandState) -> None:
    """Record the end that an agent told of. Commands that nobody recorded are the agent's own affair."""

    def record(tx: Transaction) -> None:
        execution = commands.find(tx, str(state.execution_id))
        if execution is not None and execution.instance_id == instance_id:
            finish(tx, execution.sandbox_id, execution.id, state)

    await services.database.write(record)
