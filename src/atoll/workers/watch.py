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
from atoll.domain.errors import AgentMissing, AtollError, ErrorCode, RuntimeFailure
from atoll.domain.execution import Execution, ExecutionKind, ExecutionState
from atoll.domain.sandbox import RUNNING, Action, Sandbox
from atoll.drivers.base import AgentConnection, Observed
from atoll.ops import command_record
from atoll.ops.services import Services
from atoll.store import commands, pools, sandboxes
from atoll.store.database import Transaction
from atoll.store.transitions import transition
from atoll.store.wakes import STATUSES

log = structlog.get_logger()

_GIVE_UP_SECONDS = 60.0
"""How long an instance whose processes live may be unreachable before its sandbox fails."""
_HEARD_AGAIN_AFTER = 15.0
"""Seconds after which a sandbox in which commands run is asked whether its agent still answers."""
_NEVER_SENT_AFTER = timedelta(seconds=60)
"""A command on record that the agent never heard of is withdrawn after this."""
_EXAMINED_AT_ONCE = 16
"""Instances that are looked at together: one that hangs must not keep the others unwatched."""


class WatchWorker:
    """The worker that keeps what is on record true of what runs."""

    name = "watch"
    topics: tuple[str, ...] = (STATUSES,)
    interval = 20.0
    patience = 0.25

    def __init__(self, services: Services) -> None:
        self._services = services
        self._tasks: set[asyncio.Task[None]] = set()
        self._unreachable_since: dict[str, float] = {}
        self._without_volume: set[str] = set()
        self._asked_at: dict[str, float] = {}
        self._looks = asyncio.Semaphore(_EXAMINED_AT_ONCE)
        self._awaited: set[str] = set()
        services.agents.on_exit = self._record_exit
        services.agents.on_open = self._opened
        services.agents.on_lost = self._lost

    async def run_once(self) -> float | None:
        """Connect to every running sandbox that has no connection, and clear up commands that nobody answered."""
        running, busy, unanswered = await self._services.database.read(_look)
        agents = self._services.agents
        self._unreachable_since = {
            instance_id: since for instance_id, since in self._unreachable_since.items() if instance_id in running
        }
        await asyncio.gather(
            *(self._examine_safely(instance_id) for instance_id in running if not agents.is_open(instance_id)),
            # Once a connection is open, nothing else would look at them: a request that died between its record and
            # the agent would leave its sandbox BUSY for good.
            *(self._reconcile_safely(instance_id) for instance_id in unanswered if agents.is_open(instance_id)),
        )
        self._ask_the_busy([instance_id for instance_id in busy if agents.is_open(instance_id)])
        await self._end_those_without_their_volume(running)
        return 1.0 if self._unreachable_since or self._without_volume else None

    def _ask_the_busy(self, busy: list[str]) -> None:
        """Ask sandboxes in which commands run, every now and then, and wait for the answers elsewhere."""
        now = asyncio.get_running_loop().time()
        self._asked_at = {one: at for one, at in self._asked_at.items() if one in busy}
        for instance_id in busy:
            if now - self._asked_at.get(instance_id, -_HEARD_AGAIN_AFTER) >= _HEARD_AGAIN_AFTER:
                self._asked_at[instance_id] = now
                self._spawn(self._ask(instance_id))

    async def _ask(self, instance_id: str) -> None:
        """A fork bomb leaves an agent no processor time: its connection stays and nothing comes over it any more."""
        began = asyncio.get_running_loop().time()
        try:
            await (await self._services.agents.get(instance_id)).stats()
        except RuntimeFailure:
            if self._services.agents.is_open(instance_id):
                await self._still_unreachable(instance_id, since=began)
        except Exception:
            log.exception("agent_not_asked", instance_id=instance_id)
        else:
            self._unreachable_since.pop(instance_id, None)

    async def _end_those_without_their_volume(self, running: list[str]) -> None:
        """A mount whose rclone died cannot be brought back below a running sandbox: it would go on losing files."""
        broken = (await asyncio.to_thread(self._services.volumes.mounts.broken)).intersection(running)
        # Twice in a row: one look may miss a process that is there.
        dead, self._without_volume = broken & self._without_volume, broken
        for instance_id in dead:
            await self._dead(
                instance_id, ErrorCode.SANDBOX_NOT_READY, "the mount of the sandbox's volume ended by itself"
            )

    async def close(self) -> None:
        """End the reconciliations under way; the next life does them again."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _examine_safely(self, instance_id: str) -> None:
        """Examine; what fails is tried again at the next pass, and takes no other instance with it."""
        try:
            async with self._looks:
                await self._examine(instance_id)
        except Exception:
            log.exception("examination_failed", instance_id=instance_id)

    async def _reconcile_safely(self, instance_id: str) -> None:
        try:
            async with self._looks:
                await self._reconcile(instance_id, await self._services.agents.get(instance_id))
        except Exception:
            log.exception("reconciliation_failed", instance_id=instance_id)

    def _spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _record_exit(self, instance_id: str, state: CommandState) -> None:
        await command_record.finish_by_instance(self._services, instance_id, state)

    def _opened(self, instance_id: str, agent: AgentConnection) -> None:
        del agent  # it is in place: asking for the connection gives it
        self._unreachable_since.pop(instance_id, None)
        self._spawn(self._reconcile_safely(instance_id))

    def _lost(self, instance_id: str) -> None:
        self._spawn(self._examine_safely(instance_id))

    async def _examine(self, instance_id: str) -> None:
        """Find out what became of an instance: reconnect to it, or record its death."""
        observation = await self._services.driver.observe(instance_id)
        if observation.observed in {Observed.RUNNING, Observed.STARTING}:
            try:
                await self._services.agents.get(instance_id)
            except AgentMissing:
                return  # it lives, and whoever made it can end it
            except RuntimeFailure:
                await self._still_unreachable(instance_id)
            return
        self._unreachable_since.pop(instance_id, None)
        await self._dead(instance_id, ErrorCode.SANDBOX_NOT_FOUND, observation.detail or "the sandbox ended by itself")

    async def _still_unreachable(self, instance_id: str, *, since: float | None = None) -> None:
        """Note that there was no answer to what was asked at `since`; give the instance up after a minute of that."""
        now = asyncio.get_running_loop().time()
        if instance_id not in self._unreachable_since:
            # Lost in the middle of its end, mostly: the passes go on looking each second, and the next may be far away.
            self._services.wakes.publish((STATUSES,))
        first = self._unreachable_since.setdefault(instance_id, now if since is None else since)
        if now - first >= _GIVE_UP_SECONDS:
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
            elif execution.kind is ExecutionKind.EXECUTE and execution.id not in self._awaited:
                self._awaited.add(execution.id)
                self._spawn(self._await_end(instance_id, agent, execution))

    async def _unknown_to_agent(self, execution: Execution) -> None:
        """A command that the agent does not know: it never arrived, or its record was dropped there."""

        def repair(tx: Transaction) -> None:
            current = commands.find(tx, execution.id)
            if current is None or current.state is ExecutionState.EXITED:
                return
            if current.state is ExecutionState.RUNNING:
                command_record.lose(tx, current.sandbox_id, current.id)
            elif current.requested_at + _NEVER_SENT_AFTER <= tx.now:
                command_record.withdraw(tx, current.sandbox_id, current.id)

        await self._services.database.write(repair)

    async def _await_end(self, instance_id: str, agent: AgentConnection, execution: Execution) -> None:
        """Follow a command whose request died with an earlier life of the control plane."""
        try:
            state = await agent.watch(UUID(execution.id))
            await command_record.finish_by_instance(self._services, instance_id, state)
        except AtollError:
            return  # the connection is lost; the next one repeats this
        finally:
            self._awaited.discard(execution.id)


def _look(tx: Transaction) -> tuple[list[str], list[str], list[str]]:
    """Instances that run sandboxes, those in which commands run, and those with commands on record that nobody answered
    for too long."""
    unanswered = commands.unanswered_instances(tx, before=tx.now - _NEVER_SENT_AFTER)
    return sandboxes.running_instances(tx), sandboxes.busy_instances(tx), unanswered
