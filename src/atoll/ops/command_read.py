"""Get a command: its state, and its output from the agent's buffer.

Output passes through and is never stored (SA-278).
"""

from __future__ import annotations

from collections.abc import Iterator
from uuid import UUID

from atoll.domain.command import CommandEvent, CommandOutput, CommandState, Exit, Init, Truncated
from atoll.domain.errors import Conflict, ErrorCode, NotFound, RuntimeFailure
from atoll.domain.execution import Execution, ExecutionKind, ExecutionState
from atoll.domain.identity import Principal
from atoll.domain.sandbox import PROVISIONING, Sandbox, SandboxStatus, check_accepts_commands
from atoll.ops import command_record
from atoll.ops.access import authorize_read, load_usable_sandbox
from atoll.ops.services import Services
from atoll.store import commands, sandboxes
from atoll.store.database import Transaction


async def get_command(
    services: Services,
    principal: Principal,
    account_id: str,
    sandbox_id: str,
    execution_id: str,
    *,
    from_seq: int = 0,
    wait_seconds: float = 0,
) -> CommandOutput:
    """Read a started command and its events from `from_seq` on, at most about 1 MiB of them (SA-253 … SA-277).

    Raises `NotFound` EXECUTION_NOT_FOUND for an id the sandbox does not know, `Conflict` while the sandbox is paused.
    """

    def look(tx: Transaction) -> tuple[Sandbox, Execution | None]:
        authorize_read(tx, principal, account_id)
        sandbox = load_usable_sandbox(tx, principal, account_id, sandbox_id)
        sandboxes.touch(tx, sandbox_id)
        return sandbox, commands.get(tx, sandbox_id, execution_id)

    sandbox, execution = await services.database.write(look)
    if sandbox.status in PROVISIONING or sandbox.status in {SandboxStatus.SUSPENDING, SandboxStatus.SUSPENDED}:
        check_accepts_commands(sandbox)
    if execution is None or execution.kind is not ExecutionKind.START:
        raise unknown_execution()
    if execution.instance_id != sandbox.instance_id or sandbox.status not in {SandboxStatus.READY, SandboxStatus.BUSY}:
        return _from_record(execution, from_seq)
    try:
        agent = await services.agents.get(execution.instance_id)
        output = await agent.read(UUID(execution.id), from_seq=from_seq, wait_seconds=wait_seconds)
    except RuntimeFailure as failure:
        return await _after_failure(services, execution, from_seq, failure)
    if not output.state.running and execution.state is not ExecutionState.EXITED:
        # The agent's notice may still be under way; who is told of the end here must not find the sandbox BUSY next.
        await command_record.finish_by_instance(services, execution.instance_id, output.state)
    return output


def unknown_execution() -> NotFound:
    """The refusal for an id that the sandbox does not know (SA-396)."""
    return NotFound(
        "The sandbox does not know this executionId: it is wrong, or the sandbox restarted.",
        code=ErrorCode.EXECUTION_NOT_FOUND,
    )


async def _after_failure(
    services: Services, execution: Execution, from_seq: int, failure: RuntimeFailure
) -> CommandOutput:
    """Answer from the record when the command ended with its sandbox during the call."""
    current = await services.database.read(lambda tx: commands.find(tx, execution.id))
    if current is not None and current.state is ExecutionState.EXITED:
        return _from_record(current, from_seq)
    raise failure


def _from_record(execution: Execution, from_seq: int) -> CommandOutput:
    """What is known of a command whose buffer is gone with its sandbox: its end, and none of its output."""
    if execution.state is not ExecutionState.EXITED or execution.exit_code is None:
        raise Conflict(
            "The sandbox is changing state; retry shortly.", code=ErrorCode.AGENT_UNREACHABLE, retry_after_seconds=1
        )
    state = CommandState(
        execution_id=UUID(execution.id),
        running=False,
        exit_code=execution.exit_code,
        reason=execution.reason,
        started_at=execution.started_at or execution.requested_at,
        exited_at=execution.exited_at,
        stdout_bytes=execution.stdout_bytes,
        stderr_bytes=execution.stderr_bytes,
        output_truncated=execution.output_truncated,
        end_seq=execution.end_seq,
    )
    # Where nobody saw the end, nobody knows how many events there were before it.
    end_seq = from_seq + 1 if execution.end_seq is None else execution.end_seq
    return CommandOutput(state, tuple(_remaining(execution, from_seq, end_seq - 1)), next_seq=end_seq, complete=True)


def _remaining(execution: Execution, from_seq: int, last: int) -> Iterator[CommandEvent]:
    """What can be told from a sequence number on when the buffer is gone: the start, how much is lost, the exit.

    Of the bytes only the sum is on record, so those that are told as dropped may hold some that were read before.
    """
    lost_from = from_seq
    if from_seq == 0 < last and execution.process_id is not None:
        yield Init(0, execution.process_id)
        lost_from = 1
    if lost_from < last:
        yield Truncated(last - 1, execution.stdout_bytes + execution.stderr_bytes, last - lost_from)
    if from_seq <= last and execution.exit_code is not None:
        yield Exit(last, execution.exit_code, execution.reason)
