"""Processes and terminals of a sandbox as its gateway shows them: found for every use, fed, signalled, resized, listed.

Starting one and reading it are the use cases of commands (`command_start`, `command_read`), with the session's
principal: what the gateway starts is a command like any other, for records, webhooks and the rest of the API.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from uuid import UUID

from atoll.domain.audit import AuditAction
from atoll.domain.command import PtySize
from atoll.domain.errors import AtollError, Conflict, ErrorCode, RuntimeFailure
from atoll.domain.execution import Execution, ExecutionKind, ExecutionState
from atoll.domain.identity import Scope
from atoll.domain.sandbox import RUNNING, Sandbox, check_accepts_commands
from atoll.domain.signals import ENDING_SIGNALS, signal_number
from atoll.ops.access import authorize_manage, load_usable_sandbox
from atoll.ops.command_read import unknown_execution
from atoll.ops.gateway_session import GatewayCaller
from atoll.ops.services import Services
from atoll.store import audit, commands
from atoll.store.database import Transaction

ATOMIC_INPUT_BYTES = 4_096
"""Input that a pipe takes whole or not at all, so input that was refused can be sent again and is never doubled."""
MAX_LISTED = 1_000
"""Processes in one list."""


@dataclass(frozen=True, slots=True)
class GatewayProcess:
    """One process and whose call it is about."""

    services: Services
    caller: GatewayCaller
    sandbox: Sandbox
    execution: Execution

    @property
    def id(self) -> UUID:
        """Its execution id."""
        return UUID(self.execution.id)

    async def write(self, data: bytes) -> int:
        """Write to standard input; how many bytes were taken, fewer when nobody has read for half a minute.

        Raises `RuntimeFailure` EXECUTION_EXITED, or INVALID_REQUEST where standard input is closed.
        """
        agent = await self.services.agents.get(self.execution.instance_id)
        for start in range(0, len(data), ATOMIC_INPUT_BYTES):
            try:
                await agent.write_stdin(self.id, data[start : start + ATOMIC_INPUT_BYTES])
            except RuntimeFailure as failure:
                if failure.code is not ErrorCode.UNKNOWN:
                    raise
                return start
        return len(data)

    async def end_input(self) -> None:
        """Close standard input; on a terminal, type the end-of-transmission character."""
        agent = await self.services.agents.get(self.execution.instance_id)
        await agent.write_stdin(self.id, b"", eof=True)

    async def signal(self, name: str) -> None:
        """Signal the whole tree (SA-356). Raises `Invalid` for a signal that is not sent."""
        number = signal_number(name)
        if name in ENDING_SIGNALS:
            await self.services.database.write(self._record_kill)
        agent = await self.services.agents.get(self.execution.instance_id)
        await agent.signal(self.id, number, cancel=name in ENDING_SIGNALS)

    def _record_kill(self, tx: Transaction) -> None:
        caller = self.caller
        audit.record(
            tx,
            caller.principal,
            AuditAction.KILL_COMMAND,
            caller.account_id,
            sandbox_id=caller.sandbox_id,
            execution_id=self.execution.id,
        )

    async def resize(self, size: PtySize) -> None:
        """Change the size of the terminal; raises INVALID_REQUEST where there is none."""
        agent = await self.services.agents.get(self.execution.instance_id)
        await agent.resize(self.id, size)


async def find_process(services: Services, caller: GatewayCaller, execution_id: str) -> GatewayProcess:
    """A process of the sandbox, running or ended.

    Raises `NotFound` EXECUTION_NOT_FOUND for an id that the sandbox does not know.
    """

    def look(tx: Transaction) -> tuple[Sandbox, Execution | None]:
        return _authorized_sandbox(tx, caller), commands.get(tx, caller.sandbox_id, execution_id)

    sandbox, execution = await services.database.read(look)
    if execution is None or execution.kind is not ExecutionKind.START:
        raise unknown_execution()
    return GatewayProcess(services, caller, sandbox, execution)


async def running_process(services: Services, caller: GatewayCaller, execution_id: str) -> GatewayProcess:
    """A process that can be fed, signalled and resized.

    Raises `Conflict` EXECUTION_EXITED once it has ended, and while the sandbox does not run.
    """
    process = await find_process(services, caller, execution_id)
    if process.execution.state is ExecutionState.EXITED:
        raise Conflict("The process has already exited.", code=ErrorCode.EXECUTION_EXITED)
    check_accepts_commands(process.sandbox)
    return process


async def write_input(process: GatewayProcess, chunks: AsyncIterator[bytes]) -> int:
    """Write a body to standard input as it comes; how many bytes were written (SA-449).

    Raises `RuntimeFailure` UNKNOWN when the process reads nothing for half a minute; the sentence says how far it came.
    """
    written = 0
    async for chunk in chunks:
        taken = await process.write(chunk)
        written += taken
        if taken < len(chunk):
            raise RuntimeFailure(
                f"The process does not read its standard input; {written} bytes of this request were written.",
                code=ErrorCode.UNKNOWN,
            )
    return written


async def list_processes(services: Services, caller: GatewayCaller) -> list[Execution]:
    """What runs, then what has ended, each newest first; at most MAX_LISTED (SA-446).

    While the sandbox runs, the bytes of what runs are those of now.
    """

    def look(tx: Transaction) -> tuple[Sandbox, list[Execution]]:
        return _authorized_sandbox(tx, caller), commands.started(tx, caller.sandbox_id, limit=MAX_LISTED)

    sandbox, executions = await services.database.read(look)
    if sandbox.status not in RUNNING or sandbox.instance_id is None:
        return executions
    try:
        agent = await services.agents.get(sandbox.instance_id)
        states = {str(state.execution_id): state for state in await agent.list_commands()}
    except AtollError:
        return executions  # the record is enough for a list
    return [
        replace(
            it,
            stdout_bytes=states[it.id].stdout_bytes,
            stderr_bytes=states[it.id].stderr_bytes,
            output_truncated=states[it.id].output_truncated,
        )
        if it.id in states and it.state is not ExecutionState.EXITED
        else it
        for it in executions
    ]


def _authorized_sandbox(tx: Transaction, caller: GatewayCaller) -> Sandbox:
    authorize_manage(tx, caller.principal, caller.account_id, Scope.DANGEROUS)
    return load_usable_sandbox(tx, caller.principal, caller.account_id, caller.sandbox_id)
