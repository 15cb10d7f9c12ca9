"""Brings sandboxes where they should be: provisions, resumes, ends, and cleans up after them.

Leases the rows that need work and walks each through its steps, one task a sandbox. Every step may be repeated: ids are
written before the work, and the driver's calls are idempotent by id.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine, Iterator
from datetime import timedelta
from functools import partial
from typing import Any
from uuid import UUID

import structlog

from atoll.domain.command import CommandState, EndReason
from atoll.domain.egress import egress_policy
from atoll.domain.errors import AtollError, Conflict, ErrorCode, RuntimeFailure, StaleGeneration
from atoll.domain.sandbox import PROVISIONING, Action, Sandbox, SandboxStatus
from atoll.domain.template import Revision
from atoll.ops import command_record
from atoll.ops.allocation import allocate, become_ready
from atoll.ops.instance import instance_spec
from atoll.ops.services import Services
from atoll.storage.objects import StorageFailed
from atoll.store import commands, sandboxes, templates
from atoll.store.database import Transaction
from atoll.store.transitions import transition
from atoll.store.wakes import SANDBOXES, sandbox_topic
from atoll.workers import suspension
from atoll.workers.persistence import find_volume, prepare_mounts

log = structlog.get_logger()

_LEASE = timedelta(seconds=60)
_BATCH = 64
_RETRY_AFTER = timedelta(seconds=5)
_STOP_COMMANDS_SECONDS = 1.0
_ATTEMPTS = 3
"""Walks of a sandbox on its way to READY that may end in an error without a name before it counts as failed."""
_S = SandboxStatus


@contextlib.contextmanager
def _left_to_the_orphan_worker(instance_id: str) -> Iterator[None]:
    """A volume that takes nothing now must not keep a sandbox from its end: the orphan worker stores the rest."""
    try:
        yield
    except StorageFailed as error:
        log.warning("volume_not_stored_yet", instance_id=instance_id, error=str(error))


class SandboxWorker:
    """The worker of sandboxes that need work."""

    name = "sandboxes"
    topics: tuple[str, ...] = (SANDBOXES,)
    interval = 15.0
    patience = 0.0

    def __init__(self, services: Services, lease_token: str) -> None:
        self._services = services
        self._lease_token = lease_token
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._again: set[str] = set()
        self._failures: dict[str, int] = {}
        self._find_volume = partial(find_volume, services)

    async def run_once(self) -> float | None:
        """Renew what is under way, lease what is new, and start a task for each."""
        database = self._services.database
        under_way = list(self._tasks)

        def claim(tx: Transaction) -> list[Sandbox]:
            if under_way:
                sandboxes.renew_leases(tx, self._lease_token, under_way, lease=_LEASE)
            return sandboxes.claim_work(tx, self._lease_token, lease=_LEASE, limit=_BATCH)

        claimed = await database.write(claim)
        for sandbox in claimed:
            if sandbox.id in self._tasks:
                # Its task has given it back and is about to end; without this the new lease would hold it for nobody.
                self._again.add(sandbox.id)
            else:
                self._begin(sandbox.id, self._work(sandbox))
        return 0.0 if len(claimed) == _BATCH else None

    async def close(self) -> None:
        """Stop where we are; the rows say how to go on."""
        self._again.clear()
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _begin(self, sandbox_id: str, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work, name=f"sandbox-{sandbox_id}")
        self._tasks[sandbox_id] = task
        task.add_done_callback(partial(self._done, sandbox_id))

    def _done(self, sandbox_id: str, task: asyncio.Task[None]) -> None:
        if self._tasks.get(sandbox_id) is task:
            del self._tasks[sandbox_id]
        if sandbox_id in self._again:
            self._again.discard(sandbox_id)
            self._begin(sandbox_id, self._work_again(sandbox_id))

    async def _work_again(self, sandbox_id: str) -> None:
        sandbox = await self._reread(sandbox_id)
        if sandbox is not None:
            await self._work(sandbox)

    async def _work(self, sandbox: Sandbox) -> None:
        """Walk one sandbox until it needs nothing more, then give it back."""
        retry_after: timedelta | None = None
        try:
            await self._walk(sandbox)
            self._failures.pop(sandbox.id, None)
        except Exception:
            log.exception("sandbox_step_failed", sandbox_id=sandbox.id)
            retry_after = _RETRY_AFTER
            if await self._is_hopeless(sandbox.id):
                retry_after = None
        try:
            await self._services.database.write(
                lambda tx: sandboxes.release_lease(tx, sandbox.id, self._lease_token, retry_after=retry_after)
            )
        except Exception:
            log.exception("lease_not_released", sandbox_id=sandbox.id)  # it lapses by itself

    async def _walk(self, sandbox: Sandbox) -> None:
        current: Sandbox | None = sandbox
        while current is not None:
            current = await self._step_safely(current)

    async def _is_hopeless(self, sandbox_id: str) -> bool:
        """Count an error that no driver has named; after a few, a sandbox that is not READY yet fails with UNKNOWN."""
        self._failures[sandbox_id] = self._failures.get(sandbox_id, 0) + 1
        if self._failures[sandbox_id] < _ATTEMPTS:
            return False
        try:
            current = await self._reread(sandbox_id)
            if current is None or current.status not in PROVISIONING:
                return False
            await self._fail(current, RuntimeFailure("The sandbox could not be started.", code=ErrorCode.UNKNOWN))
        except Exception:
            log.exception("sandbox_not_failed", sandbox_id=sandbox_id)
            return False
        del self._failures[sandbox_id]
        return True

    async def _step_safely(self, sandbox: Sandbox) -> Sandbox | None:
        """Take one step; a lost race or a superseded intent means: look again."""
        try:
            return await self._step(sandbox)
        except (StaleGeneration, Conflict):
            current = await self._reread(sandbox.id)
            if current is not None and (current.generation, current.instance_id) == (
                sandbox.generation,
                sandbox.instance_id,
            ):
                raise  # nobody was faster: looking again at once would go round for ever
            return current
        except RuntimeFailure as failure:
            if sandbox.status not in {_S.ALLOCATING, _S.STARTING, _S.RESUMING}:
                raise
            return await self._fail(sandbox, failure)

    async def _step(self, sandbox: Sandbox) -> Sandbox | None:
        match sandbox.status:
            case _S.REQUESTED:
                return await self._allocate(sandbox)
            case _S.ALLOCATING:
                return await self._prepare(sandbox)
            case _S.STARTING | _S.RESUMING:
                return await self._boot(sandbox)
            case _S.SUSPENDING:
                return await self._suspend(sandbox)
            case _S.TERMINATING:
                return await self._end(sandbox)
            case _S.FAILED | _S.TERMINATED | _S.SUSPENDED if sandbox.allocation_pending:
                return await self._clean_up(sandbox)
            case _:
                return None

    async def _reread(self, sandbox_id: str) -> Sandbox | None:
        return await self._services.database.read(lambda tx: sandboxes.get(tx, sandbox_id))

    async def _revision(self, sandbox: Sandbox) -> Revision:
        revision = await self._services.database.read(
            lambda tx: templates.get_revision(tx, sandbox.template_revision_id)
        )
        if revision is None:
            raise AtollError("the revision of a sandbox is gone")
        return revision

    async def _allocate(self, sandbox: Sandbox) -> Sandbox:
        """Claim a waiting instance, or name a new one; either is written before anything is done with it."""

        def allocate_one(tx: Transaction) -> Sandbox:
            revision = templates.get_revision(tx, sandbox.template_revision_id)
            if revision is None:
                raise AtollError("the revision of a sandbox is gone")
            return allocate(tx, self._services, sandbox, revision)

        return await self._services.database.write(allocate_one)

    async def _prepare(self, sandbox: Sandbox) -> Sandbox | None:
        """Make sure of the claimed instance, or of the image of a new one."""
        database = self._services.database
        revision = await self._revision(sandbox)
        egress_policy(revision.network_control)  # what cannot be enforced fails here, before anything is fetched
        if sandbox.is_warm_allocation:
            try:
                await self._services.agents.get(str(sandbox.instance_id))
            except RuntimeFailure:
                return await self._replace_instance(sandbox)
            return await database.write(lambda tx: become_ready(tx, transition(tx, sandbox, Action.START)))
        await self._unless_superseded(sandbox, self._services.driver.prepare_image(revision.image_digest))
        return await database.write(lambda tx: transition(tx, sandbox, Action.START))

    async def _replace_instance(self, sandbox: Sandbox) -> Sandbox | None:
        """Give up a claimed instance that does not answer and go on with a new one."""
        await self._remove_instance(str(sandbox.instance_id))
        new_id = self._services.new_id()

        def replace(tx: Transaction) -> Sandbox | None:
            sandboxes.replace_instance(tx, sandbox.id, sandbox.generation, new_id)
            return sandboxes.get(tx, sandbox.id)

        return await self._services.database.write(replace)

    async def _boot(self, sandbox: Sandbox) -> Sandbox:
        """Make the instance and wait for its agent."""
        if sandbox.status is _S.RESUMING:
            sandbox = await self._renew_instance(sandbox)
        revision = await self._revision(sandbox)
        instance_id = str(sandbox.instance_id)
        await self._unless_superseded(sandbox, self._make_instance(sandbox, revision))
        await self._services.agents.get(instance_id)
        return await self._services.database.write(lambda tx: become_ready(tx, sandbox))

    async def _make_instance(self, sandbox: Sandbox, revision: Revision) -> None:
        mounts = await prepare_mounts(self._services, sandbox)
        await self._services.driver.create(instance_spec(str(sandbox.instance_id), revision, mounts))

    async def _suspend(self, sandbox: Sandbox) -> Sandbox | None:
        """Archive what the mode keeps, then release the compute; or give the pause up and let the sandbox go on."""
        revision = await self._revision(sandbox)
        archived: list[Sandbox] = []

        async def archive() -> None:
            archived.append(await suspension.archive(self._services, sandbox, revision))

        await self._unless_superseded(sandbox, archive())
        current = archived[0]
        if current.status is not _S.SUSPENDING:
            return current
        return await suspension.release(
            self._services, current, stop_commands=self._stop_commands, remove_instance=self._remove_instance
        )

    async def _renew_instance(self, sandbox: Sandbox) -> Sandbox:
        """Name new compute for a resumed sandbox, once nothing is left of what it had or of a resume cut short."""
        if sandbox.instance_id is not None and sandbox.allocation_pending:
            await self._remove_instance(sandbox.instance_id)
        new_id = self._services.new_id()

        def name(tx: Transaction) -> Sandbox:
            sandboxes.replace_instance(tx, sandbox.id, sandbox.generation, new_id)
            current = sandboxes.get(tx, sandbox.id)
            if current is None:
                raise AtollError("a sandbox is gone")
            return current

        return await self._services.database.write(name)

    async def _fail(self, sandbox: Sandbox, failure: RuntimeFailure) -> Sandbox | None:
        log.warning("sandbox_failed", sandbox_id=sandbox.id, error_code=failure.code, reason=failure.message)

        def fail(tx: Transaction) -> Sandbox | None:
            current = sandboxes.get(tx, sandbox.id, lock=True)
            if current is None or current.generation != sandbox.generation:
                return current
            return transition(
                tx,
                current,
                Action.FAIL,
                error_code=failure.code,
                status_reason=failure.message,
                desired_status=None,
            )

        return await self._services.database.write(fail)

    async def _end(self, sandbox: Sandbox) -> Sandbox:
        """Kill the compute, then say so; what is left of it is cleaned up after the answer."""
        if sandbox.instance_id is not None:
            await self._stop_commands(sandbox)
            await self._services.agents.drop(sandbox.instance_id)
            await self._services.driver.destroy(sandbox.instance_id)
            # Whoever reads that it has ended may attach its volume at once, and finds there what was closed.
            with _left_to_the_orphan_worker(sandbox.instance_id):
                await self._services.volumes.settle(sandbox.instance_id, self._find_volume)

        def finish(tx: Transaction) -> Sandbox:
            sandboxes.get(tx, sandbox.id, lock=True)  # before its commands, as everywhere
            commands.end_all(tx, sandbox.id, reason=EndReason.AGENT_SHUTDOWN)
            return transition(
                tx,
                sandbox,
                Action.FINISH_TERMINATE,
                terminated_at=tx.now,
                desired_status=None,
                status_reason=sandbox.status_reason,
            )

        return await self._services.database.write(finish)

    async def _stop_commands(self, sandbox: Sandbox) -> None:
        """End running commands by name, so that whoever waits for one gets its output and `agent_shutdown`, and record
        their ends while there is somebody who knows them."""
        active = await self._services.database.read(lambda tx: commands.active(tx, sandbox.id))
        if not active or not self._services.agents.is_open(str(sandbox.instance_id)):
            return
        states: list[CommandState] = []
        # What is not done in time is killed next anyway.
        with contextlib.suppress(RuntimeFailure, TimeoutError):
            async with asyncio.timeout(_STOP_COMMANDS_SECONDS):
                agent = await self._services.agents.get(str(sandbox.instance_id))
                await agent.stop_commands(grace_seconds=0.2)
                for execution in active:
                    with contextlib.suppress(RuntimeFailure):
                        states.append(await agent.watch(UUID(execution.id)))
        await self._services.database.write(lambda tx: command_record.finish_all(tx, sandbox.id, states))

    async def _clean_up(self, sandbox: Sandbox) -> Sandbox | None:
        if sandbox.instance_id is not None:
            await self._end_instance(sandbox.instance_id)
            with _left_to_the_orphan_worker(sandbox.instance_id):
                await self._services.volumes.release(sandbox.instance_id, self._find_volume)

        def release(tx: Transaction) -> Sandbox | None:
            sandboxes.get(tx, sandbox.id, lock=True)  # before its commands, as everywhere
            commands.end_all(tx, sandbox.id, reason=EndReason.KILLED)
            sandboxes.release_allocation(tx, sandbox.id, sandbox.instance_id)
            return sandboxes.get(tx, sandbox.id)

        return await self._services.database.write(release)

    async def _remove_instance(self, instance_id: str) -> None:
        """Take an instance away whole. Raises `StorageFailed`, to be repeated, while its volume lacks what it wrote."""
        await self._end_instance(instance_id)
        await self._services.volumes.release(instance_id, self._find_volume)

    async def _end_instance(self, instance_id: str) -> None:
        await self._services.agents.drop(instance_id)
        await self._services.driver.destroy(instance_id)
        await self._services.driver.cleanup(instance_id)

    async def _unless_superseded(self, sandbox: Sandbox, work: Coroutine[Any, Any, None]) -> None:
        """Do slow work, but drop it as soon as somebody wants the sandbox gone."""
        task = asyncio.create_task(work)
        supersession = asyncio.create_task(self._superseded(sandbox))
        try:
            await asyncio.wait({task, supersession}, return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                supersession.result()
                raise StaleGeneration("The sandbox changed meanwhile.")
            task.result()
        finally:
            task.cancel()
            supersession.cancel()
            await asyncio.gather(task, supersession, return_exceptions=True)

    async def _superseded(self, sandbox: Sandbox) -> None:
        """Return once the sandbox has moved on."""
        with self._services.wakes.listen(sandbox_topic(sandbox.id)) as listener:
            while True:
                current = await self._reread(sandbox.id)
                if current is None or current.generation != sandbox.generation:
                    return
                await listener.wait(1.0)
