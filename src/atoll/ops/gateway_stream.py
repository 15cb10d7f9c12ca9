"""The output of one process as a stream: page after page from the agent's buffer, from a sequence number on.

Nothing is kept here: whoever was cut off asks again from the number after the last one they have, and neither loses
nor repeats anything (SA-448). Each stream has one question at the agent, so one that is not read holds up no other.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

from atoll.domain.command import CommandEvent as Event
from atoll.domain.command import CommandOutput, Exit
from atoll.domain.errors import ErrorCode, RuntimeFailure
from atoll.domain.sandbox import PROVISIONING, check_accepts_commands
from atoll.domain.sandbox import SandboxStatus as S
from atoll.ops import command_record
from atoll.ops.command_read import get_command
from atoll.ops.gateway_process import GatewayProcess

PAGE_BYTES = 256 * 1024
"""Output in one answer of the agent; what a stream that is not read holds in memory."""
_WAIT_SECONDS = 10.0
_ATTEMPTS = 5
_PAUSE_SECONDS = 0.3
"""Between attempts at an agent that cannot be reached: it comes back within a second, or not at all."""


def check_readable(process: GatewayProcess) -> None:
    """Refuse to stream while the sandbox is paused or on its way; a stream resumes nothing (SA-373)."""
    if process.sandbox.status in PROVISIONING or process.sandbox.status in {S.SUSPENDING, S.SUSPENDED}:
        check_accepts_commands(process.sandbox)


async def follow(process: GatewayProcess, from_seq: int) -> AsyncGenerator[Event, None]:
    """Every event from `from_seq` on; ends after `exit`. The caller takes the next one when it has room for it.

    Raises `RuntimeFailure` AGENT_UNREACHABLE once the agent stays away, and what `get_command` raises.
    """
    failures = 0
    loop = asyncio.get_running_loop()
    while True:
        asked = loop.time()
        try:
            output = await _page(process, from_seq)
        except RuntimeFailure as failure:
            failures += 1
            if failure.code is not ErrorCode.AGENT_UNREACHABLE or failures == _ATTEMPTS:
                raise
            await asyncio.sleep(_PAUSE_SECONDS)
            continue
        failures = 0
        for event in output.events:
            yield event
        from_seq = output.next_seq
        if output.complete or any(isinstance(event, Exit) for event in output.events):
            return
        if not output.events and loop.time() - asked < _PAUSE_SECONDS:
            await asyncio.sleep(_PAUSE_SECONDS)  # an agent that has nothing to say should have waited for something


async def _page(process: GatewayProcess, from_seq: int) -> CommandOutput:
    services, execution, caller = process.services, process.execution, process.caller
    try:
        agent = await services.agents.get(execution.instance_id)
        output = await agent.read(process.id, from_seq=from_seq, max_bytes=PAGE_BYTES, wait_seconds=_WAIT_SECONDS)
    except RuntimeFailure:
        # The instance may be gone, and the end of the process on record.
        return await get_command(
            services, caller.principal, caller.account_id, caller.sandbox_id, execution.id, from_seq=from_seq
        )
    if output.complete:
        # Whoever is told of the end here must not find the sandbox BUSY next.
        await command_record.finish_by_instance(services, execution.instance_id, output.state)
    return output
