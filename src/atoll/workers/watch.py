"""Watches what runs: holds a connection to every running instance, records the ends of commands, notices the dead.

Also what makes a restart of the control plane invisible: at every new connection it compares the commands on record
with those that the agent knows.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from datetime import timedelta
from typing import Any
from uuid import UUID

import structlog

from atoll.domain.command import CommandState, EndReason
from atoll.domain.errors import AtollError, ErrorCode, RuntimeFailure
from atoll.domain.execution import Execution, ExecutionKind, ExecutionState
from atoll.domain.sandbox import RUNNING, Action, Sandbox
from atoll.drivers.base import AgentConnection, Observed
from atoll.ops import command_record
from atoll.ops.services import Services
from atoll.store import commands, pools, sandboxes
from atoll.store.database import Transaction
from atoll.store.transitions import transition
from atoll.store.wakes import SANDBOXES

log = structlog.get_logger()

_GIVE_UP_SECONDS = 60.0
"""How long an instance whose processes live may be unreachable before its sandbox fails."""
_NEVER_SENT_AFTER = timedelta(seconds=60)
"""A command on record that the agent never heard of is withdrawn after this."""


class WatchWorker:
    """The worker that keeps what is on record true of what runs."""

    name = "watch"
    topics = (SANDBOXES,)
    interval = 20.0

    def __init__(self, services: Services) -> None:
        self._services = services
        self._tasks: set[asyncio.Task[None]] = set()
        self._unreachable_since: dict[str, float] = {}
        services.agents.on_exit = self._record_exit
        services.agents.on_open = self._opened
        services.agents.on_lost = self._lost

    async def run_once(self) -> float | None:
        """Connect to every running sandbox that has no connection."""
        running = await self._services.database.read(sandboxes.running)
        for sandbox in running:
            if sandbox.instance_id is not None and not self._services.agents.is_open(sandbox.instance_id):
                await self._examine(sandbox.instance_id)
        return 1.0 if self._unreachable_since else None

    async def close(self) -> None:
        """End the reconciliations under way; the next life does them again."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _record_exit(self, instance_id: str, state: CommandState) -> None:
        await command_record.finish_by_instance(self._services, instance_id, state)

    def _opened(self, instance_id: str, agent: AgentConnection) -> None:
        self._unreachable_since.pop(instance_id, None)
        self._spawn(self._reconcile(instance_id, agent))

    def _lost(self, instance_id: str) -> None:
        self._spawn(self._examine(instance_id))

    async def _examine(self, instance_id: str) -> None:
        """Find out what became of an instance: reconnect to it, or record its death."""
        observation = await self._services.driver.observe(instance_id)
        if observation.observed in {Observed.RUNNING, Observed.STARTING}:
            try:
                await self._services.agents.get(instance_id)
            except RuntimeFailure:
                await self._still_unreachable(instance_id)
            return
        self._unreachable_since.pop(instance_id, None)
        await self._dead(instance_id, ErrorCode.SANDBOX_NOT_FOUND, observation.detail or "the sandbox ended by itself")

    async def _still_unreachable(self, instance_id: str) -> None:
        now = asyncio.get_running_loop().time()
        since = self._unreachable_since.setdefault(instance_id, now)
        if now - since >= _GIVE_UP_SECONDS:
            del self._unreachable_since[instance_id]
            await self._dead(instance_id, ErrorCode.AGENT_UNREACHABLE, "the agent of the sandbox stopped answering")

    async def _dead(self, instance_id: str, code: ErrorCode, detail: str) -> None:
        def record(tx: Transaction) -> Sandbox | None:
            pools.discard(tx, instance_id)
            sandbox = sandboxes.find_by_instance(tx, instance_id)
            if sandbox is None or sandbox.status not in RUNNING:
                return None
            commands.end_all(tx, sandbox.id, reason=EndReason.KILLED)
            return transition(tx, sandbox, Action.FAIL, error_code=code, status_reason=detail, desired_status=None)

        failed = await self._services.database.write(record)
        if failed is not None:
            log.warning("sandbox_died", sandbox_id=failed.id, error_code=code, reason=detail)

    async def _reconcile(self, instance_id: str, agent: AgentConnection) -> None:
        """Compare the commands on record with those of the agent; the agent knows."""
        database = self._services.database
        recorded = await database.read(lambda tx: commands.active_of_instance(tx, instance_id))
        if not recorded:
            return
        try:
            known = {str(state.execution_id): state for state in await agent.list_commands()}
        except AtollError:
            return  # the connection is lost again; the next one repeats this
        for execution in recorded:
            state = known.get(execution.id)
            if state is None:
                await self._unknown_to_agent(execution)
            elif not state.running:
                await command_record.finish_by_instance(self._services, instance_id, state)
            elif execution.kind is ExecutionKind.EXECUTE:
                self._spawn(self._await_end(instance_id, agent, execution))

    async def _unknown_to_agent(self, execution: Execution) -> None:
        """A command that the agent does not know: it never arrived, or its record was dropped there."""

        def repair(tx: Transaction) -> None:
            current = commands.find(tx, execution.id)
            if current is None or current.state is ExecutionState.EXITED:
                return
            if current.state is ExecutionState.RUNNING:
                commands.mark_lost(tx, [current.id], reason=EndReason.KILLED)
                command_record.settle(tx, current.sandbox_id)
            elif current.requested_at + _NEVER_SENT_AFTER <= tx.now:
                command_record.withdraw(tx, current.sandbox_id, current.id)

        await self._services.database.write(repair)

    async def _await_end(self, instance_id: str, agent: AgentConnection, execution: Execution) -> None:
        """Follow a command whose request died with an earlier life of the control plane."""
        try:
            state = await agent.watch(UUID(execution.id))
        except AtollError:
            return
        await command_record.finish_by_instance(self._services, instance_id, state)
