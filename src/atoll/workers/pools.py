"""Keeps warm pools full: boots what is missing, discards what nobody wants any more."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from functools import partial
from typing import Any
from uuid import UUID

import structlog

from atoll.domain.errors import AtollError
from atoll.domain.pool import MISSED_FOR, WarmInstance, WarmState, pool_target, shortfall
from atoll.domain.template import Revision
from atoll.ops.identity import DEFAULT_ACCOUNT, DEFAULT_TEMPLATE
from atoll.ops.instance import instance_spec, pool_key
from atoll.ops.services import Services
from atoll.store import identity, pools, templates
from atoll.store.database import Transaction
from atoll.store.wakes import POOLS

log = structlog.get_logger()

_BACKOFF_SECONDS = 30.0
_BOOTS_AT_ONCE = 2
_REFILL_AFTER_SECONDS = 0.75
_WARM_UP_SECONDS = 10.0
_Targets = dict[str, tuple[Revision, int, int]]
"""By pool key: what is booted, how many should wait, and below how many a refill is urgent."""


class PoolWorker:
    """The worker of warm pools. Rows are written before the work, so a crash leaves nothing that is not found again."""

    name = "pools"
    topics: tuple[str, ...] = (POOLS,)
    interval = 30.0
    patience = 0.0

    def __init__(self, services: Services) -> None:
        self._services = services
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._boots = asyncio.Semaphore(_BOOTS_AT_ONCE)
        self._not_before = 0.0

    async def run_once(self) -> float | None:
        """Compare each pool with what is wanted of it and begin what is missing."""
        # Taken before the look: a boot that ends after it is neither left behind by an earlier life nor missing.
        under_way = frozenset(self._tasks)
        targets, instances = await self._services.database.read(self._look)
        await self._discard_unwanted(targets, instances, under_way)
        now = asyncio.get_running_loop().time()
        for instance in instances:
            if instance.state is WarmState.DISCARDED and instance.id not in self._tasks:
                self._begin(instance.id, self._remove(instance.id))
        if now < self._not_before:
            return self._not_before - now
        for key, (revision, desired, minimum) in targets.items():
            booting = sum(i.pool_key == key and i.id in under_way for i in instances if i.state is WarmState.BOOTING)
            waiting = sum(i.pool_key == key for i in instances if i.state is WarmState.WAITING)
            for number in range(shortfall(desired, booting, waiting)):
                instance_id = self._services.new_id()
                await self._services.database.write(partial(pools.add, instance_id=instance_id, pool_key=key))
                after = 0.0 if booting + waiting + number < minimum else _REFILL_AFTER_SECONDS
                self._begin(instance_id, self._boot(instance_id, revision, after_seconds=after))
        return None

    async def close(self) -> None:
        """Stop where we are; BOOTING rows of an earlier life are discarded by the next."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _look(self, tx: Transaction) -> tuple[_Targets, list[WarmInstance]]:
        targets: _Targets = {}
        default = self._default_revision(tx)
        if default is not None and self._services.settings.warm_pool_size:
            targets[pool_key(default)] = (default, self._services.settings.warm_pool_size, 0)
        pooled = templates.pooled_revisions(tx)
        missed = templates.missed_pools(tx, [revision.id for revision in pooled], tx.now - MISSED_FOR)
        for revision in pooled:
            if revision.warm_pool is None:
                continue
            key = pool_key(revision)
            wanted = pool_target(revision.warm_pool, missed=revision.id in missed)
            _, shared, minimum = targets.get(key, (revision, 0, 0))  # revisions that boot the same share a pool
            targets[key] = (revision, max(wanted, shared), max(revision.warm_pool.min, minimum))
        return targets, pools.list_all(tx)

    @staticmethod
    def _default_revision(tx: Transaction) -> Revision | None:
        account = identity.find_account(tx, DEFAULT_ACCOUNT)
        template = None if account is None else templates.find(tx, account.id, DEFAULT_TEMPLATE)
        if template is None or not template.enabled or template.deprecated_at is not None:
            return None
        revision = templates.current_revision(tx, template)
        # A sandbox with a volume never comes from a pool (SA-042).
        return None if revision is None or revision.persistence_mode.uses_volume else revision

    async def _discard_unwanted(
        self, targets: _Targets, instances: list[WarmInstance], under_way: frozenset[str]
    ) -> None:
        """Discard surplus, instances of a superseded shape, and boots that an earlier life left behind."""
        kept: dict[str, int] = {}
        for instance in instances:
            if instance.state is WarmState.BOOTING and instance.id in under_way:
                continue
            wanted = targets[instance.pool_key][1] if instance.pool_key in targets else 0
            usable = instance.state is WarmState.WAITING and await self._answers(instance.id)
            if usable and kept.get(instance.pool_key, 0) < wanted:
                kept[instance.pool_key] = kept.get(instance.pool_key, 0) + 1
            elif instance.state is not WarmState.DISCARDED:
                await self._services.database.write(partial(pools.discard, instance_id=instance.id))

    async def _answers(self, instance_id: str) -> bool:
        try:
            await self._services.agents.get(instance_id)
        except AtollError:
            return False
        return True

    def _begin(self, instance_id: str, coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(coroutine)
        self._tasks[instance_id] = task
        task.add_done_callback(lambda _: self._tasks.pop(instance_id, None))

    async def _boot(self, instance_id: str, revision: Revision, *, after_seconds: float) -> None:
        services = self._services
        # Whoever has just claimed one is about to run its first command, which a boot beside it would slow down.
        await asyncio.sleep(after_seconds)
        try:
            async with self._boots:
                await services.driver.prepare_image(revision.image_digest)
                await services.driver.create(instance_spec(instance_id, revision))
            await self._warm_up(instance_id)
            await services.database.write(lambda tx: pools.mark_waiting(tx, instance_id))
        except Exception as failure:
            known = isinstance(failure, AtollError)
            log.warning("warm_boot_failed", instance_id=instance_id, reason=str(failure), exc_info=not known)
            self._not_before = asyncio.get_running_loop().time() + _BACKOFF_SECONDS
            await self._give_up(instance_id)

    async def _warm_up(self, instance_id: str) -> None:
        """Start a program: the first one in a sandbox takes twice as long as the next, and one that cannot start any is
        of no use. That an image has no `true` is fine."""
        agent = await self._services.agents.get(instance_id)
        execution = UUID(self._services.new_id())
        await agent.run(execution, ["true"], timeout_seconds=_WARM_UP_SECONDS)
        await agent.forget(execution)

    async def _give_up(self, instance_id: str) -> None:
        try:
            await self._services.database.write(lambda tx: pools.discard(tx, instance_id))
        except Exception:
            log.exception("warm_discard_failed", instance_id=instance_id)  # found at a later pass, as left behind

    async def _remove(self, instance_id: str) -> None:
        try:
            await self._services.agents.drop(instance_id)
            await self._services.driver.destroy(instance_id)
            await self._services.driver.cleanup(instance_id)
            await self._services.database.write(lambda tx: pools.remove(tx, instance_id))
        except Exception:
            log.exception("warm_removal_failed", instance_id=instance_id)  # the row stays; a later pass repeats it
